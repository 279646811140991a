# SPDX-License-Identifier: Apache-2.0
"""A job service over gRPC for members on loopback, where there is no switch to plan for.

It speaks the job service's protocol and hands out plans whose tree is the first server alone. What
the real service decides (admission, slots, leases) is scripted by the test instead.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from protocol import jobs_pb2, jobs_pb2_grpc

LANES = 64
WINDOW = 16


@dataclass
class SmallJob:
    number: int
    world: int
    addresses: dict[tuple[int, int], jobs_pb2.Address] = field(default_factory=dict)
    keys: dict[int, list[tuple[str, int]]] = field(default_factory=dict)
    left: list[tuple[int, int, str]] = field(default_factory=list)
    epoch: int = 1
    ended: tuple[grpc.StatusCode, str] | None = None

    def plan(self, role: int, rank: int) -> jobs_pb2.Plan | None:
        if len(self.addresses) <= self.world or len(self.keys) < self.world:
            return None
        plan = jobs_pb2.Plan(
            job=self.number,
            epoch=self.epoch,
            world=self.world,
            lanes=LANES,
            rank=rank,
            servers=[self.addresses[jobs_pb2.SERVER, 0]],
            chunks_per_slice=4,
        )
        if role == jobs_pb2.WORKER:
            plan.streams.add(stream=0, node=1, sender=rank, window=WINDOW)
            return plan
        workers = [self.addresses[jobs_pb2.WORKER, i] for i in range(self.world)]
        plan.workers.extend(workers)
        plan.windows[0] = WINDOW
        root = plan.roots.add(stream=0, node=1, window=WINDOW)
        for i, address in enumerate(workers):
            root.children.add(sender=i, address=address, workers=1)
        return plan


class SmallService(jobs_pb2_grpc.JobServiceServicer):
    """`jobs` by nonce; `changed` is notified of every call."""

    def __init__(self, path: Path) -> None:
        self.address = f"unix:{path}"
        self.jobs: dict[str, SmallJob] = {}
        self.changed = threading.Condition()
        self.beats: dict[tuple[str, int, int], int] = defaultdict(int)
        self._server = grpc.server(ThreadPoolExecutor(32))
        jobs_pb2_grpc.add_JobServiceServicer_to_server(self, self._server)
        self._server.add_insecure_port(self.address)
        self._server.start()

    def stop(self) -> None:
        """As if the process died: every call ends at once."""
        self._server.stop(grace=None).wait()

    def end(self, nonce: str, code: grpc.StatusCode, text: str = "") -> None:
        """Ends the job's plans: normally (OK) or with a status."""
        with self.changed:
            self.jobs[nonce].ended = (code, text)
            self.changed.notify_all()

    def replan(self, nonce: str) -> None:
        with self.changed:
            self.jobs[nonce].epoch += 1
            self.changed.notify_all()

    def wait_for(self, condition: object, timeout: float = 10) -> None:
        """Blocks until a call has made `condition()` true."""
        with self.changed:
            assert self.changed.wait_for(condition, timeout)

    def CreateService(self, request, context):  # noqa: N802
        with self.changed:
            if request.namespace == "too-large":
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "tor0 has 0 of 64 slots free")
            number = len(self.jobs) + 1
            nonce = f"nonce-{number}"
            self.jobs[nonce] = SmallJob(number, len(request.workers))
            return jobs_pb2.CreateServiceReply(nonce=nonce, job=number)

    def ConnectService(self, request, context):  # noqa: N802
        with self.changed:
            job = self._job(request, context)
            job.addresses[request.role, request.rank] = request.address
            self.changed.notify_all()
            return jobs_pb2.ConnectServiceReply(job=job.number, world=job.world, lanes=LANES)

    def InitService(self, request, context):  # noqa: N802
        with self.changed:
            job = self._job(request, context)
            job.keys[request.rank] = [(key.name, key.elements) for key in request.keys]
            self.changed.notify_all()
            return jobs_pb2.InitServiceReply()

    def WatchPlan(self, request, context) -> Iterator[jobs_pb2.Plan]:  # noqa: N802
        job = self._job(request, context)
        context.add_callback(self._notify)
        seen = 0
        while context.is_active():
            with self.changed:
                plan = job.plan(request.role, request.rank)
                if job.ended is not None:
                    code, text = job.ended
                    if code == grpc.StatusCode.OK:
                        return
                    context.abort(code, text)
                if plan is None or plan.epoch == seen:
                    self.changed.wait()
                    continue
            seen = plan.epoch
            yield plan

    def Heartbeat(self, request, context):  # noqa: N802
        with self.changed:
            job = self._job(request, context)
            self.beats[request.nonce, request.role, request.rank] += 1
            self.changed.notify_all()
            return jobs_pb2.HeartbeatReply(epoch=job.epoch)

    def Leave(self, request, context):  # noqa: N802
        with self.changed:
            job = self._job(request, context)
            job.left.append((request.role, request.rank, request.reason))
            workers = {rank for role, rank, _ in job.left if role == jobs_pb2.WORKER}
            if len(workers) == job.world and job.ended is None:
                job.ended = (grpc.StatusCode.OK, "")
            self.changed.notify_all()
            return jobs_pb2.LeaveReply()

    def _notify(self) -> None:
        with self.changed:
            self.changed.notify_all()

    def _job(self, request, context) -> SmallJob:
        if request.nonce not in self.jobs:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "the nonce is no job's")
        return self.jobs[request.nonce]
