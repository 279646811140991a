# SPDX-License-Identifier: Apache-2.0
"""Who holds parameters and optimizer state of a job whose servers optimize, in a change of epoch.

A chunk's primary is the server that it is addressed to, its backup the next one. Whoever is to be
either and lacks the chunk's last level gets it from a server that has it; if none has, parameters
come from a worker (every worker keeps its last results), and the optimizer's state begins anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from controller.jobs.members import Membership, Role
from protocol import jobs_pb2
from protocol.optimizer import OptimizerPlan
from protocol.partition import shares
from protocol.plan import Address, backup_of

__all__ = ["STARTED", "Holding", "Needs", "Restored"]

STARTED = 2  # level of a chunk whose initial parameters are there; 1 is the exponent round's

Levels = npt.NDArray[np.uint32]
Chunks = npt.NDArray[np.int64]


class Restored(NamedTuple):
    """A server that came to hold chunks, and where from: a server or a worker; itself: it had a
    replica, and has become the primary."""

    server: Membership
    source: Membership | None  # None: handed over by a worker that has left
    chunks: int


@dataclass(frozen=True)
class Holding:
    """Servers of the coming epoch by rank, those of the last one, and what they run.

    before: empty if there was none, or it is not known. workers: that the job was created with.
    callers: IPv4 addresses besides their own that they may call each other from.
    """

    servers: tuple[Membership, ...]
    addresses: tuple[Address, ...]
    before: tuple[Membership, ...]
    optimizer: OptimizerPlan
    counts: tuple[int, ...]
    lanes: int
    chunks_per_slice: int
    workers: int = 0
    callers: tuple[int, ...] = ()

    @property
    def chunks(self) -> int:
        """Of the job."""
        return sum(self.counts)

    @property
    def alone(self) -> bool:
        """Whether steps are of single workers. Then a worker's level counts its own contributions,
        a server's the steps taken with those of all, and only servers' compare with each other."""
        return not self.optimizer.consistency.together

    def top(self, levels: Mapping[Membership, Levels]) -> Levels:
        """Where steps are of single workers: (chunks,) the levels that servers are to reach. Of a
        chunk that no server holds, that of a worker: parameters come from who has it."""
        servers = _highest((one for p, one in levels.items() if p.role is Role.SERVER), self.chunks)
        workers = _highest((one for p, one in levels.items() if p.role is Role.WORKER), self.chunks)
        return np.where(servers < STARTED, workers, servers)

    def applied(self, levels: Mapping[Membership, Levels], chunk: int) -> bytes:
        """What counts as being in a chunk whose parameters come from a worker, as Result has it:
        what each worker has an answer to."""
        counts = np.zeros(self.workers, "<u4")
        for place, own in levels.items():
            if place.role is Role.WORKER and own[chunk]:
                counts[place.rank] = own[chunk] - 1
        return counts.tobytes()

    def halt(self, reason: str) -> jobs_pb2.Halt:
        """What all are told at first."""
        return jobs_pb2.Halt(
            reason=reason,
            servers=[
                *(jobs_pb2.Address(ipv4=a.ipv4, port=a.port) for a in self.addresses),
                *(jobs_pb2.Address(ipv4=caller) for caller in self.callers),
            ],
            optimizer=self.optimizer.to_message(),
            chunks=self.chunks,
            lanes=self.lanes,
            workers=self.workers,
        )

    def needs(self, top: Levels, levels: Mapping[Membership, Levels]) -> Needs:
        """Who needs what from whom. top: (chunks,) the levels that all are to reach; levels: those
        that servers report."""
        count = len(self.servers)
        primary = self._primary(count)
        started = top >= STARTED
        held = {place: started & (levels[place] == top) for place in self.servers}
        fetches: dict[Membership, dict[Membership, Chunks]] = {}
        orphans: dict[Membership, Chunks] = {}
        restored: list[Restored] = []
        for rank, place in enumerate(self.servers):
            mine = started & ((primary == rank) | (backup_of(primary, count) == rank))
            lacks = mine & ~held[place]
            for source in self.servers:
                chunks = np.flatnonzero(lacks & held[source])
                if len(chunks):
                    fetches.setdefault(place, {})[source] = chunks
                    restored.append(Restored(place, source, len(chunks)))
                    lacks &= ~held[source]
            if lacks.any():
                orphans[place] = np.flatnonzero(lacks)
            taken_over = (primary == rank) & held[place] & ~self._were_of(place)
            if taken_over.any():
                restored.append(Restored(place, place, int(np.count_nonzero(taken_over))))
        return Needs(fetches, orphans, restored)

    def fetch(self, sources: Mapping[Membership, Chunks]) -> jobs_pb2.Fetch:
        """What a server is told to get."""
        address = dict(zip(self.servers, self.addresses, strict=True))
        return jobs_pb2.Fetch(
            sources=[
                jobs_pb2.Source(
                    server=jobs_pb2.Address(ipv4=address[source].ipv4, port=address[source].port),
                    chunks=chunks.astype("<u4").tobytes(),
                )
                for source, chunks in sources.items()
            ]
        )

    def _were_of(self, place: Membership) -> npt.NDArray[np.bool_]:
        """(chunks,) which had this server as their primary before."""
        if not self.before:
            return np.ones(self.chunks, np.bool_)
        ranks = self._primary(len(self.before))
        here: npt.NDArray[np.bool_] = np.array([server == place for server in self.before])
        return np.asarray(here[ranks], np.bool_)

    def _primary(self, servers: int) -> Chunks:
        """(chunks,) the rank of each chunk's server, of so many."""
        where = shares(self.counts, self.chunks_per_slice, servers, 1)
        return np.asarray(where.server_of(np.arange(self.chunks)), np.int64)


def _highest(levels: Iterable[Levels], chunks: int) -> Levels:
    top = np.zeros(chunks, np.uint32)
    for own in levels:
        np.maximum(top, own, out=top)
    return top


@dataclass(frozen=True)
class Needs:
    """fetches: chunks by who lacks and who has them; orphans: chunks that no server has, by who
    lacks them; restored: all of it but orphans, for the record."""

    fetches: dict[Membership, dict[Membership, Chunks]]
    orphans: dict[Membership, Chunks]
    restored: list[Restored]
