# SPDX-License-Identifier: Apache-2.0
"""Draws the results of a sweep."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from observability import pictures
from sweeps.curves import Curve, Figure, Panel

if TYPE_CHECKING:
    import matplotlib.figure
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

_DASHES = ("-", (0, (5, 2)), ":", "-.")
_MARKS = "os^Dv"
_BESIDE = 0.06  # between marks at the same name
_MOST_TICKS = 8  # up to here, scales are labelled with the values themselves
_LETTER = 0.075  # inches, about


def draw(found: Figure) -> matplotlib.figure.Figure:
    """Returns the plot. All panels have the same scales, so that they can be compared."""
    panels = len(found.panels)
    columns = 1 if panels == 1 else 2 if panels in (2, 4) else 3
    rows = math.ceil(panels / columns)
    width = 8.6 if columns > 2 else 6.4
    with pictures.style():
        entries = max(1, min(len(found.labels), int(width / (0.7 + _LETTER * _longest(found)))))
        below = 0.2 * (len(found.notes) + math.ceil(len(found.labels) / entries))
        figure = pictures.new_figure(width, 0.7 + below + rows * (3.0 if panels == 1 else 2.2))
        places = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flatten()
        for number, (axes, panel) in enumerate(zip(places, found.panels, strict=False)):
            _panel(axes, found, panel, f"curve-{number}")
        for axes in places[panels:]:
            axes.set_visible(False)
        for axes in places[max(0, panels - columns) : panels]:
            axes.set_xlabel(found.x.title)
            axes.tick_params("x", labelbottom=True)
        _scales(places[0], found)
        figure.supylabel(found.y.title, fontsize="medium")
        several = len(found.labels) > 1
        if several or found.notes:
            figure.legend(
                handles=[_sample(found, n) for n in range(len(found.labels)) if several],
                loc="outside lower center",
                ncols=entries,
                title="\n".join(found.notes),
                title_fontsize="medium",
                alignment="left",
                handlelength=3,
            )
    return figure


def _longest(found: Figure) -> int:
    return max(map(len, found.labels))


def _scales(axes: Axes, found: Figure) -> None:
    """Sets the scales of all panels."""
    axes.set_xscale("log" if found.log_x else "linear")
    axes.set_yscale("log" if found.log_y else "linear")
    if not found.log_y:
        axes.set_ylim(min(0.0, *found.values(1)), axes.get_ylim()[1])
    values = sorted(set(found.values(0)))
    pictures.label_ticks(axes.yaxis)
    if found.names:
        axes.set_xlim(-0.5, len(found.names) - 0.5)
        axes.set_xticks(range(len(found.names)), found.names)
    else:
        pictures.label_ticks(axes.xaxis, values if len(values) <= _MOST_TICKS else None)


def _panel(axes: Axes, found: Figure, panel: Panel, id_: str) -> None:
    axes.grid(axis="y")
    axes.set_title(panel.title)
    for curve in panel.curves:
        # Points at the same name are side by side.
        beside = _BESIDE * (curve.number - (len(found.labels) - 1) / 2) if found.names else 0.0
        xs = [at + beside for at, *_ in curve.points]
        _range(axes, curve, xs, apart=bool(found.names))
        label = ", ".join(filter(None, [panel.title, found.labels[curve.number]]))
        medians = [median for _, _, median, _ in curve.points]
        axes.plot(
            xs, medians, **_looks(found, curve.number), gid=f"{id_}-{curve.number}", label=label
        )


def _range(axes: Axes, curve: Curve, xs: list[float], *, apart: bool) -> None:
    """Draws the range over seeds. apart: as a line at each point instead of a band."""
    lows, highs = [low for _, low, _, _ in curve.points], [high for *_, high in curve.points]
    colour = pictures.COLOURS[curve.number % len(pictures.COLOURS)]
    if lows == highs:
        return
    if apart or len(xs) == 1:
        axes.vlines(xs, lows, highs, color=colour)
    else:
        axes.fill_between(xs, lows, highs, color=colour, alpha=0.18, linewidth=0)


def _looks(found: Figure, number: int) -> dict[str, Any]:
    """Returns the style of a curve. No lines between names: there is nothing in between."""
    again = number // len(pictures.COLOURS)
    colour = pictures.COLOURS[number % len(pictures.COLOURS)]
    return {
        "color": colour,
        "linestyle": "none" if found.names else _DASHES[(number + again) % len(_DASHES)],
        "linewidth": 1.5,
        "marker": _MARKS[number % len(_MARKS)],
        "markersize": 5,
        "markerfacecolor": "white" if again % 2 else colour,
    }


def _sample(found: Figure, number: int) -> Line2D:
    from matplotlib.lines import Line2D

    return Line2D([], [], label=found.labels[number], **_looks(found, number))
