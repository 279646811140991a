# SPDX-License-Identifier: Apache-2.0
"""Chunks that a server with an optimizer takes over from others while a job runs, in one epoch.

A chunk map names their last server. A worker sends a chunk's next round only after the result of
the one before, and a result goes out only after its step is replicated: so the first contribution
that this server takes proves that the last server is done with the chunk, and no round has to be
agreed on. The chunk is fetched then, and its complete sums wait for it.

The last server may have had no contribution either, under a map that was soon replaced, and so lack
the newest copy. It says so, and then every server is asked for its copy: the highest level counts.
Servers keep the copies that they had, as a map may be cancelled, or a server die.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hosts.data.snapshot import Chunks, Snapshot
from hosts.server.move_counts import MoveCounts
from hosts.server.shards import Shards
from protocol import jobs_pb2
from protocol.header import Batch
from protocol.plan import Address, ServerPlan

Slots = npt.NDArray[np.int64]
Steps = Callable[[Slots], list[Batch]]

# Of chunks that are fetched from one server at a time: one call is under way to each.
CALL_BYTES = 1 << 20
_NOWHERE = -1


@dataclass(frozen=True, slots=True)
class MoveTask:
    """Chunks (n,) to fetch from the server of a rank while the job runs.

    stale: any copies; else those whose newest copy it had as their server.
    """

    job: int
    epoch: int
    rank: int
    server: Address
    chunks: Chunks
    stale: bool


class ChunkMoves:
    """The chunks on their way to one server of a job.

    expected: chunks that it has to fetch before their next step.
    """

    def __init__(self, plan: ServerPlan, shards: Shards) -> None:
        self._plan = plan
        self._shards = shards
        self.expected = 0
        # By chunk: the server to fetch it from, whether that has begun, and how many servers have
        # still to say which copy they have.
        self._source = np.full(plan.chunks, _NOWHERE, np.int32)
        self._asked = np.zeros(plan.chunks, np.bool_)
        self._unheard = np.zeros(plan.chunks, np.int32)
        self._mine = plan.server_of(np.arange(plan.chunks)) == plan.rank
        self._counts = MoveCounts(plan.chunks)
        self._queued: dict[tuple[int, bool], Chunks] = {}  # by rank and `stale`
        self._busy: set[int] = set()  # ranks with a call under way
        self._waiting: list[tuple[Chunks, Slots, Steps]] = []
        self._at_once = max(1, CALL_BYTES // max(1, shards.chunk_bytes))

    def own(self, number: int, before: Chunks, after: Chunks) -> None:
        """Takes the next chunk map.

        number: of the change of maps.
        before, after: servers (chunks,) of the map that holds now, and of the next one.
        """
        rank = self._plan.rank
        gained = (after == rank) & (before != rank)
        self._mine |= gained
        self._source[gained] = before[gained]
        self._asked[gained] = False
        self._counts.gain(gained, number)
        self._count()

    def need(self, chunks: Chunks) -> None:
        """Begins to fetch those of these chunks that are elsewhere: a contribution is here."""
        chunks = chunks[(self._source[chunks] != _NOWHERE) & ~self._asked[chunks]]
        if not len(chunks):
            return
        chunks = np.unique(chunks)
        self._asked[chunks] = True
        for rank in np.unique(self._source[chunks]).tolist():
            self._queue(rank, False, chunks[self._source[chunks] == rank])

    def here(self, chunks: Chunks, slots: Slots, go: Steps) -> Slots:
        """Returns those of the slots (n,) whose chunks (n,) are here; calls `go` with others when
        they are."""
        away = self._source[chunks] != _NOWHERE
        if not away.any():
            return slots
        self.need(chunks)
        self._waiting.append((chunks[away], slots[away], go))
        return np.asarray(slots[~away], np.int64)

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
                    *(chunks[: self._at_once], stale),
                )
            )
        return tasks

    def arrived(self, task: MoveTask, parts: Sequence[Snapshot], now: float) -> list[Batch]:
        """Takes the answer to a call at a time; returns results of steps that waited for it.

        Raises ValueError for chunks that cannot be of this job.
        """
        for part in parts:
            self._shards.take(part)
            self._counts.take(part, now)
        self._busy.discard(task.rank)
        chunks = task.chunks
        if task.stale:
            self._unheard[chunks] -= 1
            return self._settle(chunks[self._unheard[chunks] == 0])
        given = [np.zeros(0, np.int64), *(part.chunks for part in parts)]
        found = np.isin(chunks, np.concatenate(given))
        lacking = chunks[~found]
        if len(lacking):
            others = [rank for rank in range(len(self._plan.servers)) if rank != self._plan.rank]
            self._unheard[lacking] = len(others)
            for rank in others:
                self._queue(rank, True, lacking)
        return self._settle(chunks[found])

    @property
    def has_reports(self) -> bool:
        """True if `take_reports` would return any: something has come, and no call is under way."""
        return self._counts.news and not self._busy and not self._queued

    def take_reports(self) -> list[jobs_pb2.MovedHere]:
        """Returns what chunk maps have brought, of those of which that is new."""
        return self._counts.reports() if self.has_reports else []

    def give(self, chunks: Chunks, stale: bool) -> Snapshot:
        """Returns the copies that another server asks for, see MoveTask. Raises IndexError for a
        chunk that the job does not have."""
        if stale:
            rows = self._shards.levels[chunks] > 0
        else:
            rows = self._mine[chunks] & (self._source[chunks] == _NOWHERE)
        return self._shards.copy(chunks[rows])

    def drop(self) -> None:
        """Drops what waits: another epoch begins."""
        self._queued, self._waiting = {}, []

    def _queue(self, rank: int, stale: bool, chunks: Chunks) -> None:
        before = self._queued.get((rank, stale))
        self._queued[rank, stale] = chunks if before is None else np.concatenate((before, chunks))

    def _settle(self, chunks: Chunks) -> list[Batch]:
        """Goes on with chunks that are here."""
        self._source[chunks] = _NOWHERE
        self._count()
        results: list[Batch] = []
        waiting, self._waiting = self._waiting, []
        for mine, slots, go in waiting:
            there = self._source[mine] == _NOWHERE
            if not there.all():
                self._waiting.append((mine[~there], slots[~there], go))
            if there.any():
                results += go(slots[there])
        return results

    def _count(self) -> None:
        self.expected = int(np.count_nonzero(self._source != _NOWHERE))
