# SPDX-License-Identifier: Apache-2.0
"""One job on a running testbed: its servers join, its workers run, the reference checks them."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from controller.trees import Tree, TreeKind, plan_trees
from hosts.checkpoint import read
from hosts.errors import CheckpointError, ClientError
from hosts.membership import create_service
from testbed.explaining.inquiry import Inquiry
from testbed.jobs import results
from testbed.jobs.blame import cause
from testbed.jobs.checking import reference
from testbed.jobs.crew import Calls, Crew
from testbed.jobs.place import Place
from testbed.jobs.progress import Progress
from testbed.jobs.tally import Tally
from testbed.jobs.waiting import Waits
from testbed.nodes.keeper import JOBS_ADDRESS
from testbed.nodes.processes import Process, ProcessError, Processes, python
from testbed.nodes.serverhost import JobError
from testbed.plans.expected import Direction, Load, Workload, expected
from testbed.plans.jobfile import JobFile, Placement
from testbed.records.record import cpu_seconds
from testbed.training.attendance import Attendance
from testbed.training.workloads import WORKLOADS, shapes

log = logging.getLogger("jobrun")
# How long a job that begins waits for a controller that is started again, twice at most.
CONTROLLER_SECONDS = 60.0

Message = dict[str, Any]


@dataclass
class JobRun:
    """A job's life. ``state``: starting, running, checking, done, failed or stopped."""

    place: Place
    file: JobFile
    name: str
    placement: Placement
    emit: Callable[[Message], None]
    number: int = 0
    tree: str = ""  # that it was admitted with
    servers: tuple[str, ...] = ()  # processes by rank, see topologies.addressing.Unit
    state: str = "starting"
    reason: str = ""
    ending: str = "stopped on request"  # why it is over, if it is cancelled
    results: dict[int, Message] = field(default_factory=dict)  # final reports, by rank
    _crew: Crew | None = None
    _attendance: Attendance = field(default_factory=Attendance)
    _plan: int = 0  # its first epoch
    _nonce: str = ""
    _restored: list[Message] | None = None
    _trained_from: tuple[float, float] = (0.0, 0.0)  # CPU seconds, busy and all
    _outcome: Message | None = None  # the summary of a job that is done
    _waits: Waits = field(default_factory=lambda: Waits((), ()))
    checkpoints: list[Message] = field(default_factory=list)  # that were written
    _before: int = 0  # iterations before this job, in the one that it goes on from
    _restored_from: Path | None = None
    _contacted: bool = False  # it knows its exponents from there
    _explaining: asyncio.Task[None] | None = None
    _started: int = 0
    _heard: float = 0.0  # when a worker last told of its progress

    async def execute(self, processes: Processes) -> Message:
        """Runs the job; returns its part of the summary. Raises ``JobError``.

        processes: a group of its own, so that a failing worker takes the job with it and no more.
        """
        start = time.monotonic()
        watching = asyncio.get_running_loop().create_task(self.inquiry.watch())
        try:
            await self._train(processes)
            wall, busy = time.monotonic() - start, self._busy()
            self.state = "checking"
            reference = None
            if not self._unknown:
                self.emit({"event": "checking", "job": self.name})
                reference = await self._reference(processes)
            counted = self._check_sums()
            self._check_staleness()
        except (ProcessError, ClientError, TimeoutError, JobError) as error:
            self.state, self.reason = "failed", str(error)
            failure = await self._cause(error, processes)
            self.reason = str(failure)
            raise failure from error
        except asyncio.CancelledError:
            self.state, self.reason = "stopped", self.ending
            raise
        finally:
            watching.cancel()
            if self._explaining is not None:
                self._explaining.cancel()
            await processes.stop()
            if self.number:
                self.tally.over()
            self.place.faults.over(self.name)
        self.state = "done"
        self._outcome = self._summary(reference, counted, wall, busy)
        self.emit({"event": "done", "job": self.name})
        return self._outcome

    def _busy(self) -> float:
        """How busy all CPUs were since the workers had started, 0 to 1."""
        now, (busy, every) = cpu_seconds(), self._trained_from
        return (now["busy"] - busy) / max(1e-9, now["all"] - every)

    async def _train(self, processes: Processes) -> None:
        spec, placement, run = self.file.spec, self.placement, self.place.run
        self._nonce, self.number, self.tree, self.servers = await asyncio.to_thread(
            create_service,
            JOBS_ADDRESS,
            self.name,
            placement.workers,
            placement.servers,
            tree=spec.tree,
            window=spec.window,
            streams=spec.streams,
            lease=spec.lease,
            admission=spec.admission,
            slice_bytes=spec.slice_bytes,
            pipeline=spec.server.pipeline,
            ablate=spec.server.ablate,
            outage=CONTROLLER_SECONDS,
        )
        copy = run.path / f"job-{self.name}.yaml"
        await asyncio.to_thread(shutil.copyfile, self.file.source, copy)
        if self.file.restore is not None:
            await asyncio.to_thread(self._restore, self.file.restore)
        await self.place.nodes.serving.joined(self.number, CONTROLLER_SECONDS)
        self._waits = Waits(self.trees, self.servers)
        await self.tally.begin(job.tally for job in self.place.jobs.values() if job.number)
        self._crew = Crew(
            self.name,
            self._nonce,
            placement.workers,
            [self._command(rank, str(copy)) for rank in range(len(placement.workers))],
            self._process_name,
            processes,
            Calls(
                lambda rank, line: self._report(rank, line, processes),
                lambda: self.state == "running",
                lambda: bool(self.results),
                self._lost,
                self.place.tell,
            ),
        )
        self._crew.start()
        await self._until_ended(processes)
        self._crew.stop()
        self.place.faults.over(self.name)
        ended = {*self.results, *self._crew.lost}
        silent = [name for rank, name in enumerate(placement.workers) if rank not in ended]
        if silent:
            raise JobError(f"{', '.join(silent)}: ended without a result", silent[0])
        known = self.predictable and not self._planned_anew
        await self.tally.end(self.expected() if known else None)
        self._restored = await self.inquiry.restored()

    @property
    def _reset(self) -> str:
        """Why the optimizer's state began anew on the way; empty if it did not."""
        if self.file.spec.optimizer.name == "sgd":
            return ""
        given = [
            f"{one['server']} had parameters from {one['from']} without the optimizer's state"
            for one in self._restored or ()
            if one["from"] not in self.servers
        ]
        return ", ".join(given)

    async def _until_ended(self, processes: Processes) -> None:
        """Until all workers have ended; once one has, the others get as long as a sum may take."""
        patience, together = self.file.spec.patience, self.file.spec.consistency.together
        hosts = self.placement.workers
        first: str | None = None
        crew = self._crew
        assert crew is not None
        members = self.members
        while left := [n for n, process in members.items() if not process.judged.done()]:
            ranks = [hosts.index(name) for name in left]
            if first is not None and all(self._attendance.absent(rank) for rank in ranks):
                await crew.part(ranks)
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
                # The group tells which end was the cause.
                await asyncio.wait([processes.failure])
                processes.failure.result()
            first = next((hosts[rank] for rank in self.results), None)

    def _restore(self, path: Path) -> None:
        """Keeps the checkpoint that it goes on from with the run, whatever becomes of the file."""
        kept = self.place.run.path / f"restored-{self.name}.checkpoint"
        try:
            shutil.copyfile(path, kept)
            checkpoint = read(kept)
        except OSError as error:
            raise JobError(f"{path}: cannot be read: {error.strerror}") from error
        except CheckpointError as error:
            raise JobError(str(error)) from error
        self._restored_from, self._before = kept, checkpoint.calls
        self._attendance = Attendance(checkpoint.calls)
        # Chunks of another size have no exponents yet.
        self._contacted = checkpoint.lanes == self.place.dataplane.lanes

    def _command(self, rank: int, file: str) -> list[str]:
        """Starts a worker of the job in ``file``."""
        name = self.placement.workers[rank]
        end = self.place.network.addressing.host_interfaces(name)[0]
        program = python(
            "testbed.training.worker",
            *("--job", file, "--rank", str(rank), "--world", str(len(self.placement.workers))),
            *("--service", JOBS_ADDRESS, "--address", str(end.ipv4)),
            *("--queue-bytes", str(end.outgoing.queue_bytes)),
            *("--link-rate", str(end.outgoing.rate)),
            *("--weights", str(self.place.run.path / f"weights-{self.name}.npz")),
            *self._restoring,
        )
        if self.file.spec.checkpoint is not None:
            folder = self.place.run.path / self.file.spec.checkpoint.to
            program += ["--checkpoints", str(folder / self.name)]
        return self.place.network.node(name).command(program)

    def _lost(self, rank: int, what: str) -> None:
        """The job goes on without a worker, for now at least."""
        self._progress.drop(rank)
        self._waits.over(rank)
        self.place.faults.died(self.placement.workers[rank], what)
        self.place.faults.lost(self.name, rank)

    def _joined(self, rank: int, done: int) -> None:
        """A worker that was lost is in the job again, after so many iterations."""
        assert self._crew is not None
        self._attendance.begin(rank)
        self._progress.join(rank, done)
        self._crew.joined(rank)
        self.place.faults.joined(self.name, rank, self.placement.workers[rank])

    @property
    def hold(self) -> dict[str, float]:
        """See Crew."""
        return self._crew.hold if self._crew is not None else {}

    async def _cause(self, error: Exception, processes: Processes) -> JobError:
        """What made it fail, where its first symptom was this error."""
        errors = self._crew.errors if self._crew is not None else {}
        name = getattr(error, "name", None) or getattr(error, "process", None)
        hosts = enumerate(self.placement.workers)
        said = [errors[r] for r, host in hosts if r in errors and self._process_name(host) == name]
        stuck = [*processes.stopped(), *await self.place.suspects()]
        absent, members = self._waits.missing(), self._processes()
        return cause(self.name, error, said[0] if said else "", stuck, absent, members)

    def _processes(self) -> list[tuple[str, Process]]:
        """Its members' processes, by what the job service calls them."""
        servers = [(name, self.place.nodes.at(name)) for name in self.servers]
        return [*self.members.items(), *((name, p) for name, p in servers if p is not None)]

    def _process_name(self, host: str) -> str:
        # The first job of a run needs no prefix to tell its logs from others'.
        return host if self.number == 1 else f"{self.name}-{host}"

    def _report(self, rank: int, line: str, processes: Processes) -> None:
        if not line.startswith("{"):
            return
        report: Message = json.loads(line)
        kind = report.pop("report")
        if kind == "started":
            if report["joined"]:
                self._joined(rank, report["done"])
                return
            self._started += 1
            if self._started == len(self.placement.workers):
                self.state, self._plan = "running", report["plan"]
                self.place.faults.runs(self.name, range(self._started), self._plan)
                cpu = cpu_seconds()
                self._trained_from = (cpu["busy"], cpu["all"])
                self.place.series.state(self.name, self.state)
                self.emit({"event": "running", "job": self.name})
        elif kind == "progress":
            self._heard = time.monotonic()
            self._waits.over(rank)
            self._attendance.take(rank, report["attendance"])
            self.place.faults.progress(self.name, rank, report)
            if self._progress.take(rank, report):
                self.place.series.iterations(self.name, self._progress.latest)
                self.emit({"event": "progress", "job": self.name, **self.progress()})
        elif kind == "waiting":
            self._waits.take(rank, report)
            if self._explaining is None or self._explaining.done():
                explaining = self._explain(processes)
                self._explaining = asyncio.get_running_loop().create_task(explaining)
        elif kind == "outline":
            self.inquiry.answer(self.members[self.placement.workers[rank]], report)
        elif kind == "checkpoint":
            self.checkpoints.append({"iteration": report["iteration"], "file": report["file"]})
        elif kind == "failed" and self._crew is not None:
            self._crew.errors[rank] = report["error"]
        elif kind == "done":
            self._attendance.take(rank, report["attendance"])
            self.results[rank] = report

    async def _explain(self, processes: Processes) -> None:
        """Tells whoever watches that and why the job waits."""
        stuck = [*processes.stopped(), *await self.place.suspects()]
        if self._waits.seconds:
            why = "; ".join(f"{one.name} {one.what}" for one in stuck) or str(self._waits)
            self._say_that_it_waits(self._waits.seconds, why)

    @cached_property
    def inquiry(self) -> Inquiry:
        """Asks what it waits for."""
        return Inquiry(self, JOBS_ADDRESS)

    @property
    def members(self) -> Mapping[str, Process]:
        """Its workers' processes, by host."""
        return self._crew.members if self._crew is not None else {}

    @property
    def present(self) -> list[str]:
        """Hosts whose workers are in the job: they run, and do not wait to join."""
        lost = self._crew.lost if self._crew is not None else {}
        hosts = enumerate(self.placement.workers)
        members = self.members
        return [n for rank, n in hosts if rank not in lost and n in members and members[n].running]

    @cached_property
    def _progress(self) -> Progress:
        return Progress(len(self.placement.workers), self.file.spec.iterations, self._before)

    def progress(self) -> Message:
        """How far the job is: iteration, passes, loss, accuracy, chunks/s, share in the network."""
        told = self._progress.message()
        if "share_in_tree" in told:
            share = told.pop("share_in_tree")
            told["share_in_network"] = share if self.tree != "none" else 0.0
        return told

    def worker(self, host: str) -> Process | None:
        """The process of its worker on a host."""
        return self.members.get(host)

    def pids(self, host: str) -> list[int]:
        """Process ids, in the sandbox, of its worker on a host."""
        worker = self.members.get(host)
        return [worker.pid] if worker is not None and worker.running else []

    async def _reference(self, processes: Processes) -> Message:
        """What a single process without a network makes of the same job."""
        attendance = self.place.run.path / f"attendance-{self.name}.json"
        attendance.write_text(json.dumps(self._attendance.spans()))
        arguments = (
            *("--job", str(self.place.run.path / f"job-{self.name}.yaml")),
            *("--world", str(len(self.placement.workers))),
            *("--lanes", str(self.place.dataplane.lanes)),
            *("--attendance", str(attendance)),
            *self._restoring,
        )
        name = "reference" if self.number == 1 else f"{self.name}-reference"
        return await reference(name, arguments, processes, self._say_that_it_waits)

    def _say_that_it_waits(self, seconds: float, why: str) -> None:
        self.emit({"event": "waiting", "job": self.name, "seconds": seconds, "why": why})

    @property
    def _restoring(self) -> list[str]:
        """What a process that goes on from a checkpoint is started with."""
        return ["--restore", str(self._restored_from)] if self._restored_from is not None else []

    @property
    def _unknown(self) -> str:
        """Why a reference cannot tell what should have come of it; empty if it can."""
        spec, world = self.file.spec, len(self.placement.workers)
        if not spec.consistency.together:
            return f"with consistency {spec.consistency} results depend on who is done when"
        pipeline = spec.server.plan
        if pipeline.differs:
            return f"servers work {pipeline}: what comes of that trains nothing"
        start = spec.optimizer.at == "servers" or self._contacted
        causes = [self._attendance.unknown(spec.iterations, world, start=start), self._reset]
        return "; ".join(cause for cause in causes if cause)

    @property
    def predictable(self) -> bool:
        """Whether what it should put on each link follows from the job alone; what servers that
        take steps tell each other, or workers for a checkpoint, does not."""
        spec = self.file.spec
        moved = len(self.servers) > 1 or spec.checkpoint or self.file.restore
        return spec.optimizer.at == "workers" or not moved

    def expected(self) -> dict[Direction, Load]:
        """What this job should put on each link, see ``testbed.plans.expected``."""
        addressing = self.place.network.addressing
        return expected(addressing, self.trees, self.servers, self.workload)

    @cached_property
    def trees(self) -> tuple[Tree, ...]:
        """Its trees, as the controller plans them; from when it has a number."""
        spec, addressing = self.file.spec, self.place.network.addressing
        return plan_trees(
            addressing.topology,
            addressing,
            self.placement.workers,
            [addressing.unit(name).address for name in self.servers],
            TreeKind.of(self.tree),
            spec.streams,
            self.number - 1,
        )

    @cached_property
    def tally(self) -> Tally:
        """What its switches and links count; from when it has a number."""
        return Tally(self.name, self.trees, self.place)

    @property
    def _planned_anew(self) -> str:
        """That it was, if so."""
        plan = max((result["plan"] for result in self.results.values()), default=self._plan)
        return f"the job was planned anew on its way, epoch {plan}" if plan != self._plan else ""

    @property
    def disturbed(self) -> str:
        """Why switches' counts say nothing of a job that is done; empty if they do."""
        if self.tally.wiped:
            return f"{', '.join(self.tally.wiped)} lost what was counted there"
        return self._planned_anew

    def _check_sums(self) -> int | None:
        """Chunks that the switches summed; ``JobError`` unless workers got as many sums of them.

        None if nobody can tell after a fault.
        """
        if self.disturbed:
            return None
        if self.tree == "none":
            return 0
        one = results.fullest(self.results)["statistics"]
        kinds = ("completed", "completed_direct", "exponent_rounds", "initial")
        self.tally.check(sum(one[kind] for kind in kinds))
        return int(one["completed"])

    def _check_staleness(self) -> None:
        """``JobError`` if a worker got further ahead than the job allows."""
        consistency = self.file.spec.consistency
        if consistency.staleness is None:
            return
        most = results.staleness(self.results)["max"]
        if most > consistency.staleness:
            raise JobError(
                f"a worker got parameters {most} gradients ahead of the slowest one; the job's"
                f" consistency allows {consistency.staleness}"
            )

    @property
    def workload(self) -> Workload:
        """Its size."""
        spec, plane = self.file.spec, self.place.dataplane
        sizes = tuple(shapes(spec).values())
        left = spec.iterations - self._before
        slices, start = plane.chunks_per_slice(spec.slice_bytes), spec.optimizer.at == "servers"
        rounds, pulls = 0 if self._contacted else 1, spec.server.plan.pulls
        if not spec.consistency.together:  # no exponents; initial parameters go like gradients
            left, rounds, start = left + 1, 0, False
        return Workload(sizes, plane.lanes, left, slices, rounds, start, pulls)

    def record(self) -> Message:
        """Its part of the summary: all of it once it is done, before or otherwise what is known."""
        if self._outcome is not None:
            return self._outcome
        progress = self.progress()
        return {
            **self._described(),
            "iterations_done": progress["iteration"],
            "loss": progress.get("loss"),
            "accuracy": progress.get("accuracy"),
            "chunks": {},
            "links": [],
        }

    def _described(self) -> Message:
        spec, topology = self.file.spec, self.place.network.topology
        return {
            "job": self.name,
            "number": self.number,
            "state": self.state,
            "reason": self.reason.split("\n", 1)[0],
            "target": self.place.nodes.target,
            "clock": self.place.clock,
            "topology": topology.name,
            "racks": topology.racks,
            "workers": len(self.placement.workers),
            "servers": len(self.placement.servers),
            "workload": spec.workload,
            "data": WORKLOADS[spec.workload].data,
            "gradients": spec.gradients,
            "optimizer": str(spec.plan),
            "consistency": str(spec.consistency),
            "placement": spec.placement.kind,
            "tree": self.tree or spec.tree,
            "server_pipeline": str(spec.server.plan),
            "iterations": spec.iterations,
            "batch": spec.batch,
            "seed": spec.seed,
            # Of these, those that the checkpoint had that it goes on from.
            "iterations_before": self._before,
            "restored_from": None if self.file.restore is None else str(self.file.restore),
        }

    def _summary(
        self, reference: Message | None, counted: int | None, wall: float, busy: float
    ) -> Message:
        workers, served = self.placement.workers, self.tree == "none"
        apart = not self.file.spec.consistency.together
        crew = self._crew
        assert crew is not None
        tally = self.tally
        return {
            **self._described(),
            **results.weights(
                workers, self.results, crew.lost, reference, self._unknown, apart=apart
            ),
            "staleness_seen": results.staleness(self.results) if apart else None,
            "rejoined_workers": {workers[rank]: n for rank, n in sorted(crew.back.items())},
            # Where servers step with single gradients, nothing is averaged.
            "workers_per_iteration": [] if apart else self._attendance.counts(),
            "attendance": [] if apart else self._attendance.told(workers),
            "chunks": results.chunks(
                self.results, counted, self.disturbed, tally.sent_again, served=served
            ),
            "plans": results.plans(self.results),
            # Switches count for all their jobs: with these what they sent again is theirs too.
            "shared_with": sorted(tally.shared_with),
            "alongside": sorted(tally.alongside),
            # Which server came by parameters in a change of epoch, and from whom: a server (perhaps
            # itself: it had the replica) with the optimizer's state, or a worker, without.
            "restored": self._restored,
            "checkpoints": self.checkpoints,
            "links": tally.carried,
            "machine": results.machine(self.results, wall, busy),
        }


def unique_name(wanted: str, taken: set[str]) -> str:
    """A job's name in this testbed: the file's, with a number if that is taken."""
    name, number = wanted, 2
    while name in taken:
        name, number = f"{wanted}-{number}", number + 1
    return name
