# SPDX-License-Identifier: Apache-2.0
"""One job on a running testbed: its servers join, its workers run, the reference checks them."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from controller.dataplane import DataPlane
from controller.trees import TreeKind, plan_trees
from hosts.membership import ClientError, create_service
from testbed.digits import shapes
from testbed.emulated import Network
from testbed.expected import Direction, Load, Workload, expected
from testbed.jobfile import JobFile, Placement
from testbed.processes import Process, ProcessError, Processes, python
from testbed.record import RunDirectory, cpu_seconds

Message = dict[str, Any]
JOBS_ADDRESS = "unix:sockets/jobs"
_JOIN_SECONDS = 30.0
_REFERENCE_SECONDS = 600.0
# Busier than that, times say more of the machine than of the network.
_CPU_BOUND = 0.95
_TREES = {
    "two-level": TreeKind.TWO_LEVEL,
    "tor": TreeKind.TOR,
    "core": TreeKind.CORE,
    "none": TreeKind.NONE,
}


class JobError(Exception):
    """A job was refused or failed; the text names the process and shows its log's tail."""


class ServerHost:
    """The parameter server process of one host, and the answers that it owes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.process: Process | None = None
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._answers: list[asyncio.Future[str]] = []

    def line(self, line: str) -> None:
        """Takes a line of its standard output."""
        if line.startswith("ready") and not self.ready.done():
            self.ready.set_result(None)
        elif self._answers:
            answer = self._answers.pop(0)
            if not answer.done():
                answer.set_result(line)

    async def join(self, nonce: str, rank: int) -> None:
        """Makes it a server of a job; raises ``JobError`` with its reason if it refuses."""
        assert self.process is not None
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._answers.append(answer)
        self.process.write(f"join {nonce} {rank}")
        try:
            said = await asyncio.wait_for(answer, _JOIN_SECONDS)
        except asyncio.TimeoutError:
            raise JobError(f"{self.name} did not join within {_JOIN_SECONDS:g} s") from None
        if not said.startswith("joined"):
            raise JobError(f"{self.name}: {said}")


@dataclass
class Place:
    """What a job needs of the testbed that it runs on."""

    run: RunDirectory
    network: Network
    dataplane: DataPlane
    servers: Mapping[str, ServerHost]
    target: str
    clock: str


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
    reports: dict[int, Message] = field(default_factory=dict)  # last progress, by rank
    results: dict[int, Message] = field(default_factory=dict)  # final reports, by rank
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
        except (ProcessError, ClientError, TimeoutError, JobError) as error:
            self.state, self.reason = "failed", str(error)
            raise JobError(f"job {self.name}: {error}") from error
        except asyncio.CancelledError:
            self.state, self.reason = "stopped", "stopped on request"
            raise
        finally:
            await processes.stop()
        self.state = "done"
        busy = (cpu_then["busy"] - cpu["busy"]) / max(1e-9, cpu_then["all"] - cpu["all"])
        return self._summary(reference, trained - start, busy)

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
        world = len(placement.workers)
        members = []
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
                on_line=lambda line, rank=rank: self._report(rank, line),  # type: ignore[misc]
                wants_input=True,
                may_finish=True,
            )
            process.write(nonce)
            members.append(process)
        ended = asyncio.gather(*(asyncio.shield(process.exited) for process in members))
        either: list[asyncio.Future[Any]] = [ended, processes.failure]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not ended.done() or any(process.exited.result() for process in members):
            # The group tells which end was the cause.
            await asyncio.wait([processes.failure])
        if processes.failure.done():
            ended.cancel()
            processes.failure.result()
        silent = [placement.workers[r] for r in range(world) if r not in self.results]
        if silent:
            raise JobError(f"{', '.join(silent)}: ended without a result")

    def _process_name(self, host: str) -> str:
        # The first job of a run needs no prefix to tell its logs from others'.
        return host if self.number == 1 else f"{self.name}-{host}"

    def _report(self, rank: int, line: str) -> None:
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
            if rank == 0:
                self.emit({"event": "progress", "job": self.name, **self.progress()})
        elif kind == "done":
            self.results[rank] = report

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
            raise JobError(f"the reference gave no result within {_REFERENCE_SECONDS:g} s")
        reference: Message = json.loads(told[-1])
        return reference

    def expected(self) -> dict[Direction, Load]:
        """What this job should put on each link, see ``testbed.expected``."""
        spec, addressing = self.file.spec, self.place.network.addressing
        trees = plan_trees(
            addressing.topology,
            addressing,
            self.placement.workers,
            [addressing.address(name) for name in self.placement.servers],
            _TREES[spec.tree],
            spec.streams,
            self.number - 1,
        )
        return expected(addressing, trees, self.placement.servers, self.workload)

    @property
    def workload(self) -> Workload:
        """Its size."""
        spec, plane = self.file.spec, self.place.dataplane
        sizes = tuple(shapes(spec).values())
        return Workload(sizes, plane.lanes, spec.iterations, plane.chunks_per_slice)

    def _summary(self, reference: Message, wall: float, busy: float) -> Message:
        spec, topology = self.file.spec, self.place.network.topology
        first = self.results[0]
        statistics = [self.results[rank]["statistics"] for rank in sorted(self.results)]
        digests = {result["digest"] for result in self.results.values()}
        in_tree, direct = first["statistics"]["completed"], first["statistics"]["completed_direct"]
        by_switch = spec.tree in ("two-level", "core")
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
                "aggregated_in_network": in_tree if by_switch or spec.tree == "tor" else 0,
                "served_by_server": direct + (in_tree if spec.tree == "none" else 0),
                "retransmitted": sum(one["retransmitted"] for one in statistics),
            },
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
