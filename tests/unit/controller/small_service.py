# SPDX-License-Identifier: Apache-2.0
"""A job service over gRPC for members on loopback, without switches.

It speaks the job service's protocol and hands out plans whose tree is the first server alone. What
the real service decides (admission, slots, leases) is scripted by the test instead; how an epoch
follows another is not.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from controller.jobs.joining import Join
from controller.jobs.members import Membership, Role
from controller.jobs.resync import Change
from controller.jobs.shards import Holding
from protocol import call_status, jobs_pb2, jobs_pb2_grpc
from protocol.optimizer_plan import OptimizerPlan
from protocol.plan import Address

LANES = 64
CHUNKS_PER_SLICE = 4
WINDOW = 16


@dataclass
class SmallJob:
    number: int
    world: int
    addresses: dict[tuple[int, int], jobs_pb2.Address] = field(default_factory=dict)
    keys: dict[int, list[tuple[str, int]]] = field(default_factory=dict)
    optimizer: jobs_pb2.Optimizer | None = None  # that the server runs
    left: list[tuple[int, int, str]] = field(default_factory=list)
    kept: dict[int, tuple[int, bytes]] = field(default_factory=dict)  # results, levels by rank
    gone: list[tuple[int, int, str]] = field(default_factory=list)
    broken: list[jobs_pb2.Broken] = field(default_factory=list)
    epoch: int = 1
    window: int = WINDOW
    lost: set[int] = field(default_factory=set)
    served: int = 0  # the epoch that the server runs
    change: Change | None = None
    processes: dict[int, int] = field(default_factory=dict)  # of workers, by rank
    joiner: int | None = None  # rank that wants to come back; it has been notified
    join: Join | None = None
    running: dict[int, int] = field(default_factory=dict)  # epoch, by worker's rank
    ended: tuple[grpc.StatusCode, str] | None = None
    _plans: dict[tuple[int, int, int], jobs_pb2.Instruction] = field(default_factory=dict)

    @property
    def ranks(self) -> list[int]:
        """Workers that are in it."""
        return [rank for rank in range(self.world) if rank not in self.lost]

    def begin(self, reason: str) -> None:
        """A change to the next epoch."""
        self.epoch += 1
        self.join = None
        places = [Membership(Role.WORKER, rank) for rank in self.ranks]
        server = Membership(Role.SERVER, 0)
        places.append(server)
        holding = None
        if self.optimizer is not None:
            result = self.addresses[jobs_pb2.SERVER, 0]
            holding = Holding(
                (server,),
                (Address(result.ipv4, result.port),),
                (server,),
                OptimizerPlan.from_message(self.optimizer),
                tuple(self.counts),
                LANES,
                CHUNKS_PER_SLICE,
            )
        self.change = Change(self.epoch, reason, places, sum(self.counts), None, holding)
        self.change.installed = True

    def advance(self) -> None:
        """Admits a joiner once all others run the plan."""
        settled = self.change is None or (self.change.settled and self.served == self.epoch)
        if self.joiner is None or not settled:
            return
        if self.join is None and all(self.running.get(r) == self.epoch for r in self.ranks):
            places = [Membership(Role.WORKER, rank) for rank in self.ranks]
            joiner = Membership(Role.WORKER, self.joiner)
            self.join = Join(self.epoch, 1000 * self.epoch, places, places, [joiner])
        if self.join is not None and self.join.settled:
            self.lost.remove(self.joiner)
            self.joiner = None
            self.begin("a member joins")

    def instruction(self, role: int, rank: int) -> jobs_pb2.Instruction | None:
        if len(self.addresses) <= self.world or len(self.keys) < self.world:
            return None
        worker = role == jobs_pb2.WORKER
        if self.change is not None:
            assert not self.change.failure, self.change.failure
            if not self.change.settled or (worker and self.served != self.epoch):
                return self.change.instruction(Membership(Role(role), rank))
        if worker and self.served != self.epoch:
            return None
        if worker and self.join is not None:
            result = self.join.instruction(Membership(Role.WORKER, rank))
            if result is not None:
                return result
        if worker and rank not in self.ranks:
            return None
        key = (self.epoch, role, rank)
        if key not in self._plans:
            plan = self.plan(role, rank)
            self._plans[key] = jobs_pb2.Instruction(epoch=self.epoch, plan=plan)
        return self._plans[key]

    @property
    def counts(self) -> list[int]:
        """Chunks of each key."""
        return [-(-elements // LANES) for _, elements in self.keys[0]]

    def plan(self, role: int, rank: int) -> jobs_pb2.Plan:
        place = self.ranks.index(rank) if role == jobs_pb2.WORKER else rank
        plan = jobs_pb2.Plan(
            job=self.number,
            epoch=self.epoch,
            world=len(self.ranks),
            lanes=LANES,
            rank=place,
            members=self.ranks if role == jobs_pb2.WORKER else (),
            servers=[self.addresses[jobs_pb2.SERVER, 0]],
            key_chunks=self.counts,
            chunks_per_slice=CHUNKS_PER_SLICE,
            optimizer=self.optimizer,
        )
        if role == jobs_pb2.WORKER:
            plan.streams.add(stream=0, node=1, sender=place, window=self.window)
            return plan
        workers = [self.addresses[jobs_pb2.WORKER, i] for i in self.ranks]
        plan.workers.extend(workers)
        plan.windows[0] = self.window
        root = plan.roots.add(stream=0, node=1, window=self.window)
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
        self.unanswered: dict[tuple[str, int, int], float] = {}
        self.start()

    def start(self) -> None:
        """Listens; again after `stop`, as a process that was restarted and knows what it knew."""
        self._server = grpc.server(ThreadPoolExecutor(32))
        jobs_pb2_grpc.add_JobServiceServicer_to_server(self, self._server)
        self._server.add_insecure_port(self.address)
        self._server.start()

    def stop(self) -> None:
        """Ends every call at once, as if the process died."""
        self._server.stop(grace=None).wait()

    def end(self, nonce: str, code: grpc.StatusCode, text: str = "") -> None:
        """Ends the job's plans: normally (OK) or with a status."""
        with self.changed:
            self.jobs[nonce].ended = (code, text)
            self.changed.notify_all()

    def replan(self, nonce: str, window: int = WINDOW, lost: int | None = None) -> None:
        """Begins a change; `lost`: the rank of a worker to go on without."""
        with self.changed:
            job = self.jobs[nonce]
            job.window = window
            if lost is not None:
                job.lost.add(lost)
            job.begin("test")
            self.changed.notify_all()

    def wait_for(self, condition: object, timeout: float = 60) -> None:
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
            if request.role == jobs_pb2.WORKER:
                known = job.processes.get(request.rank)
                job.processes[request.rank] = request.process
                if known is not None and known != request.process:
                    if request.rank not in job.lost:
                        job.lost.add(request.rank)
                        job.begin("another process")
                    job.running.pop(request.rank, None)
                    job.joiner = request.rank
            self.changed.notify_all()
            return jobs_pb2.ConnectServiceReply(job=job.number, world=job.world, lanes=LANES)

    def InitService(self, request, context):  # noqa: N802
        with self.changed:
            job = self._job(request, context)
            job.keys[request.rank] = [(key.name, key.elements) for key in request.keys]
            job.optimizer = request.optimizer if request.HasField("optimizer") else None
            self.changed.notify_all()
            return jobs_pb2.InitServiceReply()

    def Watch(self, request, context) -> Iterator[jobs_pb2.Instruction]:  # noqa: N802
        job = self._job(request, context)
        context.add_callback(self._notify)
        seen = None
        while context.is_active():
            with self.changed:
                if job.ended is not None:
                    code, text = job.ended
                    if code == grpc.StatusCode.OK:
                        return
                    context.abort(code, text)
                self._check(job, request, context)
                instruction = job.instruction(request.role, request.rank)
                if instruction is None or instruction is seen:
                    self.changed.wait()
                    continue
            seen = instruction
            yield instruction

    def Resync(self, request, context):  # noqa: N802
        with self.changed:
            job = self._job(request, context)
            self._check(job, request, context)
            what = request.WhichOneof("what")
            place = Membership(Role(request.role), request.rank)
            if what == "broken" and request.epoch == job.epoch:
                job.broken.append(request.broken)
                job.begin(request.broken.reason)
            elif what in ("begun", "reached", "donated", "restored"):
                if job.join is not None and request.epoch == job.epoch:
                    getattr(job.join, what)(place, getattr(request, what))
            elif job.change is not None and request.epoch == job.epoch:
                if what == "report":
                    job.change.report(place, request.report.levels)
                elif what == "handed":
                    handed = request.handed
                    job.change.handed(place, handed.results, handed.last, 4 * LANES)
                elif what == "taken":
                    job.change.taken(place, request.taken.page)
            job.advance()
            self.changed.notify_all()
            return jobs_pb2.ResyncReply()

    def Heartbeat(self, request, context):  # noqa: N802
        with self.changed:
            job = self._job(request, context)
            self._check(job, request, context)
            self.beats[request.nonce, request.role, request.rank] += 1
            self.unanswered[request.nonce, request.role, request.rank] = request.unanswered
            if request.role == jobs_pb2.SERVER:
                job.served = request.epoch
            else:
                job.running[request.rank] = request.epoch
            job.advance()
            self.changed.notify_all()
            return jobs_pb2.HeartbeatReply(epoch=job.epoch)

    def Leave(self, request, context):  # noqa: N802
        with self.changed:
            job = self._job(request, context)
            job.left.append((request.role, request.rank, request.reason))
            job.kept[request.rank] = len(request.results), request.levels
            workers = {rank for role, rank, _ in job.left if role == jobs_pb2.WORKER}
            if len(workers) == job.world and job.ended is None:
                job.ended = (grpc.StatusCode.OK, "")
            self.changed.notify_all()
            return jobs_pb2.LeaveReply()

    def Gone(self, request, context):  # noqa: N802
        with self.changed:
            job = self._job(request, context)
            job.gone.append((request.role, request.rank, request.reason))
            return jobs_pb2.GoneReply()

    def _notify(self) -> None:
        with self.changed:
            self.changed.notify_all()

    def _check(self, job: SmallJob, request, context) -> None:
        """Rejects calls of a worker's replaced processes."""
        known = job.processes.get(request.rank, request.process)
        if request.role == jobs_pb2.WORKER and known != request.process:
            context.set_trailing_metadata(((call_status.KEY, call_status.REPLACED),))
            context.abort(grpc.StatusCode.ABORTED, f"job {job.number} goes on without this worker")

    def _job(self, request, context) -> SmallJob:
        if request.nonce not in self.jobs:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "the nonce is no job's")
        return self.jobs[request.nonce]
