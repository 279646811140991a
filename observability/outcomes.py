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


def open_slots(counts: Counter[Outcome]) -> tuple[int, int]:
    """Returns how many slots of a switch are AGGREGATING and PARTIAL, by its counters.

    One contribution claims a slot and another completes the sum; a partial sum leaves its slot when
    the parent's result arrives. Slots that a change of epoch abandons stay counted.
    """
    partial = counts[Outcome.PARTIAL_SENT] - counts[Outcome.RESULT_DOWN]
    ended = counts[Outcome.PARTIAL_SENT] + counts[Outcome.COMPLETED]
    return counts[Outcome.CLAIMED] - ended, partial


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
    return sum(
        counts[name][Outcome.REPLAYED] + counts[name][Outcome.RESENT] for name in switches_of(trees)
    )
