# SPDX-License-Identifier: Apache-2.0
"""What went over every direction of every link, as the senders counted it.

A host's interface: its traffic-control class. A switch's port: the target's own counters, or for
BMv2 the kernel's. Both count frames as a wire would carry them, each segment of a train with its
headers, without FCS. Packets that a host sent are counted where they arrive, since traffic control
counts a train as one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from testbed.emulated import Network
from testbed.expected import Direction, Load
from testbed.shaping import read
from testbed.targets import SwitchProcess
from topologies.addressing import Addressing

Measured = dict[Direction, Load]


async def measure(network: Network, switches: Mapping[str, SwitchProcess]) -> Measured:
    """Bytes and packets of every link direction since the testbed came up."""
    names = list(switches)
    told = await asyncio.gather(*(switches[name].counters() for name in names))
    counters = dict(zip(names, told, strict=True))
    loads: Measured = {}
    for name, ports in counters.items():
        for port in network.addressing.ports(name):
            counted = ports[port.number]
            loads[Direction(name, port.interface)] = Load(counted.tx_bytes, counted.tx_packets)
    for host in network.topology.hosts:
        prefix = network.node(host.name).command([])
        for end in network.addressing.host_interfaces(host.name):
            passed = await asyncio.to_thread(read, end.interface, prefix)
            arrived = counters[end.switch][end.switch_port].rx_packets
            loads[Direction(host.name, end.interface)] = Load(passed.bytes, arrived)
    return loads


def since(before: Measured, now: Measured) -> Measured:
    """What was added to ``before``."""
    return {
        direction: Load(
            load.bytes - before[direction].bytes, load.packets - before[direction].packets
        )
        for direction, load in now.items()
    }


def rows(
    addressing: Addressing, measured: Measured, expected: Mapping[Direction, Load] | None
) -> list[dict[str, Any]]:
    """One entry per link and direction; ``expected_bytes`` is None where nobody can say."""
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
        for direction, load in measured.items()
    ]
