# SPDX-License-Identifier: Apache-2.0
"""Draws the report's charts; the page's style sheet has their colours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from observability import pictures

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Point = tuple[float, float | None]

_MOST_DOTS = 60
# Distance of the labels of two marks, as a share of the width for each letter.
_LETTER = 0.018
# Colours of the figure, and the page's names for them.
_INK, _LINE, _BAD = "#56637a", "#d8dee7", "#b3261e"
_PAGE = {_INK: "var(--soft)", _LINE: "var(--line)", _BAD: "var(--bad)"}
_PAGE |= {colour: f"var(--s{n})" for n, colour in enumerate(pictures.COLOURS)}
_DASHED_FROM = 4  # the first style with dashes


@dataclass(frozen=True)
class Line:
    """A curve.

    points: (x, y) in order of x; y is None where it is unknown.
    style: number of its colour.
    step: keeps each value until the next point.
    area: fills the area below.
    dots: marks points, if there are few.
    """

    name: str
    points: Sequence[Point]
    style: int = 0
    step: bool = False
    area: bool = False
    dots: bool = False


@dataclass(frozen=True)
class Mark:
    """An event at ``x`` that lasted until ``until`` (None: an instant)."""

    label: str
    x: float
    title: str
    until: float | None = None


@dataclass(frozen=True)
class Axis:
    """An axis.

    low, high: ends that it includes at least.
    log: logarithmic scale, for values above 0.
    """

    title: str
    low: float | None = None
    high: float | None = None
    log: bool = False


def chart(
    about: str,
    lines: Sequence[Line],
    x: Axis,
    y: Axis,
    marks: Sequence[Mark] = (),
    height: float = 220.0,
) -> str:
    """Returns SVG text of a chart; ``about`` describes it for screen readers."""
    with pictures.style():
        figure = pictures.new_figure(4.8, height / 100)
        figure.patch.set_visible(False)
        axes = figure.subplots()
        axes.patch.set_visible(False)
        axes.spines.left.set_visible(False)
        axes.spines.bottom.set_color(_INK)
        axes.tick_params(colors=_INK)
        axes.tick_params("y", length=0)
        axes.grid(axis="y", color=_LINE, clip_on=False)
        axes.set_xlabel(x.title, color=_INK, loc="right")
        axes.set_title(y.title, color=_INK, loc="left", pad=14 if marks else 5)
        for n, line in enumerate(lines):
            _draw_line(axes, line, f"curve-{n}")
        # The ends of the axes, which marks do not extend upwards.
        xs = [at for line in lines for at, _ in line.points] + [mark.x for mark in marks]
        ys = [at for line in lines for _, at in line.points if at is not None and math.isfinite(at)]
        axes.set(xlim=_span(xs, x), xscale="log" if x.log else "linear")
        axes.set(ylim=_span(ys, y, room=not y.log), yscale="log" if y.log else "linear")
        _draw_marks(axes, marks)
        pictures.label_ticks(axes.xaxis)
        pictures.label_ticks(axes.yaxis)
        return pictures.inline(figure, about, _PAGE)


def _span(values: Sequence[float], axis: Axis, *, room: bool = False) -> tuple[float, float]:
    """Returns the ends of an axis; room: some space above the highest value."""
    low = min([*values, *([axis.low] if axis.low is not None else [])], default=0.0)
    high = max([*values, *([axis.high] if axis.high is not None else [])], default=1.0)
    if high <= low:
        return low, low + (abs(low) or 1.0)
    return low, high + (0.04 * (high - low) if room and high != axis.high else 0.0)


def _draw_line(axes: Axes, line: Line, gid: str) -> None:
    xs = np.array([x for x, _ in line.points], float)
    ys = np.array([math.nan if y is None else y for _, y in line.points], float)
    ys[np.isinf(ys)] = math.nan
    known = np.isfinite(ys)
    around = np.concatenate([[False], known, [False]])
    alone = known & ~around[:-2] & ~around[2:]  # points that no line reaches
    marked = known if line.dots and known.sum() <= _MOST_DOTS else alone
    axes.plot(
        xs, ys,
        color=pictures.COLOURS[line.style],
        linewidth=1.3,
        linestyle="-" if line.style < _DASHED_FROM else "--",
        drawstyle="steps-post" if line.step else "default",
        marker="o" if marked.any() else "",
        markersize=3,
        markevery=np.flatnonzero(marked).tolist(),
        clip_on=False,
        gid=gid,
        label=line.name,
    )  # fmt: skip
    if line.area:
        axes.fill_between(
            xs, ys, alpha=0.16, color=pictures.COLOURS[line.style], linewidth=0,
            step="post" if line.step else None, clip_on=False,
        )  # fmt: skip


def _draw_marks(axes: Axes, marks: Sequence[Mark]) -> None:
    """Draws events as dashed lines. A label that would overlap the one before is left out."""
    low, high = axes.get_xlim()
    reached = -math.inf
    for number, mark in sorted(enumerate(marks), key=lambda one: one[1].x):
        axes.axvline(
            mark.x, color=_BAD, linewidth=0.8, linestyle="--", clip_on=False,
            gid=f"mark-{number}", label=mark.title,
        )  # fmt: skip
        if mark.until is not None:
            axes.axvspan(mark.x, min(mark.until, high), color=_BAD, alpha=0.09, linewidth=0)
        half = _LETTER * len(mark.label) * (high - low)
        if mark.x - half > reached:
            axes.annotate(
                mark.label, (mark.x, 1.0), (0, 2), xycoords=("data", "axes fraction"),
                textcoords="offset points", ha="center", color=_BAD, weight="bold",
                annotation_clip=False,
            )  # fmt: skip
            reached = mark.x + half
