# SPDX-License-Identifier: Apache-2.0
"""Handles the reports of a job's workers, tracks which of them are in the job, and waits for their
end.

A ``WorkerSupervisor`` runs the processes; each reports lines of JSON (``testbed.worker``).
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from emulation.jobs.context import TestbedContext
from emulation.jobs.waiting import Waits
from emulation.jobs.worker_supervisor import SupervisorCallbacks, WorkerSupervisor
from emulation.nodes.processes import Process, ProcessError, Processes
from observability.progress import Progress
from specs.jobspec import JobSpec
from testbed.errors import JobError
from workloads.attendance import Attendance

Message = dict[str, Any]


@dataclass
class WorkerCallbacks:
    """Callbacks of ``Workers``.

    begun: all workers run.
    emit: sends an event to the job's watchers.
    outline: takes a worker's answer to a query (``emulation.jobs.diagnostics``).
    waits: the job has waited for so many seconds, and why.
    progress: returns the progress to report.
    """

    begun: Callable[[], None]
    emit: Callable[[Message], None]
    outline: Callable[[Process, Message], None]
    waits: Callable[[float, str], None]
    progress: Callable[[], Message]


class Workers:
    """The workers of one job.

    hosts: host names, by rank.
    results: final reports, by rank.
    checkpoints: iteration and file of each checkpoint written so far.
    plan: the first epoch in which all workers ran.
    """

    def __init__(
        self,
        job: str,
        hosts: Sequence[str],
        spec: JobSpec,
        context: TestbedContext,
        callbacks: WorkerCallbacks,
    ) -> None:
        self.results: dict[int, Message] = {}
        self.checkpoints: list[Message] = []
        self.plan = 0
        self.attendance = Attendance()
        self.progress = Progress(len(hosts), spec.iterations)
        self.waits = Waits((), ())
        self._job = job
        self._hosts = hosts
        self._spec = spec
        self._context = context
        self._callbacks = callbacks
        self._supervisor: WorkerSupervisor | None = None
        self._started = 0
        self._running = False
        self._heard = 0.0  # time of the last progress report
        self._explaining: asyncio.Task[None] | None = None

    def go_on_from(self, iterations: int) -> None:
        """Sets the iterations that an earlier job did: this one continues from its checkpoint."""
        self.attendance = Attendance(iterations)
        self.progress = Progress(len(self._hosts), self._spec.iterations, iterations)

    def start(
        self,
        nonce: str,
        commands: Sequence[Sequence[str]],
        process_name: Callable[[str], str],
        processes: Processes,
        waits: Waits,
    ) -> None:
        """Starts all workers.

        commands: command lines, by rank. process_name: maps a host to the name of its process.
        waits: tracks which workers wait, and for what.
        """
        self.waits = waits
        self._supervisor = WorkerSupervisor(
            self._job,
            nonce,
            self._hosts,
            commands,
            process_name,
            processes,
            SupervisorCallbacks(
                self._take,
                lambda: self._running,
                lambda: bool(self.results),
                self._lost,
                self._context.tell,
            ),
        )
        self._supervisor.start()

    async def until_ended(self) -> None:
        """Waits until all workers have ended; once one has, the others have `patience` left.

        Raises ``ProcessError``, and ``JobError`` if one has ended without a result.
        """
        assert self._supervisor is not None
        await self._until_ended(self._supervisor)
        self._supervisor.stop()
        ended = {*self.results, *self._supervisor.lost}
        silent = [name for rank, name in enumerate(self._hosts) if rank not in ended]
        if silent:
            raise JobError(f"{', '.join(silent)}: ended without a result", silent[0])

    def over(self) -> None:
        """Marks the job as not running, so that nothing is restarted or explained."""
        self._running = False
        if self._explaining is not None:
            self._explaining.cancel()

    @property
    def members(self) -> Mapping[str, Process]:
        """Worker processes, by host."""
        return self._supervisor.members if self._supervisor is not None else {}

    @property
    def present(self) -> list[str]:
        """Hosts of the workers that are in the job: they run and do not wait to rejoin."""
        members, lost = self.members, self.lost
        hosts = enumerate(self._hosts)
        return [n for rank, n in hosts if rank not in lost and n in members and members[n].running]

    @property
    def restart_delays(self) -> dict[str, float]:
        """``WorkerSupervisor.restart_delays``."""
        return self._supervisor.restart_delays if self._supervisor is not None else {}

    @property
    def lost(self) -> Mapping[int, str]:
        """How the workers ended that are not in the job now, by rank."""
        return self._supervisor.lost if self._supervisor is not None else {}

    @property
    def errors(self) -> Mapping[int, str]:
        """Last error message of each worker, by rank."""
        return self._supervisor.errors if self._supervisor is not None else {}

    @property
    def back(self) -> Mapping[int, int]:
        """Number of times each worker has rejoined, by rank."""
        return self._supervisor.back if self._supervisor is not None else {}

    # --- inside ---

    async def _until_ended(self, supervisor: WorkerSupervisor) -> None:
        patience, together = self._spec.patience, self._spec.consistency.together
        hosts, processes, members = self._hosts, supervisor.processes, supervisor.members
        first: str | None = None
        while left := [n for n, process in members.items() if not process.judged.done()]:
            ranks = [hosts.index(name) for name in left]
            if first is not None and all(self.attendance.absent(rank) for rank in ranks):
                await supervisor.part(ranks)
                return
            either: list[asyncio.Future[Any]] = [members[name].judged for name in left]
            ended, _ = await asyncio.wait(
                [*either, processes.failure],
                timeout=None if first is None else patience,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if processes.failure.done():
                processes.failure.result()
            if not ended and not together and time.monotonic() - self._heard < patience:
                continue  # slower workers are still on their way
            if not ended:
                what = f"has not ended {patience:g} s after {first} did"
                raise ProcessError(left[0], what, members[left[0]].log)
            over = [p for p in members.values() if p.judged.done()]
            if not all(process.judged.result() for process in over):
                # The group's failure is the process that caused the others to end.
                await asyncio.wait([processes.failure])
                processes.failure.result()
            first = next((hosts[rank] for rank in self.results), None)

    def _take(self, rank: int, line: str) -> None:
        """Handles a line of a worker's output."""
        if not line.startswith("{"):
            return
        assert self._supervisor is not None
        report: Message = json.loads(line)
        kind = report.pop("report")
        faults, series = self._context.faults, self._context.series
        if kind == "started":
            if report["joined"]:
                self._joined(self._supervisor, rank, report["done"])
                return
            self._started += 1
            if self._started == len(self._hosts):
                self._running, self.plan = True, report["plan"]
                faults.runs(self._job, range(self._started), self.plan)
                self._callbacks.begun()
        elif kind == "progress":
            self._heard = time.monotonic()
            self.waits.over(rank)
            self.attendance.take(rank, report["attendance"])
            faults.progress(self._job, rank, report)
            if self.progress.take(rank, report):
                series.iterations(self._job, self.progress.latest)
                self._callbacks.emit(
                    {"event": "progress", "job": self._job, **self._callbacks.progress()}
                )
        elif kind == "waiting":
            self.waits.take(rank, report)
            if self._explaining is None or self._explaining.done():
                explaining = self._explain(self._supervisor.processes)
                self._explaining = asyncio.get_running_loop().create_task(explaining)
        elif kind == "outline":
            self._callbacks.outline(self.members[self._hosts[rank]], report)
        elif kind == "checkpoint":
            self.checkpoints.append({"iteration": report["iteration"], "file": report["file"]})
        elif kind == "failed":
            self._supervisor.errors[rank] = report["error"]
        elif kind == "done":
            self.attendance.take(rank, report["attendance"])
            self.results[rank] = report

    def _lost(self, rank: int, what: str) -> None:
        """Records that the job continues without a worker."""
        self.progress.drop(rank)
        self.waits.over(rank)
        self._context.faults.died(self._hosts[rank], what)
        self._context.faults.lost(self._job, rank)

    def _joined(self, supervisor: WorkerSupervisor, rank: int, done: int) -> None:
        """Records that a lost worker has rejoined the job after so many iterations."""
        self.attendance.begin(rank)
        self.progress.join(rank, done)
        supervisor.joined(rank)
        self._context.faults.joined(self._job, rank, self._hosts[rank])

    async def _explain(self, processes: Processes) -> None:
        """Reports how long the job has waited, and why."""
        stuck = [*processes.stopped(), *await self._context.suspects()]
        if self.waits.seconds:
            why = "; ".join(f"{one.name} {one.what}" for one in stuck) or str(self.waits)
            self._callbacks.waits(self.waits.seconds, why)
