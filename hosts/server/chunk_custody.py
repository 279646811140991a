# SPDX-License-Identifier: Apache-2.0
"""Decides which server may step a chunk in an asynchronous job, while chunk maps change.

Workers are in different rounds, so there is none from which a map could hold: each worker sends to
a chunk's next server from when it knows the map, also what is in flight, and others to the last one
for a while. So a chunk is in the custody of one server, which alone takes steps of it, whatever
workers think. A server to which the newest map gives a chunk asks for custody with the first
contribution; the holder takes no more steps from when it gives it away, with parameters, optimizer
state and the ledger. The ledger tells which contributions are in (`hosts.server.shards`), so those
that the last server had taken are not taken again, and those that it refuses are sent to the next.

Custody is never lost on its way: a task is repeated until it is answered, and what was given to a
task (its ticket) is given to it again. A late copy of a call is refused by its number, so a chunk
is not given to a task that has ended. If the server of the map before does not have custody, all
others are asked; the next packet for the chunk asks again.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hosts.data.snapshot import Chunks, Snapshot
from hosts.server.chunk_fetches import ChunkFetches, MoveTask
from hosts.server.shards import Shards
from protocol.plan import ServerPlan

Mask = npt.NDArray[np.bool_]
_NOWHERE = -1


class ChunkCustody(ChunkFetches):
    """The chunks of an asynchronous job at one server.

    held: (chunks + 1,) those in its custody; the last stands for chunks that the job lacks.
    to_me: (chunks + 1,) those that the newest map gives it.
    """

    def __init__(self, plan: ServerPlan, shards: Shards) -> None:
        super().__init__(plan, shards)
        owners = plan.server_of(np.arange(plan.chunks))
        self.held: Mask = np.append(owners == plan.rank, False)
        self.to_me: Mask = self.held.copy()
        self._source = np.full(plan.chunks, _NOWHERE, np.int64)  # the server to ask first
        self._asked: Mask = np.zeros(plan.chunks, np.bool_)
        self._unheard = np.zeros(plan.chunks, np.int64)  # servers that have still to say
        # Whom a chunk was given to, and for which task.
        self._given = np.full((plan.chunks, 2), _NOWHERE, np.int64)
        self._attempts: dict[int, int] = {}  # of the last call, by rank

    def own(self, number: int, before: Chunks, after: Chunks) -> None:
        """Takes the newest chunk map, see ChunkFetches."""
        rank = self._plan.rank
        self.to_me[:-1] = after == rank
        gained = (after == rank) & (before != rank)
        self._source[gained] = before[gained]
        self._counts.gain(gained, number)

    def need(self, chunks: Chunks) -> None:
        """Asks for custody of those of these chunks that the newest map gives this server."""
        chunks = np.unique(chunks[self.to_me[chunks] & ~self.held[chunks]])
        chunks = chunks[~self._asked[chunks]]
        self._asked[chunks] = True
        sources = self._source[chunks]
        for rank in np.unique(sources[sources != _NOWHERE]).tolist():
            self._queue(rank, False, chunks[sources == rank])
        self._ask_all(chunks[sources == _NOWHERE])

    def check_held(self, chunks: Chunks) -> None:
        """Raises KeyError for a chunk that is not in custody.

        Asks for those that the newest map gives this server: no contribution may come before.
        """
        away = chunks[(chunks < self._plan.chunks) & ~self.held.take(chunks, mode="clip")]
        if len(away):
            self.need(away)
            raise KeyError(f"chunk {away[0]} is in the custody of another server")

    def _ask_all(self, chunks: Chunks) -> None:
        if not len(chunks):
            return
        others = self._others()
        self._unheard[chunks] = len(others)
        for rank in others:
            self._queue(rank, True, chunks)

    def arrived(self, task: MoveTask, parts: list[Snapshot], now: float) -> Chunks:
        """Takes the answer to a call at a time; returns the chunks (n,) that have come into custody
        with it. Raises ValueError for some that cannot be of this job."""
        found = self._take(task, parts, now)
        self.held[found] = True
        self._given[found] = _NOWHERE
        chunks = task.chunks
        if task.stale:
            self._unheard[chunks] -= 1
            self._asked[chunks[self._unheard[chunks] == 0]] = False
        else:
            here = np.isin(chunks, found)
            self._asked[chunks[here]] = False
            self._ask_all(chunks[~here])
        return found

    def give(self, chunks: Chunks, rank: int, ticket: int, attempt: int) -> Snapshot | None:
        """Gives away custody of those of the chunks that are held, and returns them.

        rank, ticket, attempt: as in FetchRequest. Returns None for a late copy of a call. Raises
        IndexError for a chunk that the job does not have.
        """
        given = self._given[chunks]
        if attempt <= self._attempts.get(rank, 0):
            return None
        self._attempts[rank] = attempt
        fresh = self.held[:-1][chunks]
        again = ~fresh & (given[:, 0] == rank) & (given[:, 1] == ticket)
        self.held[chunks[fresh]] = False
        self._given[chunks[fresh]] = rank, ticket
        return self._shards.copy(chunks[fresh | again])
