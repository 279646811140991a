# SPDX-License-Identifier: Apache-2.0
"""Selects the cores that join a job's ToRs to one tree, level by level.

A node has at most as many children as the packet's bitmap has bits. One core joins all members if
it can; otherwise several take equal parts, and the next level joins these cores in the same way,
until one is left. Switches with the same switches above, such as those of a pod, share cores; in
networks of ``topologies.model.shape`` the fewest cores in each pod are then the fewest overall.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from topologies.model.addressing import Addressing
from topologies.model.topology import MAX_PORTS, Topology
from topologies.model.wording import few

MOST_CHILDREN = 32  # one bit each in the packet's bitmap


class NotJoinedError(Exception):
    """No tree joins the switches. ``crowded``: other ``cores`` in the topology would allow one."""

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
    """Returns the levels above the ToRs, lowest first, each as children by core.

    A single ToR has no level above it. ``turn`` rotates the choice among equivalent cores. Switches
    to ``avoid``, and those that routes avoid, are not used. Raises NotJoinedError.
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
    """Groups the switches of one level by the switches above them."""
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
    """Suggests a topology file's ``cores`` that can join any subset of `racks` racks."""
    counts = []
    left = racks
    while left > 1:
        left = -(-left // MOST_CHILDREN)
        counts.append(left)
    if racks + MOST_CHILDREN <= MAX_PORTS:
        return f"`cores: [{', '.join(map(str, counts))}]`"
    pods = [MOST_CHILDREN ** (level + 1) for level in range(len(counts) - 1)]
    return f"`cores: [{', '.join(f'{{racks: {size}, cores: 1}}' for size in pods)}, 1]`"
