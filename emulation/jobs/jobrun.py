# SPDX-License-Identifier: Apache-2.0
"""Runs one job on a running testbed: admission, training, the reference check, the summary."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from emulation.jobs.checking import reference
from emulation.jobs.context import TestbedContext
from emulation.jobs.counter_delta import CounterDelta
from emulation.jobs.diagnostics import Diagnostics
from emulation.jobs.root_cause import root_cause
from emulation.jobs.waiting import Waits
from emulation.jobs.workers import WorkerCallbacks, Workers
from emulation.nodes.process_supervisor import JOBS_ADDRESS
from emulation.nodes.processes import Process, ProcessError, Processes, python
from hosts.data.checkpoint import read
from hosts.errors import CheckpointError, ClientError
from hosts.session.job_service import Service, create_service
from observability import results, scheduling
from observability.record import cpu_seconds
from observability.scheduling import CpuWatch, Share
from planner.forecast import Forecast
from specs.jobfile import JobFile, Placement
from testbed.errors import JobError

log = logging.getLogger("jobrun")
# How long a starting job waits for a controller that is being restarted, twice at most.
CONTROLLER_SECONDS = 60.0
# How long a failed or stopped job waits for the controller to end it there.
WITHDRAW_SECONDS = 5.0

Message = dict[str, Any]


@dataclass
class JobRun:
    """One run of a job on a testbed.

    emit: sends an event to the job's watchers.
    tree: the tree it was admitted with.
    servers: server processes by rank (``topologies.model.addressing.Unit``).
    state: starting, running, checking, done, failed or stopped.
    ending: reason of a cancellation.
    """

    context: TestbedContext
    file: JobFile
    name: str
    placement: Placement
    emit: Callable[[Message], None]
    number: int = 0
    tree: str = ""
    servers: tuple[str, ...] = ()
    state: str = "starting"
    reason: str = ""
    ending: str = "stopped on request"
    _nonce: str = ""
    _restored: list[Message] | None = None
    _trained_from: tuple[float, float] = (0.0, 0.0)  # CPU seconds, busy and all
    _watches: dict[str, CpuWatch] = field(default_factory=dict)  # by name of switch or server
    _cpus: Message = field(default_factory=dict)
    _outcome: Message | None = None  # the summary of a job that is done
    _restored_from: Path | None = None

    def __post_init__(self) -> None:
        self.forecast = Forecast(
            self.file.spec,
            self.placement.workers,
            self.context.network.addressing,
            self.context.dataplane,
            goes_on=self.file.restore is not None,
        )

    async def execute(self, processes: Processes) -> Message:
        """Runs the job; returns its part of the summary. Raises ``JobError``.

        processes: a group of its own, so that a failing worker ends only this job.
        """
        start = time.monotonic()
        watching = asyncio.get_running_loop().create_task(self.diagnostics.watch())
        try:
            await self._train(processes)
            wall = time.monotonic() - start
            self.state = "checking"
            reference = None
            if not self._unknown:
                self.emit({"event": "checking", "job": self.name})
                reference = await self._reference(processes)
            counted = self._check_sums()
            self._check_staleness()
        except (ProcessError, ClientError, TimeoutError, JobError) as error:
            self.state, self.reason = "failed", str(error)
            failure = await self._root_cause(error, processes)
            self.reason = str(failure)
            raise failure from error
        except asyncio.CancelledError:
            self.state, self.reason = "stopped", self.ending
            raise
        finally:
            watching.cancel()
            self.workers.over()
            await processes.stop()
            if self.number:
                self.delta.over()
            self.context.faults.over(self.name)
            if self.number and self.state in ("failed", "stopped"):
                await self._withdraw()
        self.state = "done"
        self._outcome = self._summary(reference, counted, wall)
        self.emit({"event": "done", "job": self.name})
        return self._outcome

    def _begun(self) -> None:
        """Records that all workers run."""
        self.state = "running"
        cpu = cpu_seconds()
        self._trained_from = (cpu["busy"], cpu["all"])
        names = [*self.context.nodes.switches, *self.servers]
        found = {name: self.context.nodes.at(name) for name in names}
        self._watches = {name: CpuWatch(one.pid) for name, one in found.items() if one is not None}
        self.context.series.state(self.name, self.state, self.number)
        self.emit({"event": "running", "job": self.name})

    def _cpu_use(self) -> tuple[float, dict[str, Share | None], int]:
        """Returns the CPU use since the workers started, as ``scheduling.machine`` takes it."""
        now, (busy, every) = cpu_seconds(), self._trained_from
        share = (now["busy"] - busy) / max(1e-9, now["all"] - every)
        shares = {name: watch.share() for name, watch in self._watches.items()}
        lost = sum(watch.dropped() for name, watch in self._watches.items() if name in self.servers)
        for rank, result in sorted(self.workers.results.items()):
            reported = result["scheduling"]
            own = None if reported["share"] is None else Share(**reported["share"])
            shares[self.placement.workers[rank]] = own
            lost += reported["dropped"]
        return share, shares, lost

    async def _train(self, processes: Processes) -> None:
        placement, run = self.placement, self.context.run
        self._nonce, self.number, self.tree, self.servers = await self._admitted()
        self.forecast = replace(
            self.forecast, number=self.number, tree=self.tree, servers=self.servers
        )
        copy = run.path / f"job-{self.name}.yaml"
        await asyncio.to_thread(shutil.copyfile, self.file.source, copy)
        if self.file.restore is not None:
            await asyncio.to_thread(self._restore, self.file.restore)
        await self.context.nodes.serving.joined(self.number, CONTROLLER_SECONDS)
        await self.delta.begin()
        members = range(len(placement.workers))
        commands = [self._command(rank, str(copy)) for rank in members]
        waits = Waits(self.forecast.trees, self.servers)
        self.workers.start(self._nonce, commands, self._process_name, processes, waits)
        await self.workers.until_ended()
        busy, shares, lost = self._cpu_use()
        self.context.faults.over(self.name)
        known = self.forecast.predictable and not self._replanned
        await self.delta.end(self.forecast.expected() if known else None)
        self._cpus = scheduling.machine(busy, shares, lost + self.delta.overrun)
        self._restored = await self.diagnostics.restored()

    async def _admitted(self) -> Service:
        """Creates the job at the job service; raises ``ClientError``."""
        spec, placement = self.file.spec, self.placement
        creating = asyncio.get_running_loop().create_task(
            asyncio.to_thread(
                create_service,
                JOBS_ADDRESS,
                self.name,
                placement.workers,
                placement.servers,
                **spec.service(),
                outage=CONTROLLER_SECONDS,
            )
        )
        try:
            return await asyncio.shield(creating)
        except asyncio.CancelledError:
            # The request is on its way; only this task can end the job that it will create.
            creating.add_done_callback(self._unwanted)
            raise

    def _unwanted(self, creating: asyncio.Task[Service]) -> None:
        if not creating.cancelled() and creating.exception() is None:
            self.number = creating.result().job
            self.context.nodes.controller.stop_job(self.number, self.ending)

    async def _withdraw(self) -> None:
        """Ends the job at the controller, so that it frees its slots and awaits no members."""
        controller = self.context.nodes.controller
        # If workers have left, the controller has ended the job already and refuses this.
        answer = controller.stop_job(self.number, self.reason.split("\n", 1)[0])
        process = controller.process
        if process is not None and process.running and not process.stopped:  # else: after restart
            await asyncio.wait([answer], timeout=WITHDRAW_SECONDS)

    @property
    def _reset(self) -> str:
        """Why the optimizer's state was reset during the job; empty if it was not."""
        if self.file.spec.optimizer.name == "sgd":
            return ""
        given = [
            f"{one['server']} had parameters from {one['from']} without the optimizer's state"
            for one in self._restored or ()
            if one["from"] not in self.servers
        ]
        return ", ".join(given)

    def _restore(self, path: Path) -> None:
        """Copies the checkpoint to continue from into the run directory, and reads it."""
        kept = self.context.run.path / f"restored-{self.name}.checkpoint"
        try:
            shutil.copyfile(path, kept)
            checkpoint = read(kept)
        except OSError as error:
            raise JobError(f"{path}: cannot be read: {error.strerror}") from error
        except CheckpointError as error:
            raise JobError(str(error)) from error
        self._restored_from = kept
        self.workers.go_on_from(checkpoint.calls)
        # Chunks of another size have no exponents yet.
        contacted = checkpoint.lanes == self.context.dataplane.lanes
        self.forecast = replace(self.forecast, before=checkpoint.calls, contacted=contacted)

    def _command(self, rank: int, file: str) -> list[str]:
        """Returns the command line of a worker of the job in ``file``."""
        name = self.placement.workers[rank]
        end = self.context.network.addressing.host_interfaces(name)[0]
        program = python(
            "testbed.worker",
            *("--job", file, "--rank", str(rank), "--world", str(len(self.placement.workers))),
            *("--service", JOBS_ADDRESS, "--address", str(end.ipv4)),
            *("--queue-bytes", str(end.outgoing.queue_bytes)),
            *("--link-rate", str(end.outgoing.rate)),
            *("--weights", str(self.context.run.path / f"weights-{self.name}.npz")),
            *self._restoring,
        )
        if self.file.spec.checkpoint is not None:
            folder = self.context.run.path / self.file.spec.checkpoint.to
            program += ["--checkpoints", str(folder / self.name)]
        return self.context.network.node(name).command(program)

    @property
    def restart_delays(self) -> dict[str, float]:
        """``WorkerSupervisor.restart_delays``."""
        return self.workers.restart_delays

    async def _root_cause(self, error: Exception, processes: Processes) -> JobError:
        """Returns the cause of a failure whose first symptom was this error."""
        errors = self.workers.errors
        name = getattr(error, "name", None) or getattr(error, "process", None)
        hosts = enumerate(self.placement.workers)
        said = [errors[r] for r, host in hosts if r in errors and self._process_name(host) == name]
        stuck = [*processes.stopped(), *await self.context.suspects()]
        absent, members = self.workers.waits.missing(), self._processes()
        return root_cause(self.name, error, said[0] if said else "", stuck, absent, members)

    def _processes(self) -> list[tuple[str, Process]]:
        """Returns the members' processes with the names that the job service gives them."""
        servers = [(name, self.context.nodes.at(name)) for name in self.servers]
        return [*self.members.items(), *((name, p) for name, p in servers if p is not None)]

    def _process_name(self, host: str) -> str:
        # The first job's logs need no prefix.
        return host if self.number == 1 else f"{self.name}-{host}"

    @cached_property
    def workers(self) -> Workers:
        """The job's workers and their reports."""
        return Workers(
            self.name,
            self.placement.workers,
            self.file.spec,
            self.context,
            WorkerCallbacks(
                self._begun,
                self.emit,
                self.diagnostics.answer,
                self._emit_waiting,
                self.progress,
            ),
        )

    @cached_property
    def diagnostics(self) -> Diagnostics:
        """Explains what the job waits for."""
        return Diagnostics(self, self.context.nodes, JOBS_ADDRESS)

    @property
    def members(self) -> Mapping[str, Process]:
        """Worker processes, by host."""
        return self.workers.members

    @property
    def present(self) -> list[str]:
        """Hosts of the workers that are in the job: they run and do not wait to rejoin."""
        return self.workers.present

    def progress(self) -> Message:
        """Returns iteration, passes, loss, accuracy, chunks/s and share in the network."""
        progress = self.workers.progress.message()
        if "share_in_tree" in progress:
            share = progress.pop("share_in_tree")
            progress["share_in_network"] = share if self.tree != "none" else 0.0
        return progress

    def worker(self, host: str) -> Process | None:
        """Returns the process of the worker on a host; None if there is none."""
        return self.members.get(host)

    def pids(self, host: str) -> list[int]:
        """Returns the process ids, in the sandbox, of the worker on a host."""
        worker = self.members.get(host)
        return [worker.pid] if worker is not None and worker.running else []

    async def _reference(self, processes: Processes) -> Message:
        """Runs the same job in one process without a network; returns its result."""
        attendance = self.context.run.path / f"attendance-{self.name}.json"
        attendance.write_text(json.dumps(self.workers.attendance.spans()))
        arguments = (
            *("--job", str(self.context.run.path / f"job-{self.name}.yaml")),
            *("--world", str(len(self.placement.workers))),
            *("--lanes", str(self.context.dataplane.lanes)),
            *("--attendance", str(attendance)),
            *self._restoring,
        )
        name = "reference" if self.number == 1 else f"{self.name}-reference"
        return await reference(name, arguments, processes, self._emit_waiting)

    def _emit_waiting(self, seconds: float, why: str) -> None:
        self.emit({"event": "waiting", "job": self.name, "seconds": seconds, "why": why})

    @property
    def _restoring(self) -> list[str]:
        """Options of a process that continues from a checkpoint."""
        return ["--restore", str(self._restored_from)] if self._restored_from is not None else []

    @property
    def _unknown(self) -> str:
        """Why no reference run can check the job's weights; empty if one can."""
        spec, world = self.file.spec, len(self.placement.workers)
        start = spec.optimizer.at == "servers" or self.forecast.contacted
        attendance = self.workers.attendance
        causes = [results.no_reference(spec, attendance, world, start=start)]
        if spec.consistency.together and not spec.server.plan.differs:
            causes.append(self._reset)
        return "; ".join(cause for cause in causes if cause)

    @cached_property
    def delta(self) -> CounterDelta:
        """Counters of its switches and links; available once the job has a number."""
        return self.context.deltas.of(self.name, self.forecast.trees)

    @property
    def _replanned(self) -> str:
        """Text that the job's trees were replanned; empty if they were not."""
        return results.replanned(self.workers.plan, self.workers.results)

    @property
    def disturbed(self) -> str:
        """Why switches' counters cannot be compared with the job's sums; empty if they can."""
        if self.delta.wiped:
            return f"{', '.join(self.delta.wiped)} lost its counters"
        return self._replanned

    def _check_sums(self) -> int | None:
        """Returns the number of chunks that switches summed; None if a fault makes it unknown.

        Raises ``JobError`` unless workers received as many sums.
        """
        if self.disturbed:
            return None
        if self.tree == "none":
            return 0
        one = results.fullest(self.workers.results)["statistics"]
        kinds = ("completed", "completed_direct", "exponent_rounds", "initial")
        self.delta.check(sum(one[kind] for kind in kinds))
        return int(one["completed"])

    def _check_staleness(self) -> None:
        """Raises ``JobError`` if a worker got further ahead than the job allows."""
        consistency = self.file.spec.consistency
        if consistency.staleness is None:
            return
        most = results.staleness(self.workers.results)["max"]
        if most > consistency.staleness:
            raise JobError(
                f"a worker got parameters {most} gradients ahead of the slowest one; the job's"
                f" consistency allows {consistency.staleness}"
            )

    def record(self) -> Message:
        """Returns its part of the summary: complete once the job is done, else what is known."""
        if self._outcome is not None:
            return self._outcome
        progress = self.progress()
        return {
            **self._described(),
            "iterations_done": progress["iteration"],
            "loss": progress.get("loss"),
            "accuracy": progress.get("accuracy"),
            "chunks": {},
            "links": [],
        }

    def _described(self) -> Message:
        return {
            "job": self.name,
            "number": self.number,
            "state": self.state,
            "reason": self.reason.split("\n", 1)[0],
            "target": self.context.nodes.target,
            "clock": self.context.clock,
            **results.about(
                self.file,
                self.placement,
                self.context.network.topology,
                self.tree or self.file.spec.tree,
                self.forecast.before,
            ),
        }

    def _summary(self, reference: Message | None, counted: int | None, wall: float) -> Message:
        workers, served = self.placement.workers, self.tree == "none"
        apart = not self.file.spec.consistency.together
        delta = self.delta
        return {
            **self._described(),
            **results.weights(
                workers,
                self.workers.results,
                self.workers.lost,
                reference,
                self._unknown,
                apart=apart,
            ),
            "staleness_seen": results.staleness(self.workers.results) if apart else None,
            "rejoined_workers": {workers[rank]: n for rank, n in sorted(self.workers.back.items())},
            # Servers that step with single gradients average nothing.
            "workers_per_iteration": [] if apart else self.workers.attendance.counts(),
            "attendance": [] if apart else self.workers.attendance.summary(workers),
            "chunks": results.chunks(
                self.workers.results, counted, self.disturbed, delta.retransmitted, served=served
            ),
            "plans": results.plans(self.workers.results),
            # Switches' counters include retransmissions for these jobs.
            "shared_with": sorted(delta.shared_with),
            "alongside": sorted(delta.alongside),
            # Where servers got parameters from at changes of epoch: a server (itself, if it had the
            # replica), with the optimizer's state; or a worker, without it.
            "restored": self._restored,
            "checkpoints": results.checkpoints(self.workers.checkpoints, self.context.run.path),
            "links": delta.carried,
            "machine": results.machine(self.workers.results, wall, self._cpus),
        }
