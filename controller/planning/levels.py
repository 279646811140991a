# SPDX-License-Identifier: Apache-2.0
"""Which cores join a job's ToRs to one tree, level by level.

A node has as many children as the packet's bitmap has bits. Where one core above can take all,
there is one; where there are more, each takes its part of them, and those cores are joined by the
next level in the same way, until one is left. Switches that are linked to the same ones above, as
those of a pod, share them; in networks of ``topologies.model.shape`` the fewest cores in each pod
are then the fewest in all, and no other choice would get by with less.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from topologies.model.addressing import Addressing
from topologies.model.spec import MAX_PORTS
from topologies.model.topology import Topology
from topologies.model.wording import few

__all__ = ["MOST_CHILDREN", "NotJoinedError", "join"]

MOST_CHILDREN = 32  # one bit each in the packet's bitmap


class NotJoinedError(Exception):
    """No tree of switches joins them. ``crowded``: a topology with other ``cores`` could."""

    def __init__(self, text: str, crowded: bool) -> None:
        super().__init__(text)
        self.crowded = crowded


def join(
    topology: Topology,
    addressing: Addressing,
    tors: Sequence[str],
    turn: int,
    avoid: Collection[str] = (),
) -> list[dict[str, list[str]]]:
    """The levels above the ToRs, lowest first: children by core; nothing above a single ToR.

    ``turn`` shifts the choice among cores that would all do. Switches to ``avoid``, and those that
    routes avoid, are none of them. Raises ``NotJoinedError``.
    """
    levels: list[dict[str, list[str]]] = []
    below = list(tors)
    unusable = frozenset(avoid) | addressing.missing
    while len(below) > 1:
        level: dict[str, list[str]] = {}
        for above, members in _pods(topology, addressing, below, unusable).items():
            parts = -(-len(members) // MOST_CHILDREN)
            if parts > len(above):
                raise _not_joined(topology, members, above, unusable)
            for part in range(parts):
                first, end = (len(members) * at // parts for at in (part, part + 1))
                level[above[(turn * parts + part) % len(above)]] = members[first:end]
        levels.append(level)
        below = list(level)
    return levels


def _pods(
    topology: Topology, addressing: Addressing, below: Sequence[str], unusable: Collection[str]
) -> dict[tuple[str, ...], list[str]]:
    """Switches of one level by what is above them."""
    nodes = topology.by_name
    found: dict[tuple[str, ...], list[str]] = {}
    for name in below:
        peers = dict.fromkeys(
            port.peer
            for port in addressing.ports(name)
            if nodes[port.peer].level > nodes[name].level and port.peer not in unusable
        )
        found.setdefault(tuple(peers), []).append(name)
    return found


def _not_joined(
    topology: Topology, members: Sequence[str], above: Sequence[str], unusable: Collection[str]
) -> NotJoinedError:
    but = f" (but for {', '.join(sorted(unusable))})" if unusable else ""
    if not above:
        text = f"no core{but} is linked to all of {few(members)}"
    else:
        each = f"{MOST_CHILDREN} are possible"
        if len(above) > 1:
            each = f"{MOST_CHILDREN} for each are possible"
        text = f"{few(above)}{but} would have {len(members)} children ({few(members)}), {each}"
    if not unusable:
        text += f"; {_enough(topology.racks)} would do"
    return NotJoinedError(text, crowded=not unusable)


def _enough(racks: int) -> str:
    """What ``cores`` of a topology file could say so that any racks, of so many, can be joined."""
    counts = []
    left = racks
    while left > 1:
        left = -(-left // MOST_CHILDREN)
        counts.append(left)
    if racks + MOST_CHILDREN <= MAX_PORTS:
        return f"`cores: [{', '.join(map(str, counts))}]`"
    pods = [MOST_CHILDREN ** (level + 1) for level in range(len(counts) - 1)]
    return f"`cores: [{', '.join(f'{{racks: {size}, cores: 1}}' for size in pods)}, 1]`"
