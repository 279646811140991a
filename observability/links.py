# SPDX-License-Identifier: Apache-2.0
"""What went over every direction of every link, as the senders counted it.

A host's interface: its traffic-control class. A switch's port: the target's own counters, or for
BMv2 the kernel's. Both count frames as a wire would carry them, each segment of a train with its
headers, without FCS. Packets that a host sent are counted where they arrive, since traffic control
counts a train as one. A switch of the embedded target that is killed takes its counters along: what
it sent to other switches is known from those, and what it sent to hosts nobody knows (a host counts
a train as one frame).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from planner.expected import Direction, Load
from topologies.model.addressing import Addressing


@dataclass(frozen=True)
class Carried:
    """What a link direction carried; None where a counter was lost. ``unknown``: why, then.
    ``dropped``: frames for which its queue had no room."""

    bytes: int | None
    packets: int | None
    unknown: str = ""
    dropped: int | None = None

    def since(self, before: Carried) -> Carried:
        """What was added."""
        return Carried(
            _less(self.bytes, before.bytes),
            _less(self.packets, before.packets),
            dropped=_less(self.dropped, before.dropped),
        )


@dataclass(frozen=True)
class Measured:
    """Counters of every link direction: by who sends, and of those between switches also by who
    receives. ``counting``: which start of each switch they are of; None: there was none.
    ``overrun``: frames that each switch did not fetch in time."""

    sent: Mapping[Direction, Carried]
    received: Mapping[Direction, Carried]
    counting: Mapping[str, int | None]
    overrun: Mapping[str, int] = field(default_factory=dict)


def since(addressing: Addressing, before: Measured, now: Measured) -> dict[Direction, Carried]:
    """What was added to ``before``; unknown at switches that were started again meanwhile."""
    added = {way: load.since(before.sent[way]) for way, load in now.sent.items()}
    lost = {n for n, s in now.counting.items() if s is None or s != before.counting[n]}
    for name in lost:
        why = f"{name} has lost what it had counted"
        for port in addressing.ports(name):
            way = Direction(name, port.interface)
            if not port.peer_is_host and port.peer not in lost:
                added[way] = now.received[way].since(before.received[way])
                continue
            added[way] = Carried(None, None, why)
            if port.peer_is_host:
                way = Direction(port.peer, port.peer_interface)
                added[way] = Carried(added[way].bytes, None, f"packets: {why}", added[way].dropped)
    return added


def rows(
    addressing: Addressing,
    carried: Mapping[Direction, Carried],
    expected: Mapping[Direction, Load] | None,
) -> list[dict[str, Any]]:
    """One entry per link and direction; None where nobody can say."""
    peers = {
        Direction(port.switch, port.interface): port.peer
        for node in addressing.topology.switches
        for port in addressing.ports(node.name)
    }
    peers |= {
        Direction(end.node, end.interface): end.switch
        for node in addressing.topology.hosts
        for end in addressing.host_interfaces(node.name)
    }
    return [
        {
            "from": direction.node,
            "to": peers[direction],
            "interface": direction.interface,
            "bytes": load.bytes,
            "packets": load.packets,
            "expected_bytes": (None if expected is None else expected.get(direction, Load()).bytes),
            "dropped": load.dropped,
            "unknown": load.unknown,
        }
        for direction, load in carried.items()
    ]


def _less(now: int | None, before: int | None) -> int | None:
    return None if now is None or before is None else now - before
