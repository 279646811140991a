# SPDX-License-Identifier: Apache-2.0
"""Runs one job in virtual time: admission, its servers and workers, the reference check.

The counterpart of `emulation.jobs.jobrun`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from controller.p4rt.dataplane import DataPlane
from hosts.data.checkpoint import Checkpoint, read
from hosts.errors import ClientError
from hosts.session.job_service import Scaled, create_service, enrol, scale
from observability import outcomes
from observability.messages.events import EmitEvent
from observability.messages.reports import Report, decode, encode
from observability.series import FILE as SERIES
from observability.series import SeriesWriter
from planner.link_loads import Workload
from protocol import jobs_pb2
from protocol.runtime import Event, Thread
from simulation.kernel.calls import ask
from simulation.links.trains import SECOND, picoseconds
from simulation.network import SERVICE, Network
from simulation.nodes.host import HostNode
from simulation.tracing.tracer import Tracer
from specs.jobfile import JobFile, Placement
from specs.scaling import Changes
from testbed import worker
from testbed.errors import JobError
from testbed.jobrun import JobRun
from workloads import reference, workloads
from workloads.attendance import entries
from workloads.exact import InexactSumError
from workloads.observer import Observer
from workloads.reference import ReferenceResult

_PLACES = 9  # of seconds in a series: nanoseconds


class VirtualJob(JobRun):
    """One job of a run; a task of the network's operator calls `run`.

    folder: the run's directory.
    emit: receives progress events.
    tracer: the network's tracer, if there is one.
    heard: called at a worker's host, with its rank, when it runs (0) and after each iteration, with
        its number.
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
        self.heard: Callable[[HostNode, int, int], None] = lambda host, rank, iteration: None
        self._observers: list[Observer] = [Observer() for _ in placement.workers]
        self._workers: list[Thread] = []
        self._joined: dict[int, Event] = {}  # by rank, of workers that were added
        self._nonce = ""
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
        begun_with = self._observers[: self.world]
        done = min(one.chunks_done() for one in begun_with) / workload.chunks - first
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
        except (ClientError, JobError) as error:
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
        self._nonce = service.nonce
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
        before = self._count()
        for rank, name in enumerate(self.servers):
            self._join(name, rank)
        for rank in range(self.world):
            self._start(rank)
        for one in self._workers:  # also those that are added meanwhile
            one.join()
        if self.errors:
            rank, error = next(iter(self.errors.items()))
            host = self.placement.workers[rank]
            raise JobError(f"job {self.name}: {host}: {error}", host)
        self.counts = outcomes.since(before, self._count())
        self.status = self._status()

    def _join(self, name: str, rank: int) -> None:
        network, nonce = self._network, self._nonce
        host = network.hosts[network.addressing.unit(name).host]
        ask(
            network.engine,
            network.operator,
            host,
            lambda: network.server(name).join(nonce, rank),
        )

    def _start(self, rank: int) -> None:
        """Starts a worker; call from a task of the operator."""
        tasks = self._network.operator.tasks
        self._workers.append(tasks.thread(self._work, f"{self.name}-{rank}", (rank,)))
        self._workers[-1].start()

    def _work(self, rank: int) -> None:
        network, name = self._network, self.placement.workers[rank]
        host, nonce = network.hosts[name], self._nonce
        options = self._parser.parse_args(
            self.worker_options(rank, str(self.file.source), SERVICE, self.file.restore)
        )

        self._observers[rank].iterated = lambda iteration: self.heard(host, rank, iteration)

        def take(report: Report) -> None:
            if report["report"] == "started":
                self.heard(host, rank, 0)
                if rank in self._joined:
                    self.attendance.begin(rank)
                    self._progress.join(rank, report["done"])
                    self._come(host, rank)
            self.take(rank, decode(encode(report)))  # as a process would send it

        def work() -> int:
            return worker.work(
                options,
                nonce,
                (),
                take,
                network.environment(host),
                self._observers[rank],
                self.file,
            )

        status = ask(network.engine, network.operator, host, work)
        if status and rank not in self._started and rank in self._joined:
            self.lost[rank] = f"could not join: {self.errors.pop(rank, 'it has ended')}"
            self._joined[rank].set()
        elif status and rank not in self.errors:
            self.errors[rank] = f"ended with status {status}"

    def _come(self, host: HostNode, rank: int) -> None:
        """Reports, from its host, that a worker that was added has joined."""
        engine, operator = self._network.engine, self._network.operator
        engine.post(host, operator, host.now + engine.control_latency, self._joined[rank].set)

    def take(self, rank: int, report: Report) -> None:
        """Handles a worker's report."""
        host = self.placement.workers[rank]
        self._reported = self._network.hosts[host].now / SECOND
        if report["report"] == "waiting":
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

    def _count(self) -> outcomes.Counts:
        """Reads the outcome counters of its trees' switches."""
        network = self._network
        fabric, trees = network.controller.fabric, self.forecast.trees
        counts: outcomes.Counts = {}
        for name in sorted(outcomes.switches_of(trees)):
            counts[name] = ask(
                network.engine,
                network.operator,
                network.controller,
                lambda name=name: fabric.outcomes(name),  # type: ignore[misc]
            )
        return counts

    def add_workers(self, hosts: Sequence[str]) -> None:
        """Adds workers, and returns once they have joined; call from a task of the operator. Raises
        ClientError."""
        network, tasks = self._network, self._network.operator.tasks
        for host in hosts:
            rank = enrol(SERVICE, self._nonce, host, network.environment(network.operator))
            self.enrolled(host)
            self._observers.append(Observer())
            self._joined[rank] = tasks.event()
            self._start(rank)
            self._joined[rank].wait()
            if rank in self.lost:
                raise ClientError(f"job {self.name} was over before {host} had joined")

    def scale(self, servers: Changes) -> Scaled:
        """Gives servers slices, and takes all from others; call from a task of the operator. Raises
        ClientError."""
        operator = self._network.operator
        environment = self._network.environment(operator)
        done = scale(SERVICE, self._nonce, *servers, environment)
        self.scaled()
        return done

    def _status(self) -> jobs_pb2.Job | None:
        """Returns what the job service reports of it; None if it does not answer."""
        network = self._network
        service = network.controller.service
        if service is None:
            return None
        request = jobs_pb2.StatusRequest()
        context: Any = None  # which is not looked at
        reply = ask(
            network.engine,
            network.operator,
            network.controller,
            lambda: service.Status(request, context),
        )
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
