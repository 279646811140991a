# SPDX-License-Identifier: Apache-2.0
"""Runs one job in virtual time, from its file to its part of the summary.

The counterpart of `emulation.jobs.jobrun`: the job service admits the job, its servers join, its
workers train, and the reference run checks the result.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from controller.p4rt.dataplane import DataPlane
from hosts.data.checkpoint import Checkpoint, read
from hosts.errors import ClientError
from hosts.session.job_service import Service, create_service
from observability import outcomes, results
from observability.progress import Progress
from observability.series import FILE as SERIES
from observability.series import SeriesWriter
from planner.expected import Workload
from planner.forecast import Forecast
from protocol.outcomes import Outcome
from simulation.kernel.calls import ask
from simulation.links.trains import SECOND, picoseconds
from simulation.network import SERVICE, Network
from simulation.tracing.tracer import Tracer
from specs.jobfile import JobFile, Placement
from specs.jobspec import JobSpec
from testbed import worker
from testbed.errors import JobError
from workloads import reference, workloads
from workloads.attendance import Attendance, entries
from workloads.exact import InexactSumError
from workloads.observer import Observer
from workloads.trainer import digest

Message = dict[str, Any]
_PLACES = 9  # of seconds in a series: nanoseconds


class VirtualJob:
    """One job of a run; a task of the network's operator calls `run`.

    folder: the run's directory.
    emit: receives progress events.
    tracer: the network's tracer, if there is one.
    number: the job's number; 0 before it is admitted.
    """

    def __init__(
        self,
        network: Network,
        dataplane: DataPlane,
        file: JobFile,
        name: str,
        placement: Placement,
        folder: Path,
        emit: Callable[[Message], None],
        tracer: Tracer | None = None,
    ) -> None:
        self.name, self.file, self.placement = name, file, placement
        self.number = 0
        self.state, self.reason = "starting", ""
        self.results: dict[int, Message] = {}
        self.attendance = Attendance()
        self.checkpoints: list[Message] = []
        self.alongside: list[str] = []  # jobs that train meanwhile
        self._network, self._dataplane = network, dataplane
        self._folder, self._emit = folder, emit
        self._tracer = tracer
        self._observers: Sequence[Observer] = [Observer() for _ in placement.workers]
        self._service = Service("", 0, "", ())
        self._parser = worker.parser()
        self._errors: dict[int, str] = {}
        self._started: dict[int, int] = {}  # first epoch, by rank
        self._counted: outcomes.Counts = {}
        self._now = 0.0  # s, at the worker that reported last
        world, clock = len(placement.workers), lambda: self._now
        self._series = SeriesWriter(folder / SERIES, clock, _PLACES)
        self._progress = Progress(world, self.spec.iterations, 0, clock)
        self.forecast = Forecast(
            self.spec,
            placement.workers,
            network.addressing,
            dataplane,
            goes_on=file.restore is not None,
        )
        self._checkpoint: Checkpoint | None = None
        self._reference: Message | None = None
        if file.restore is not None:
            self._checkpoint = known = read(file.restore)
            self.attendance = Attendance(known.calls)
            self._progress = Progress(world, self.spec.iterations, known.calls, clock)
            contacted = known.lanes == dataplane.lanes
            self.forecast = replace(self.forecast, before=known.calls, contacted=contacted)

    @property
    def spec(self) -> JobSpec:
        """The specification from its file."""
        return self.file.spec

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
        done = min(one.chunks_done() for one in self._observers) / workload.chunks - first
        return min(self.iterations, before + max(0.0, done))

    @cached_property
    def _workload(self) -> Workload:
        return self.forecast.workload

    # --- in virtual time ---

    def run(self) -> None:
        """Runs the job, without the reference; sets `state` and `reason` if it ends early."""
        self._emit({"event": "starting", "job": self.name})
        try:
            self._train()
        except (ClientError, JobError) as error:
            self.state, self.reason = "failed", str(error)

    def _train(self) -> None:
        network, spec = self._network, self.spec
        operator = network.operator
        self._service = create_service(
            SERVICE,
            self.name,
            self.placement.workers,
            self.placement.servers,
            **spec.service(),
            environment=network.environment(operator),
        )
        service = self._service
        self.number = service.job
        self.forecast = replace(
            self.forecast, number=service.job, tree=service.tree, servers=service.servers
        )
        if self._tracer is not None:
            self._observers = self._tracer.job(
                self.name,
                service.job,
                workloads.shapes(spec),
                workloads.layers(spec),
                self._dataplane.lanes,
                self.placement.workers,
                self.forecast.trees,
            )
        before = self._count()
        for rank, name in enumerate(service.servers):
            self._join(name, rank)
        ranks = range(len(self.placement.workers))
        workers = [operator.tasks.thread(self._work, f"{self.name}-{r}", (r,)) for r in ranks]
        for one in workers:
            one.start()
        for one in workers:
            one.join()
        if self._errors:
            rank, error = next(iter(self._errors.items()))
            host = self.placement.workers[rank]
            raise JobError(f"job {self.name}: {host}: {error}", host)
        self._counted = outcomes.since(before, self._count())

    def _join(self, name: str, rank: int) -> None:
        network, nonce = self._network, self._service.nonce
        host = network.hosts[network.addressing.unit(name).host]
        ask(
            network.engine,
            network.operator,
            host,
            lambda: network.server(name).join(nonce, rank),
        )

    def _work(self, rank: int) -> None:
        network, name = self._network, self.placement.workers[rank]
        host, nonce = network.hosts[name], self._service.nonce
        options = self._parser.parse_args(self._options(rank))

        def work() -> int:
            return worker.work(
                options,
                nonce,
                (),
                lambda what, /, **fields: self._take(rank, what, fields),
                network.environment(host),
                self._observers[rank],
                self.file,
            )

        status = ask(network.engine, network.operator, host, work)
        if status and rank not in self._errors:
            self._errors[rank] = f"ended with status {status}"

    def _options(self, rank: int) -> list[str]:
        name = self.placement.workers[rank]
        end = self._network.addressing.host_interfaces(name)[0]
        options = [
            *("--job", self.file.source, "--rank", str(rank)),
            *("--world", str(len(self.placement.workers))),
            *("--service", SERVICE, "--address", str(end.ipv4)),
            *("--queue-bytes", str(end.outgoing.queue_bytes)),
            *("--link-rate", str(end.outgoing.rate)),
            *("--weights", str(self._folder / f"weights-{self.name}.npz")),
        ]
        if self.file.restore is not None:
            options += ["--restore", str(self.file.restore)]
        if self.spec.checkpoint is not None:
            folder = self._folder / self.spec.checkpoint.to
            options += ["--checkpoints", str(folder / self.name)]
        return options

    def _take(self, rank: int, what: str, fields: Message) -> None:
        """Handles a worker's report (``testbed.worker``)."""
        report: Message = json.loads(json.dumps(fields))  # as a process would send it
        self._now = self._network.hosts[self.placement.workers[rank]].now / SECOND
        if what == "started":
            self._started[rank] = report["plan"]
            if len(self._started) == len(self.placement.workers):
                self.state = "running"
                self._series.state(self.name, self.state, self.number)
                self._emit({"event": "running", "job": self.name})
        elif what == "progress":
            self.attendance.take(rank, report["attendance"])
            if self._progress.take(rank, report):
                self._series.iterations(self.name, self._progress.latest)
                told = self._progress.message()
                if "share_in_tree" in told:
                    share = told.pop("share_in_tree")
                    told["share_in_network"] = share if self._service.tree != "none" else 0.0
                self._emit({"event": "progress", "job": self.name, **told})
        elif what == "waiting":
            self._emit(
                {
                    "event": "waiting",
                    "job": self.name,
                    "seconds": report["seconds"],
                    "virtual": True,
                    "why": f"{self.placement.workers[rank]}: {report['text']}",
                }
            )
        elif what == "checkpoint":
            self.checkpoints.append({"iteration": report["iteration"], "file": report["file"]})
        elif what == "failed":
            self._errors.setdefault(rank, report["error"])
        elif what == "done":
            self.attendance.take(rank, report["attendance"])
            # Times are floats; round the differences to whole picoseconds.
            report["seconds"] = [picoseconds(one) / SECOND for one in report["seconds"]]
            self.results[rank] = report

    def _count(self) -> outcomes.Counts:
        """Reads the outcome counters of its trees' switches."""
        network = self._network
        fabric, trees = network.controller.fabric, self.forecast.trees
        counts: outcomes.Counts = {}
        for name in sorted(outcomes.switches_of(trees)):
            cells = ask(
                network.engine,
                network.operator,
                network.controller,
                lambda name=name: fabric.counts(name, "outcomes"),  # type: ignore[misc]
            )
            counts[name] = Counter({outcome: cells[outcome] for outcome in Outcome})
        return counts

    # --- afterwards ---

    def stop(self, reason: str) -> None:
        """Marks the job as stopped, unless it is over."""
        if self.state not in ("done", "failed"):
            self.state, self.reason = "stopped", reason
            self._series.state(self.name, self.state)

    def finish(self, *, alone: bool) -> None:
        """Checks the switches' counts and the result of the reference run.

        alone: no other job ran, so all counts are this job's. Sets `state` and `reason` after a
            mismatch.
        """
        if self.state == "failed":
            return
        try:
            if alone:
                self._check_sums()
            self.state = "checking"
            if not self._unknown:
                self._emit({"event": "checking", "job": self.name})
                self._reference = self._train_again()
        except (JobError, InexactSumError) as error:
            self.state, self.reason = "failed", str(error)
            return
        self.state = "done"
        self._series.state(self.name, self.state)
        self._emit({"event": "done", "job": self.name})

    @property
    def disturbed(self) -> str:
        """The reason why counters of switches and links are not comparable; "" if they are.

        A chunk that stays corrupt makes the controller replan the job.
        """
        return results.replanned(min(self._started.values(), default=0), self.results)

    def _check_sums(self) -> None:
        if self._service.tree == "none" or self.disturbed:
            return
        one = results.fullest(self.results)["statistics"]
        kinds = ("completed", "completed_direct", "exponent_rounds", "initial")
        received = sum(one[kind] for kind in kinds)
        made = outcomes.sums_made(self.forecast.trees, self._counted)
        if made != received:
            raise JobError(
                f"the switches made {made:,} sums and the workers received {received:,}: some"
                " came from elsewhere or were lost"
            )

    def _train_again(self) -> Message:
        """Runs the reference: the same job in a single process without a network."""
        told = json.loads(json.dumps(self.attendance.spans()))
        before = self._checkpoint.calls if self._checkpoint is not None else 0
        came = reference.train(
            self.spec,
            len(self.placement.workers),
            self._dataplane.lanes,
            entries(told, self.spec.iterations, before),
            self._checkpoint,
        )
        return {
            "digest": digest(came.parameters),
            "accuracy": came.quality and came.quality.accuracy,
            "test_loss": came.quality and came.quality.loss,
            "in_float32": came.in_float32,
        }

    @property
    def _unknown(self) -> str:
        """Returns the reason why the reference cannot predict the result; "" if it can."""
        start = self.spec.optimizer.at == "servers" or self.forecast.contacted
        return results.no_reference(
            self.spec, self.attendance, len(self.placement.workers), start=start
        )

    def record(self, rows: list[Message], wall: float) -> Message:
        """Builds its part of the summary. rows: those of the links; wall: seconds of real time."""
        about = {
            "job": self.name,
            "number": self.number,
            "state": self.state,
            "reason": self.reason.split("\n", 1)[0],
            "target": "embedded",
            "clock": "virtual",
            **results.about(
                self.file,
                self.placement,
                self._network.topology,
                self._service.tree or self.spec.tree,
                self.forecast.before,
            ),
        }
        if self.state != "done":
            done = {"iterations_done": self._progress.iteration}
            return {**about, **done, "chunks": {}, "links": [], "machine": {}}
        apart, served = not self.spec.consistency.together, self._service.tree == "none"
        workers, one = self.placement.workers, results.fullest(self.results)["statistics"]
        again = outcomes.retransmitted(self.forecast.trees, self._counted)
        in_network = None if self.disturbed else 0 if served else int(one["completed"])
        return {
            **about,
            **results.weights(
                workers, self.results, {}, self._reference, self._unknown, apart=apart
            ),
            "staleness_seen": results.staleness(self.results) if apart else None,
            "rejoined_workers": {},
            "workers_per_iteration": [] if apart else self.attendance.counts(),
            "attendance": [] if apart else self.attendance.summary(workers),
            "chunks": results.chunks(
                self.results, in_network, self.disturbed, again, served=served
            ),
            "plans": results.plans(self.results),
            # No node fails here; other jobs have their own parts in `jobs`.
            "shared_with": [],
            "alongside": self.alongside,
            "restored": [],
            "checkpoints": results.checkpoints(self.checkpoints, self._folder),
            "links": rows,
            "machine": results.machine(self.results, wall, None),
        }
