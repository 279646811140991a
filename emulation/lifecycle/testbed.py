# SPDX-License-Identifier: Apache-2.0
"""Brings a testbed up inside its sandbox, runs jobs on it, and takes it down."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from controller.p4rt.dataplane import DataPlane
from emulation.faults.chaos import Chaos
from emulation.faults.held import HeldFaults
from emulation.faults.injection import Injector
from emulation.jobs.context import TestbedContext
from emulation.jobs.counter_delta import CounterDeltas
from emulation.jobs.external_jobs import ExternalJobs
from emulation.jobs.jobrun import EmulatedJob
from emulation.jobs.recovery import FaultLog
from emulation.jobs.snapshot import Observer
from emulation.network.emulated import Network
from emulation.nodes import counters, link_counters
from emulation.nodes.forkserver import ForkServer
from emulation.nodes.process_supervisor import JOBS_ADDRESS, ProcessSupervisor
from emulation.nodes.processes import ProcessError, Processes
from emulation.nodes.switchprocess import SwitchProcess, complete_captures
from hosts.session.testbed_environment import ADDRESS, HOST, QUEUE_BYTES, SERVICE
from observability import links, outcomes, transmissions
from observability.control import ControlError
from observability.machine import machine_facts
from observability.messages.events import EmitEvent
from observability.messages.jobs import CreatedJob, NewJob, OtherJob
from observability.messages.live import Description
from observability.messages.summary import Failure, FinishedJob, Link
from observability.pcap import CaptureError
from observability.record import RunDirectory
from observability.series import FILE as SERIES
from observability.series import SeriesWriter
from planner.link_loads import Direction, Load
from specs.faultfile import Fault
from specs.jobfile import JobFileError, load
from testbed.errors import JobError
from testbed.jobrun import expected_loads, summary, unique_name
from topologies.model.addressing import Addressing
from topologies.model.spec import read as read_topology

log = logging.getLogger("supervisor")
# Time for the controller to end external jobs.
_STOP_SECONDS = 5.0


class Testbed:
    """A running topology: network, switches, controller, servers, and jobs on them.

    held: faults that happen on request.
    problems: errors to log at the end.
    failure: the first failure, for the summary.
    stopping: set to take the testbed down.
    detached: the testbed outlives the process that started it.
    ready: future that is done when everything runs, or failed.
    """

    def __init__(self, run: RunDirectory, fork_server: ForkServer | None) -> None:
        self.run = run
        self.facts = run.facts
        self.fork_server = fork_server
        self.processes = Processes(run.logs, run.path, self.fork_server)
        read = read_topology(self.facts["topology"])
        self.topology = read.seeded(self.facts["topology_seed"]).topology
        self.addressing = Addressing(self.topology)
        self.dataplane = DataPlane.load(self.facts["program"], self.facts["p4info"])
        self.target = self.facts["target"]
        self.network = Network(self.topology, self.addressing, offloads=self.target == "embedded")
        self.nodes = ProcessSupervisor(run, self.network, self.processes, self._died, self._tell)
        self.faults = FaultLog(self.nodes.switches, self._read, self.dataplane.frame_bytes)
        self.series = SeriesWriter(run.path / SERIES)
        self.jobs: dict[str, EmulatedJob] = {}
        self.external = ExternalJobs(self.nodes, self.jobs)
        self.observer = Observer(
            self.nodes, self.jobs, self.external, self.dataplane, self.describe
        )
        self.context = TestbedContext(
            run,
            self.network,
            self.dataplane,
            self.nodes,
            self.facts["clock"],
            self.suspects,
            CounterDeltas(self.nodes, self.dataplane, self.external),
            self.faults,
            self._tell,
            self.series,
        )
        self.held = HeldFaults(
            Injector(self.context, lambda: [self.jobs[name] for name in self.running()])
        )
        self._recording: asyncio.Task[None] | None = None
        self.problems: list[str] = []
        self.failure: Failure | None = None
        self.stopping = asyncio.Event()
        self.detached = False
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ready.add_done_callback(lambda f: f.cancelled() or f.exception())
        self._started = time.monotonic()
        self._before: links.Measured | None = None
        self._fault_events = 0  # fault events emitted
        self._tasks: dict[str, asyncio.Task[FinishedJob]] = {}
        self._going_down = False

    # --- up and down ---

    async def bring_up(self) -> None:
        """Starts all processes, each once those it depends on are ready; sets ``ready``."""
        await self.nodes.bring_up()
        self._before = await self.measure()
        self._recording = asyncio.get_running_loop().create_task(self.observer.record(self.series))
        self.ready.set_result(None)
        log.info("up after %.2f s", time.monotonic() - self._started)

    def _died(self, name: str, what: str, then: str) -> None:
        """Records the end of a process that the testbed survives."""
        log.warning("%s %s; %s", name, what, then)
        self.faults.died(name, what)
        self._tell(f"{name} {what}; {then}")

    def _tell(self, text: str) -> None:
        """Reports a fault to the watchers of all running jobs."""
        self._fault_events += 1
        for name in self.running():
            job = self.jobs[name]
            job.emit({"event": "fault", "job": name, "number": self._fault_events, "text": text})

    async def take_down(self) -> None:
        """Stops jobs, then all processes in the reverse order of their start."""
        why = "the testbed is taken down"
        if self.failure is not None:
            why = f"the testbed failed: {self.failure['message']}"
        self._going_down = True
        if self._recording is not None:
            self._recording.cancel()
        self.nodes.stay_down()
        await self.held.end_all()
        for name, task in self._tasks.items():
            self.jobs[name].ending = why
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await self.external.stop_all(why, _STOP_SECONDS)
        try:
            await self._write_summary()
        except (ProcessError, TimeoutError, OSError, ValueError) as error:
            self.problems.append(f"the summary is not complete: {error}")
        await self.nodes.stop_servers()
        await self.processes.stop(in_order=True)
        if self.facts["pcap"]:
            complete_captures(self.run.pcap)
            await self._note_transmissions()
        self.network.stop()
        if self.fork_server is not None:
            self.fork_server.close()

    async def _note_transmissions(self) -> None:
        """Counts retransmissions in the captures, which are complete now."""
        try:
            await asyncio.to_thread(transmissions.note, self.run, self.addressing)
        except (CaptureError, OSError, ValueError) as error:
            self.problems.append(f"retransmissions on links were not counted: {error}")

    # --- jobs ---

    async def run_job(
        self, path: str, emit: EmitEvent, faults: Sequence[Fault] = (), restore: Path | None = None
    ) -> FinishedJob:
        """Runs a job to its end, under faults; returns its summary. Raises ``ControlError``.

        restore: checkpoint to continue from, instead of the file's.
        """
        try:
            file = load(path, restore)
            placement = file.place(self.topology)
        except JobFileError as error:
            raise ControlError(str(error)) from error
        name = self._free_name(file.spec.name)
        emit({"event": "starting", "job": name})
        chaos = Chaos(self.context, faults, emit)
        processes = self.processes.beside()
        job = self.jobs[name] = EmulatedJob(
            self.context, file, name, placement, processes, chaos.forward
        )
        conducted = self._conduct(job, chaos)
        task = self._tasks[name] = asyncio.get_running_loop().create_task(conducted)
        try:
            return await asyncio.shield(task)
        except JobError as error:
            raise ControlError(str(error)) from error
        except TimeoutError as error:
            raise ControlError(f"job {name}: {job.state}, but {error}") from error
        except asyncio.CancelledError:
            # Either the job was stopped, or the client disconnected: then the job continues.
            if not task.cancelled() and not task.done():
                raise
            raise ControlError(f"job {name}: {job.reason or 'stopped'}") from None

    async def create_job(self, new: NewJob) -> CreatedJob:
        """Creates an external job. Raises ``ControlError``."""
        return await self.external.create({**new, "name": self._free_name(new["name"])})

    def _free_name(self, wanted: str) -> str:
        return unique_name(wanted, {*self.jobs, *(one.name for one in self.external.alive)})

    async def stop_job(self, name: str) -> None:
        """Ends a job, submitted or external. Raises ``ControlError``."""
        task = self._tasks.get(name)
        if task is None or task.done():
            if await self.external.stop(name, "stopped on request"):
                return
            others = [job.name for job in self.external.alive]
            running = ", ".join([*self.running(), *others]) or "none"
            raise ControlError(f"no job {name!r} runs; running: {running}")
        task.cancel()
        await asyncio.wait([task])

    def running(self) -> list[str]:
        """Returns the names of submitted jobs that are not over."""
        return [name for name, task in self._tasks.items() if not task.done()]

    async def _conduct(self, job: EmulatedJob, chaos: Chaos) -> FinishedJob:
        """Runs a job, independently of its watchers, and records how it ended."""
        try:
            async with chaos.around(job):
                summary = await job.execute()
            await self.observer.sample(self.series)  # the testbed may go down at once
            return summary
        except JobError as error:
            self.problems.append(str(error))
            self.note(error, error.process, job=job.name)
            raise
        finally:
            self.series.state(job.name, job.state)
            try:
                if not self._going_down:
                    await self._write_summary()
            except TimeoutError as error:
                if job.state == "done":  # otherwise the job's own error matters more
                    raise
                self.problems.append(f"the summary is not complete: {error}")

    def note(self, error: BaseException, process: str | None, job: str | None = None) -> None:
        """Keeps the first failure for the summary: its text (without a log's tail) and process."""
        if self.failure is None:
            self.failure = {"message": str(error).split("\n", 1)[0], "process": process}
            if job is not None:
                self.failure["job"] = job

    async def suspects(self) -> list[ProcessError]:
        """Returns an error for each process of the testbed that is stuck."""
        stopped = self.processes.stopped()
        names = {one.name for one in stopped}
        chosen = [s for s in self.nodes.switches.values() if s.serving and s.name not in names]
        return [*stopped, *(await counters.read(chosen, self.dataplane))[1]]

    async def _read(self, chosen: Iterable[SwitchProcess]) -> outcomes.Counts:
        """Reads the counters of these switches; leaves out those that do not answer."""
        return (await counters.read(chosen, self.dataplane))[0]

    async def _write_summary(self) -> None:
        """Writes the summary; then raises ``TimeoutError`` if links could not be measured."""
        rows: list[Link] = []
        silent: TimeoutError | None = None
        # A process that has ended or is stuck does not report what it has sent.
        if self._before and not self.processes.failure.done() and not self.processes.stopped():
            try:
                now = await self.measure()
                known = not self.external.known and not self.faults.other_traffic
                rows = self.carried(now, expected_loads(self.jobs.values()) if known else None)
            except TimeoutError as error:
                silent = error
                self.note(error, None)
        await self.faults.settled()
        self.run.write_summary(
            summary(
                self.jobs.values(),
                name=self.run.name,
                target=self.target,
                clock=self.facts["clock"],
                shaping=self.network.shaping,
                links=rows,
                machine=machine_facts(self.target),
                failure=self.failure,
                others=await self.history(),
                faults=self.faults.rows(),
            )
        )
        if silent is not None:
            raise silent

    # --- requests ---

    def describe(self) -> Description:
        """Returns the testbed's name, target, topology and size."""
        nodes = self.topology
        return {
            "name": self.run.name,
            "run": str(self.run.path),
            "target": self.target,
            "clock": self.facts["clock"],
            "topology": nodes.name,
            "workers": len(nodes.workers),
            "servers": len(nodes.servers),
            "switches": len(nodes.switches),
            "lanes": self.dataplane.lanes,
            "seconds_up": time.monotonic() - self._started,
        }

    async def history(self) -> list[OtherJob]:
        """Returns the external jobs so far, with times as in the series."""
        return await self.external.history(self.series.started)

    async def measure(self) -> links.Measured:
        """Reads the counters of all links; raises ``TimeoutError``."""
        return await link_counters.measure(self.network, self.nodes.switches)

    def carried(self, now: links.Measured, loads: Mapping[Direction, Load] | None) -> list[Link]:
        """Returns rows of what links have carried since the testbed came up."""
        assert self._before is not None
        carried = links.since(self.addressing, self._before, now)
        return links.rows(self.addressing, carried, loads)

    def command(self, node: str, program: list[str]) -> list[str]:
        """Returns the command line that runs a program at a node; raises ``ControlError``."""
        try:
            return self.network.node(node).command(program)
        except KeyError:
            names = ", ".join(one.name for one in self.topology.nodes)
            raise ControlError(f"no node {node!r} in {self.run.name}: {names}") from None

    def environment(self, node: str) -> dict[str, str]:
        """Returns environment variables of a program at a node
        (``hosts.session.testbed_environment``)."""
        # The path of the run directory may exceed the limit of a socket address; this one, by the
        # working directory of this process, does not.
        socket = JOBS_ADDRESS.removeprefix("unix:")
        variables = {SERVICE: f"unix:/proc/{os.getpid()}/cwd/{socket}"}
        if self.topology.by_name[node].kind != "switch":
            end = self.addressing.host_interfaces(node)[0]
            variables |= {
                HOST: node,
                ADDRESS: str(end.ipv4),
                QUEUE_BYTES: str(end.outgoing.queue_bytes),
            }
        return variables
