# SPDX-License-Identifier: Apache-2.0
"""Explains in words which placement is the fastest, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

from planner.collectives import COLLECTIVES
from planner.collectives.boxes import Boxes
from planner.iteration_time import Prediction
from planner.network import HOST, PROCESS, SERVER, WORKER, Network
from planner.placement_table import Need
from topologies.model.units import rate_text, size_text, time_text

_FLAT = "cs"
_ROUNDING = 1e-9  # of an iteration: less is an error of rounding
_ALIKE = 1.001  # ratio of times below which placements count as equal


def link_name(name: str) -> str:
    """Returns the display name of a class of links, and any other bottleneck unchanged."""
    level = name.removeprefix("uplink ")
    if level == name:
        return name
    return "ToR uplink" if level == "1" else f"core uplink {int(level) - 1}"


def refusal_reasons(found: Sequence[Prediction], needs: Sequence[Need]) -> list[str]:
    """Lists the reasons why no placement can run, each once; empty if one can.

    needs: the same placements as planned on the topology, or none.
    """
    asked = [one for one in found if one.tree]
    known = {(one.placement, one.tree): one.bytes for one in asked if one.refused}
    planned = [one for one in needs if not known.get((one.placement, one.tree))]
    if not all([*(one.refused for one in asked), *(one.refused for one in planned)]):
        return []
    by_plan = {(one.placement, one.tree): one.refused for one in needs if one.refused}
    by_model = {(one.placement, one.tree): one.refused for one in asked if one.refused}
    reasons = (by_model | by_plan).values()
    return list(dict.fromkeys(one.partition(";")[0] for one in reasons))


def explain_fastest(found: Sequence[Prediction], network: Network) -> str:
    """Explains which placement is the fastest, its bottleneck, and the bottleneck of the next.

    found: fastest first, as ``predictions`` returns them.
    """
    fit = [one for one in found if not one.refused and one.bytes]
    if not fit:
        return "None of the placements can be had here."
    best, *others = fit
    text = f"{best.name} wins with {time_text(best.seconds)} an iteration: "
    if best.parts.get("compute"):
        text += f"computing takes {_part(best, 'compute')} of each; "
    text += _busy(best, network)
    overlap = -best.parts.get("overlap", 0.0)
    if overlap > _ROUNDING * best.seconds:
        text += f"; {time_text(overlap)} of that pass while it computes"
    extra = {"window": _window(best)}
    extra["loss"] = f"what is lost costs {_part(best, 'loss')} in the mean"
    extra["latency"] = (
        f"most of it is latency, {_part(best, 'fill')} of a chunk to the root and back"
    )
    if best.limit in extra:
        text += f"; {extra[best.limit]}"
    slower = [one for one in others if one.seconds > best.seconds * _ALIKE]
    alike = [one.name for one in others if one not in slower]
    if alike:
        text += f" ({', '.join(alike)}: the same)"
    text += "."
    if slower:
        other = slower[0]
        text += (
            f" Next is {other.name} with {time_text(other.seconds)}{_times(other, best)}:"
            f" {_reason(other, network)}."
        )
    without = min(
        (one for one in found if not one.tree and one.bytes and not _switched(one)),
        key=_seconds,
        default=None,
    )
    if without is not None and best.seconds:
        text += (
            f" Of the baselines{', which compute first,' if overlap else ''} {without.name} is the"
            f" quickest with {time_text(without.seconds)}{_times(without, best)}:"
            f" {_busy(without, network)}."
        )
    return text


class RackChoiceRow(TypedDict):
    """The answer of `rackhub plan` whether racks are summed in one level or two."""

    levels: int
    """1: each worker's host is a server of all workers; 2: a server sums in each rack, and servers
    exchange sums."""
    flat: str
    """The placement of one level."""
    flat_seconds: float
    two_level: str
    """The baseline of two."""
    two_level_seconds: float
    core_switch: str | None
    """The baseline of two levels in which the core switch sums for these servers; None without."""
    core_switch_seconds: float | None
    core_switch_levels: int | None
    """1 or 2, whichever is faster with that."""
    why: str


@dataclass(frozen=True)
class RackChoice:
    """Choice between servers that sum all workers and servers that sum racks first.

    flat, two_level: the predictions; core_switch: that of two levels if the core switch sums for
    these servers; why: the choice in words.
    """

    flat: Prediction
    two_level: Prediction
    core_switch: Prediction | None
    why: str

    @property
    def levels(self) -> int:
        """1 or 2, whichever is faster; with equal times 1."""
        return self._levels(self.two_level)

    @property
    def core_switch_levels(self) -> int | None:
        """The same if the core switch sums for servers; None if it cannot."""
        return None if self.core_switch is None else self._levels(self.core_switch)

    def _levels(self, two: Prediction) -> int:
        return 2 if two.seconds < self.flat.seconds else 1

    def message(self) -> RackChoiceRow:
        """Converts it to JSON."""
        core = self.core_switch
        return {
            "levels": self.levels,
            "flat": self.flat.name,
            "flat_seconds": self.flat.seconds,
            "two_level": self.two_level.name,
            "two_level_seconds": self.two_level.seconds,
            "core_switch": None if core is None else core.name,
            "core_switch_seconds": None if core is None else core.seconds,
            "core_switch_levels": self.core_switch_levels,
            "why": self.why,
        }


def choose_across_racks(found: Sequence[Prediction], network: Network) -> RackChoice | None:
    """Chooses between a server at each worker's host and a server in each rack.

    Returns: None with workers in one rack only, or in a rack without a server.
    """
    flat = next((one for one in found if one.placement == _FLAT and one.bytes), None)
    boxes = [one for one in found if isinstance(COLLECTIVES.get(one.placement), Boxes)]
    apart = [one for one in boxes if not _switched(one)]
    if flat is None or not apart:
        return None
    two = min(apart, key=_seconds)
    core = min((one for one in boxes if _switched(one)), key=_seconds, default=None)
    chosen = RackChoice(flat, two, core, "")
    names = {1: f"flat, with {flat.name}", 2: f"in two levels, with {two.name}"}
    first, second = (two, flat) if chosen.levels == 2 else (flat, two)
    why = (
        f"Without sums in switches {sum(map(bool, network.workers))} racks are faster"
        f" {names[chosen.levels]}, {time_text(first.seconds)}: {_reason(first, network)}."
        f" {names[3 - chosen.levels].capitalize()}, it takes {time_text(second.seconds)}"
        f"{_times(second, first)}: {_reason(second, network)}."
    )
    if core is not None:
        against = "faster" if chosen.core_switch_levels == 2 else "no faster"
        why += (
            f" Where the core switch sums for the servers of racks, with {core.name}, two levels"
            f" take {time_text(core.seconds)}, which is {against} than flat:"
            f" {_reason(core, network)}."
        )
    return replace(chosen, why=why)


def _switched(one: Prediction) -> bool:
    """True for a baseline whose servers switches sum for."""
    collective = COLLECTIVES.get(one.placement)
    return collective is not None and collective.switched


def _times(one: Prediction, best: Prediction) -> str:
    """Formats the ratio to the best time; "" if that is 0, as of one worker with its server."""
    if not best.seconds:
        return ""
    ratio = one.seconds / best.seconds
    return f", {ratio:.{'3f' if 0.99 < ratio < 1.01 else '3g'}} times as long"


def _seconds(one: Prediction) -> float:
    return one.seconds


def _busy(one: Prediction, network: Network) -> str:
    """Describes the work of its bottleneck."""
    took = _part(one, "bottleneck")
    if one.bottleneck == HOST:
        return f"a worker's host takes {took} for its packets"
    if one.bottleneck == PROCESS:
        return f"a server process takes {took} for what it sums"
    line = network.lines[one.bottleneck]
    whose = {WORKER: "a worker's link", SERVER: "a server's link"}.get(
        one.bottleneck, f"a {link_name(one.bottleneck)}"
    )
    carried = size_text(one.bytes.get(one.bottleneck, 0))
    return f"{whose} ({rate_text(line.rate)}) has {carried} to carry, which takes {took}"


def _reason(one: Prediction, network: Network) -> str:
    """Describes the work of its bottleneck, and a window that limits."""
    return _busy(one, network) + (f"; {_window(one)}" if one.limit == "window" else "")


def _window(one: Prediction) -> str:
    text = f"a window of {one.window} chunks makes it wait for {_part(one, 'window')}"
    needed = one.slots_needed // 2
    return f"{text}, which one of {needed} would not" if needed > one.window else text


def _part(one: Prediction, name: str) -> str:
    return time_text(one.parts.get(name, 0.0))
