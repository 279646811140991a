# SPDX-License-Identifier: Apache-2.0
"""Runs one job in virtual time: admission, its servers and workers, the reference check.

The counterpart of `emulation.jobs.jobrun`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path

from controller.p4rt.connection import SwitchError
from controller.p4rt.dataplane import DataPlane
from hosts.data.checkpoint import Checkpoint, read
from hosts.errors import ClientError
from hosts.session.job_service import (
    Scaled,
    call,
    create_service,
    enrol,
    patiently,
    report_gone,
    scale,
)
from observability import outcomes
from observability.messages.events import EmitEvent
from observability.messages.reports import ProgressReport, Report, decode, encode
from observability.series import FILE as SERIES
from observability.series import SeriesWriter
from planner.link_loads import Workload
from protocol import jobs_pb2
from protocol.runtime import Event, Thread
from simulation.errors import ProcessEndedError
from simulation.kernel.calls import ask
from simulation.kernel.processes import Process
from simulation.links.trains import SECOND, picoseconds
from simulation.network import SERVICE, Network
from simulation.nodes.host import HostNode
from simulation.tracing.tracer import Tracer
from specs.jobfile import JobFile, Placement
from specs.scaling import Changes
from testbed import worker
from testbed.errors import LEFT_BEHIND, JobError
from testbed.jobrun import JobRun
from testbed.restarts import Restarts
from workloads import reference, workloads
from workloads.attendance import entries
from workloads.exact import InexactSumError
from workloads.observer import Observer
from workloads.reference import ReferenceResult

log = logging.getLogger("virtual")

_OUTAGE_SECONDS = 10.0  # for which a job that has ended waits for the controller
_PLACES = 9  # of seconds in a series: nanoseconds


class Follower:
    """Follows a job's workers, by rank; does nothing. Called at a worker's host, but for `lost` and
    `tell`, which are called at the operator."""

    def runs(self, host: HostNode, rank: int, done: int, plan: int) -> None:
        """A worker begins to train, or again after so many iterations, by the plan of an epoch."""

    def iterated(self, host: HostNode, rank: int, iteration: int) -> None:
        """A worker has ended an iteration."""

    def reported(self, host: HostNode, rank: int, report: ProgressReport) -> None:
        """A worker reports its progress."""

    def lost(self, rank: int) -> None:
        """The job goes on without a worker."""

    def tell(self, text: str) -> None:
        """Something has happened."""


class VirtualJob(JobRun):
    """One job of a run; a task of the network's operator calls `run`.

    folder: the run's directory.
    emit: receives progress events.
    tracer: the network's tracer, if there is one.
    follower: follows its workers, if faults happen meanwhile.
    members: processes of its workers, by host.
    restart_delays: seconds until a process that a fault kills is started again (inf: never), by
        host.
    """

    clock, target = "virtual", "embedded"

    def __init__(
        self,
        network: Network,
        dataplane: DataPlane,
        file: JobFile,
        name: str,
        placement: Placement,
        folder: Path,
        emit: EmitEvent,
        tracer: Tracer | None = None,
    ) -> None:
        self._reported = 0.0  # s, at the worker that reported last

        def now() -> float:
            return self._reported

        super().__init__(
            *(file, name, placement, network.addressing, dataplane, folder),
            *(SeriesWriter(folder / SERIES, now, _PLACES), emit, now),
        )
        self._network, self._tracer = network, tracer
        self.follower: Follower | None = None
        self.members: dict[str, Process] = {}
        self.restart_delays: dict[str, float] = {}
        self._restarts = Restarts(network.operator.tasks.now)
        self._first_done = network.operator.tasks.event()  # a worker has ended with a result
        self._wiped: dict[str, int] = {}  # how often each switch has lost its counts, at its begin
        self._observers: list[Observer] = [Observer() for _ in placement.workers]
        self._workers: list[Thread] = []
        self._added: dict[int, Event] = {}  # by rank, of added workers: it has joined, or cannot
        self.nonce = ""
        self._parser = worker.parser()
        self._checkpoint: Checkpoint | None = None
        if file.restore is not None:
            self._checkpoint = read(file.restore)
            self.resume(self._checkpoint)

    @property
    def iterations(self) -> int:
        """Number of iterations, including those before a checkpoint."""
        return self.spec.iterations

    def iterations_done(self) -> float | None:
        """Implements ``MonitoredJob``."""
        if self.state != "running":
            return None
        workload, before = self._workload, self.forecast.before
        # With asynchronous workers, initial parameters arrive like sums.
        first = workload.iterations - (self.iterations - before)
        # Those that join, or join again, count from then on.
        others = self.lost.keys() | self.rejoined.keys()
        begun_with = enumerate(self._observers[: self.world])
        present = [one for rank, one in begun_with if rank not in others]
        if not present:
            return None
        done = min(one.chunks_done() for one in present) / workload.chunks - first
        return min(self.iterations, before + max(0.0, done))

    def rounds(self, done: float) -> float:
        """Implements ``MonitoredJob``. An asynchronous job has no exponents."""
        own = max(0.0, done - self.forecast.before)
        return own + (min(1.0, own) if self.spec.consistency.together else 0.0)

    @cached_property
    def _workload(self) -> Workload:
        return self.forecast.workload

    # --- in virtual time ---

    def run(self) -> None:
        """Runs the job, without the reference; sets `state` and `reason` if it ends early."""
        self.emit({"event": "starting", "job": self.name})
        try:
            self._train()
        except (ClientError, JobError, ProcessEndedError) as error:
            self.state, self.reason = "failed", str(error)

    def _train(self) -> None:
        network, spec = self._network, self.spec
        operator = network.operator
        service = create_service(
            SERVICE,
            self.name,
            self.placement.workers,
            self.placement.servers,
            **spec.service(),
            spares=self.placement.spares,
            environment=network.environment(operator),
        )
        self.admitted(service)
        self.nonce = service.nonce
        if self._tracer is not None:
            self._observers = [
                *self._tracer.job(
                    self.name,
                    self.number,
                    workloads.shapes(spec),
                    workloads.layers(spec),
                    self.dataplane.lanes,
                    self.placement.workers,
                    self.forecast.trees,
                )
            ]
        self._wiped = {name: node.wiped for name, node in network.switches.items()}
        before = self._count()
        for rank, name in enumerate(self.servers):
            network.join(name, service.nonce, rank)
        for rank in range(self.world):
            self._start(rank)
        for one in self._workers:  # also those that are added meanwhile
            one.join()
        if self.errors:
            rank, error = next(iter(self.errors.items()))
            host = self.placement.workers[rank]
            raise JobError(f"job {self.name}: {host}: {error}", host)
        counted = self._count()
        known = before is not None and counted is not None
        self.counts = outcomes.since(before or {}, counted or {}) if known else None
        self.ends_as(self._status())

    def _start(self, rank: int) -> None:
        """Starts a worker; call from a task of the operator."""
        tasks = self._network.operator.tasks
        self._workers.append(tasks.thread(self._work, f"{self.name}-{rank}", (rank,)))
        self._workers[-1].start()

    def _work(self, rank: int) -> None:
        """Runs a worker's processes, each of which takes the place of one that was killed or left
        behind, until one ends otherwise."""
        while True:
            status, how = self._run_worker(rank)
            if not (how or status):
                self._first_done.set()
                return
            away = self._survived(rank, how, status)
            if away is None or not self._returns(rank, away):
                return

    def _run_worker(self, rank: int) -> tuple[int, str]:
        """Runs a worker process; returns its exit status, and how it ended if it was killed."""
        network, name = self._network, self.placement.workers[rank]
        host, nonce, observer = network.hosts[name], self.nonce, self._observers[rank]
        process = Process(name)
        options = self._parser.parse_args(
            self.worker_options(rank, str(self.file.source), SERVICE, self.file.restore)
        )

        def iterated(iteration: int) -> None:
            if self.follower is not None:
                self.follower.iterated(host, rank, iteration)

        def take(report: Report) -> None:
            if not process.how:
                self.take(rank, decode(encode(report)))  # as a process would send it

        def begin() -> Process:
            self.members[name] = process
            return process

        def work() -> int:
            environment = network.environment(host, process)
            try:
                return worker.work(options, nonce, (), take, environment, observer, self.file)
            finally:
                del self.members[name]

        observer.iterated = iterated
        try:
            return ask(network.engine, network.operator, host, work, begin), ""
        except ProcessEndedError:
            observer.chunks_done = lambda: 0  # the client is gone
            return 0, process.how

    def _survived(self, rank: int, how: str, status: int) -> float | None:
        """Handles a worker's end without a result, as emulation does (`WorkerSupervisor`); returns
        after how many seconds another process follows (inf: none), None if the job ends."""
        hosts, said = self.placement.workers, self.errors.pop(rank, "")
        host = hosts[rank]
        if rank in self._added and not self._added[rank].is_set():
            self.lost[rank] = f"could not join: {said or how or 'it has ended'}"
            self._added[rank].set()
            return None
        others = [r for r in range(len(hosts)) if r != rank and r not in self.lost]
        joining = rank in self.lost and not how  # it was about to join again
        behind = status == LEFT_BEHIND
        if self.state != "running" or not others or not (how or behind or joining):
            self.errors[rank] = said or how or f"ended with status {status}"
            return None
        what = "was too long without a sign of life" if behind else how or f"ended: {said}"
        self.lost.setdefault(rank, what)
        if self.has_result:
            away = math.inf
        elif how:
            away = self.restart_delays.pop(host, 0.0)
        else:
            away = 0.0 if self._restarts.again(rank) else math.inf
        rest = ", ".join(hosts[other] for other in others)
        text = f"{host} {what}; job {self.name} goes on with {rest}"
        if joining:
            text = f"{host}, which was to join job {self.name}, {what}"
        else:
            self._progress.drop(rank)
            if self.follower is not None:
                self.follower.lost(rank)
        until = f" for {away:g} s" if away else " until it has started again"
        self._tell(f"{text}; it stays away" if math.isinf(away) else text + until)
        return away

    def _returns(self, rank: int, away: float) -> bool:
        """Reports a worker's end to the job service, then waits for so many seconds since; returns
        whether another process is to follow."""
        operator, what = self._network.operator, self.lost[rank]
        due = operator.tasks.now() + away
        try:
            environment = self._network.environment(operator)
            report_gone(SERVICE, self.nonce, jobs_pb2.WORKER, rank, what, environment=environment)
        except ClientError as error:  # the service will miss its heartbeats
            log.warning("%s: not reported: %s", self.placement.workers[rank], error)
        if math.isinf(away):
            return False
        if (left := due - operator.tasks.now()) > 0:
            self._first_done.wait(left)
        return not self.has_result

    def _tell(self, text: str) -> None:
        if self.follower is not None:
            self.follower.tell(text)

    def take(self, rank: int, report: Report) -> None:
        """Handles a worker's report."""
        host = self.placement.workers[rank]
        node, follower = self._network.hosts[host], self.follower
        self._reported = node.now / SECOND
        if report["report"] == "started":
            if follower is not None:
                follower.runs(node, rank, report["done"], report["plan"])
            if report["joined"]:
                self.attendance.begin(rank)
                self._progress.join(rank, report["done"])
                engine, operator = self._network.engine, self._network.operator
                at = node.now + engine.control_latency
                engine.post(node, operator, at, partial(self._has_joined, rank))
                return
        elif report["report"] == "progress" and follower is not None:
            follower.reported(node, rank, report)
        elif report["report"] == "waiting":
            self.emit(
                {
                    "event": "waiting",
                    "job": self.name,
                    "seconds": report["seconds"],
                    "virtual": True,
                    "why": f"{host}: {report['text']}",
                }
            )
        elif report["report"] == "done":
            # Times are floats; round the differences to whole picoseconds.
            report["seconds"] = [picoseconds(one) / SECOND for one in report["seconds"]]
        super().take(rank, report)

    def _has_joined(self, rank: int) -> None:
        """Records, at the operator, that a worker that was added or lost has joined."""
        if rank in self._added and not self._added[rank].is_set():
            self._added[rank].set()
            return
        self.lost.pop(rank, None)
        self.rejoined[rank] = self.rejoined.get(rank, 0) + 1
        self._tell(f"{self.placement.workers[rank]} has joined job {self.name} again")

    @property
    def has_result(self) -> bool:
        """True once a worker has ended with a result, as far as the operator knows: no process is
        started again."""
        return self._first_done.is_set() or self.state != "running"

    def _count(self) -> outcomes.Counts | None:
        """Reads the outcome counters of its trees' switches; None if some have been lost."""
        network = self._network
        counts: outcomes.Counts = {}
        for name in sorted(outcomes.switches_of(self.forecast.trees)):
            if network.switches[name].wiped != self._wiped[name]:
                return None
            try:
                counts[name] = ask(
                    *(network.engine, network.operator, network.controller),
                    partial(lambda one: network.controller.fabric.outcomes(one), name),
                )
            except SwitchError as error:
                log.warning("%s", error)
                return None
        return counts

    @property
    def disturbed(self) -> str:
        """Overrides ``JobRun``: a switch that was killed has lost its counters."""
        return super().disturbed or ("switches lost counters" if self.counts is None else "")

    def add_workers(self, hosts: Sequence[str]) -> None:
        """Adds workers, and returns once they have joined; call from a task of the operator. Raises
        ClientError."""
        network, tasks = self._network, self._network.operator.tasks
        for host in hosts:
            rank = enrol(SERVICE, self.nonce, host, network.environment(network.operator))
            self.enrolled(host)
            self._observers.append(Observer())
            self._added[rank] = tasks.event()
            self._start(rank)
            self._added[rank].wait()
            if rank in self.lost:
                raise ClientError(f"job {self.name} was over before {host} had joined")

    def scale(self, servers: Changes) -> Scaled:
        """Gives servers slices, and takes all from others; call from a task of the operator. Raises
        ClientError."""
        operator = self._network.operator
        environment = self._network.environment(operator)
        done = scale(SERVICE, self.nonce, *servers, environment)
        self.scaled()
        return done

    def _status(self) -> jobs_pb2.Job | None:
        """Returns what the job service reports of it; None if it does not answer."""
        network = self._network
        with network.environment(network.operator).service(SERVICE) as stub:
            try:
                reply = patiently(
                    lambda: call(stub.Status, jobs_pb2.StatusRequest()),
                    _OUTAGE_SECONDS,
                    network.operator.tasks,
                )
            except ClientError as error:
                log.warning("%s", error)
                return None
        return next((job for job in reply.jobs if job.job == self.number), None)

    # --- afterwards ---

    def stop(self, reason: str) -> None:
        """Marks the job as stopped, unless it is over."""
        if self.state not in ("done", "failed"):
            self.state, self.reason = "stopped", reason
            self.series.state(self.name, self.state)

    def finish(self, *, alone: bool) -> None:
        """Checks the switches' counts and the result of the reference run.

        alone: no other job ran. Sets `state` and `reason` after a mismatch.
        """
        if self.state == "failed":
            return
        try:
            self.check(shared=not alone)
            self.state = "checking"
            if not self.no_reference:
                self.emit({"event": "checking", "job": self.name})
                self.reference = self._train_reference()
        except (JobError, InexactSumError) as error:
            self.state, self.reason = "failed", str(error)
            return
        self.state = "done"
        self.series.state(self.name, self.state)
        self.emit({"event": "done", "job": self.name})

    def _train_reference(self) -> ReferenceResult:
        """Runs the same job in this process without a network; returns its result."""
        return reference.train(
            self.spec,
            self.world,
            self.dataplane.lanes,
            entries(self.attendance.spans(), self.spec.iterations, self.forecast.before),
            self._checkpoint,
            len(self.placement.workers) - self.world,
        ).result()
