# SPDX-License-Identifier: Apache-2.0
"""Supervises the testbed's own processes (switches, controller, servers): restarts those that die.

A restarted process has the same interfaces, sockets, device id and command line, and appends to its
log. Its memory is lost: the controller restores a switch's program and entries, and its own state
from its journal; a server rejoins its jobs, and fetches parameters from other members.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from functools import partial

from emulation.network.emulated import Network
from emulation.nodes.controllerhost import ControllerHost
from emulation.nodes.processes import Process, ProcessError, Processes, describe, python
from emulation.nodes.serverhost import ServerHost
from emulation.nodes.serving import Serving
from emulation.nodes.switchprocess import SwitchProcess, switches
from observability.record import RunDirectory
from testbed.restarts import Restarts
from testbed.targets import BMV2_QUEUE_PACKETS

JOBS_ADDRESS = "unix:sockets/jobs"
CONTROLLER = "controller"
JOURNAL = "journal.db"
_READY_SECONDS = 60.0


class ProcessSupervisor:
    """Starts, restarts and stops the switches, the controller and the servers of a testbed.

    processes: the group they belong to; it fails when one of them ends and is not restarted.
    died: called with the name of a process that ended, how it ended, and what follows.
    tell: called with a text when a job continues without a server.
    restart_delays: seconds until a process that a fault kills is restarted (inf: never), by name.
    switches: by name.
    servers: by names of server processes (``topologies.model.addressing.Unit``); a worker's host
    has some if a job has requested them.
    """

    def __init__(
        self,
        run: RunDirectory,
        network: Network,
        processes: Processes,
        died: Callable[[str, str, str], None],
        tell: Callable[[str], None],
    ) -> None:
        self.target = run.facts["target"]
        self.network = network
        self.addressing = network.addressing
        self.processes = processes
        self.switches: dict[str, SwitchProcess] = switches(self.addressing, self.target)
        self.servers: dict[str, ServerHost] = {}
        self.serving = Serving(self.servers, self.serve, tell)
        self.controller = ControllerHost(self.serving.update)
        self.restart_delays: dict[str, float] = {}
        self._died = died
        self._run = run
        self._pcap = run.pcap if run.facts["pcap"] else None
        self._restarts = Restarts()
        self._returning: set[asyncio.Task[None]] = set()
        self._up = False

    async def bring_up(self) -> None:
        """Starts all processes, each once those it depends on are ready.

        Raises ``ProcessError``, ``TimeoutError``.
        """
        if self._pcap is not None:
            self._pcap.mkdir(exist_ok=True)
        for name in self.switches:
            self._start_switch(name)
        await asyncio.gather(*(one.ready(self.processes) for one in self.switches.values()))
        self._start_controller()
        topology = self.network.topology
        for name in [name for node in topology.servers for name in topology.units_of(node.name)]:
            self._start_server(name)
        for name in (CONTROLLER, *self.servers):
            await self._until_ready(name)
        self._up = True

    async def serve(self, names: Sequence[str]) -> None:
        """Starts those of these server processes that do not exist yet.

        Raises ``ProcessError``, ``TimeoutError``.
        """
        new = [name for name in names if name not in self.servers]
        for name in new:
            self._start_server(name)
        for name in new:
            await self._until_ready(name)

    def stay_down(self) -> None:
        """Cancels pending restarts; later ends restart nothing."""
        self._up = False
        self.serving.stop()
        for task in self._returning:
            task.cancel()

    async def stop_servers(self) -> None:
        """Stops all server processes concurrently."""
        servers = [server.process for server in self.servers.values()]
        await self.processes.stop([process for process in servers if process is not None])

    def process(self, name: str) -> Process | None:
        """Returns the process named after a node or the controller; None if there is none."""
        if name == CONTROLLER:
            return self.controller.process
        own = self.switches.get(name) or self.servers.get(name)
        return own.process if own is not None and own.name == name else None

    def at(self, name: str) -> Process | None:
        """Returns a process by the name of a node or server unit, which may differ from the name of
        the process; None if there is none."""
        return self.servers[name].process if name in self.servers else self.process(name)

    def all_at(self, node: str) -> list[Process]:
        """Returns the testbed's own processes at a node: on a server's host, all its servers."""
        known = self.network.topology.by_name
        names = self.network.topology.units_of(node) if node in known else (node,)
        return [process for name in names if (process := self.at(name)) is not None]

    # --- inside ---

    def _start(self, name: str) -> None:
        if name == CONTROLLER:
            self._start_controller()
        elif name in self.switches:
            self._start_switch(name)
        else:
            self._start_server(name)

    async def _until_ready(self, name: str) -> None:
        if name == CONTROLLER:
            what = "the controller to program switches"
            await self.processes.until(self.controller.ready, _READY_SECONDS, what)
        elif name in self.switches:
            await self.switches[name].ready(self.processes)
        else:
            ready = self.servers[name].ready
            await self.processes.until(ready, _READY_SECONDS, f"{name} to serve")

    def _start_switch(self, name: str) -> None:
        number = list(self.switches).index(name)
        self.switches[name].start(self.processes, number, self._pcap, partial(self._survived, name))

    def _start_controller(self) -> None:
        facts = self._run.facts
        words = [w for s in self.switches.values() for w in ("--switch", f"{s.name}={s.address}")]
        program = ["--program", facts["program"], "--p4info", facts["p4info"]]
        if self.target == "bmv2":
            program += ["--queue-packets", str(BMV2_QUEUE_PACKETS)]
        process = self.processes.start(
            CONTROLLER,
            python(
                "controller",
                *("--topology", facts["topology"], *words, *program),
                *("--topology-seed", str(facts["topology_seed"])),
                *("--listen", JOBS_ADDRESS, "--journal", JOURNAL, "--tell"),
            ),
            on_line=self.controller.line,
            wants_input=True,
            survived=partial(self._survived, CONTROLLER),
        )
        self.controller.begin(process)

    def _start_server(self, name: str) -> None:
        unit = self.addressing.unit(name)
        host = self.network.topology.by_name[unit.host]
        own = host.kind == "server"
        server = self.servers.setdefault(name, ServerHost(name if own else f"{name}-server"))
        link = unit.interface.outgoing
        program = python(
            "hosts.server",
            *("--address", str(unit.address), "--port", str(unit.port), "--service", JOBS_ADDRESS),
            *("--link-rate", str(link.rate)),
            # All cores at an interface fill its queue.
            *("--queue-bytes", str(link.queue_bytes // host.processors)),
        )
        process = self.processes.start(
            server.name,
            self.network.node(unit.host).command(program),
            on_line=server.line,
            wants_input=True,
            survived=partial(self._survived, name),
        )
        server.begin(process)

    def _survived(self, name: str, process: Process) -> bool:
        """Handles an unrequested end of a process; returns whether the testbed continues."""
        wished, away = (
            process.name in self.restart_delays,
            self.restart_delays.pop(process.name, 0.0),
        )
        if not self._up or not (wished or self._restarts.again(name)):
            return False
        what = describe(process.exited.result())
        if name != CONTROLLER:
            self.controller.died(name, what)
        if away == math.inf:
            self._died(process.name, what, "it stays away")
            return True
        try:
            if not away:
                self._start(name)
        except ProcessError as error:
            self.processes.fail(error)
            return True
        self._died(process.name, what, f"it stays away for {away:g} s" if away else "started again")
        task = asyncio.get_running_loop().create_task(self._return(name, away))
        self._returning.add(task)
        task.add_done_callback(self._returning.discard)
        return True

    async def _return(self, name: str, seconds: float) -> None:
        try:
            if seconds:
                await asyncio.sleep(seconds)
                self._start(name)
            started = self.at(name)
            await self._until_ready(name)
            # If it was killed again meanwhile, the task of the next restart handles it.
            if name in self.servers and self.at(name) is started:
                await self.serving.rejoin(name)
        except Exception as error:
            process = self.at(name)
            # If it ended while starting, `_survived` has handled it.
            if process is None or process.running:
                self.processes.fail(error)
