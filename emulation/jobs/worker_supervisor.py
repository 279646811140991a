# SPDX-License-Identifier: Apache-2.0
"""Supervises the worker processes of a job: restarts those that die, which then rejoin, and asks
some to leave.

A worker's end is first reported to the job service, so that the other workers continue without it
at once. A worker that exits with an error fails the job.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from emulation.nodes.process_supervisor import JOBS_ADDRESS
from emulation.nodes.processes import Process, ProcessError, Processes, describe
from hosts.errors import ClientError
from hosts.session.job_service import report_gone
from observability.messages.process_reports import decode
from protocol import jobs_pb2
from testbed.errors import LEFT_BEHIND, JobError
from testbed.jobrun import JobRun
from testbed.restarts import Restarts
from testbed.worker import LEAVE

log = logging.getLogger("workers")


class WorkerSupervisor:
    """Starts and restarts the worker processes of one job, identified by rank.

    lost: called when the job continues without a worker, with how that one ended.
    tell: sends a text to the job's watchers.
    restart_delays: seconds until a process that a fault kills is restarted (inf: never), by host.
    members: worker processes, by host.
    away: ranks whose processes are not restarted.
    """

    def __init__(
        self,
        job: JobRun,
        processes: Processes,
        lost: Callable[[int, str], None],
        tell: Callable[[str], None],
    ) -> None:
        self.restart_delays: dict[str, float] = {}
        self.members: dict[str, Process] = {}
        self._job, self._processes = job, processes
        self._lost, self._tell = lost, tell
        self._late: dict[int, str] = {}  # how those ended that did not leave in time, by rank
        self._coming: dict[int, asyncio.Future[None]] = {}  # by rank, of those asked to join
        self.away: set[int] = set()
        self._heard = 0.0  # time of the last progress report
        self._restarts = Restarts()
        self._returning: set[asyncio.Task[None]] = set()
        self._nonce = ""
        self._commands: list[Sequence[str]] = []
        self._names: list[str] = []

    def start(self, nonce: str, commands: Sequence[Sequence[str]], names: Sequence[str]) -> None:
        """Starts all workers. commands, names: command lines and process names, by rank."""
        self._nonce, self._commands, self._names = nonce, [*commands], [*names]
        for rank in range(len(self._hosts)):
            self._start(rank)

    @property
    def _hosts(self) -> tuple[str, ...]:
        return self._job.placement.workers

    async def add(self, rank: int, command: Sequence[str], name: str) -> None:
        """Starts a worker that is not in the job, and waits until it has joined.

        command, name: as of ``start``. Raises ``JobError`` if the job is over before.
        """
        if rank == len(self._commands):
            self._commands.append(command)
            self._names.append(name)
        if rank not in self._job.left:
            self._job.lost.setdefault(rank, "has not joined yet")
        self.away.discard(rank)
        coming = self._coming[rank] = asyncio.get_running_loop().create_future()
        self._start(rank)
        await coming

    async def remove(self, host: str) -> bool:
        """Asks a worker to leave at the end of its present round, and waits until it has; the job
        goes on without it until it is added again.

        Returns False if it has not left in time (``JobRun.leave_seconds``); it is killed then.
        """
        process, seconds = self.members[host], self._job.leave_seconds
        self.restart_delays[host] = math.inf
        with contextlib.suppress(ProcessError):  # it is about to end
            process.write(LEAVE)
        await asyncio.wait([process.judged], timeout=seconds)
        if process.judged.done():
            self.restart_delays.pop(host, None)
            return True
        rank = self._hosts.index(host)
        self._late[rank] = f"did not leave within {seconds:g} s and was killed"
        process.signal(signal.SIGKILL)
        await asyncio.wait([process.judged])
        # It is still there if the process ended by itself after all.
        return self._late.pop(rank, None) is not None

    def left(self, rank: int) -> None:
        """Records that a worker has left when it was asked to."""
        self.away.add(rank)
        host, after = self._hosts[rank], self._job.left[rank]
        rest = ", ".join(self.present)
        self._tell(
            f"{host} has left job {self._job.name} after iteration {after:,};"
            f" it goes on with {rest}"
        )

    @property
    def present(self) -> list[str]:
        """Hosts of the workers that are in the job: they run and do not wait to rejoin."""
        return [
            host
            for rank, host in enumerate(self._hosts)
            if rank not in self._job.away and host in self.members and self.members[host].running
        ]

    def joined(self, rank: int) -> None:
        """Records that a lost worker has rejoined the job."""
        self._job.lost.pop(rank, None)
        self._job.left.pop(rank, None)
        again = rank < self._job.world or rank in self._job.rejoined
        self._job.rejoined[rank] = self._job.rejoined.get(rank, 0) + again
        words = " again" if again else ""
        self._tell(f"{self._hosts[rank]} has joined job {self._job.name}{words}")
        coming = self._coming.pop(rank, None)
        if coming is not None and not coming.done():
            coming.set_result(None)

    async def until_ended(self) -> None:
        """Waits until all workers have ended; once one has, the others have `patience` left.

        Raises ``ProcessError``, and ``JobError`` if one has ended without a result.
        """
        try:
            await self._until_ended()
        finally:
            self.stop()
        ended = {*self._job.results, *self._job.away}
        silent = [name for rank, name in enumerate(self._hosts) if rank not in ended]
        if silent:
            raise JobError(f"{', '.join(silent)}: ended without a result", silent[0])

    def stop(self) -> None:
        """Cancels pending restarts; later ends restart nothing."""
        for task in self._returning:
            task.cancel()
        for rank, coming in self._coming.items():
            if not coming.done():
                text = f"job {self._job.name} was over before {self._hosts[rank]} had joined"
                coming.set_exception(JobError(text))

    # --- inside ---

    async def _until_ended(self) -> None:
        job, members, processes = self._job, self.members, self._processes
        patience, together = job.spec.patience, job.spec.consistency.together
        first: str | None = None
        while left := [n for n, process in members.items() if not process.judged.done()]:
            ranks = [self._hosts.index(name) for name in left]
            if first is not None and all(job.attendance.absent(rank) for rank in ranks):
                await self._part(ranks)
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
            first = next((self._hosts[rank] for rank in job.results), None)

    async def _part(self, ranks: Sequence[int]) -> None:
        """Ends processes that the job continued without and that do not exit by themselves: they
        are stopped, or wait to rejoin a job that is over."""
        self.stop()
        for rank in ranks:
            self._job.lost.setdefault(rank, "was too long without a sign of life")
        await self._processes.stop([self.members[self._hosts[rank]] for rank in ranks])

    def _start(self, rank: int) -> None:
        process = self._processes.start(
            self._names[rank],
            self._commands[rank],
            on_line=partial(self._take, rank),
            wants_input=True,
            may_finish=True,
            survived=partial(self._survived, rank),
        )
        self.members[self._hosts[rank]] = process
        process.write(self._nonce)

    def _take(self, rank: int, line: str) -> None:
        """Handles a line of a worker's output."""
        if not line.startswith("{"):
            return
        report = decode(line)
        if report["report"] == "progress":
            self._heard = time.monotonic()
        self._job.take(rank, report)

    def _survived(self, rank: int, process: Process) -> bool:
        """Handles a worker's end without a result; returns whether the job continues without it.

        It does if the worker was killed or the job had already continued without it, not if the
        worker failed.
        """
        job, hosts = self._job, self._hosts
        host, status, said = hosts[rank], process.exited.result(), job.errors.pop(rank, "")
        others = [r for r in range(len(hosts)) if r != rank and r not in job.away]
        again = rank in job.away  # it was about to rejoin
        left_behind = status == LEFT_BEHIND
        ended = again and status >= 0
        if job.state != "running" or not others or not (status < 0 or left_behind or ended):
            job.errors[rank] = said
            return False
        what = "was too long without a sign of life" if left_behind else describe(status)
        what = self._late.pop(rank, what)
        job.lost.setdefault(rank, what)
        away = self._away(rank)
        rest = ", ".join(hosts[other] for other in others)
        message = f"{host} {what}; job {job.name} goes on with {rest}"
        if ended:  # a job that it has not joined loses nothing
            log.info("%s, which was to join, %s: %s", host, what, said)
            message = f"{host}, which was to join job {job.name}, {what}"
        else:
            self._lost(rank, what)
        if away == math.inf:
            self.away.add(rank)
            self._tell(f"{message}; it stays away")
        else:
            until = f"for {away:g} s" if away else "until it has started again"
            self._tell(f"{message} {until}")
        task = asyncio.get_running_loop().create_task(self._return(rank, what, away))
        self._returning.add(task)
        task.add_done_callback(self._returning.discard)
        return True

    def _away(self, rank: int) -> float:
        """Returns the seconds until a process that has just ended is restarted (inf: never)."""
        if self._job.results:
            return math.inf
        if self._hosts[rank] in self.restart_delays:
            return self.restart_delays.pop(self._hosts[rank])
        return 0.0 if self._restarts.again(rank) else math.inf

    async def _return(self, rank: int, what: str, seconds: float) -> None:
        """Reports a worker's end to the job service, and restarts it after so many seconds."""
        loop = asyncio.get_running_loop()
        due = loop.time() + seconds
        try:
            worker = jobs_pb2.WORKER
            await asyncio.to_thread(report_gone, JOBS_ADDRESS, self._nonce, worker, rank, what)
        except ClientError as error:  # the service will miss its heartbeats
            log.warning("%s: cannot report to the job service that it %s: %s",
                        self._hosts[rank], what, error)  # fmt: skip
        if seconds == math.inf:
            return
        await asyncio.sleep(max(0.0, due - loop.time()))
        if self._job.state != "running" or self._job.results:  # nothing left to rejoin
            return
        try:
            self._start(rank)
        except ProcessError as error:
            self._processes.fail(error)
