# SPDX-License-Identifier: Apache-2.0
"""Sensitivity of results to parameters that no paper gives: each halved and doubled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from experiments.common.declaration import Block, Plot, Table
from experiments.common.page import number
from experiments.common.plots import curve, legend, panels
from observability import pictures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["AS_ASSUMED", "FACTORS", "Varied", "sensitivity", "setting", "variations"]

FACTORS = (0.5, 2.0)
AS_ASSUMED = "none"  # in place of a parameter
_STEPS = {0.5: "half", 1.0: "as is", 2.0: "double"}
_GREY = "#7f7f7f"
_DOTTED = (0, (1, 2))
_COLUMNS = 3  # of a legend


def variations(
    parameters: Iterable[str], *, base: bool = False
) -> Iterator[tuple[str, float, Mapping[str, float]]]:
    """Yields a parameter, its factor, and the factors of all, for each parameter halved and
    doubled.

    Args:
        base: Also yield ``AS_ASSUMED``, where all are as assumed: no other point has that setting.
    """
    names = list(parameters)
    for name in names:
        for factor in FACTORS:
            yield name, factor, {one: factor if one == name else 1.0 for one in names}
    if base:
        yield AS_ASSUMED, 1.0, dict.fromkeys(names, 1.0)


def setting(parameter: str, factor: float) -> dict[str, str | float]:
    """Returns the values of points with a parameter times a factor, or with ``AS_ASSUMED``."""
    name = AS_ASSUMED if factor == 1 else parameter
    return {"of": "sensitivity", "parameter": name, "factor": factor}


@dataclass(frozen=True)
class Varied:
    """A result over a parameter.

    panel: Title of the panel that it is drawn in. text: What it is, in the legend.
    at: Returns it, with the parameter times a factor.
    published: The figure that is published of it, if any.
    """

    panel: str
    text: str
    at: Callable[[float], float]
    published: float | None = None


def sensitivity(about: str, axis: str, results: Sequence[Varied]) -> list[Block]:
    """Returns the plot ``sensitivity`` and its table.

    Args:
        about: What the plot shows, for its caption.
        axis: What the results are, with their unit, for the axis.
        results: In the order of panels and of the table.
    """
    rows = [
        (f"{one.panel}: {one.text}", *(number(one.at(factor)) for factor in _STEPS))
        for one in results
    ]
    return [
        Plot("sensitivity", about, partial(_draw, axis, results)),
        Table((axis, "halved", "as assumed", "doubled"), rows),
    ]


def _draw(axis: str, results: Sequence[Varied]) -> Figure:
    titles = list(dict.fromkeys(one.panel for one in results))
    texts = list(dict.fromkeys(one.text for one in results))
    figure, panes = panels(1, len(titles), 2.9)
    for axes, title in zip(panes, titles, strict=True):
        shown = [one for one in results if one.panel == title]
        published = {one.published: texts.index(one.text) for one in shown}
        for one in shown:
            curve(axes, texts.index(one.text), enumerate(map(one.at, _STEPS)), one.text)
        for value, style in published.items():
            if value is not None:
                colour = pictures.COLOURS[style] if len(published) > 1 else _GREY
                axes.axhline(value, color=colour, linewidth=1, linestyle=_DOTTED)
        axes.set_xticks(range(len(_STEPS)), list(_STEPS.values()))
        axes.set(xlim=(-0.25, 2.25), ylim=(0, None))
        axes.set_ylim(0, 1.06 * axes.get_ylim()[1])
        axes.set_title(title, loc="left")
    panes[0].set_ylabel(axis)
    if any(one.published is not None for one in results):
        panes[-1].plot([], [], color=_GREY, linewidth=1, linestyle=_DOTTED, label="published")
    legend(figure, panes, _COLUMNS)
    return figure
