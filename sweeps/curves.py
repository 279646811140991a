# SPDX-License-Identifier: Apache-2.0
"""Selects the curves of a sweep's plot: y over one axis, a curve for each combination of the other
axes that affect y, in panels if there are many; over seeds the median and the range."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from specs.sweepfile import Axis, PlotSpec
from sweeps.table import Row, column
from sweeps.wording import Measure, axis_name, of_axis, of_column, value_text

MOST_CURVES = 24
_FEW = 8  # distinguishable curves in one panel
_MOST_PANELS = 12
# The ratio of largest to smallest value from which scales are logarithmic by default.
_DECADES = 50
Key = tuple[Any, ...]


@dataclass(frozen=True)
class Curve:
    """A curve. number: of its style. points: (x, lowest, median, highest) with ascending x; the
    last three are equal if there is one seed or no difference."""

    number: int
    points: tuple[tuple[float, float, float, float], ...]


@dataclass(frozen=True)
class Panel:
    """A panel. title: the values that its curves share, "" for the only panel."""

    title: str
    curves: tuple[Curve, ...]


@dataclass(frozen=True)
class Figure:
    """A plot; points are in units of the scales.

    labels: Of styles, by number; a single empty one if there is one curve.
    notes: Explanations for readers.
    names: Labels of 0, 1, ... on an x scale without numbers.
    """

    x: Measure
    y: Measure
    log_x: bool
    log_y: bool
    panels: tuple[Panel, ...]
    labels: tuple[str, ...]
    notes: tuple[str, ...]
    names: tuple[str, ...] = ()

    def values(self, place: int) -> list[float]:
        """Returns one coordinate of all points."""
        return [p[place] for panel in self.panels for one in panel.curves for p in one.points]


def figure(axes: Sequence[Axis], spec: PlotSpec, rows: Sequence[Row]) -> Figure | str:
    """Returns the plot, or why there is none."""
    named = [axis for axis in axes if spec.x in (None, axis.path)]
    fit = [axis for axis in named if len(_values(axis, rows)) > 1]
    # Seeds and axes without numbers are the x axis only as a last resort.
    fit.sort(key=lambda axis: (axis.of_seeds, not _numbers(axis, rows)))
    if not fit:
        return f"{spec.x or 'no axis'} has several values to plot over"
    over, y = fit[0], spec.y
    numbers = _numbers(over, rows)
    places: dict[Any, float] = {value: n for n, value in enumerate(_values(over, rows))}
    known = [row for row in rows if _is_number(row.get(y))]
    log_x = numbers and _logarithmic("x", spec, [row[column(over)] for row in known])
    log_y = _logarithmic("y", spec, [row[y] for row in known])
    shown = [r for r in known if not ((log_x and r[column(over)] <= 0) or (log_y and r[y] <= 0))]
    if not shown:
        return f"no trial has a number for {y} that such an axis can show"
    across = Measure(axis_name(over), 1)
    if numbers:
        across = of_axis(over, [row[column(over)] for row in shown], log=log_x)
        places = {value: value / across.factor for value in places}
    others = [axis for axis in axes if axis is not over and len(_values(axis, rows)) > 1]
    seeds = [column(axis) for axis in others if axis.of_seeds]
    others = [axis for axis in others if not axis.of_seeds]
    idle = [axis for axis in others if not _matters(axis, axes, y, shown)]
    others = [axis for axis in others if axis not in idle]
    upwards = of_column(y, [row[y] for row in shown], log=log_y)
    points: dict[Key, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in shown:
        key = tuple(row[column(axis)] for axis in others)
        points[key][places[row[column(over)]]].append(row[y] / upwards.factor)
    facets = _facets(others, [*points])
    inside = [n for n in range(len(others)) if n not in facets]
    order = [{v: n for n, v in enumerate(_values(axis, rows))} for axis in others]
    keys = _by([*points], order, range(len(others)))
    styles = list(dict.fromkeys(tuple(key[n] for n in inside) for key in _by(keys, order, inside)))
    panels: dict[Key, list[Curve]] = {}
    for key in keys:
        number = styles.index(tuple(key[n] for n in inside))
        if number < MOST_CURVES:
            curve = Curve(number, _spread(points[key]))
            panels.setdefault(tuple(key[n] for n in facets), []).append(curve)
    spread = any(low < high for one in points.values() for _, low, _, high in _spread(one))
    return Figure(
        across,
        upwards,
        log_x,
        log_y,
        tuple(
            Panel(_label([others[n] for n in facets], values), tuple(curves))
            for values, curves in panels.items()
        ),
        tuple(_label([others[n] for n in inside], key) for key in styles[:MOST_CURVES]),
        (
            *_of_several(len({tuple(row[one] for one in seeds) for row in shown}), spread, numbers),
            *_of_idle(idle, rows),
            *_left_out(len(styles) - MOST_CURVES, len(rows) - len(shown)),
        ),
        () if numbers else tuple(value_text(over, value) for value in places),
    )


def _numbers(axis: Axis, rows: Sequence[Row]) -> bool:
    return all(_is_number(row[column(axis)]) for row in rows)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _values(axis: Axis, rows: Sequence[Row]) -> list[Any]:
    """Returns an axis's distinct values: numbers sorted, others in the order of the file."""
    found = list(dict.fromkeys(row[column(axis)] for row in rows))
    return sorted(found) if all(map(_is_number, found)) else found


