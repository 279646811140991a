# SPDX-License-Identifier: Apache-2.0
"""Draws charts as SVG; the page's style sheet has their colours."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from xml.etree import ElementTree

Point = tuple[float, float | None]

WIDTH = 480.0
LEFT, RIGHT, TOP, BOTTOM = 46.0, 12.0, 18.0, 34.0
TICK_LENGTH = 4.0
# Approximate width of a letter at the style sheet's size.
LETTER = 6.6
_PREFIXES = {3: " k", 6: " M", 9: " G", 12: " T"}
# More points of a curve could not be distinguished.
MOST_POINTS = 600
_MOST_DOTS = 60
_MOST_TICKS = 7


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
    svg = ElementTree.Element(
        "svg",
        {"class": "chart", "viewBox": f"0 0 {WIDTH:g} {height:g}", "role": "img"},
    )
    svg.set("aria-label", about)
    xs = [point[0] for line in lines for point in line.points] + [mark.x for mark in marks]
    ys = [p[1] for line in lines for p in line.points if p[1] is not None and math.isfinite(p[1])]
    sides = LEFT, WIDTH - RIGHT
    across = LogScale(_span(xs, x), *sides) if x.log else LinearScale(_span(xs, x), *sides, 7)
    ends = height - BOTTOM, TOP
    upwards = LogScale(_span(ys, y), *ends) if y.log else LinearScale(_span(ys, y), *ends, 5, True)
    _grid(svg, across, upwards, x, y, height)
    _marks(svg, across, marks, height)
    for line in lines:
        _line(svg, line, across, upwards)
    return ElementTree.tostring(svg, encoding="unicode")


# --- scales ---


class LinearScale:
    """Maps values of a span to coordinates. whole_ticks: extends the span to whole ticks."""

    def __init__(
        self,
        span: tuple[float, float],
        start: float,
        end: float,
        count: int,
        whole_ticks: bool = False,
    ) -> None:
        low, high = span
        step = _step((high - low) / count)
        if whole_ticks:
            low, high = math.floor(low / step) * step, math.ceil(high / step - 1e-9) * step
        first = math.ceil(low / step - 1e-9)
        self.ticks = [n * step for n in range(first, math.floor(high / step + 1e-9) + 1)]
        self.low, self.high = low, high
        self._digits = max(0, -math.floor(math.log10(step) + 1e-9))
        self._start, self._factor = start, (end - start) / (high - low)

    def __call__(self, value: float) -> float:
        inside = min(max(value, self.low), self.high)
        return self._start + (inside - self.low) * self._factor

    def text(self, tick: float) -> str:
        """Formats a tick."""
        return f"{tick:,.{self._digits}f}"


class LogScale:
    """Maps values above 0 to coordinates by their logarithms; used like ``LinearScale``."""

    def __init__(self, span: tuple[float, float], start: float, end: float) -> None:
        powers = range(math.floor(math.log10(span[0])), math.ceil(math.log10(span[1])) + 1)
        every = [n * 10.0**power for power in powers for n in (1, 2, 5)]
        self.low = max((tick for tick in every if tick <= span[0]), default=span[0])
        self.high = min((tick for tick in every if tick >= span[1]), default=span[1])
        self.ticks = [tick for tick in every if self.low <= tick <= self.high]
        if len(self.ticks) > _MOST_TICKS:
            self.ticks = [tick for tick in self.ticks if 10.0 ** round(math.log10(tick)) == tick]
        self._start = start
        self._factor = (end - start) / math.log10(self.high / self.low)

    def __call__(self, value: float) -> float:
        inside = min(max(value, self.low), self.high)
        return self._start + math.log10(inside / self.low) * self._factor

    def text(self, tick: float) -> str:
        """Formats a tick."""
        power = max((p for p in _PREFIXES if 10.0**p <= tick), default=0)
        return f"{tick / 10.0**power:g}{_PREFIXES.get(power, '')}"


Scale = LinearScale | LogScale


def _step(least: float) -> float:
    """Returns the smallest of 1, 2 and 5 times a power of ten that is not below ``least``."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(n * power for n in (1, 2, 5, 10) if n * power >= least * (1 - 1e-9))


def _span(values: Sequence[float], axis: Axis) -> tuple[float, float]:
    low = min([*values, *([axis.low] if axis.low is not None else [])], default=0.0)
    high = max([*values, *([axis.high] if axis.high is not None else [])], default=1.0)
    return (low, high) if high > low else (low, low + (abs(low) or 1.0))


