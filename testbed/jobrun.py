# SPDX-License-Identifier: Apache-2.0
"""One run of a job, on either clock: its workers' reports, checks, and part of the summary."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from controller.p4rt.dataplane import DataPlane
from hosts.data.checkpoint import Checkpoint
from hosts.session.job_service import Service
from observability import outcomes, results
from observability.cpu_use import CpuUse
from observability.messages.events import EmitEvent
from observability.messages.jobs import Clock, JobProgress, JobState, OtherJob, Target
from observability.messages.process_reports import DoneReport, Report
from observability.messages.servers import MeasuredServers
from observability.messages.summary import Checkpoint as WrittenCheckpoint
from observability.messages.summary import (
    Failure,
    FaultImpact,
    FinishedJob,
    FinishedPart,
    JobDescription,
    JobSummary,
    Link,
    Machine,
    Restored,
    RunPart,
    RunSummary,
    Simulation,
    UnfinishedPart,
    Virtual,
    is_finished,
)
from observability.progress import Progress
from observability.series import SeriesWriter
from observability.server_times import measured
from planner.job_forecast import Forecast
from planner.link_loads import Direction, Load, total
from protocol import jobs_pb2
from protocol.partition import ChunkAssignment
from protocol.plan import moved_of
from specs.jobfile import JobFile, Placement
from specs.jobspec import JobSpec
from specs.scaling import Changes
from testbed.errors import JobError
from testbed.worker_options import WorkerOptions
from topologies.model.addressing import Addressing
from topologies.model.documents import shown
from topologies.model.wording import few
from workloads.attendance import Attendance
from workloads.reference import ReferenceResult
from workloads.workloads import shapes


class JobRun:
    """One run of a job; subclasses admit it and run its workers.

    folder: the run's directory.
    series: time series of the run.
    emit: sends an event to the job's watchers.
    now: clock in seconds.

    world: number of workers that it began with; `placement` also names those that joined later.
    number, tree, servers: as admitted; ``servers`` has the names of server processes by rank
        (``topologies.model.addressing.Unit``).
    state: starting, running, checking, done, failed or stopped.
    results, errors: final report and last error of each worker, by rank.
    lost: how the workers ended that are not in the job now, by rank.
    left: the last iterations of the workers that left when they were asked to, by rank.
    rejoined: number of times each worker has rejoined, by rank.
    checkpoints: iteration and file of each checkpoint written so far.
    restored: where servers got parameters from at changes of epoch: a server (itself, if it had the
        replica), with the optimizer's state; or a worker, without it. None if it is not known.
    status: the job service's last report of it; None if it did not answer.
    alongside: jobs that trained at the same time; shared_with: those also on the same switches.
    counts: increase of the outcome counters of its switches; None if counts were lost.
    links: rows of ``observability.links``.
    cpus: CPU use (``observability.cpu_use``); None in virtual time.
    wall_seconds: real time that it took.
    reference: result of the reference run; None if there is none.
    """

    clock: Clock
    target: Target

    def __init__(
        self,
        file: JobFile,
        name: str,
        placement: Placement,
        addressing: Addressing,
        dataplane: DataPlane,
        folder: Path,
        series: SeriesWriter,
        emit: EmitEvent,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.file, self.name, self.placement = file, name, placement
        self.world = len(placement.workers)
        self.folder, self.series, self.emit = folder, series, emit
        self.addressing, self.dataplane = addressing, dataplane
        self.number, self.tree = 0, ""
        self.servers: tuple[str, ...] = ()
        self.state: JobState = "starting"
        self.reason = ""
        self.results: dict[int, DoneReport] = {}
        self.errors: dict[int, str] = {}
        self.lost: dict[int, str] = {}
        self.left: dict[int, int] = {}
        self.rejoined: dict[int, int] = {}
        self.checkpoints: list[WrittenCheckpoint] = []
        self.restored: Sequence[Restored] | None = ()
        self.status: jobs_pb2.Job | None = None
        self.alongside: Collection[str] = ()
        self.shared_with: Collection[str] = ()
        self.counts: outcomes.Counts | None = {}
        self.links: list[Link] = []
        self.cpus: CpuUse | None = None
        self.wall_seconds = 0.0
        self.reference: ReferenceResult | None = None
        self.attendance = Attendance()
        self._now = now
        self._progress = Progress(len(placement.workers), file.spec.iterations, clock=now)
        self._started: dict[int, int] = {}  # the epoch in which each worker started, by rank
        self.forecast = Forecast(
            self.spec,
            placement.workers,
            addressing,
            dataplane,
            goes_on=file.restore is not None,
            spares=bool(placement.spares),
        )

    @property
    def spec(self) -> JobSpec:
        """The specification from its file."""
        return self.file.spec

    # --- before and during training ---

    def resume(self, checkpoint: Checkpoint) -> None:
        """Makes the job continue from a checkpoint."""
        calls, world = checkpoint.calls, self.world
        self.attendance = Attendance(calls)
        self._progress = Progress(world, self.spec.iterations, calls, self._now)
        # Chunks of another size have no exponents yet.
        contacted = checkpoint.lanes == self.dataplane.lanes
        self.forecast = replace(self.forecast, before=calls, contacted=contacted)

    def admitted(self, service: Service) -> None:
        """Records what the job service admitted."""
        _, self.number, self.tree, self.servers = service
        self.forecast = replace(
            self.forecast, number=self.number, tree=self.tree, servers=self.servers
        )

    def enrolled(self, host: str) -> None:
        """Records a further worker, which has a place in the job and is to join."""
        self.placement = replace(self.placement, workers=(*self.placement.workers, host))

    @property
    def away(self) -> set[int]:
        """Ranks of the workers that are not in the job now."""
        return {*self.lost, *self.left}

    @property
    def leave_seconds(self) -> float:
        """How long a worker may take to leave: the others wait for it, but lose patience later."""
        return self.spec.patience / 2

    def check_workers(
        self, present: Collection[str], gone: Collection[int], workers: Changes
    ) -> None:
        """Checks an order that workers join and leave, before any does; raises ``JobError``.

        present: hosts of those that are in the job. gone: ranks of those that may come back.
        """
        added, removed = workers
        hosts, topology = self.placement.workers, self.addressing.topology
        everywhere = [one.name for one in topology.hosts]
        for host in added:
            rank = hosts.index(host) if host in hosts else None
            if rank in self.results:
                raise JobError(f"job {self.name}: {host} has done all iterations")
            if rank is not None and rank not in gone:
                raise JobError(f"job {self.name}: {host} is in the job, or on its way")
            if host not in everywhere:
                text = f"{shown(host)} is no host of {topology.name}; hosts: {few(everywhere)}"
                raise JobError(f"job {self.name}: {text}")
        for host in removed:
            if host not in present:
                text = f"job {self.name} has no worker at {host}; workers: {few(list(present))}"
                raise JobError(text)
        if removed and not set(present).difference(removed):
            raise JobError(f"job {self.name}: none of the workers that it has would be left")

    def scaled(self) -> None:
        """Records that servers came or went while it ran."""
        self.forecast = replace(self.forecast, spares=True)

    def worker_options(
        self, rank: int, file: Path, service: str, restore: Path | None
    ) -> WorkerOptions:
        """Returns the options of a worker process.

        file: the job file. service: address of the job service. restore: checkpoint.
        """
        end = self.addressing.host_interfaces(self.placement.workers[rank])[0]
        kept = self.spec.checkpoint
        return WorkerOptions(
            job=file,
            rank=rank,
            world=self.world,
            service=service,
            address=str(end.ipv4),
            queue_bytes=end.outgoing.queue_bytes,
            link_rate=end.outgoing.rate,
            weights=self.folder / f"weights-{self.name}.npz",
            restore=restore,
            checkpoints=None if kept is None else str(self.folder / kept.to / self.name),
        )

    def take(self, rank: int, report: Report) -> None:
        """Handles a worker's report."""
        if report["report"] == "started":
            self._started[rank] = report["plan"]
            if self.state == "starting" and len(self._started) == self.world:
                self._begin()
        elif report["report"] == "progress":
            self.attendance.take(rank, report["attendance"])
            if self._progress.take(rank, report):
                self.series.iterations(self.name, self._progress.latest)
                self.emit({"event": "progress", "job": self.name, **self.progress()})
        elif report["report"] == "checkpoint":
            self.checkpoints.append({"iteration": report["iteration"], "file": report["file"]})
        elif report["report"] == "left":
            self.attendance.take(rank, report["attendance"])
            self._progress.drop(rank)
            self.left[rank] = report["iteration"]
        elif report["report"] == "failed":
            self.errors[rank] = report["error"]
        elif report["report"] == "done":
            self.attendance.take(rank, report["attendance"])
            self.results[rank] = report

    def _begin(self) -> None:
        """Records that all workers run."""
        self.state = "running"
        self.series.state(self.name, self.state, self.number)
        self.emit({"event": "running", "job": self.name})

    @property
    def epoch(self) -> int:
        """The first epoch in which all workers ran; 0 before."""
        return max(self._started.values(), default=0)

    def progress(self) -> JobProgress:
        """Returns the progress so far."""
        return self._progress.message(served=self.tree == "none")

    def ends_as(self, status: jobs_pb2.Job | None) -> None:
        """Records the job service's last report of it; None if it did not answer."""
        self.status = status
        self.restored = (
            None
            if status is None
            else [
                {"epoch": one.epoch, "server": one.server, "chunks": one.chunks, "from": one.source}
                for one in status.restored
            ]
        )

    def assignment(self, status: jobs_pb2.Job | None) -> ChunkAssignment:
        """Returns which of its servers, by the ranks of a status, has each chunk; None: as it
        began."""
        work = self.forecast.workload
        count = len(status.servers if status is not None else self.servers)
        moved = moved_of(status.moved) if status is not None else ()
        return work.shares(max(1, count), work.propagation.classes, moved)

    def measured(self, status: jobs_pb2.Job | None) -> MeasuredServers:
        """Returns what a status has of its servers' times."""
        if status is None:
            return {"server_times": [], "key_times": []}
        keys = dict(zip(shapes(self.spec), self.forecast.workload.counts, strict=True))
        return measured(status, keys, self.assignment(status))

    # --- checks ---

    @property
    def disturbed(self) -> str:
        """Why counters of switches and links cannot be compared with the job's sums; empty if they
        can.

        A chunk that stays corrupt, or a fault, makes the controller replan the job.
        """
        return results.replanned(self.epoch, self.results)

    @property
    def no_reference(self) -> str:
        """Why no reference run can check the job's weights; empty if one can."""
        spec, world = self.spec, self.world
        start = spec.optimizer.at == "servers" or self.forecast.contacted
        causes = [results.no_reference(spec, self.attendance, world, start=start)]
        if spec.consistency.together and not spec.server.plan.differs:
            causes.append(self._state_reset)
        return "; ".join(cause for cause in causes if cause)

    @property
    def _state_reset(self) -> str:
        """Why the optimizer's state was reset during the job; empty if it was not."""
        if self.spec.optimizer.name == "sgd":
            return ""
        given = [
            f"{one['server']} had parameters from {one['from']} without the optimizer's state"
            for one in self.restored or ()
            if one["from"] not in self.servers
        ]
        return ", ".join(given)

    def check(self, *, shared: bool) -> None:
        """Raises ``JobError`` unless switches made as many sums as each worker received, and no
        worker got further ahead than the job allows.

        shared: other jobs used the same switches, whose counters do not distinguish them.
        """
        if self.tree != "none" and not self.disturbed:
            assert self.counts is not None
            received = results.sums_received(results.fullest(self.results)["statistics"])
            made = outcomes.sums_made(self.forecast.trees, self.counts)
            if made < received or (made > received and not shared):
                raise JobError(
                    f"the switches made {made:,} sums and the workers received {received:,}: some"
                    " came from elsewhere or were lost"
                )
        allowed = self.spec.consistency.staleness
        if allowed is None:
            return
        most = results.staleness(self.results)["max"]
        if most > allowed:
            raise JobError(
                f"a worker got parameters {most} gradients ahead of the slowest one; the job's"
                f" consistency allows {allowed}"
            )

    # --- the summary ---

    def record(self) -> JobSummary:
        """Returns the job's part of the summary: complete once it is done, else what is known."""
        if self.state == "done":
            return self.finished()
        progress = self.progress()
        return {
            **self._described(),
            "iterations_done": progress["iteration"],
            "loss": progress.get("loss"),
            "accuracy": progress.get("accuracy"),
            "chunks": {},
            "links": [],
            "machine": {},
        }

    def _described(self) -> JobDescription:
        return {
            "job": self.name,
            "number": self.number,
            "state": self.state,
            "reason": self.reason.split("\n", 1)[0],
            "target": self.target,
            "clock": self.clock,
            **results.about(
                self.file,
                self.placement,
                self.addressing.topology,
                self.tree or self.spec.tree,
                self.forecast.before,
            ),
        }

    def finished(self) -> FinishedJob:
        """Returns its part of the summary once it is done."""
        workers, served, again = self.placement.workers, self.tree == "none", None
        apart = not self.spec.consistency.together
        in_network = None
        if not self.disturbed:
            one = results.fullest(self.results)["statistics"]
            in_network = 0 if served else one["completed"]
        if self.counts is not None:
            again = outcomes.retransmitted(self.forecast.trees, self.counts)
        return {
            **self._described(),
            **results.weights(
                workers, self.results, self.lost, self.reference, self.no_reference, apart=apart
            ),
            "staleness_seen": results.staleness(self.results) if apart else None,
            "left_workers": {workers[rank]: n for rank, n in sorted(self.left.items())},
            "rejoined_workers": {
                workers[rank]: n for rank, n in sorted(self.rejoined.items()) if n
            },
            # Servers that step with single gradients average nothing.
            "workers_per_iteration": [] if apart else self.attendance.counts(),
            "attendance": [] if apart else self.attendance.summary(workers),
            "chunks": results.chunks(
                self.results, in_network, self.disturbed, again, served=served
            ),
            "plans": results.plans(self.results),
            "shared_with": sorted(self.shared_with),
            "alongside": sorted(self.alongside),
            "restored": self.restored if self.restored is None else list(self.restored),
            "moves": None if self.status is None else results.moves(self.status, self.results),
            **self.measured(self.status),
            "checkpoints": results.checkpoints(self.checkpoints, self.folder),
            "links": self.links,
            "machine": results.machine(self.results, self.wall_seconds, self.cpus),
        }


