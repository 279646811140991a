# SPDX-License-Identifier: Apache-2.0
"""Parts of plots that experiments share: curves of results, in the house's colours and marks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from observability import pictures

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["WIDTH", "curve", "legend", "panels", "start", "ticks"]

WIDTH = 7.2  # inches, of every plot: a README's
_MARKS = "os^Dv"
_DASHES = ("-", (0, (5, 2)), (0, (1, 1.5)), "-.")


def start(height: float = 3.4) -> tuple[Figure, Axes]:
    """Returns a figure with one pair of axes."""
    figure, (axes,) = panels(1, 1, height)
    return figure, axes


def panels(
    rows: int, columns: int, height: float, *, sharex: bool = False
) -> tuple[Figure, list[Axes]]:
    """Returns a figure with several axes, row by row.

    Args:
        sharex: They have the same x axis.
    """
    figure = pictures.new_figure(WIDTH, height)
    found = figure.subplots(rows, columns, squeeze=False, sharex=sharex)
    axes: list[Axes] = list(found.flatten())
    for one in axes:
        one.grid(axis="y")
    return figure, axes


def curve(
    axes: Axes,
    number: int,
    points: Iterable[tuple[float, float]],
    label: str = "",
    *,
    fill: bool = True,
) -> None:
    """Draws points and lines between them, in the style of a number.

    Args:
        label: For the legend.
        fill: Whether marks are filled.
    """
    found = sorted(points)
    colour = pictures.COLOURS[number % len(pictures.COLOURS)]
    axes.plot(
        [x for x, _ in found],
        [y for _, y in found],
        color=colour,
        linestyle=_DASHES[number % len(_DASHES)],
        linewidth=1.6,
        marker=_MARKS[number % len(_MARKS)],
        markersize=5,
        markerfacecolor=colour if fill else "white",
        clip_on=False,
        label=label or None,
    )


def legend(figure: Figure, axes: Sequence[Axes], columns: int) -> None:
    """Draws one legend below all axes, each label once.

    Args:
        columns: Of the legend, at most.
    """
    found = {
        text: handle
        for one in axes
        for handle, text in zip(*one.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        list(found.values()), list(found), loc="outside lower center",
        ncols=min(columns, len(found)),
    )  # fmt: skip


def ticks(axes: Axes, values: Sequence[float], text: Callable[[float], str]) -> None:
    """Labels the x axis at these values."""
    from matplotlib import ticker

    axes.xaxis.set_major_locator(ticker.FixedLocator(list(values)))
    axes.xaxis.set_minor_locator(ticker.NullLocator())
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: text(value)))
