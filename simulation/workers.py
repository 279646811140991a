# SPDX-License-Identifier: Apache-2.0
"""Supervises the workers of a job in virtual time, by the rules of emulation
(`emulation.jobs.worker_supervisor`)."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from pathlib import Path

from hosts.errors import ClientError
from hosts.session.job_service import enrol, report_gone
from observability.messages.process_reports import Report
from protocol import jobs_pb2
from protocol.runtime import Event, Thread
from simulation.errors import ProcessEndedError
from simulation.kernel.calls import ask
from simulation.kernel.processes import KILLED, Process
from simulation.network import SERVICE, Network
from simulation.nodes.host import HostNode
from testbed import worker
from testbed.errors import LEFT_BEHIND
from testbed.jobrun import JobRun
from testbed.restarts import Restarts
from workloads.observer import Observer

log = logging.getLogger("virtual")


class WorkerSupervisor:
    """Starts the workers of one job, identified by rank, and starts again those that die; its
    methods are for tasks of the operator.

    iterated: called at a worker's host with the host, the worker, and an iteration that it ended.
    lost: called when the job continues without a worker.
    tell: sends a text to the job's watchers.
    members: processes of its workers, by host.
    restart_delays: seconds until a process that a fault kills is started again (inf: never), by
        host.
    observers: of its workers, by rank.
    gone: ranks that the job goes on without, whose processes are not started again.
    """

    def __init__(
        self,
        job: JobRun,
        network: Network,
        iterated: Callable[[HostNode, int, int], None],
        lost: Callable[[int], None],
        tell: Callable[[str], None],
    ) -> None:
        self.members: dict[str, Process] = {}
        self.restart_delays: dict[str, float] = {}
        self.observers: list[Observer] = [Observer() for _ in job.placement.workers]
        self._job, self._network = job, network
        self._iterated, self._lost, self._tell = iterated, lost, tell
        self._tasks = network.operator.tasks
        self._restarts = Restarts(self._tasks.now)
        self._first_done = self._tasks.event()  # a worker has ended with a result
        self._threads: list[Thread] = []
        self._orders: dict[int, worker.Orders] = {}  # by rank, of the last process
        self._coming: dict[int, Event] = {}  # by rank, of those added: it has joined, or cannot
        self._leaving: dict[int, Event] = {}  # by rank, of those asked to leave: it has ended
        self._late: dict[int, str] = {}  # how those end that have not left in time, by rank
        self.gone: set[int] = set()
        self._nonce = ""

    def run(self, nonce: str) -> None:
        """Runs all workers, also those that are added meanwhile, until they have ended."""
        self._nonce = nonce
        for rank in range(self._job.world):
            self._start(rank)
        for one in self._threads:
            one.join()

    @property
    def has_result(self) -> bool:
        """True once a worker has ended with a result, as far as the operator knows: no process is
        started again."""
        return self._first_done.is_set() or self._job.state != "running"

    @property
    def present(self) -> list[str]:
        """Hosts of the workers that are in the job, as far as the operator knows."""
        absent = {*self._job.away, *self._job.results, *self._coming}
        hosts = self._job.placement.workers
        return [host for rank, host in enumerate(hosts) if rank not in absent]

    def add(self, host: str) -> None:
        """Starts a further worker, or one that the job goes on without, and waits until it has
        joined. Raises ClientError."""
        job, hosts = self._job, self._job.placement.workers
        if host in hosts:
            rank = hosts.index(host)
            self.gone.discard(rank)
        else:
            environment = self._network.environment(self._network.operator)
            rank = enrol(SERVICE, self._nonce, host, environment)
            job.enrolled(host)
            self.observers.append(Observer())
        coming = self._coming[rank] = self._tasks.event()
        self._start(rank)
        coming.wait()
        if rank in job.away:
            raise ClientError(f"job {job.name} was over before {host} had joined")

    def remove(self, host: str) -> bool:
        """Asks a worker to leave at the end of its present round, and waits until it has.

        Returns False if it has not left in time (`JobRun.leave_seconds`); it is killed then.
        """
        node, seconds = self._network.hosts[host], self._job.leave_seconds
        rank = self._job.placement.workers.index(host)
        ended = self._leaving[rank] = self._tasks.event()

        def ask_to_leave() -> None:
            self._orders[rank].leave = True

        def kill() -> None:
            if host in self.members:
                node.tasks.kill(self.members[host], KILLED)

        self._post(node, ask_to_leave)
        if not ended.wait(seconds):
            self._late[rank] = f"did not leave within {seconds:g} s and was killed"
            self._post(node, kill)
            ended.wait()
        del self._leaving[rank]
        self._late.pop(rank, None)
        return rank not in self._job.lost

    def joined(self, rank: int) -> None:
        """Records that a worker that was added or lost has joined."""
        job = self._job
        if rank in job.away:
            job.lost.pop(rank, None)
            job.left.pop(rank, None)
            job.rejoined[rank] = job.rejoined.get(rank, 0) + 1
            self._tell(f"{job.placement.workers[rank]} has joined job {job.name} again")
        if rank in self._coming:
            self._coming.pop(rank).set()

    # --- inside ---

    def _post(self, node: HostNode, work: Callable[[], None]) -> None:
        engine, operator = self._network.engine, self._network.operator
        engine.post(operator, node, operator.now + engine.control_latency, work)

    def _start(self, rank: int) -> None:
        thread = self._tasks.thread(self._work, f"{self._job.name}-{rank}", (rank,))
        self._threads.append(thread)
        thread.start()

    def _work(self, rank: int) -> None:
        """Runs a worker's processes, each of which takes the place of one that was killed or left
        behind, until one ends otherwise."""
        while True:
            status, how = self._run(rank)
            if not (how or status):
                if rank in self._job.left:
                    self._left(rank)
                    self.gone.add(rank)
                else:
                    self._first_done.set()
                break
            away = self._survived(rank, self._late.get(rank, how) if how else "", status)
            if away is None or not self._returns(rank, away):
                self.gone.add(rank)
                break
        if rank in self._leaving:
            self._leaving[rank].set()

    def _run(self, rank: int) -> tuple[int, str]:
        """Runs a worker process; returns its exit status, and how it ended if it was killed."""
        job, network, name = self._job, self._network, self._job.placement.workers[rank]
        host, nonce, observer = network.hosts[name], self._nonce, self.observers[rank]
        process, orders = Process(name), worker.Orders()
        self._orders[rank] = orders
        options = job.worker_options(rank, Path(job.file.source), SERVICE, job.file.restore)

        def iterated(iteration: int) -> None:
            self._iterated(host, rank, iteration)

        def take(report: Report) -> None:
            if not process.how:
                job.take(rank, report)

        def begin() -> Process:
            self.members[name] = process
            return process

        def work() -> int:
            environment = network.environment(host, process)
            try:
                return worker.work(
                    *(options, nonce, (), take, environment, observer, job.file, orders)
                )
            finally:
                del self.members[name]

        observer.iterated = iterated
        try:
            return ask(network.engine, network.operator, host, work, begin), ""
        except ProcessEndedError:
            observer.chunks_done = lambda: 0  # the client is gone
            return 0, process.how

    def _left(self, rank: int) -> None:
        """Records that a worker has left when it was asked to."""
        job, host = self._job, self._job.placement.workers[rank]
        self._lost(rank)
        self._tell(
            f"{host} has left job {job.name} after iteration {job.left[rank]:,}; it goes on with"
            f" {', '.join(self.present)}"
        )

    def _survived(self, rank: int, how: str, status: int) -> float | None:
        """Handles a worker's end without a result; returns after how many seconds another process
        follows (inf: none), None if the job ends, or a worker that was added could not join."""
        job, hosts = self._job, self._job.placement.workers
        host, said = hosts[rank], job.errors.pop(rank, "")
        if rank in self._coming:
            if rank not in job.left:
                job.lost[rank] = f"could not join: {said or how or 'it has ended'}"
            self._coming.pop(rank).set()
            return None
        others = [r for r in range(len(hosts)) if r != rank and r not in job.away]
        joining = rank in job.away and not how  # it was about to join again
        behind = status == LEFT_BEHIND
        if job.state != "running" or not others or not (how or behind or joining):
            job.errors[rank] = said or how or f"ended with status {status}"
            return None
        what = "was too long without a sign of life" if behind else how or f"ended: {said}"
        job.lost.setdefault(rank, what)
        if self.has_result or rank in self._leaving:
            away = math.inf
        elif how:
            away = self.restart_delays.pop(host, 0.0)
        else:
            away = 0.0 if self._restarts.again(rank) else math.inf
        rest = ", ".join(hosts[other] for other in others)
        text = f"{host} {what}; job {job.name} goes on with {rest}"
        if joining:
            text = f"{host}, which was to join job {job.name}, {what}"
        else:
            self._lost(rank)
        until = f" for {away:g} s" if away else " until it has started again"
        self._tell(f"{text}; it stays away" if math.isinf(away) else text + until)
        return away

    def _returns(self, rank: int, away: float) -> bool:
        """Reports a worker's end to the job service, then waits for so many seconds since; returns
        whether another process is to follow."""
        operator, what = self._network.operator, self._job.lost[rank]
        due = self._tasks.now() + away
        try:
            environment = self._network.environment(operator)
            report_gone(SERVICE, self._nonce, jobs_pb2.WORKER, rank, what, environment=environment)
        except ClientError as error:  # the service will miss its heartbeats
            log.warning("%s: not reported: %s", self._job.placement.workers[rank], error)
        if math.isinf(away):
            return False
        if (left := due - self._tasks.now()) > 0:
            self._first_done.wait(left)
        return not self.has_result
