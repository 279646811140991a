# SPDX-License-Identifier: Apache-2.0
"""What the switches did with packets, by their own counters.

These are the data plane's ``outcomes`` (p4src/outcomes.p4), which do not tell jobs apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from controller.planning.tree_planner import Tree
from protocol.outcomes import Outcome

Counts = dict[str, Counter[Outcome]]


def since(before: Counts, now: Counts) -> Counts:
    """What was counted after ``before``."""
    return {
        name: Counter({outcome: count - before[name][outcome] for outcome, count in counts.items()})
        for name, counts in now.items()
        if name in before
    }


def open_slots(counts: Counter[Outcome]) -> tuple[int, int]:
    """Slots of a switch that were AGGREGATING and PARTIAL when it had counted that.

    Each was claimed by one contribution, and left by another that completed the sum; a partial sum
    is left when the parent's result comes. Slots that a change of epoch gave up stay counted.
    """
    partial = counts[Outcome.PARTIAL_SENT] - counts[Outcome.RESULT_DOWN]
    ended = counts[Outcome.PARTIAL_SENT] + counts[Outcome.COMPLETED]
    return counts[Outcome.CLAIMED] - ended, partial


def switches_of(trees: Sequence[Tree]) -> set[str]:
    """Names of the switches that are nodes of these trees."""
    return {node.switch for tree in trees for node in tree.nodes if node.switch is not None}


def sums_made(trees: Sequence[Tree], counts: Mapping[str, Counter[Outcome]]) -> int:
    """How many rounds of a chunk the switches summed as far as the trees let them.

    Under a root that is a switch each round is COMPLETED there, once. Under a server each of the
    switches below it sends its PARTIAL_SENT sum up, once for each round; the least of them counts,
    for the trees that have the same ones (over several cores they have others).
    Exponent rounds, and sums that come back flagged, are rounds too.
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


def sent_again(trees: Sequence[Tree], counts: Mapping[str, Counter[Outcome]]) -> int:
    """Packets that the switches of these trees sent again: results and partial sums."""
    return sum(
        counts[name][Outcome.REPLAYED] + counts[name][Outcome.RESENT] for name in switches_of(trees)
    )
