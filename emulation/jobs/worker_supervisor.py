# SPDX-License-Identifier: Apache-2.0
"""Supervises the worker processes of a job: restarts those that die, which then rejoin.

A worker's end is first reported to the job service, so that the other workers continue without it
at once. A worker that exits with an error fails the job.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from emulation.nodes.process_supervisor import JOBS_ADDRESS, MOST_RESTARTS, RESTARTS_SECONDS
from emulation.nodes.processes import Process, ProcessError, Processes, describe
from hosts.errors import ClientError
from hosts.session.job_service import report_gone
from protocol import jobs_pb2
from testbed.errors import CONSEQUENCE

log = logging.getLogger("workers")


@dataclass
class SupervisorCallbacks:
    """Callbacks of a ``WorkerSupervisor``; workers are identified by rank.

    line: handles a line of a worker's output.
    running: returns whether the job runs, so that it can continue without a worker.
    ending: returns whether a worker has finished, so that there is nothing left to rejoin.
    lost: reports that the job continues without a worker, and how that one ended.
    tell: sends a text to the job's watchers.
    """

    line: Callable[[int, str], None]
    running: Callable[[], bool]
    ending: Callable[[], bool]
    lost: Callable[[int, str], None]
    tell: Callable[[str], None]


@dataclass
class WorkerSupervisor:
    """Starts and restarts the worker processes of one job.

    hosts, commands: host and command line of each worker, by rank.
    restart_delays: seconds until a process that a fault kills is restarted (inf: never), by host.
    members: worker processes, by host.
    lost: how the workers ended that are not in the job now, by rank.
    errors: last error message of each worker, by rank.
    back: number of times each worker has rejoined, by rank.
    """

    name: str
    nonce: str
    hosts: Sequence[str]
    commands: Sequence[Sequence[str]]
    process_name: Callable[[str], str]
    processes: Processes
    callbacks: SupervisorCallbacks
    restart_delays: dict[str, float] = field(default_factory=dict)
    members: dict[str, Process] = field(default_factory=dict)
    lost: dict[int, str] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)
    back: dict[int, int] = field(default_factory=dict)
    _ends: dict[int, deque[float]] = field(default_factory=dict)
    _returning: set[asyncio.Task[None]] = field(default_factory=set)

    def start(self) -> None:
        """Starts all workers."""
        for rank in range(len(self.hosts)):
            self._start(rank)

    def joined(self, rank: int) -> None:
        """Records that a lost worker has rejoined the job."""
        self.lost.pop(rank, None)
        self.back[rank] = self.back.get(rank, 0) + 1
        self.callbacks.tell(f"{self.hosts[rank]} has joined job {self.name} again")

    async def part(self, ranks: Sequence[int]) -> None:
        """Ends processes that the job continued without and that do not exit by themselves: they
        are stopped, or wait to rejoin a job that is over."""
        self.stop()
        for rank in ranks:
            self.lost.setdefault(rank, "was too long without a sign of life")
        await self.processes.stop([self.members[self.hosts[rank]] for rank in ranks])

    def stop(self) -> None:
        """Cancels pending restarts; later ends restart nothing."""
        for task in self._returning:
            task.cancel()

    # --- inside ---

    def _start(self, rank: int) -> None:
        host = self.hosts[rank]
        process = self.processes.start(
            self.process_name(host),
            self.commands[rank],
            on_line=partial(self.callbacks.line, rank),
            wants_input=True,
            may_finish=True,
            survived=partial(self._survived, rank),
        )
        self.members[host] = process
        process.write(self.nonce)

    def _survived(self, rank: int, process: Process) -> bool:
        """Handles a worker's end without a result; returns whether the job continues without it.

        It does if the worker was killed or the job had already continued without it, not if the
        worker failed.
        """
        host, status, said = self.hosts[rank], process.exited.result(), self.errors.pop(rank, "")
        others = [r for r in range(len(self.hosts)) if r != rank and r not in self.lost]
        again = rank in self.lost  # it was about to rejoin
        left_behind = status == CONSEQUENCE and "goes on without" in said
        ended = again and status >= 0
        if not self.callbacks.running() or not others or not (status < 0 or left_behind or ended):
            self.errors[rank] = said
            return False
        what = "was too long without a sign of life" if left_behind else describe(status)
        self.lost.setdefault(rank, what)
        away = self._away(rank)
        rest = ", ".join(self.hosts[other] for other in others)
        message = f"{host} {what}; job {self.name} goes on with {rest}"
        if ended:  # a job that it has not joined loses nothing
            log.info("%s, which was to join, %s: %s", host, what, said)
            message = f"{host}, which was to join job {self.name}, {what}"
        else:
            self.callbacks.lost(rank, what)
        if away == math.inf:
            self.callbacks.tell(f"{message}; it stays away")
        else:
            until = f"for {away:g} s" if away else "until it has started again"
            self.callbacks.tell(f"{message} {until}")
        task = asyncio.get_running_loop().create_task(self._return(rank, what, away))
        self._returning.add(task)
        task.add_done_callback(self._returning.discard)
        return True

    def _away(self, rank: int) -> float:
        """Returns the seconds until a process that has just ended is restarted (inf: never)."""
        if self.callbacks.ending():
            return math.inf
        if self.hosts[rank] in self.restart_delays:
            return self.restart_delays.pop(self.hosts[rank])
        now = time.monotonic()
        ends = self._ends.setdefault(rank, deque(maxlen=MOST_RESTARTS))
        if len(ends) == MOST_RESTARTS and now - ends[0] < RESTARTS_SECONDS:
            return math.inf
        ends.append(now)
        return 0.0

    async def _return(self, rank: int, what: str, seconds: float) -> None:
        """Reports a worker's end to the job service, and restarts it after so many seconds."""
        loop = asyncio.get_running_loop()
        due = loop.time() + seconds
        try:
            worker = jobs_pb2.WORKER
            await asyncio.to_thread(report_gone, JOBS_ADDRESS, self.nonce, worker, rank, what)
        except ClientError as error:  # the service will miss its heartbeats
            log.warning("%s: cannot report to the job service that it %s: %s",
                        self.hosts[rank], what, error)  # fmt: skip
        if seconds == math.inf:
            return
        await asyncio.sleep(max(0.0, due - loop.time()))
        if not self.callbacks.running() or self.callbacks.ending():
            return
        try:
            self._start(rank)
        except ProcessError as error:
            self.processes.fail(error)
