# SPDX-License-Identifier: Apache-2.0
"""Background traffic between two hosts of a testbed (the fault ``load``)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from emulation.network.emulated import Network
from emulation.nodes.processes import Process, Processes, python
from specs.faultfile import Fault

_MODULE = "emulation.nodes.traffic"


@asynccontextmanager
async def background_traffic(
    network: Network, processes: Processes, fault: Fault, name: str
) -> AsyncIterator[None]:
    """Context in which a host sends to another, which discards it.

    name: of the processes and their logs. Raises ``ProcessError`` if one cannot be started.
    """
    sender, receiver = fault.ends
    busy, idle = fault.turns
    turns = ["--busy", str(busy), "--idle", str(idle)] if idle else []
    address = str(network.addressing.address(receiver))
    mtu = str(network.topology.least_mtu)
    sending = python(_MODULE, "send", address, "--rate", str(fault.rate), "--mtu", mtu, *turns)
    ready = asyncio.Event()
    started: list[Process] = []

    def start(node: str, program: list[str], on_line: Callable[[str], None] | None) -> Process:
        command = network.node(node).command(program)
        log = f"{name}-{node}"
        # Whatever ends it, the testbed goes on.
        process = processes.start(log, command, on_line=on_line, survived=lambda _: True)
        started.append(process)
        return process

    try:
        discarding = start(receiver, python(_MODULE, "discard"), lambda _: ready.set())
        discarding.exited.add_done_callback(lambda _: ready.set())
        await ready.wait()
        start(sender, sending, None)
        yield
    finally:
        for process in reversed(started):  # first the sender
            await process.stop()
