# SPDX-License-Identifier: Apache-2.0
"""A parameter server's side of the protocol, for many jobs at once.

A state machine without socket, clock or thread, of the same shape as a worker's transport. A server
sums DIRECT chunks in float32, and is the root of the streams that its plan names. Where the plan
has an optimizer, it turns sums into parameters (`hosts.server.update_pipeline`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv4Address

import numpy as np
import numpy.typing as npt

from hosts.data.reports import Failure
from hosts.data.snapshot import Chunks, Snapshot
from hosts.native.loader import contributed_to, load_native
from hosts.net.arrivals import Clock, Released, Seconds
from hosts.server.chunk_fetches import MoveTask
from hosts.server.root_node import RootNode
from hosts.server.served_job import ServedJob
from hosts.server.shards import Shards
from hosts.server.times import Watch
from protocol import jobs_pb2, shards_pb2
from protocol.frames import OVERHEAD
from protocol.header import HEADER_BYTES, LANE_BYTES, Array, Batch, distinct
from protocol.optimizer_plan import OptimizerPlan
from protocol.partition import Moved
from protocol.plan import Address, ServerPlan, backup_of


class NotHereError(ValueError):
    """Chunks requested or sent by another server cannot be given or held here at this time."""


class UnknownPeerError(NotHereError):
    """This address has no part in the job: a retry does not help."""


@dataclass(frozen=True, slots=True)
class Update:
    """Chunks that the server at `backup` must hold before results of an epoch of a job are sent."""

    job: int
    epoch: int
    number: int
    backup: Address
    snapshot: Snapshot


class ServerState:
    """The state machine of one server.

    payload: true if chunks have one; else only headers are summed.
    lanes: payload size of the data plane, shared by all jobs; 0 before the first `install`.
    foreign: packets of no installed job.
    watch: to measure jobs with, whose plans ask for it; None: they get nothing.

    Raises CompilerError, which says what to install, or OSError without native code.
    """

    def __init__(self, *, payload: bool = True, watch: Watch | None = None) -> None:
        self.lanes = 0
        self.foreign = 0
        self._watch = watch
        self._payload = payload
        self._jobs: dict[int, ServedJob] = {}
        self._shards: dict[int, Shards] = {}  # of jobs with an optimizer, from epoch to epoch
        self._output: list[Batch] = []
        self._native = load_native()

    @property
    def jobs(self) -> list[int]:
        """Returns the numbers of the installed jobs."""
        return sorted(self._jobs)

    def install(self, plan: ServerPlan) -> None:
        """Starts a job, or restarts it in a newer epoch; its counters go on.

        Raises ValueError for an epoch that is not newer, or other lanes than the installed jobs.
        """
        before = self._jobs.get(plan.job)
        if before is not None and plan.epoch <= before.plan.epoch:
            raise ValueError(
                f"job {plan.job} is in epoch {before.plan.epoch}; epoch {plan.epoch} is not newer"
            )
        others = [job for number, job in self._jobs.items() if number != plan.job]
        if others and plan.lanes != self.lanes:
            raise ValueError(
                f"job {plan.job} has {plan.lanes} lanes per chunk, the jobs at hand {self.lanes}"
            )
        shards = None
        if plan.optimizer is not None:
            # The first plan has all workers; servers that join later learn them from Halt.
            shards = self.shards(plan.job, plan.optimizer, plan.chunks, plan.lanes, plan.world)
            shards.meet(*plan.met)
            primary = plan.server_of(np.arange(plan.chunks))
            backup = backup_of(primary, len(plan.servers))
            shards.forget((primary != plan.rank) & (backup != plan.rank))
        own = plan if self._payload else replace(plan, lanes=0)
        job = ServedJob(own, shards, plan.lanes, self._watch)
        if before is not None:
            job.counters.update(before.counted())
        self._jobs[plan.job] = job
        self.lanes = plan.lanes

    def own(self, job: int, remap: int, before: Moved, moved: Moved) -> None:
        """Takes the chunks that a map of the job gives this server, besides those that it has.

        remap: number of the change of maps; a repeated one changes nothing. before: the map that
        holds until then.
        """
        self._jobs[job].own(remap, before, moved)

    def restate(self, job: int, moved: Moved) -> None:
        """Takes the map that workers of the job have, if it is not synchronous: another one that it
        was to have was lost with the job service."""
        self._jobs[job].restate(moved)

    def freeze(self, job: int) -> None:
        """Drops and counts the packets of a job until `install` of a newer epoch.

        Raises KeyError if it is not installed.
        """
        self._jobs[job].frozen = True
        steps = self._jobs[job].steps
        if steps is not None:
            steps.drop()

    def shards(
        self, job: int, optimizer: OptimizerPlan, chunks: int, lanes: int, workers: int = 0
    ) -> Shards:
        """Returns the shards of a job whose optimizer runs here; available before its first plan.

        workers: number that it was created with.
        """
        if job not in self._shards:
            self._shards[job] = Shards(optimizer, chunks, lanes, workers)
        return self._shards[job]

    def levels(self, job: int) -> bytes:
        """Returns the levels of all chunks in the form of a Report; empty if none is held."""
        shards = self._shards.get(job)
        if shards is None or not shards.levels.any():
            return b""
        return shards.levels.astype("<u4").tobytes()

    @property
    def optimizes(self) -> bool:
        """True if a job has an optimizer here."""
        return bool(self._shards)

    @property
    def has_priorities(self) -> bool:
        """True if some results of a job here are to overtake others."""
        return any(job.plan.propagation.in_network for job in self._jobs.values())

    @property
    def measures(self) -> bool:
        """True if a job here is measured."""
        return any(job.times is not None for job in self._jobs.values())

    @property
    def quiet(self) -> float:
        """The sums, at least, until measurements are due; inf if nothing is measured."""
        left = [job.times.left for job in self._jobs.values() if job.times is not None]
        return min(left, default=math.inf)

    @property
    def has_reports(self) -> bool:
        """Returns true if `take_reports` would return one."""
        return any(job.has_reports for job in self._jobs.values())

    def take_reports(self) -> list[tuple[int, jobs_pb2.ResyncRequest]]:
        """Returns what the job service is to know, by the jobs' numbers: messages without a
        sender."""
        return [
            (number, message)
            for number, job in self._jobs.items()
            for message in job.take_reports()
        ]

    @property
    def has_updates(self) -> bool:
        """Returns true if `take_updates` or `take_moves` would return one."""
        steps = [job.steps for job in self._jobs.values() if job.steps is not None]
        return any(one.pending or one.fetches.pending for one in steps)

    def take_updates(self) -> list[Update]:
        """Returns the updates that backups must hold; call `replicated` once they do."""
        updates = []
        for number, job in self._jobs.items():
            update = job.steps.take_update() if job.steps is not None else None
            if job.steps is not None and update is not None:
                assert job.steps.backup is not None
                backup = job.plan.servers[job.steps.backup]
                updates.append(Update(number, job.plan.epoch, update[0], backup, update[1]))
        return updates

    def waits(self, update: Update) -> bool:
        """Returns true while results wait for an update."""
        job = self._jobs.get(update.job)
        if job is None or job.steps is None or job.plan.epoch != update.epoch:
            return False
        return job.steps.waits(update.number)

    def replicated(self, update: Update) -> None:
        """Records that the backup holds an update: its results are sent."""
        if self.waits(update):
            steps = self._jobs[update.job].steps
            assert steps is not None
            self._give(self._jobs[update.job], steps.replicated(update.number))

    def _give(self, job: ServedJob, results: list[Batch]) -> None:
        """Sends results that were waiting."""
        if job.times is not None:
            job.times.gave(results)
        self._output += results

    def take_moves(self, now: float) -> list[MoveTask]:
        """Returns what to fetch from other servers, from `now` on (seconds); call `moved` once it
        has come."""
        return [
            task
            for job in self._jobs.values()
            if job.steps is not None
            for task in job.steps.fetches.take_tasks(now)
        ]

    def wants(self, task: MoveTask) -> bool:
        """Returns true while steps may wait for a task's chunks."""
        job = self._jobs.get(task.job)
        return job is not None and job.plan.epoch == task.epoch and not job.frozen

    def moved(self, task: MoveTask, parts: Sequence[Snapshot], now: float) -> None:
        """Takes the answer of another server at a time: steps that wait for its chunks are taken.

        Raises ValueError for invalid chunks.
        """
        if not self.wants(task):
            return
        job = self._jobs[task.job]
        node, steps = job.asynchronous_node, job.steps
        job.counters["moved_here"] += sum(len(part) for part in parts)
        job.counters["moved_bytes"] += sum(part.nbytes for part in parts)
        if node is not None:
            results = node.arrived(task, list(parts), now)
        else:
            assert steps is not None
            results = steps.moves.arrived(task, parts, now)
        self._give(job, results)

    def move(self, source: int, request: shards_pb2.FetchRequest) -> Snapshot:
        """Returns chunks that a server at an IPv4 address asks for.

        Raises NotHereError unless the job is in the request's epoch and has such chunks, or for a
        late copy of a call, UnknownPeerError if the address has not the server of the rank.
        """
        job, rank = request.job, request.rank
        current = self._current(job, request.epoch)
        plan, steps = current.plan, current.steps
        other = rank < len(plan.servers) and rank != plan.rank
        if steps is None or not other or not plan.calls_from(rank, source):
            raise UnknownPeerError(f"job {job}: nothing for {IPv4Address(source)} here")
        chunks = np.frombuffer(request.chunks, "<u4").astype(np.int64)
        try:
            if steps.custody is None:
                return steps.moves.give(chunks, request.stale)
            given = steps.custody.give(chunks, rank, request.ticket, request.attempt)
        except IndexError as error:
            raise NotHereError(f"job {job}: {error}") from error
        if given is None:
            raise NotHereError(f"job {job}: call {request.attempt} is late")
        return given

    def replicate(self, job: int, epoch: int, source: int, snapshot: Snapshot) -> None:
        """Holds steps of the primary that calls from an IPv4 address, which its host's processes
        share.

        Raises NotHereError unless this server is its backup in this epoch, ValueError for invalid
        chunks.
        """
        current = self._current(job, epoch)
        plan, chunks = current.plan, snapshot.chunks
        if len(chunks) and int(chunks.max()) >= plan.chunks:
            raise ValueError(f"job {job} has chunks 0..{plan.chunks - 1}")
        if not (current.backed_up[chunks].all() and plan.calls_from(current.before, source)):
            address = IPv4Address(source)
            raise NotHereError(f"job {job}: {address} has no replica of these chunks here")
        self._shards[job].take(snapshot)

    def save(self, job: int, epoch: int, source: int, chunks: Chunks) -> Snapshot:
        """Returns the chunks that a worker at an IPv4 address needs for a checkpoint.

        Raises NotHereError unless it is one of the job's in this epoch (UnknownPeerError if the
        address has none of its workers), and all chunks are held here.
        """
        shards = self._of_worker(job, epoch, source)
        try:
            return shards.snapshot(chunks)
        except (KeyError, IndexError) as error:
            raise NotHereError(f"job {job}: {error}") from error

    def load(
        self, job: int, epoch: int, source: int, snapshot: Snapshot, replica: bool = False
    ) -> None:
        """Takes chunks of a checkpoint from a worker at an IPv4 address. replica: as their backup.

        Raises NotHereError unless it is one of the job's in this epoch (UnknownPeerError if the
        address has none of its workers), and the chunks have initial parameters here and have not
        gone to another server; ValueError if those differ.
        """
        shards = self._of_worker(job, epoch, source)
        steps = self._jobs[job].steps
        try:
            if not replica and steps is not None and steps.custody is not None:
                steps.custody.check_held(snapshot.chunks)
            shards.resume(snapshot)
        except KeyError as error:
            raise NotHereError(f"job {job}: {error}") from error

    def _of_worker(self, job: int, epoch: int, source: int) -> Shards:
        current = self._current(job, epoch)
        if current.steps is None or source not in {worker.ipv4 for worker in current.plan.workers}:
            raise UnknownPeerError(f"job {job}: nothing for {IPv4Address(source)} here")
        return self._shards[job]

    def _current(self, job: int, epoch: int) -> ServedJob:
        """Returns a job that is in this epoch; raises NotHereError if it is not."""
        current = self._jobs.get(job)
        if current is None or current.plan.epoch != epoch or current.frozen:
            raise NotHereError(f"job {job} is not in epoch {epoch} here")
        return current

    def epoch(self, job: int) -> int:
        """Returns the epoch of a job's installed plan; 0: none."""
        return self._jobs[job].plan.epoch if job in self._jobs else 0

    def remove(self, job: int) -> None:
        """Forgets a job, installed or not."""
        self._jobs.pop(job, None)
        self._shards.pop(job, None)

    def counters(self, job: int) -> dict[str, int]:
        """Returns the number of packets (or chunks) of each outcome. Raises KeyError."""
        return dict(self._jobs[job].counted())

    @property
    def has_failures(self) -> bool:
        """Returns true if `take_failures` would return one."""
        return any(node.failures for job in self._jobs.values() for node in job.nodes)

    def take_failures(self) -> list[tuple[int, Failure]]:
        """Returns chunks that failed for good since the last call, with their jobs."""
        failures: list[tuple[int, Failure]] = []
        for number, job in self._jobs.items():
            for node in job.nodes:
                if node.failures:
                    failures += [(number, failure) for failure in node.failures]
                    node.failures = []
        return failures

    def on_packets(self, now: float, batch: Batch) -> None:
        """Takes packets that were read at `now` (seconds), of which only measuring makes use: a
        server has no timers."""
        job, root = self._root_of(batch.headers)
        if job is not None and root is not None:  # the usual case, without sorting
            results = root.on_contributions(batch)
            if job.times is not None:
                job.times.took(now, batch, root.sums())
                job.times.gave(results)
            self._output += results
            return
        jobs = batch.headers["job"]
        numbers = distinct(jobs)
        self.foreign += len(batch)
        # Any sender can make up job numbers, so unknown ones must cost no more than this.
        for number in [number for number in numbers if number in self._jobs]:
            mine = jobs == number
            part = batch if mine.all() else batch.select(mine)
            self.foreign -= len(part)
            self._output += self._jobs[number].on_packets(now, part)

    def on_train(self, times: Seconds, batch: Batch, clock: Clock) -> Released | None:
        """Takes a prefix of packets with arrival times (n,), see `RootNode.on_train`.

        Returns None if the first must be processed singly.
        """
        if self._output:
            return None
        job, root = self._root_of(batch.headers)
        small = HEADER_BYTES + OVERHEAD
        sizes = small, small + LANE_BYTES * self.lanes
        if job is None or root is None:
            return None
        released = root.on_train(times, batch, clock, sizes)
        if job.times is not None and released is not None:
            job.times.took(
                float(times[0]), batch.select(slice(released.taken)), root.sums(), queued=False
            )
            job.times.gave([] if released.batch is None else [released.batch])
        if released is not None and (self.has_updates or self.has_reports or self.has_failures):
            released = released._replace(ends=True)
        return released

    def visible(self, batch: Batch) -> npt.NDArray[np.bool_]:
        """Returns (n,), whether each packet has an effect that anything but later packets can see,
        if none is corrupted."""
        job, root = self._root_of(batch.headers)
        if job is not None and root is not None:
            return root.visible(batch, measured=job.times is not None)
        streams, found = batch.headers["stream"], np.ones(len(batch), np.bool_)
        for stream in distinct(streams):
            rows = np.flatnonzero(streams == stream)
            part = batch.select(rows)
            job, root = self._root_of(part.headers)
            if job is not None and root is not None:
                found[rows] = root.visible(part, measured=job.times is not None)
        return found

    def _root_of(self, headers: Array) -> tuple[ServedJob | None, RootNode | None]:
        """Returns the job and the node of contributions that are all for one; None, None if they
        are not."""
        found = contributed_to(self._native, headers)
        if found is None:
            return None, None
        number, epoch, stream = found
        job = self._jobs.get(number)
        return (None, None) if job is None else (job, job.root_of(epoch, stream))

    def poll(self, now: float) -> tuple[Batch | None, float]:
        """Returns packets to send now; the next poll is after an arrival, as a server has no
        timers."""
        output, self._output = self._output, []
        return (Batch.concatenate(output) if output else None), math.inf