def _logarithmic(which: str, spec: PlotSpec, values: Sequence[float]) -> bool:
    if spec.log is not None:
        return which in spec.log
    return bool(values) and min(values) > 0 and max(values) >= _DECADES * min(values)


def _matters(axis: Axis, axes: Sequence[Axis], y: str, rows: Sequence[Row]) -> bool:
    """Tells whether y differs between rows that differ in this axis only."""
    same: dict[Key, set[float]] = defaultdict(set)
    for row in rows:
        same[tuple(row[column(one)] for one in axes if one is not axis)].add(row[y])
    alone = len({row[column(axis)] for row in rows}) > 1 and len(same) == len(rows)
    return alone or any(len(values) > 1 for values in same.values())


def _facets(others: Sequence[Axis], keys: Sequence[Key]) -> tuple[int, ...]:
    """Chooses the axes that distinguish panels: as few panels as give each few curves."""
    if len(keys) <= _FEW:
        return ()
    best: tuple[tuple[int, ...], tuple[int, ...]] = ((0,), ())
    for count in (1, 2):
        for chosen in itertools.combinations(range(len(others)), count):
            panels = {tuple(key[n] for n in chosen) for key in keys}
            rest = [n for n in range(len(others)) if n not in chosen]
            curves = len({tuple(key[n] for n in rest) for key in keys})
            if not rest or len(panels) > _MOST_PANELS:
                continue
            rank = (curves <= _FEW, -len(panels) if curves <= _FEW else -curves)
            if not best[1] or rank > best[0]:
                best = (rank, chosen)
    return best[1]


def _by(keys: Sequence[Key], order: Sequence[dict[Any, int]], inside: Sequence[int]) -> list[Key]:
    return sorted(keys, key=lambda key: [order[n][key[n]] for n in inside])


def _spread(
    points: dict[float, list[float]],
) -> tuple[tuple[float, float, float, float], ...]:
    return tuple(
        (x, min(values), statistics.median(values), max(values))
        for x, values in sorted(points.items())
    )


def _label(axes: Sequence[Axis], key: Key) -> str:
    pairs = zip(axes, key, strict=True)
    return ", ".join(f"{axis_name(axis)} = {value_text(axis, value)}" for axis, value in pairs)


def _of_several(seeds: int, spread: bool, numbers: bool) -> Iterable[str]:
    if seeds > 1 and spread:
        medians, ranges = ("lines", "bands") if numbers else ("marks", "lines")
        yield f"{medians}: medians of {seeds} seeds; {ranges}: from the lowest to the highest"
    elif seeds > 1:
        yield f"the same with each of {seeds} seeds"


def _of_idle(idle: Sequence[Axis], rows: Sequence[Row]) -> Iterable[str]:
    for axis in idle:
        values = ", ".join(value_text(axis, one) for one in _values(axis, rows))
        yield f"it does not depend on {axis_name(axis)} ({values})"


def _left_out(curves: int, trials: int) -> Iterable[str]:
    if curves > 0:
        yield f"left out, but in the table: {curves:,} more curves"
    if trials > 0:
        yield f"left out: trials without a value that could be drawn, {trials:,}"
