# SPDX-License-Identifier: Apache-2.0
"""Runs one job on a running testbed: admission, training, the reference check."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import time
from functools import cached_property
from pathlib import Path

from emulation.jobs.checking import reference, replay
from emulation.jobs.context import TestbedContext
from emulation.jobs.counter_delta import CounterDelta
from emulation.jobs.diagnostics import Diagnostics
from emulation.jobs.root_cause import root_cause
from emulation.jobs.waiting import Waits
from emulation.jobs.worker_supervisor import WorkerSupervisor
from emulation.nodes.process_supervisor import JOBS_ADDRESS
from emulation.nodes.processes import Process, ProcessError, Processes, python
from hosts.data.checkpoint import read
from hosts.errors import CheckpointError, ClientError
from hosts.session.job_service import Service, create_service, enrol
from observability import cpu_use, results
from observability.cpu_use import CpuWatch, Share
from observability.machine import cpu_seconds
from observability.messages.events import EmitEvent
from observability.messages.process_reports import Report
from observability.messages.summary import FinishedJob
from specs.jobfile import JobFile, Placement
from specs.scaling import Changes
from testbed.errors import JobError
from testbed.jobrun import JobRun
from workloads.reference import ReferenceResult

log = logging.getLogger("jobs")

# How long a starting job waits for a controller that is being restarted, twice at most.
CONTROLLER_SECONDS = 60.0
# How long a failed or stopped job waits for the controller to end it there.
WITHDRAW_SECONDS = 5.0
# How long iterations are repeated in virtual time: that share of what training took, within limits.
REPLAYED_SHARE, LEAST_REPLAY_SECONDS, MOST_REPLAY_SECONDS = 0.5, 20.0, 60.0


class EmulatedJob(JobRun):
    """One run of a job on a testbed.

    processes: a group of its own, so that a failing worker ends only this job.
    ending: reason of a cancellation.
    workers: its worker processes.
    diagnostics: explains what the job waits for.
    """

    def __init__(
        self,
        context: TestbedContext,
        file: JobFile,
        name: str,
        placement: Placement,
        processes: Processes,
        emit: EmitEvent,
    ) -> None:
        network, run = context.network, context.run
        super().__init__(
            *(file, name, placement, network.addressing, context.dataplane),
            *(run.path, context.series, emit),
        )
        self.target, self.clock = context.nodes.target, context.clock
        self.ending = "stopped on request"
        self.nonce = ""
        self.workers = WorkerSupervisor(self, processes, self._lost, context.tell)
        self.diagnostics = Diagnostics(self, self.workers, context.nodes)
        self._context, self._processes = context, processes
        self._waits = Waits((), ())
        self._changing = asyncio.Lock()
        self._explaining: asyncio.Task[None] | None = None
        self._trained_from: tuple[float, float] = (0.0, 0.0)  # CPU seconds, busy and all
        self._watches: dict[str, CpuWatch] = {}  # by name of switch or server
        self._restored_from: Path | None = None
        self._used: tuple[float, dict[str, Share | None], int] = (0.0, {}, 0)

    async def execute(self) -> FinishedJob:
        """Runs the job; returns its part of the summary. Raises ``JobError``."""
        start = time.monotonic()
        watching = asyncio.get_running_loop().create_task(self.diagnostics.watch())
        replaying: asyncio.Task[list[float]] | None = None
        try:
            await self._train()
            self.wall_seconds = time.monotonic() - start
            self.state = "checking"
            replaying = asyncio.get_running_loop().create_task(self._replay())
            if not self.no_reference:
                self.emit({"event": "checking", "job": self.name})
                self.reference = await self._train_reference()
            self.check(shared=bool(self.shared_with))
            took = results.fullest(self.results)["seconds"]
            self.cpus = cpu_use.machine(*self._used, took, await replaying)
        except (ProcessError, ClientError, TimeoutError, JobError) as error:
            self.state, self.reason = "failed", str(error)
            failure = await self._root_cause(error)
            self.reason = str(failure)
            raise failure from error
        except asyncio.CancelledError:
            self.state, self.reason = "stopped", self.ending
            raise
        finally:
            watching.cancel()
            if replaying is not None:
                replaying.cancel()
            if self._explaining is not None:
                self._explaining.cancel()
            await self._processes.stop()
            if self.number:
                self.delta.over()
            self._context.faults.over(self.name)
            if self.number and self.state in ("failed", "stopped"):
                await self._withdraw()
        self.state = "done"
        self.emit({"event": "done", "job": self.name})
        return self.finished()

    # --- training ---

    async def _train(self) -> None:
        context, hosts = self._context, self.placement.workers
        service = await self._create()
        self.admitted(service)
        copy = self.folder / f"job-{self.name}.yaml"
        await asyncio.to_thread(shutil.copyfile, self.file.source, copy)
        if self.file.restore is not None:
            await asyncio.to_thread(self._restore, self.file.restore)
        self.nonce = service.nonce
        await context.nodes.serving.joined(self.number, CONTROLLER_SECONDS)
        await self.delta.begin()
        self._waits = Waits(self.forecast.trees, self.servers)
        self.workers.start(
            service.nonce,
            [self._command(rank, copy) for rank in range(len(hosts))],
            [self._process_name(host) for host in hosts],
        )
        await self.workers.until_ended()
        busy, shares, lost = self._cpu_use()
        context.faults.over(self.name)
        known = self.forecast.predictable and not super().disturbed
        known = known and not context.faults.other_traffic
        await self.delta.end(self.forecast.expected() if known else None)
        self.counts, self.links = self.delta.counts, self.delta.carried
        self.shared_with, self.alongside = self.delta.shared_with, self.delta.alongside
        self._used = busy, shares, lost + self.delta.overrun
        self.ends_as(await self.diagnostics.status())

    async def _create(self) -> Service:
        """Creates the job at the job service; raises ``ClientError``."""
        creating = asyncio.get_running_loop().create_task(
            asyncio.to_thread(
                create_service,
                JOBS_ADDRESS,
                self.name,
                self.placement.workers,
                self.placement.servers,
                **self.spec.service(),
                spares=self.placement.spares,
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
            self._context.nodes.controller.stop_job(self.number, self.ending)

    async def _add_worker(self, host: str) -> None:
        """Has a worker join the job, a further one or one that it goes on without; returns once it
        has. Raises ``ClientError``, ``JobError``."""
        if host not in self.placement.workers:
            rank = await asyncio.to_thread(enrol, JOBS_ADDRESS, self.nonce, host)
            self.enrolled(host)
        rank = self.placement.workers.index(host)
        command = self._command(rank, self.folder / f"job-{self.name}.yaml")
        await self.workers.add(rank, command, self._process_name(host))

    def check_change(self, workers: Changes) -> None:
        """Raises ``JobError`` if workers cannot join and leave like this now."""
        self.check_workers(self.workers.present, self.workers.away, workers)

    async def change_workers(self, workers: Changes) -> list[str]:
        """Adds workers, then has others leave, until they are added again.

        Returns those that did not leave in time and were killed. Raises ``ClientError``,
        ``JobError``.
        """
        async with self._changing:  # so that of two orders the second sees who is left
            self.check_change(workers)
            for host in workers.added:
                await self._add_worker(host)
            return [host for host in workers.removed if not await self.workers.remove(host)]

    async def _withdraw(self) -> None:
        """Ends the job at the controller, so that it frees its slots and awaits no members."""
        controller = self._context.nodes.controller
        # If workers have left, the controller has ended the job already and refuses this.
        answer = controller.stop_job(self.number, self.reason.split("\n", 1)[0])
        process = controller.process
        if process is not None and process.running and not process.stopped:  # else: after restart
            await asyncio.wait([answer], timeout=WITHDRAW_SECONDS)

    def _restore(self, path: Path) -> None:
        """Copies the checkpoint to continue from into the run directory, and reads it."""
        kept = self.folder / f"restored-{self.name}.checkpoint"
        try:
            shutil.copyfile(path, kept)
            self.resume(read(kept))
        except OSError as error:
            raise JobError(f"{path}: cannot be read: {error.strerror}") from error
        except CheckpointError as error:
            raise JobError(str(error)) from error
        self._restored_from = kept

    def _command(self, rank: int, file: Path) -> list[str]:
        """Returns the command line of a worker of the job in ``file``."""
        options = self.worker_options(rank, file, JOBS_ADDRESS, self._restored_from)
        node = self._context.network.node(self.placement.workers[rank])
        return node.command(python("testbed.worker", *options.arguments()))

    def _process_name(self, host: str) -> str:
        # The first job's logs need no prefix.
        return host if self.number == 1 else f"{self.name}-{host}"

    def _cpu_use(self) -> tuple[float, dict[str, Share | None], int]:
        """Returns the CPU use since the workers started, as ``cpu_use.machine`` takes it."""
        now, (busy, every) = cpu_seconds(), self._trained_from
        share = (now["busy"] - busy) / max(1e-9, now["all"] - every)
        shares = {name: watch.share() for name, watch in self._watches.items()}
        lost = sum(watch.dropped() for name, watch in self._watches.items() if name in self.servers)
        for rank, result in sorted(self.results.items()):
            reported = result["scheduling"]
            if reported is not None:
                shares[self.placement.workers[rank]] = reported["share"]
                lost += reported["dropped"]
        return share, shares, lost

    # --- workers' reports ---

    def take(self, rank: int, report: Report) -> None:
        """Handles a worker's report."""
        faults, host = self._context.faults, self.placement.workers[rank]
        if report["report"] == "started" and report["joined"]:
            self.attendance.begin(rank)
            self._progress.join(rank, report["done"])
            self.workers.joined(rank)
            faults.joined(self.name, rank, host)
            return
        if report["report"] == "progress":
            self._waits.over(rank)
            faults.progress(self.name, rank, report)
        elif report["report"] == "waiting":
            self._waits.take(rank, report)
            if self._explaining is None or self._explaining.done():
                self._explaining = asyncio.get_running_loop().create_task(self._explain())
        elif report["report"] == "outline":
            self.diagnostics.answer(self.workers.members[host], report)
        super().take(rank, report)
        if report["report"] == "left":
            self._waits.over(rank)
            faults.lost(self.name, rank)
            self.workers.left(rank)

    def _begin(self) -> None:
        nodes = self._context.nodes
        self._context.faults.runs(self.name, range(len(self.placement.workers)), self.epoch)
        cpu = cpu_seconds()
        self._trained_from = (cpu["busy"], cpu["all"])
        found = {name: nodes.at(name) for name in (*nodes.switches, *self.servers)}
        self._watches = {name: CpuWatch(one.pid) for name, one in found.items() if one is not None}
        super()._begin()

    def _lost(self, rank: int, what: str) -> None:
        """Records that the job continues without a worker."""
        self._progress.drop(rank)
        self._waits.over(rank)
        self._context.faults.died(self.placement.workers[rank], what)
        self._context.faults.lost(self.name, rank)

    async def _explain(self) -> None:
        """Reports how long the job has waited, and why."""
        stuck = [*self._processes.stopped(), *await self._context.suspects()]
        if self._waits.seconds:
            why = "; ".join(f"{one.name} {one.what}" for one in stuck) or str(self._waits)
            self._emit_waiting(self._waits.seconds, why)

    def _emit_waiting(self, seconds: float, why: str) -> None:
        self.emit({"event": "waiting", "job": self.name, "seconds": seconds, "why": why})

    # --- the end ---

    @cached_property
    def delta(self) -> CounterDelta:
        """Counters of its switches and links; available once the job has a number."""
        return self._context.deltas.of(self.name, self.forecast.trees)

    @property
    def disturbed(self) -> str:
        """Overrides ``JobRun``: here, switches may also lose their counters."""
        if self.delta.wiped:
            return f"{', '.join(self.delta.wiped)} lost its counters"
        return super().disturbed

    async def _train_reference(self) -> ReferenceResult:
        """Runs the same job in one process without a network; returns its result."""
        attendance = self.folder / f"attendance-{self.name}.json"
        attendance.write_text(json.dumps(self.attendance.spans()))
        arguments = [
            *("--job", str(self.folder / f"job-{self.name}.yaml")),
            *("--world", str(self.world)),
            *("--joined", str(len(self.placement.workers) - self.world)),
            *("--lanes", str(self.dataplane.lanes)),
            *("--attendance", str(attendance)),
        ]
        if self._restored_from is not None:
            arguments += ["--restore", str(self._restored_from)]
        name = self._process_name("reference")
        return await reference(name, arguments, self._processes, self._emit_waiting)

    async def _replay(self) -> list[float]:
        """Returns the seconds of iterations in virtual time; none where other jobs or faults took
        part in what they took, or it cannot tell."""
        context, run = self._context, self._context.run
        left = self.spec.iterations - self.forecast.before
        if left < 2 or self.alongside or self.disturbed or context.faults.met(self.name):
            return []
        seconds = min(
            max(LEAST_REPLAY_SECONDS, REPLAYED_SHARE * self.wall_seconds), MOST_REPLAY_SECONDS
        )
        arguments = [
            *("--topology", str(run.topology), "--topology-seed", str(run.facts["topology_seed"])),
            *("--job", str(self.folder / f"job-{self.name}.yaml"), "--seconds", f"{seconds:.3g}"),
            *("--program", run.facts["program"], "--p4info", run.facts["p4info"]),
        ]
        if self._restored_from is not None:
            arguments += ["--restore", str(self._restored_from)]
        processes = self._processes.beside()  # whose failure is not the job's
        try:
            return await replay(self._process_name("replay"), arguments, processes)
        except ProcessError:
            log.exception("%s: its times cannot be compared with virtual time", self.name)
            return []
        finally:
            await processes.stop()

    async def _root_cause(self, error: Exception) -> JobError:
        """Returns the cause of a failure whose first symptom was this error."""
        name = getattr(error, "name", None) or getattr(error, "process", None)
        hosts = enumerate(self.placement.workers)
        said = [
            self.errors[rank]
            for rank, host in hosts
            if rank in self.errors and self._process_name(host) == name
        ]
        stuck = [*self._processes.stopped(), *await self._context.suspects()]
        servers = [(name, self._context.nodes.at(name)) for name in self.servers]
        members: list[tuple[str, Process]] = [
            *self.workers.members.items(),
            *((name, process) for name, process in servers if process is not None),
        ]
        absent = self._waits.missing()
        return root_cause(self.name, error, said[0] if said else "", stuck, absent, members)
