# SPDX-License-Identifier: Apache-2.0
"""One job on a running testbed: its servers join, its workers run, the reference checks them."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from controller.dataplane import DataPlane
from controller.trees import Tree, TreeKind, plan_trees
from hosts.membership import ClientError, create_service
from testbed import outcomes
from testbed.digits import shapes
from testbed.emulated import Network
from testbed.expected import Direction, Load, Workload, expected
from testbed.jobfile import JobFile, Placement
from testbed.processes import CONSEQUENCE, Process, ProcessError, Processes, python, tail
from testbed.record import RunDirectory, cpu_seconds
from testbed.serverhost import JobError, ServerHost
from testbed.targets import SwitchProcess
from testbed.waiting import Waits

Message = dict[str, Any]
JOBS_ADDRESS = "unix:sockets/jobs"
_REFERENCE_SECONDS = 600.0
# Busier than that, times say more of the machine than of the network.
_CPU_BOUND = 0.95
_TREES = {
    "two-level": TreeKind.TWO_LEVEL,
    "tor": TreeKind.TOR,
    "core": TreeKind.CORE,
    "none": TreeKind.NONE,
}


@dataclass
class Place:
    """What a job needs of the testbed that it runs on.

    suspects: an error for each of the testbed's processes that is stuck. jobs: all of them.
    """

    run: RunDirectory
    network: Network
    dataplane: DataPlane
    servers: Mapping[str, ServerHost]
    target: str
    clock: str
    switches: Mapping[str, SwitchProcess]
    suspects: Callable[[], Awaitable[list[ProcessError]]]
    jobs: Mapping[str, JobRun]


@dataclass
class JobRun:
    """A job's life. ``state``: starting, running, checking, done, failed or stopped."""

    place: Place
    file: JobFile
    name: str
    placement: Placement
    emit: Callable[[Message], None]
    number: int = 0
    state: str = "starting"
    reason: str = ""
    ending: str = "stopped on request"  # why it is over, if it is cancelled
    shared_with: set[str] = field(default_factory=set)  # jobs on the same switches meanwhile
    reports: dict[int, Message] = field(default_factory=dict)  # last progress, by rank
    results: dict[int, Message] = field(default_factory=dict)  # final reports, by rank
    _members: dict[str, Process] = field(default_factory=dict)  # workers, by host
    _errors: dict[int, str] = field(default_factory=dict)  # what ended a worker, by rank
    _counted: outcomes.Counts = field(default_factory=dict)  # at its switches, while it trained
    _training: bool = False
    _waits: Waits = field(default_factory=lambda: Waits((), ()))
    _explaining: asyncio.Task[None] | None = None
    _started: int = 0
    _rate: tuple[float, int, float] = (0.0, 0, 0.0)  # when, chunks then, chunks/s

    async def execute(self, processes: Processes) -> Message:
        """Runs the job; returns its part of the summary. Raises ``JobError``.

        processes: a group of its own, so that a failing worker takes the job with it and no more.
        """
        start, cpu = time.monotonic(), cpu_seconds()
        try:
            await self._train(processes)
            trained, cpu_then = time.monotonic(), cpu_seconds()
            self.state = "checking"
            self.emit({"event": "checking", "job": self.name})
            reference = await self._reference(processes)
            counted = self._check_sums()
        except (ProcessError, ClientError, TimeoutError, JobError) as error:
            self.state, self.reason = "failed", str(error)
            failure = await self._cause(error, processes)
            self.reason = str(failure)
            raise failure from error
        except asyncio.CancelledError:
            self.state, self.reason = "stopped", self.ending
            raise
        finally:
            self._training = False
            if self._explaining is not None:
                self._explaining.cancel()
            await processes.stop()
        self.state = "done"
        busy = (cpu_then["busy"] - cpu["busy"]) / max(1e-9, cpu_then["all"] - cpu["all"])
        return self._summary(reference, counted, trained - start, busy)

    async def _train(self, processes: Processes) -> None:
        spec, placement, run = self.file.spec, self.placement, self.place.run
        nonce, self.number = await asyncio.to_thread(
            create_service,
            JOBS_ADDRESS,
            self.name,
            placement.workers,
            placement.servers,
            tree=spec.tree,
            window=spec.window,
            streams=spec.streams,
        )
        copy = run.path / f"job-{self.name}.yaml"
        await asyncio.to_thread(shutil.copyfile, self.file.source, copy)
        joins = (
            self.place.servers[name].join(nonce, rank)
            for rank, name in enumerate(placement.servers)
        )
        await asyncio.gather(*joins)
        self._waits = Waits(self.trees, placement.servers)
        before = await self._count()
        self._share()
        world = len(placement.workers)
        for rank, name in enumerate(placement.workers):
            end = self.place.network.addressing.host_interfaces(name)[0]
            program = python(
                "testbed.worker",
                *("--job", str(copy), "--rank", str(rank), "--world", str(world)),
                *("--service", JOBS_ADDRESS, "--address", str(end.ipv4)),
                *("--queue-bytes", str(end.outgoing.queue_bytes)),
                *("--link-rate", str(end.outgoing.rate)),
                *(("--weights", str(run.path / f"weights-{self.name}.npz")) if rank == 0 else ()),
            )
            process = processes.start(
                self._process_name(name),
                self.place.network.node(name).command(program),
                on_line=lambda line, rank=rank: self._report(rank, line, processes),  # type: ignore[misc]
                wants_input=True,
                may_finish=True,
            )
            process.write(nonce)
            self._members[name] = process
        await self._until_ended(processes)
        silent = [placement.workers[r] for r in range(world) if r not in self.results]
        if silent:
            raise JobError(f"{', '.join(silent)}: ended without a result", silent[0])
        self._counted = outcomes.since(before, await self._count())
        self._training = False

    async def _until_ended(self, processes: Processes) -> None:
        """Until all workers have ended; once one has, the others get as long as a sum may take."""
        patience = self.file.spec.patience
        first: str | None = None
        while left := [name for name, process in self._members.items() if process.running]:
            either: list[asyncio.Future[Any]] = [self._members[name].exited for name in left]
            ended, _ = await asyncio.wait(
                [*either, processes.failure],
                timeout=None if first is None else patience,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if processes.failure.done():
                processes.failure.result()
            if not ended:
                what = f"has not ended {patience:g} s after {first} did"
                raise ProcessError(left[0], what, self._members[left[0]].log)
            first = next(n for n, process in self._members.items() if not process.running)
            if any(not p.running and p.exited.result() for p in self._members.values()):
                # The group tells which end was the cause.
                await asyncio.wait([processes.failure])
                processes.failure.result()

    async def _count(self) -> outcomes.Counts:
        """The outcomes counted at this job's switches so far; ``ProcessError`` if one is stuck."""
        chosen = [self.place.switches[name] for name in sorted(outcomes.switches_of(self.trees))]
        counts, silent = await outcomes.read(chosen, self.place.dataplane)
        if silent:
            raise silent[0]
        return counts

    def _share(self) -> None:
        """Notes which jobs are being trained on the same switches, whose counters count for all."""
        self._training = True
        mine = outcomes.switches_of(self.trees)
        for other in self.place.jobs.values():
            if other is not self and other._training and mine & outcomes.switches_of(other.trees):
                self.shared_with.add(other.name)
                other.shared_with.add(self.name)

    async def _cause(self, error: Exception, processes: Processes) -> JobError:
        """What made a job fail, where its first symptom was this error."""
        name = getattr(error, "name", None) or getattr(error, "process", None)
        said = next(
            (
                self._errors[rank]
                for rank, host in enumerate(self.placement.workers)
                if rank in self._errors and self._process_name(host) == name
            ),
            "",
        )
        if isinstance(error, ProcessError):
            symptom = f"{name} {error.what}" + (f": {said}" if said else "")
        else:
            symptom = str(error)
        stuck = [*processes.stopped(), *await self.place.suspects()]
        absent = self._waits.missing()
        if absent:
            symptom += f"; not in: {', '.join(absent)}"
        cause: Exception = error
        if stuck:
            others = "".join(f"; {one.name} {one.what}" for one in stuck[1:])
            cause = ProcessError(stuck[0].name, f"{stuck[0].what}{others}; {symptom}", stuck[0].log)
        elif isinstance(error, ProcessError) and error.status == CONSEQUENCE and said:
            # It only followed; the job service's reason names a member (worker 2 (w2), ...).
            named = next((p for p in self._processes() if f"({p[0]})" in said), None)
            if named is None:
                return JobError(f"job {self.name}: {said}\n{tail(error.log)}")
            cause = ProcessError(named[1].name, f"is the cause: {said}", named[1].log)
        elif isinstance(error, ProcessError):
            cause = ProcessError(error.name, symptom.removeprefix(f"{name} "), error.log)
        return JobError(f"job {self.name}: {cause}", getattr(cause, "name", name))

    def _processes(self) -> list[tuple[str, Process]]:
        """Its members' processes, by host."""
        servers = [(name, self.place.servers[name].process) for name in self.placement.servers]
        return [*self._members.items(), *((name, p) for name, p in servers if p is not None)]

    def _process_name(self, host: str) -> str:
        # The first job of a run needs no prefix to tell its logs from others'.
        return host if self.number == 1 else f"{self.name}-{host}"

    def _report(self, rank: int, line: str, processes: Processes) -> None:
        if not line.startswith("{"):
            return
        report: Message = json.loads(line)
        kind = report.pop("report")
        if kind == "started":
            self._started += 1
            if self._started == len(self.placement.workers):
                self.state = "running"
                self.emit({"event": "running", "job": self.name})
        elif kind == "progress":
            self.reports[rank] = {**self.reports.get(rank, {}), **_known(report)}
            self._waits.over(rank)
            if rank == 0:
                self.emit({"event": "progress", "job": self.name, **self.progress()})
        elif kind == "waiting":
            self._waits.take(rank, report)
            if self._explaining is None or self._explaining.done():
                explaining = self._explain(processes)
                self._explaining = asyncio.get_running_loop().create_task(explaining)
        elif kind == "failed":
            self._errors[rank] = report["error"]
        elif kind == "done":
            self.results[rank] = report

    async def _explain(self, processes: Processes) -> None:
        """Tells whoever watches that and why the job waits."""
        stuck = [*processes.stopped(), *await self.place.suspects()]
        if self._waits.seconds:
            why = "; ".join(f"{one.name} {one.what}" for one in stuck) or str(self._waits)
            seconds = self._waits.seconds
            self.emit({"event": "waiting", "job": self.name, "seconds": seconds, "why": why})

    def progress(self) -> Message:
        """How far the job is: iteration, epoch, loss, accuracy, chunks/s, share in the network."""
        first = self.reports.get(0)
        if first is None:
            return {"iterations": self.file.spec.iterations, "iteration": 0}
        losses = [report["loss"] for report in self.reports.values()]
        network = first["statistics"]["completed"]
        chunks = network + first["statistics"]["completed_direct"]
        now = time.monotonic()
        then, before, rate = self._rate
        if chunks > before:
            rate = (chunks - before) / (now - then) if before else 0.0
            self._rate = (now, chunks, rate)
        return {
            "iteration": first["iteration"],
            "iterations": self.file.spec.iterations,
            "epoch": first["epoch"],
            "loss": sum(losses) / len(losses),
            "accuracy": first.get("accuracy"),
            "chunks_per_second": rate,
            "share_in_network": self._share_in_network(network, chunks),
        }

    def _share_in_network(self, summed_in_tree: int, chunks: int) -> float:
        return summed_in_tree / chunks if chunks and self.file.spec.tree != "none" else 0.0

    async def _reference(self, processes: Processes) -> Message:
        """What a single process without a network makes of the same job."""
        told: list[str] = []
        program = python(
            "testbed.reference",
            *("--job", str(self.place.run.path / f"job-{self.name}.yaml")),
            *("--world", str(len(self.placement.workers))),
            *("--lanes", str(self.place.dataplane.lanes)),
        )
        name = "reference" if self.number == 1 else f"{self.name}-reference"
        process = processes.start(name, program, on_line=told.append, may_finish=True)
        either: list[asyncio.Future[Any]] = [process.exited, processes.failure]
        await asyncio.wait(either, timeout=_REFERENCE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if not process.running and process.exited.result() != 0:
            await asyncio.wait([processes.failure])
        if processes.failure.done():
            processes.failure.result()
        if process.running or not told:
            what = f"gave no result within {_REFERENCE_SECONDS:g} s"
            raise ProcessError(name, what, process.log)
        reference: Message = json.loads(told[-1])
        return reference

    def expected(self) -> dict[Direction, Load]:
        """What this job should put on each link, see ``testbed.expected``."""
        addressing = self.place.network.addressing
        return expected(addressing, self.trees, self.placement.servers, self.workload)

    @cached_property
    def trees(self) -> tuple[Tree, ...]:
        """Its trees, as the controller plans them; from when it has a number."""
        spec, addressing = self.file.spec, self.place.network.addressing
        return plan_trees(
            addressing.topology,
            addressing,
            self.placement.workers,
            [addressing.address(name) for name in self.placement.servers],
            _TREES[spec.tree],
            spec.streams,
            self.number - 1,
        )

    def _check_sums(self) -> int:
        """Chunks that the switches summed; ``JobError`` unless workers got as many sums of them."""
        one = self.results[0]["statistics"]
        rounds = outcomes.sums_made(self.trees, self._counted)
        if self.file.spec.tree == "none":
            return 0
        asked = one["completed"] + one["completed_direct"] + one["exponent_rounds"]
        # Counters do not tell jobs apart: with others on the same switches they show more.
        if rounds < asked or (rounds > asked and not self.shared_with):
            raise JobError(
                f"the switches made {rounds:,} sums and the workers received {asked:,}: some"
                " came from elsewhere or were lost"
            )
        return int(one["completed"])

    @property
    def workload(self) -> Workload:
        """Its size."""
        spec, plane = self.file.spec, self.place.dataplane
        sizes = tuple(shapes(spec).values())
        return Workload(sizes, plane.lanes, spec.iterations, plane.chunks_per_slice)

    def _summary(self, reference: Message, counted: int, wall: float, busy: float) -> Message:
        spec, topology = self.file.spec, self.place.network.topology
        first = self.results[0]
        statistics = [self.results[rank]["statistics"] for rank in sorted(self.results)]
        digests = {result["digest"] for result in self.results.values()}
        in_tree, direct = first["statistics"]["completed"], first["statistics"]["completed_direct"]
        by_switches = outcomes.sent_again(self.trees, self._counted)
        return {
            "job": self.name,
            "target": self.place.target,
            "clock": self.place.clock,
            "topology": topology.name,
            "racks": topology.racks,
            "workers": len(self.placement.workers),
            "servers": len(self.placement.servers),
            "workload": spec.workload,
            "tree": spec.tree,
            "iterations": spec.iterations,
            "batch": spec.batch,
            "seed": spec.seed,
            "test_accuracy": first["accuracy"],
            "matches_reference": digests == {reference["digest"]},
            "workers_agree": len(digests) == 1,
            "weights_sha256": first["digest"],
            "reference_sha256": reference["digest"],
            "reference_accuracy": reference["accuracy"],
            "seconds_per_iteration": first["seconds"],
            "chunks": {
                "aggregated_in_network": counted,
                "served_by_server": direct + (in_tree if spec.tree == "none" else 0),
                # By workers and switches.
                "retransmitted": sum(one["retransmitted"] for one in statistics) + by_switches,
                "retransmitted_by_switches": by_switches,
            },
            # Switches count for all their jobs: with these what they sent again is theirs too.
            "shared_with": sorted(self.shared_with),
            "wrong_checksum": sum(one["wrong_checksum"] for one in statistics),
            "machine": {
                "wall_seconds": wall,
                "cpu_busy": busy,
                "cpu_bound": busy > _CPU_BOUND,
                # How often a worker asked what became of a chunk, or heard of a full queue.
                "queries": sum(one["queries"] for one in statistics),
                "congested": sum(one["congested"] for one in statistics),
            },
        }


def _known(report: Message) -> Message:
    return {name: value for name, value in report.items() if value is not None}


def unique_name(wanted: str, taken: set[str]) -> str:
    """A job's name in this testbed: the file's, with a number if that is taken."""
    name, number = wanted, 2
    while name in taken:
        name, number = f"{wanted}-{number}", number + 1
    return name
