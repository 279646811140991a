# SPDX-License-Identifier: Apache-2.0
"""Reads the counters of every direction of every link (``observability.links``)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from emulation.network.emulated import Network
from emulation.network.shaping import read
from emulation.nodes.switchprocess import SwitchProcess
from observability.links import Carried, Measured
from planner.link_loads import Direction


async def measure(network: Network, switches: Mapping[str, SwitchProcess]) -> Measured:
    """Returns bytes and packets of every link direction since the testbed or the switch started."""
    names = list(switches)
    starts = {name: switches[name].counting for name in names}
    readings = await asyncio.gather(*(switches[name].counters() for name in names))
    counters = {
        name: ports for name, ports in zip(names, readings, strict=True) if ports is not None
    }
    sent: dict[Direction, Carried] = {}
    received: dict[Direction, Carried] = {}
    for name in names:
        for port in network.addressing.ports(name):
            direction = Direction(name, port.interface)
            sent[direction] = Carried(None, None)
            if name in counters:
                counted = counters[name][port.number]
                sent[direction] = Carried(
                    counted.tx_bytes, counted.tx_packets, dropped=counted.dropped
                )
                if not port.peer_is_host:
                    arrived = Carried(counted.rx_bytes, counted.rx_packets)
                    received[Direction(port.peer, port.peer_interface)] = arrived
    for host in network.topology.hosts:
        prefix = network.node(host.name).command([])
        for end in network.addressing.host_interfaces(host.name):
            passed = await asyncio.to_thread(read, end.interface, prefix)
            there = counters.get(end.switch)
            packets = None if there is None else there[end.switch_port].rx_packets
            sent[Direction(host.name, end.interface)] = Carried(
                passed.bytes, packets, dropped=passed.dropped
            )
    counting = {name: starts[name] if name in counters else None for name in names}
    overrun = {name: sum(port.overrun for port in counters[name].values()) for name in counters}
    return Measured(sent, received, counting, overrun)
