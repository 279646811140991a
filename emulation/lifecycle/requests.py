# SPDX-License-Identifier: Apache-2.0
"""Handles requests at a testbed's control socket (``observability.control``)."""

from __future__ import annotations

import asyncio
from pathlib import Path

from emulation.jobs.jobrun import EmulatedJob
from emulation.jobs.scaling import scale_job
from emulation.lifecycle.testbed import Testbed
from observability.control import Answer, ControlError, Request
from observability.messages.events import EmitEvent
from observability.messages.jobs import JobRow, ScaledJob, SubmittedJob
from observability.messages.live import NodeRow, Status
from observability.messages.servers import JobServers
from observability.messages.waiting import JobExplanation
from observability.server_times import NOT_MEASURED
from specs.faultfile import Fault
from topologies.model.topology import Kind


class Requests:
    """Handles the requests to one testbed."""

    def __init__(self, testbed: Testbed) -> None:
        self._testbed = testbed

    async def handle(self, request: Request, emit: EmitEvent) -> Answer:
        """Handles one request and returns its result; raises ``ControlError``."""
        do = request["do"]
        if do == "wait":
            await self._until_ready()
            return self._testbed.describe()
        if do == "detach":
            self._testbed.detached = True
            return None
        if do == "down":
            self._testbed.stopping.set()
            return [
                *(_job_row(self._testbed.jobs[name]) for name in self._testbed.running()),
                *self._testbed.external.rows(None),
            ]
        await self._until_ready()
        if do == "submit":
            restore = Path(request["restore"]) if "restore" in request else None
            return await self._testbed.run_job(
                request["job"], emit, request.get("faults", ()), restore
            )
        if do == "create":
            return await self._testbed.create_job(request["new"])
        if do == "jobs":
            return await self._job_rows()
        if do == "stop":
            await self._testbed.stop_job(request["job"])
            return request["job"]
        if do == "scale":
            return await self._scale(request, emit)
        if do == "why":
            return await self._why(request["job"])
        if do == "servers":
            return await self._servers(request["job"])
        if do == "status":
            return await self._status()
        if do == "snapshot":
            return await self._testbed.observer.snapshot()
        if do == "inject":
            for fault in request["faults"]:
                await self._testbed.held.begin(fault)
            return None
        if do == "end":
            for fault in request["faults"]:
                await self._testbed.held.end(fault)
            return None
        raise ControlError(f"{do!r} is no request")

    async def _until_ready(self) -> None:
        try:
            await asyncio.shield(self._testbed.ready)
        except Exception as error:
            raise ControlError(str(error)) from error

    async def _why(self, name: str) -> JobExplanation:
        own = self._testbed.jobs.get(name)
        if own is None or own.state in ("done", "failed", "stopped"):
            found = await self._testbed.external.why(name)
            if found is not None:
                return found
        return await self._own(name).diagnostics.why()

    async def _servers(self, name: str) -> JobServers:
        if name not in self._testbed.jobs and await self._testbed.external.why(name) is not None:
            raise ControlError(f"job {name} was not submitted: its servers are not measured")
        own = self._own(name)
        if not own.spec.balance.plan.measures:
            raise ControlError(f"job {name} {NOT_MEASURED}")
        found = await own.diagnostics.servers()
        if not found["server_times"]:
            raise ControlError(f"job {name}: the controller does not answer; ask again")
        return found

    def _own(self, name: str) -> EmulatedJob:
        own = self._testbed.jobs.get(name)
        if own is None:
            known = [*self._testbed.jobs, *(job.name for job in self._testbed.external.known)]
            there = f"there are: {', '.join(known)}" if known else "none has been submitted yet"
            raise ControlError(f"no job {name!r}; {there}")
        return own

    async def _scale(self, request: Request, emit: EmitEvent) -> ScaledJob:
        name = request["job"]
        fault = Fault("scale", servers=tuple(request["servers"]), workers=tuple(request["workers"]))

        def waits(seconds: float, why: str) -> None:
            emit({"event": "waiting", "job": name, "seconds": seconds, "why": why})

        testbed = self._testbed
        return await scale_job(testbed.context, name, testbed.jobs.get(name), fault, waits)

    async def _job_rows(self) -> list[JobRow]:
        return [
            *(_job_row(job) for job in self._testbed.jobs.values()),
            *await self._testbed.external.query(),
        ]

    async def _status(self) -> Status:
        try:
            now = await self._testbed.measure()
        except TimeoutError as error:
            raise ControlError(str(error)) from error
        return {
            **self._testbed.describe(),
            "nodes": [self._node(node.name, node.kind) for node in self._testbed.topology.nodes],
            "jobs": await self._job_rows(),
            "others": await self._testbed.history(),
            "links": self._testbed.carried(now, None),
        }

    def _node(self, name: str, kind: Kind) -> NodeRow:
        switches = self._testbed.nodes.switches
        jobs = self._testbed.jobs.values()
        workers = [job.workers.members[name] for job in jobs if name in job.workers.members]
        processes = [*self._testbed.nodes.all_at(name), *workers]
        return {
            "name": name,
            "kind": kind,
            "address": str(self._testbed.addressing.address(name)),
            # In the sandbox; outside of it they have other numbers.
            "pids": [process.pid for process in processes if process.running],
            "p4runtime": switches[name].address if name in switches else None,
        }


def _job_row(job: EmulatedJob) -> SubmittedJob:
    return {
        "job": job.name,
        "number": job.number,
        "state": job.state,
        "reason": job.reason.split("\n", 1)[0],
        "workers": len(job.placement.workers),
        "present": len(job.workers.present) if job.state == "running" else None,
        "tree": job.tree or job.file.spec.tree,
        **job.progress(),
    }
