# SPDX-License-Identifier: Apache-2.0
"""Slows down links and processes of a testbed (the fault ``slow``)."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial

from emulation.faults.cpu_quota import CpuQuota, QuotaError, processing_threads
from emulation.network.emulated import Network, NetworkError
from observability.control import ControlError
from specs.faultfile import Fault
from specs.slowdowns import EVERY_LINK
from topologies.model.topology import Topology

Apply = Callable[[float], None]


class _Slow:
    """An interface or a process that is slow. factors: of the faults that slow it down."""

    def __init__(self, apply: Apply, close: Callable[[], None]) -> None:
        self._apply, self.close = apply, close
        self.factors: dict[object, float] = {}

    def apply(self) -> None:
        """Slows it down by all factors."""
        self._apply(math.prod(self.factors.values()))


class Slowdowns:
    """The slowdowns at the moment. Several slowdowns of a link or a process multiply."""

    def __init__(self, network: Network) -> None:
        self._network = network
        # Factors are applied by threads, of which the last may outlive its fault.
        self._lock = threading.Lock()
        self._slow: dict[Hashable, _Slow] = {}  # by interface, or process ID

    async def follow(self, fault: Fault, apply: Apply) -> None:
        """Applies a fault's factors as they change, until it is cancelled."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        for at, factor in fault.pattern.steps(fault.by, math.inf):
            await asyncio.sleep(began + at - loop.time())
            await asyncio.to_thread(apply, float(factor))

    def of_link(self, fault: Fault) -> AbstractContextManager[Apply]:
        """Context in which a fault's links are slow, by the factor that is set last. Setting it,
        and the end, raise ``ControlError``."""

        def make(end: tuple[str, str]) -> _Slow:
            def apply(factor: float) -> None:
                try:
                    self._network.slow(*end, factor)
                except NetworkError as error:
                    raise ControlError(f"{fault.where} cannot be slowed down: {error}") from error

            return _Slow(apply, lambda: None)

        ends = interfaces(self._network, fault)
        return self._slowed({end: partial(make, end) for end in ends})

    def of_processes(self, where: str, pids: Sequence[int]) -> AbstractContextManager[Apply]:
        """Context in which processes at a node are slow likewise, each by a control group of its
        own. Raises ``ControlError`` if there cannot be one."""

        @contextmanager
        def said() -> Iterator[None]:
            try:
                yield
            except QuotaError as error:
                raise ControlError(f"{where} cannot be slowed down: {error}") from error

        def make(pid: int) -> _Slow:
            with said():
                group = CpuQuota(processing_threads(pid))
            return _Slow(said()(group.set), group.close)

        return self._slowed({pid: partial(make, pid) for pid in pids})

    @contextmanager
    def _slowed(self, makes: Mapping[Hashable, Callable[[], _Slow]]) -> Iterator[Apply]:
        mine, begun, over = object(), list[Hashable](), False

        def apply(factor: float) -> None:
            with self._lock:
                for key in () if over else begun:
                    self._slow[key].factors[mine] = factor
                    self._slow[key].apply()

        try:
            with self._lock:
                for key, make in makes.items():
                    if key not in self._slow:
                        self._slow[key] = make()
                    self._slow[key].factors[mine] = 1.0
                    begun.append(key)
            yield apply
        finally:
            with self._lock, ExitStack() as stack:
                over = True
                for key in begun:
                    one = self._slow[key]
                    del one.factors[mine]
                    if not one.factors:
                        del self._slow[key]
                        stack.callback(one.close)
                    stack.callback(one.apply)  # before it is closed


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