def unique_name(wanted: str, taken: Collection[str]) -> str:
    """Returns the name of a job in its run: the file's, with a number if that is taken."""
    name, number = wanted, 2
    while name in taken:
        name, number = f"{wanted}-{number}", number + 1
    return name


def expected_loads(jobs: Collection[JobRun]) -> dict[Direction, Load] | None:
    """Returns the load that jobs should have put on links; None unless all are done, undisturbed
    and predictable."""
    whole = all(
        job.state == "done" and not job.disturbed and job.forecast.predictable for job in jobs
    )
    return total([job.forecast.expected() for job in jobs]) if whole else None


def summary(
    jobs: Collection[JobRun],
    *,
    name: str,
    target: Target,
    clock: Clock,
    shaping: str,
    links: list[Link],
    machine: Machine,
    failure: Failure | None,
    others: Sequence[OtherJob] = (),
    faults: Sequence[FaultImpact] = (),
    virtual: Virtual | None = None,
    simulation: Simulation | None = None,
) -> RunSummary:
    """Returns the summary of a run, whose top level repeats its first job that is done.

    others: rows of jobs that were not submitted. faults: rows of faults. virtual, simulation:
    parameters and cost of a run in virtual time.
    """
    records = [job.record() for job in jobs]
    run: RunPart = {
        "name": name,
        "shaping": shaping,
        "jobs": records,
        "others": list(others),
        "faults": list(faults),
    }
    if virtual is not None:
        run = {"name": name, "shaping": shaping, "virtual": virtual, **run}
    if failure is not None:
        run = {"failure": failure, **run}
    cost: Simulation = {} if simulation is None else simulation
    done = next((one for one in records if is_finished(one)), None)
    if done is not None:
        return {
            **cast(FinishedPart, _common(target, clock, done)),
            "links": links,
            **run,
            "machine": {**machine, **done["machine"], **cost},
        }
    if records:
        return {
            **cast(UnfinishedPart, _common(target, clock, records[0])),
            "links": links,
            **run,
            "machine": {**machine, **cost},
        }
    return {"target": target, "clock": clock, **run, "links": links, "machine": {**machine, **cost}}


def _common(target: Target, clock: Clock, job: JobSummary) -> dict[str, object]:
    """Returns the keys that a run takes from a job, after its own target and clock."""
    own = {key: value for key, value in job.items() if key not in ("links", "machine")}
    return {"target": target, "clock": clock, **own}
