# SPDX-License-Identifier: Apache-2.0
"""Bytes and packets that every direction of every link carried, by the senders' counters.

A host's interface is counted by its traffic-control class, a switch's port by the target or, for
BMv2, by the kernel. All count frames as on a wire, each segment of a train with its headers,
without FCS. Packets of a host are counted where they arrive, since traffic control counts a train
as one. A switch of the embedded target that is killed loses its counters: what it sent to other
switches is known from theirs; what it sent to hosts is unknown (a host counts a train as one
frame).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from observability.messages.summary import Link
from planner.link_loads import Direction, Load
from topologies.model.addressing import Addressing


@dataclass(frozen=True)
class Carried:
    """Load of a link direction; None where a counter was lost.

    unknown: why counters are missing.
    dropped: frames dropped at the full queue.
    """

    bytes: int | None
    packets: int | None
    unknown: str = ""
    dropped: int | None = None

    def since(self, before: Carried) -> Carried:
        """Returns the increase since an earlier reading."""
        return Carried(
            _less(self.bytes, before.bytes),
            _less(self.packets, before.packets),
            dropped=_less(self.dropped, before.dropped),
        )


@dataclass(frozen=True)
class Measured:
    """A reading of the counters of all link directions.

    sent: by the sender's counters.
    received: by the receiver's counters, for directions between switches.
    counting: by switch, a number that changes when its counters are reset; None: not read.
    overrun: by switch, frames that it did not fetch in time.
    """

    sent: Mapping[Direction, Carried]
    received: Mapping[Direction, Carried]
    counting: Mapping[str, int | None]
    overrun: Mapping[str, int] = field(default_factory=dict)


def since(addressing: Addressing, before: Measured, now: Measured) -> dict[Direction, Carried]:
    """Returns the increase since ``before``; unknown at switches restarted in between."""
    added = {way: load.since(before.sent[way]) for way, load in now.sent.items()}
    lost = {n for n, s in now.counting.items() if s is None or s != before.counting[n]}
    for name in lost:
        why = f"{name} has lost its counters"
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
) -> list[Link]:
    """Returns a row for each link direction; unknown values are None."""
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
