# SPDX-License-Identifier: Apache-2.0
"""What went over every direction of every link, as the senders counted it.

A host's interface: its traffic-control class. A switch's port: the target's own counters, or for
BMv2 the kernel's. Both count frames as a wire would carry them, each segment of a train with its
headers, without FCS. Packets that a host sent are counted where they arrive, since traffic control
counts a train as one. A switch that is killed takes its counters along; then nobody knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from testbed.emulated import Network
from testbed.expected import Direction, Load
from testbed.shaping import read
from testbed.targets import SwitchProcess
from topologies.addressing import Addressing


@dataclass(frozen=True)
class Carried:
    """What a link direction carried; None where a counter was lost."""

    bytes: int | None
    packets: int | None

    def since(self, before: Carried) -> Carried:
        """What was added."""
        return Carried(_less(self.bytes, before.bytes), _less(self.packets, before.packets))


UNKNOWN = Carried(None, None)


@dataclass(frozen=True)
class Measured:
    """Counters of every link direction, and which start of each switch its own are of."""

    loads: Mapping[Direction, Carried]
    counting: Mapping[str, int]


async def measure(network: Network, switches: Mapping[str, SwitchProcess]) -> Measured:
    """Bytes and packets of every link direction since the testbed, or that switch, came up."""
    names = list(switches)
    counting = {name: switches[name].counting for name in names}
    told = await asyncio.gather(*(switches[name].counters() for name in names))
    counters = dict(zip(names, told, strict=True))
    loads: dict[Direction, Carried] = {}
    for name, ports in counters.items():
        for port in network.addressing.ports(name):
            direction = Direction(name, port.interface)
            loads[direction] = UNKNOWN
            if ports is not None:
                counted = ports[port.number]
                loads[direction] = Carried(counted.tx_bytes, counted.tx_packets)
    for host in network.topology.hosts:
        prefix = network.node(host.name).command([])
        for end in network.addressing.host_interfaces(host.name):
            passed = await asyncio.to_thread(read, end.interface, prefix)
            there = counters[end.switch]
            arrived = None if there is None else there[end.switch_port].rx_packets
            loads[Direction(host.name, end.interface)] = Carried(passed.bytes, arrived)
    return Measured(loads, counting)


def since(addressing: Addressing, before: Measured, now: Measured) -> dict[Direction, Carried]:
    """What was added to ``before``; unknown at switches that were started again meanwhile."""
    added = {way: load.since(before.loads[way]) for way, load in now.loads.items()}
    for name, start in now.counting.items():
        if start == before.counting[name]:
            continue
        for port in addressing.ports(name):
            added[Direction(name, port.interface)] = UNKNOWN
            if port.peer_is_host:
                way = Direction(port.peer, port.peer_interface)
                added[way] = Carried(added[way].bytes, None)
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
        }
        for direction, load in carried.items()
    ]


def _less(now: int | None, before: int | None) -> int | None:
    return None if now is None or before is None else now - before
