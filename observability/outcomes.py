# SPDX-License-Identifier: Apache-2.0
"""Evaluates the outcome counters of switches (p4src/outcomes.p4), which do not distinguish jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from controller.planning.tree_planner import Tree
from protocol.outcomes import Outcome

Counts = dict[str, Counter[Outcome]]


def since(before: Counts, now: Counts) -> Counts:
    """Returns the increase since ``before``."""
    return {
        name: Counter({outcome: count - before[name][outcome] for outcome, count in counts.items()})
        for name, counts in now.items()
        if name in before
    }


class OpenSlots:
    """Computes lower bounds of the slots in AGGREGATING and PARTIAL from switches' counters.

    One contribution claims a slot and another completes the sum; a partial sum leaves its slot when
    the parent's result arrives. Slots that a change of epoch or the end of a job abandons stay
    counted as open. From then on, the fewest open slots seen count as abandoned. Slots that no job
    holds are not open.
    """

    def __init__(self) -> None:
        self._plans: dict[int, int] = {}
        self._floor: dict[str, tuple[int, int]] = {}
        self._renewed: set[str] | None = None  # switches seen since; None: no change so far

    def plans(self, epochs: dict[int, int]) -> None:
        """Takes the epoch of each job that holds slots, by the job's number."""
        if any(epochs.get(number) != epoch for number, epoch in self._plans.items()):
            self.renew()
        self._plans = epochs

    def renew(self) -> None:
        """Records that a change of epoch has abandoned the slots that are open."""
        self._renewed = set()

    def look(
        self, switch: str, counts: Counter[Outcome], held: int | None = None
    ) -> tuple[int, int]:
        """Returns how many slots of a switch are AGGREGATING and PARTIAL.

        held: slots of the switch that jobs hold; None if it is not known.
        """
        ended = counts[Outcome.PARTIAL_SENT] + counts[Outcome.COMPLETED]
        # A cell may be read later than the one before it.
        first = max(0, counts[Outcome.CLAIMED] - ended)
        second = max(0, counts[Outcome.PARTIAL_SENT] - counts[Outcome.RESULT_DOWN])
        fewest = self._floor.get(switch, (0, 0))
        changed = self._renewed is not None and switch not in self._renewed
        if self._renewed is not None:
            self._renewed.add(switch)
        if changed or held == 0:
            fewest = first, second
        self._floor[switch] = fewest = min(first, fewest[0]), min(second, fewest[1])
        first, second = first - fewest[0], second - fewest[1]
        if held is None:
            return first, second
        first = min(first, held)
        return first, min(second, held - first)


def switches_of(trees: Sequence[Tree]) -> set[str]:
    """Returns the names of the switches that are nodes of these trees."""
    return {node.switch for tree in trees for node in tree.nodes if node.switch is not None}


def sums_made(trees: Sequence[Tree], counts: Mapping[str, Counter[Outcome]]) -> int:
    """Returns the number of rounds that the switches of these trees summed.

    A root switch counts each round once, as COMPLETED. Below a server each child switch sends its
    partial sum once per round (PARTIAL_SENT); the minimum over them counts, once per set of
    children (trees over several cores have different sets). Exponent rounds and flagged sums are
    rounds too.
    """
    roots = {tree.root.switch for tree in trees if tree.root.switch is not None}
    below = {
        frozenset(child.name for child in tree.root.children if child.rank is None)
        for tree in trees
        if tree.root.switch is None
    }
    completed = sum(counts[name][Outcome.COMPLETED] for name in roots)
    partial = sum(
        min((counts[name][Outcome.PARTIAL_SENT] for name in names), default=0) for names in below
    )
    return completed + partial


def retransmitted(trees: Sequence[Tree], counts: Mapping[str, Counter[Outcome]]) -> int:
    """Returns the packets that switches of these trees retransmitted: results and partial sums."""
    return sum(retransmissions(counts[name]) for name in switches_of(trees))


def retransmissions(counts: Counter[Outcome]) -> int:
    """Returns the packets that one switch retransmitted."""
    return counts[Outcome.REPLAYED] + counts[Outcome.RESENT]
