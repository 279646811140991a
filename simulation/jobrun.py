# SPDX-License-Identifier: Apache-2.0
"""Runs one job in virtual time: admission, its servers and workers, the reference check.

The counterpart of `emulation.jobs.jobrun`.
"""

from __future__ import annotations

import logging
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
    patiently,
    scale,
)
from observability import outcomes
from observability.messages.events import EmitEvent
from observability.messages.process_reports import ProgressReport, Report
from observability.series import FILE as SERIES
from observability.series import SeriesWriter
from planner.link_loads import Workload
from protocol import jobs_pb2
from simulation.errors import ProcessEndedError
from simulation.kernel.calls import ask
from simulation.links.trains import SECOND, picoseconds
from simulation.network import SERVICE, Network
from simulation.nodes.host import HostNode
from simulation.tracing.tracer import Tracer
from simulation.workers import WorkerSupervisor
from specs.jobfile import JobFile, Placement
from specs.scaling import Changes, workers_words
from testbed.errors import JobError
from testbed.jobrun import JobRun
from workloads import reference, workloads
from workloads.attendance import entries
from workloads.exact import InexactSumError
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
    workers: its worker processes.
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
        self._wiped: dict[str, int] = {}  # how often each switch has lost its counts, at its begin
        self._changing = network.operator.tasks.lock()
        self.workers = WorkerSupervisor(self, network, self._iterated, self._lost, self._tell)
        self.nonce = ""
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
        others = self.away | self.rejoined.keys()
        begun_with = enumerate(self.workers.observers[: self.world])
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
            self.workers.observers = [
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
        self.workers.run(service.nonce)
        if self.errors:
            rank, error = next(iter(self.errors.items()))
            host = self.placement.workers[rank]
            raise JobError(f"job {self.name}: {host}: {error}", host)
        counted = self._count()
        known = before is not None and counted is not None
        self.counts = outcomes.since(before or {}, counted or {}) if known else None
        self.ends_as(self._status())

    def _lost(self, rank: int) -> None:
        """Records, at the operator, that the job goes on without a worker."""
        self._progress.drop(rank)
        if self.follower is not None:
            self.follower.lost(rank)

    def _tell(self, text: str) -> None:
        if self.follower is not None:
            self.follower.tell(text)

    def _iterated(self, host: HostNode, rank: int, iteration: int) -> None:
        """Handles the end of a worker's iteration."""
        if self.follower is not None:
            self.follower.iterated(host, rank, iteration)

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
                engine.post(node, operator, at, partial(self.workers.joined, rank))
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

    def check_change(self, workers: Changes) -> None:
        """Raises JobError if workers cannot join and leave like this now."""
        self.check_workers(self.workers.present, self.workers.gone, workers)

    def change_workers(self, workers: Changes) -> str:
        """Adds workers, and returns once they have joined; then has others leave, and returns once
        they have. Call from a task of the operator.

        Returns the change in words. Raises ClientError, JobError.
        """
        with self._changing:  # so that of two orders the second sees who is left
            self.check_change(workers)
            for host in workers.added:
                self.workers.add(host)
            late = [host for host in workers.removed if not self.workers.remove(host)]
            return workers_words(len(self.workers.present), late)

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
