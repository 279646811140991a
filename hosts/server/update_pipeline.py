# SPDX-License-Identifier: Apache-2.0
"""Turns complete sums into parameters, in one epoch of a job whose optimizer the server runs.

A sum becomes a step, and its parameters become the result. No result leaves before the backup holds
it, so that no worker ever has parameters that could die with one server.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hosts.data.snapshot import Chunks, Snapshot
from hosts.optimizers import mean_of
from hosts.server.chunk_custody import ChunkCustody
from hosts.server.chunk_fetches import ChunkFetches
from hosts.server.chunk_moves import ChunkMoves, Slots, Steps
from hosts.server.shards import Shards
from hosts.server.times import ServerTimes
from protocol.header import Array, Batch
from protocol.payloads import Floats
from protocol.plan import ServerPlan, backup_of

Release = Callable[[], list[Batch]]


class UpdatePipeline:
    """Steps of the chunks that this server is primary of, and the results that wait for
    replication.

    backup: rank of the server that holds a replica; None if there is no other.
    times: measures steps, and how long results wait; None: nobody asks.
    moves: brings chunks that chunk maps give this server.
    custody: the same in a job that is not synchronous; None in others.
    """

    def __init__(self, plan: ServerPlan, shards: Shards, times: ServerTimes | None = None) -> None:
        self._times = times
        self._world = plan.world
        self._taken = plan.pipeline.steps
        self._shards = shards
        servers = len(plan.servers)
        self.backup: int | None = backup_of(plan.rank, servers) if servers > 1 else None
        self._fresh: list[tuple[Chunks, Release]] = []
        self._waiting: dict[int, list[Release]] = {}  # by number of the update
        self._number = 0
        self.moves = ChunkMoves(plan, shards)
        self.custody = ChunkCustody(plan, shards) if plan.is_asynchronous else None

    @property
    def fetches(self) -> ChunkFetches:
        """`custody`, or `moves`."""
        return self.moves if self.custody is None else self.custody

    def here(self, chunks: Chunks, slots: Slots, go: Steps) -> Slots:
        """Returns those of the complete sums (n,) whose chunks (n,) are here; calls `go` with
        others when they are."""
        times = self._times
        if times is None or not self.moves.expected:
            return self.moves.here(chunks, slots, go)
        since = times.watch.now()

        def late(slots: Slots) -> list[Batch]:
            times.held(len(slots), since)
            return go(slots)

        return self.moves.here(chunks, slots, late)

    def held(self, chunks: Chunks) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Returns a mask (n,) of chunks whose parameters are here."""
        return self._shards.levels[chunks] > 0

    def start(self, chunks: Chunks, parameters: Floats) -> None:
        """Stores initial parameters of chunks that are not held."""
        self._shards.start(chunks, parameters)

    def step(self, chunks: Chunks, sums: Callable[[], Floats]) -> Floats:
        """Takes one step by the mean of the sums over all workers; returns the parameters."""
        if not self._taken:
            return self._shards.skip(chunks)
        since = self._times.watch.now() if self._times is not None else 0.0
        found = self._shards.step(chunks, mean_of(sums(), np.full(len(chunks), self._world)))
        if self._times is not None:
            self._times.stepped(since)
        return found

    def publish(self, chunks: Chunks, headers: Array, release: Release) -> list[Batch]:
        """Queues results of chunks that were started or stepped; returns those that may be sent at
        once.

        release: makes the results, once the backup holds their parameters.
        """
        self._shards.note(chunks, headers)
        if self.backup is None:
            return release()
        times = self._times
        if times is None:
            self._fresh.append((chunks, release))
            return []
        since = times.watch.now()

        def late() -> list[Batch]:
            times.held(len(chunks), since)
            return release()

        self._fresh.append((chunks, late))
        return []

    @property
    def pending(self) -> bool:
        """True if `take_update` would return one."""
        return bool(self._fresh)

    def take_update(self) -> tuple[int, Snapshot] | None:
        """Returns the chunks that the backup must hold since the last call, numbered for
        `replicated`."""
        if not self._fresh:
            return None
        # A chunk may have taken several steps, one per worker's gradient.
        chunks = np.unique(np.concatenate([chunks for chunks, _ in self._fresh]))
        self._number += 1
        self._waiting[self._number] = [release for _, release in self._fresh]
        self._fresh = []
        return self._number, self._shards.snapshot(chunks)

    def replicated(self, number: int) -> list[Batch]:
        """Records that the backup holds an update; returns the results that waited for it."""
        releases = self._waiting.pop(number, [])
        return [batch for release in releases for batch in release()]

    def waits(self, number: int) -> bool:
        """Returns true while results wait for an update to be replicated."""
        return number in self._waiting

    def drop(self) -> None:
        """Drops waiting results: in another epoch they are delivered otherwise."""
        self._fresh = []
        self._waiting = {}
        self.fetches.drop()
