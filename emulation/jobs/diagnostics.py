# SPDX-License-Identifier: Apache-2.0
"""Queries a job's workers for what they wait for, on request and when a chunk is late.

Workers answer on their standard output (``testbed.worker``, ``outline``). Switches are not queried:
their STATE replies to workers suffice, on every target.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence

from controller.planning.tree_planner import PlanRefusedError, Tree, TreeKind, plan_trees
from emulation.jobs.service_status import read_status
from emulation.jobs.worker_supervisor import WorkerSupervisor
from emulation.nodes.process_supervisor import ProcessSupervisor
from emulation.nodes.processes import Process, ProcessError
from hosts.worker.explanation import Outline
from observability import outcomes
from observability.messages.process_reports import ActivityReport
from observability.messages.servers import JobServers
from observability.messages.waiting import Activity, JobExplanation
from observability.why import explain, sentences
from protocol import jobs_pb2
from testbed.jobrun import JobRun

log = logging.getLogger("why")

_ANSWER_SECONDS = 3.0
_STATUS_SECONDS = 2.0
_LOOK_SECONDS = 1.0
_SAY_AGAIN_SECONDS = 5.0


class Diagnostics:
    """Explains what one job waits for."""

    def __init__(self, job: JobRun, workers: WorkerSupervisor, nodes: ProcessSupervisor) -> None:
        self._job = job
        self._processes = workers
        self._nodes = nodes
        self._pending: dict[Process, asyncio.Future[ActivityReport]] = {}
        self._trees: tuple[int, tuple[Tree, ...] | None] = (0, None)  # epoch, trees

    def answer(self, process: Process, report: ActivityReport) -> None:
        """Takes a worker's answer to a query."""
        pending = self._pending.pop(process, None)
        if pending is not None and not pending.done():
            pending.set_result(report)

    async def why(self) -> JobExplanation:
        """Returns what the job waits for."""
        job = self._job
        workers = await self._workers()
        trees = await self._planned([one.outline for one in workers if one.outline])
        status = await self.status()
        servers = job.servers if status is None else status.servers
        where = job.assignment(status)
        # The reason that the service reports for a job that is over is how it ended.
        changing = status is not None and job.state in ("starting", "running")
        change = status.reason if status is not None and changing else ""
        found = explain(
            workers, trees, lambda chunk: servers[where.server_of(chunk)],
            self._stuck(), change,
        )  # fmt: skip
        reason = found["reason"] or job.reason.split("\n", 1)[0]
        return {"job": job.name, "state": job.state, **found, "reason": reason}

    async def watch(self) -> None:
        """Logs late chunks and long changes of epoch, at intervals; runs until cancelled."""
        said = -_SAY_AGAIN_SECONDS
        change = ""  # the change of epoch that the last look found
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            if self._job.state != "running" or time.monotonic() < said + _SAY_AGAIN_SECONDS:
                continue
            found = await self.why()
            lasts, change = found["change"] and found["change"] == change, found["change"]
            if lasts or any(chunk["late"] for chunk in found["chunks"]):
                said = time.monotonic()
                log.info("%s", "\n".join(sentences(self._job.name, found)))

    async def _workers(self) -> list[Activity]:
        """Queries every worker that runs; returns what each of them does."""
        members = self._processes.members
        asked = {}
        for process in members.values():
            if process.running and not process.stopped:
                with contextlib.suppress(ProcessError):  # it is about to end
                    asked[process] = self._ask(process)
        if asked:
            await asyncio.wait(asked.values(), timeout=_ANSWER_SECONDS)
        return [self._worker(name, p, asked.get(p)) for name, p in members.items()]

    def _ask(self, process: Process) -> asyncio.Future[ActivityReport]:
        # One query at a time: those to a stuck worker would fill its pipe.
        if process not in self._pending:
            process.write("why")
            self._pending[process] = asyncio.get_running_loop().create_future()
        return self._pending[process]

    def _worker(
        self, name: str, process: Process, answer: asyncio.Future[ActivityReport] | None
    ) -> Activity:
        if answer is not None and answer.done():
            known = answer.result()
            return Activity(
                name, known["doing"], known["seconds"], known["iteration"], known["outline"]
            )
        if process.stopped:
            return Activity(name, "stopped")
        return Activity(name, "silent" if process.running else "ended")

    def _stuck(self) -> dict[str, str]:
        """Returns the switches and servers that are down or stopped, with their state."""
        nodes = self._nodes
        found = {}
        for name in (*nodes.switches, *self._job.servers):
            process = nodes.at(name)
            if process is None or not process.running:
                found[name] = "is not running"
            elif process.stopped:
                found[name] = "is stopped (SIGSTOP, or a debugger)"
        return found

    async def _planned(self, outlines: Sequence[Outline]) -> tuple[Tree, ...] | None:
        """Returns the trees of the newest epoch among these outlines; None if unknown."""
        if not outlines:
            return None
        newest = max(outlines, key=lambda one: one.epoch)
        if self._trees[0] != newest.epoch:
            jobs = await self._jobs()
            if jobs is None:
                return None if self._trees[0] else self._job.forecast.trees
            if not jobs or jobs[0].epoch != newest.epoch:
                return None  # it is changing right now
            self._trees = jobs[0].epoch, self._plan(jobs[0], len(newest.streams))
        return self._trees[1]

    async def servers(self) -> JobServers:
        """Returns what was measured of the job's servers."""
        job = self._job
        found = job.measured(await self.status() or job.status)
        return {"job": job.name, "state": job.state, **found}

    async def status(self) -> jobs_pb2.Job | None:
        """Returns the job's status; None if the service does not answer or know it."""
        jobs = await self._jobs()
        return jobs[0] if jobs else None

    async def _jobs(self) -> list[jobs_pb2.Job] | None:
        """Returns the job's status in a list, which is empty if the service does not know the job;
        None if it does not answer."""
        reply = await read_status(_STATUS_SECONDS)
        if reply is None:
            return None
        return [one for one in reply.jobs if one.job == self._job.number]

    def _plan(self, status: jobs_pb2.Job, streams: int) -> tuple[Tree, ...] | None:
        """Plans the trees of an epoch as the controller did: if need be, around the switches that
        hold no slots. Returns None if no plan matches the status."""
        addressing = self._nodes.addressing
        members, way = self._processes.present, self._job.spec.propagation
        holding = set(status.slots)
        avoided = {node.name for node in addressing.topology.switches} - holding
        for avoid in (set[str](), avoided):
            with contextlib.suppress(PlanRefusedError):
                trees = plan_trees(
                    addressing.topology,
                    addressing,
                    members,
                    [addressing.unit(name).address for name in self._job.servers],
                    TreeKind[status.tree],
                    streams // way.classes,
                    self._job.number - 1,
                    avoid,
                    way,
                )
                if outcomes.switches_of(trees) == holding and len(members) == status.world:
                    return trees
        return None
