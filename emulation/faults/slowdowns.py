# SPDX-License-Identifier: Apache-2.0
"""Slows down links and processes of a testbed (the fault ``slow``)."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence

from emulation.faults.cpu_quota import CpuQuota, QuotaError
from emulation.network.emulated import Network, NetworkError
from observability.control import ControlError
from specs.faultfile import Fault
from specs.slowdowns import EVERY_LINK
from topologies.model.topology import Topology

Apply = Callable[[float], None]


class Slowdowns:
    """The slowdowns at the moment. Several slowdowns of a link multiply."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._factors: dict[tuple[str, str], dict[int, float]] = {}  # of interfaces, by fault

    async def follow(self, fault: Fault, apply: Apply) -> None:
        """Applies a fault's factors as they change, until it is cancelled."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        for at, factor in fault.pattern.steps(fault.by, math.inf):
            await asyncio.sleep(began + at - loop.time())
            await asyncio.to_thread(apply, float(factor))

    def of_link(self, fault: Fault) -> Apply:
        """Returns what sets the factor of a fault's links."""
        ends = interfaces(self._network, fault)

        def apply(factor: float) -> None:
            for end in ends:
                known = self._factors.setdefault(end, {})
                known[id(fault)] = factor
                try:
                    self._network.slow(*end, math.prod(known.values()))
                except NetworkError as error:
                    raise ControlError(f"{fault.where} cannot be slowed down: {error}") from error

        return apply


def interfaces(network: Network, fault: Fault) -> list[tuple[str, str]]:
    """Returns the sending interfaces (node, name) of a fault's links, in its direction."""
    topology: Topology = network.topology
    ways = {
        (sender, receiver)
        for link in topology.links
        if fault.ends == EVERY_LINK or {link.a, link.b} == set(fault.ends)
        for way, sender, receiver in (("up", link.a, link.b), ("down", link.b, link.a))
        if fault.way in ("both", way)
    }
    found = [
        (end.node, end.interface)
        for host in topology.hosts
        for end in network.addressing.host_interfaces(host.name)
        if (end.node, end.switch) in ways
    ]
    found += [
        (port.switch, port.interface)
        for switch in topology.switches
        for port in network.addressing.ports(switch.name)
        if (port.switch, port.peer) in ways
    ]
    return found


def quota(where: str, pids: Sequence[int]) -> CpuQuota:
    """Returns a control group of processes. Raises ``ControlError`` if there cannot be one."""
    try:
        return CpuQuota(pids)
    except QuotaError as error:
        raise ControlError(f"{where} cannot be slowed down: {error}") from error
