# SPDX-License-Identifier: Apache-2.0
"""Finds axes of a sweep that have less effect than they seem to. Reported as notes, not errors."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

from specs.sweepfile import Axis
from sweeps.table import Row, column
from sweeps.trials import Trial
from topologies.model.units import rate_text, size_text, time_text

_DEFAULTS = "defaults"
_TEXTS: dict[str, Callable[[float], str]] = {
    "rate": rate_text,
    "delay": time_text,
    "queue_bytes": size_text,
    "ecn_bytes": size_text,
    "mtu": size_text,
}
# Columns that differ between trials with equal results.
_ALWAYS = ("trial", "state", "attempts", "error", "wall_time_s", "topology", "job")
_TOLD_LINKS = 3


def before(axes: Sequence[Axis], trials: Sequence[Trial]) -> Iterator[str]:
    """Yields notes before any trial runs: axes that change nothing, and defaults that the file
    overrides for some links."""
    for axis in axes:
        groups = list(_along(axis, axes, [one.values for one in trials], trials))
        if not groups:
            continue
        if all(len({one.effect for one in group}) == 1 for group in groups):
            yield (
                f"{axis.path} changes nothing: with each of its values, topology and job come to"
                " the same"
            )
        elif axis.kind == "topology" and axis.location[0] == _DEFAULTS and len(axis.location) == 2:
            name = axis.location[1]
            # No note if the sweep sets the overriding fields as well.
            if not any(one.location[-1] == name and one is not axis for one in axes):
                yield from _overridden(axis, groups[0])


def _overridden(axis: Axis, group: Sequence[Trial]) -> Iterator[str]:
    name = str(axis.location[1])
    found = [one.links[name] for one in group if name in one.links]
    if len(found) < 2:
        return
    kept = [link for link, value in found[0].items() if all(f.get(link) == value for f in found)]
    if not kept:
        return
    form = _TEXTS.get(name, "{:g}".format)
    values = sorted({found[0][link] for link in kept})
    some = ", ".join(kept[:_TOLD_LINKS])
    more = f" and {len(kept) - _TOLD_LINKS} more" if len(kept) > _TOLD_LINKS else ""
    yield (
        f"{axis.path} does not reach {some}{more}: a {name} of their own"
        f" ({', '.join(form(value) for value in values)}) stays; to change it, too, make it an axis"
        " (topology.uplinks, racks or links)"
    )


def equal(axes: Sequence[Axis], rows: Sequence[Row]) -> Iterator[str]:
    """Yields notes on axes along which all results are equal."""
    done = [row for row in rows if row["state"] == "done"]
    own = {column(axis) for axis in axes}
    for axis in axes:
        values = [{other.path: row[column(other)] for other in axes} for row in done]
        groups = list(_along(axis, axes, values, done))
        if groups and all(len({_came_to(row, own) for row in group}) == 1 for group in groups):
            yield f"{axis.path} makes no difference: results are equal, whatever its value"


def _came_to(row: Row, own: set[str]) -> tuple[Any, ...]:
    return tuple(row[name] for name in sorted(row) if name not in own and name not in _ALWAYS)


def _along(
    axis: Axis, axes: Sequence[Axis], values: Sequence[dict[str, Any]], things: Sequence[Any]
) -> Iterator[list[Any]]:
    """Groups items that differ in this axis only; yields groups of two or more."""
    groups: dict[Hashable, list[Any]] = defaultdict(list)
    for chosen, thing in zip(values, things, strict=True):
        others = tuple(repr(chosen[one.path]) for one in axes if one is not axis)
        groups[others].append(thing)
    return itertools.filterfalse(lambda group: len(group) < 2, groups.values())
