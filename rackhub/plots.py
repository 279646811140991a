# SPDX-License-Identifier: Apache-2.0
"""The plot of a job's result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from observability import pictures
from observability.messages.summary import Link
from observability.wording import sending_ends

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_LINKS = 16  # drawn: the busiest
_MARKED = 60  # iterations up to which each has a mark
_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
_SIZES = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))


def draw(
    seconds: Mapping[int, float], losses: Mapping[int, float], links: Sequence[Link]
) -> Figure:
    """Returns a figure: time and loss of iterations by number, and bytes of the busiest links."""
    factor, unit = _unit(max(seconds.values()), _TIMES)
    curves: list[tuple[str, Mapping[int, float]]]
    curves = [(f"time per iteration ({unit})", {n: one / factor for n, one in seconds.items()})]
    curves += [("loss (nats)", losses)] if losses else []
    with pictures.style():
        figure = pictures.new_figure(8.6 if links else 4.6, 1.4 + 1.6 * len(curves))
        grid = figure.add_gridspec(len(curves), 1 + bool(links))
        places = [figure.add_subplot(grid[row, 0]) for row in range(len(curves))]
        for colour, (axes, (title, values)) in enumerate(zip(places, curves, strict=True)):
            mark = "o" if len(values) <= _MARKED else ""
            axes.plot(
                *(list(values), list(values.values())),
                color=pictures.COLOURS[colour],
                marker=mark,
                markersize=3,
            )
            axes.grid(axis="y")
            axes.set_title(title, loc="left")
            axes.set_xlim(min(seconds) - 0.5, max(seconds) + 0.5)
            axes.set_ylim(0, 1.05 * max(values.values()))
            pictures.label_ticks(axes.xaxis)
            pictures.label_ticks(axes.yaxis)
        places[-1].set_xlabel("iteration")
        if links:
            _draw_links(figure.add_subplot(grid[:, 1]), links)
    return figure


def _draw_links(axes: Axes, links: Sequence[Link]) -> None:
    rows = list(zip(sending_ends(links), links, strict=True))
    rows = [(end, row) for end, row in rows if row["bytes"]]
    rows = sorted(rows, key=lambda one: -(one[1]["bytes"] or 0))[:_MOST_LINKS]
    factor, unit = _unit(max((row["bytes"] or 0 for _, row in rows), default=1), _SIZES)
    places = range(len(rows))
    carried = [(row["bytes"] or 0) / factor for _, row in rows]
    axes.barh(places, carried, color=pictures.COLOURS[2], label="carried")
    expected = [row["expected_bytes"] for _, row in rows]
    if all(one is not None for one in expected):
        axes.plot(
            [(one or 0) / factor for one in expected], places, linestyle="none", marker="|",
            markersize=9, color="black", label="expected",
        )  # fmt: skip
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, borderaxespad=0)
    axes.set_yticks(places, [f"{end} to {row['to']}" for end, row in rows])
    axes.invert_yaxis()
    axes.tick_params("y", length=0)
    axes.grid(axis="x")
    axes.set_title(f"busiest links ({unit})", loc="left")
    pictures.label_ticks(axes.xaxis)


def _unit(largest: float, units: tuple[tuple[float, str], ...]) -> tuple[float, str]:
    """Returns the largest unit that is not above a value, and its factor."""
    return next((one for one in units if largest >= one[0]), units[-1])
