# SPDX-License-Identifier: Apache-2.0
"""The calls by which a server fetches chunks that chunk maps give it, while a job runs."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from hosts.data.snapshot import Chunks, Snapshot
from hosts.server.move_counts import MoveCounts
from hosts.server.shards import Shards
from protocol import jobs_pb2, shards_pb2
from protocol.plan import Address, ServerPlan

# Of chunks that are fetched from one server at a time: one call is under way to each.
CALL_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class MoveTask:
    """Chunks (n,) to fetch from the server of a rank while the job runs.

    stale: see FetchRequest in shards.proto.
    ticket: number of the task among those of the server that fetches.
    asker: rank of that server.
    """

    job: int
    epoch: int
    rank: int
    server: Address
    chunks: Chunks
    stale: bool
    ticket: int
    asker: int

    def to_message(self, attempt: int) -> shards_pb2.FetchRequest:
        """Returns the request of a call. attempt: higher than in all calls before, of any task."""
        return shards_pb2.FetchRequest(
            job=self.job,
            epoch=self.epoch,
            chunks=self.chunks.astype("<u4").tobytes(),
            stale=self.stale,
            rank=self.asker,
            ticket=self.ticket,
            attempt=attempt,
        )


class ChunkFetches(ABC):
    """Queues what one server of a job is to fetch; subclasses know what, and from where."""

    def __init__(self, plan: ServerPlan, shards: Shards) -> None:
        self._plan = plan
        self._shards = shards
        self._counts = MoveCounts(plan.chunks)
        self._queued: dict[tuple[int, bool], Chunks] = {}  # by rank and `stale`
        self._busy: set[int] = set()  # ranks with a call under way
        self._at_once = max(1, CALL_BYTES // max(1, shards.chunk_bytes))
        self._tickets = itertools.count(1)

    @abstractmethod
    def own(self, number: int, before: Chunks, after: Chunks) -> None:
        """Takes the next chunk map.

        number: of the change of maps.
        before, after: servers (chunks,) of the map before, and of the next one.
        """

    @property
    def pending(self) -> bool:
        """True if `take_tasks` would return one."""
        return any(rank not in self._busy for rank, _ in self._queued)

    def take_tasks(self, now: float) -> list[MoveTask]:
        """Returns the calls to make at a time in seconds; each ends with `arrived`."""
        plan, tasks = self._plan, []
        for key in list(self._queued):
            rank, stale = key
            if rank in self._busy:
                continue
            self._busy.add(rank)
            chunks = self._queued.pop(key)
            self._counts.ask(chunks[: self._at_once], now)
            if len(chunks) > self._at_once:
                self._queued[key] = chunks[self._at_once :]
            tasks.append(
                MoveTask(
                    *(plan.job, plan.epoch, rank, plan.servers[rank]),
                    *(chunks[: self._at_once], stale, next(self._tickets), plan.rank),
                )
            )
        return tasks

    @property
    def has_reports(self) -> bool:
        """True if `take_reports` would return any: something has come, and no call is under way."""
        return self._counts.news and not self._busy and not self._queued

    def take_reports(self) -> list[jobs_pb2.MovedHere]:
        """Returns what chunk maps have brought, of those of which that is new."""
        return self._counts.reports() if self.has_reports else []

    def drop(self) -> None:
        """Drops what waits: another epoch begins."""
        self._queued = {}

    def _queue(self, rank: int, stale: bool, chunks: Chunks) -> None:
        before = self._queued.get((rank, stale))
        self._queued[rank, stale] = chunks if before is None else np.concatenate((before, chunks))

    def _take(self, task: MoveTask, parts: list[Snapshot], now: float) -> Chunks:
        """Takes the answer to a call; returns the chunks in it. Raises ValueError for some that
        cannot be of this job."""
        for part in parts:
            self._shards.take(part)
            self._counts.take(part, now)
        self._busy.discard(task.rank)
        return np.concatenate([np.zeros(0, np.int64), *(part.chunks for part in parts)])

    def _others(self) -> list[int]:
        """Returns the ranks of all other servers."""
        return [rank for rank in range(len(self._plan.servers)) if rank != self._plan.rank]