# --- parts ---


def _grid(
    svg: ElementTree.Element, across: Scale, upwards: Scale, x: Axis, y: Axis, height: float
) -> None:
    bottom = height - BOTTOM
    for tick in upwards.ticks:
        at = upwards(tick)
        _add(svg, "line", "gridline", x1=LEFT, x2=WIDTH - RIGHT, y1=at, y2=at)
        _text(svg, "tick end", LEFT - 6, at + 4, upwards.text(tick))
    for tick in across.ticks:
        at = across(tick)
        _add(svg, "line", "axis", x1=at, x2=at, y1=bottom, y2=bottom + TICK_LENGTH)
        text = across.text(tick)
        half = LETTER * len(text) / 2
        _text(svg, "tick middle", min(at, WIDTH - half), bottom + 16, text)
    _add(svg, "line", "axis", x1=LEFT, x2=WIDTH - RIGHT, y1=bottom, y2=bottom)
    _text(svg, "tick end", WIDTH - RIGHT, height - 4, x.title)
    if y.title:
        _text(svg, "tick", 2, 11, y.title)


def _marks(svg: ElementTree.Element, across: Scale, marks: Sequence[Mark], height: float) -> None:
    reached = -math.inf
    for mark in sorted(marks, key=lambda mark: mark.x):
        at = across(mark.x)
        group = ElementTree.SubElement(svg, "g", {"class": "mark"})
        ElementTree.SubElement(group, "title").text = mark.title
        if mark.until is not None and across(mark.until) > at:
            width = across(mark.until) - at
            _add(group, "rect", "lasts", x=at, y=TOP, width=width, height=height - BOTTOM - TOP)
        _add(group, "line", "", x1=at, x2=at, y1=TOP, y2=height - BOTTOM)
        half = len(mark.label) * LETTER / 2
        if at - half > reached + 2:  # otherwise it would overlap the label before
            _text(group, "middle", at, TOP - 5, mark.label)
            reached = at + half


def _line(svg: ElementTree.Element, line: Line, across: Scale, upwards: Scale) -> None:
    group = ElementTree.SubElement(svg, "g", {"class": f"line s{line.style}"})
    ElementTree.SubElement(group, "title").text = line.name
    for run in _runs(line.points):
        places = [(across(x), upwards(y)) for x, y in _thinned(run)]
        if line.step:
            corners = [(b[0], a[1]) for a, b in pairwise(places)]
            places = [p for pair in zip(places, [*corners, places[-1]], strict=True) for p in pair]
        path = "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in places)
        if line.area:
            floor = upwards(upwards.low)
            around = f"{path}L{places[-1][0]:.1f},{floor:.1f}L{places[0][0]:.1f},{floor:.1f}Z"
            _add(group, "path", "area", d=around)
        _add(group, "path", "curve", d=path)
        if (line.dots and len(places) <= _MOST_DOTS) or len(places) == 1:
            for x, y in places:
                _add(group, "circle", "dot", cx=round(x, 1), cy=round(y, 1), r=2)


def _runs(points: Sequence[Point]) -> Iterator[list[tuple[float, float]]]:
    """Yields the consecutive known parts of a curve."""
    for known, part in groupby(points, lambda p: p[1] is not None and math.isfinite(p[1])):
        if known:
            yield [(x, y) for x, y in part if y is not None]


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Reduces a curve to points that suffice for drawing: the extremes of each short stretch."""
    if len(points) <= MOST_POINTS:
        return list(points)
    size = math.ceil(2 * len(points) / MOST_POINTS)
    kept = [points[0]]
    for start in range(0, len(points), size):
        part = points[start : start + size]
        ends = {min(part, key=lambda p: p[1]), max(part, key=lambda p: p[1])}
        kept += sorted(ends)
    return [*kept, points[-1]]


def _add(parent: ElementTree.Element, tag: str, kind: str, **given: float | str) -> None:
    values = {k: v if isinstance(v, str) else f"{round(v, 2):g}" for k, v in given.items()}
    ElementTree.SubElement(parent, tag, {**({"class": kind} if kind else {}), **values})


def _text(parent: ElementTree.Element, kind: str, x: float, y: float, text: str) -> None:
    place = {"class": kind, "x": f"{x:.1f}", "y": f"{y:.1f}"}
    ElementTree.SubElement(parent, "text", place).text = text
