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

import numpy as np
import numpy.typing as npt

from hosts.data.snapshot import Chunks, Snapshot
from hosts.server.chunk_fetches import ChunkFetches, MoveTask
from hosts.server.shards import Shards
from protocol.header import Batch
from protocol.plan import ServerPlan

Slots = npt.NDArray[np.int64]
Steps = Callable[[Slots], list[Batch]]

_NOWHERE = -1


class ChunkMoves(ChunkFetches):
    """The chunks on their way to one server of a job.

    expected: chunks that it has to fetch before their next step.
    """

    def __init__(self, plan: ServerPlan, shards: Shards) -> None:
        super().__init__(plan, shards)
        self.expected = 0
        # By chunk: the server to fetch it from, whether that has begun, and how many servers have
        # still to say which copy they have.
        self._source = np.full(plan.chunks, _NOWHERE, np.int32)
        self._asked = np.zeros(plan.chunks, np.bool_)
        self._unheard = np.zeros(plan.chunks, np.int32)
        self._mine = plan.server_of(np.arange(plan.chunks)) == plan.rank
        self._waiting: list[tuple[Chunks, Slots, Steps]] = []

    def own(self, number: int, before: Chunks, after: Chunks) -> None:
        """Takes the next chunk map, see ChunkFetches: it may be cancelled."""
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

    def arrived(self, task: MoveTask, parts: Sequence[Snapshot], now: float) -> list[Batch]:
        """Takes the answer to a call at a time; returns results of steps that waited for it.

        Raises ValueError for chunks that cannot be of this job.
        """
        given = self._take(task, list(parts), now)
        chunks = task.chunks
        if task.stale:
            self._unheard[chunks] -= 1
            return self._settle(chunks[self._unheard[chunks] == 0])
        found = np.isin(chunks, given)
        lacking = chunks[~found]
        if len(lacking):
            others = self._others()
            self._unheard[lacking] = len(others)
            for rank in others:
                self._queue(rank, True, lacking)
        return self._settle(chunks[found])

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
        super().drop()
        self._waiting = []

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
