# SPDX-License-Identifier: Apache-2.0
"""Assigns parameters and optimizer state to servers in a change of plan epoch.

A chunk's primary is the server that it is addressed to; its backup is the next server. Either, if
it lacks the chunk's last level, fetches it from a server that has it. If there is none, parameters
come from a worker (every worker keeps its last results), and the optimizer's state is reset.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from controller.jobs.members import Membership, Role
from protocol import jobs_pb2
from protocol.optimizer_plan import OptimizerPlan
from protocol.partition import Moved, ranked, shares
from protocol.plan import Address, backup_of
from protocol.propagation import USUAL, Propagation

__all__ = ["STARTED", "Holding", "Needs", "Restored"]

STARTED = 2  # level of a chunk whose initial parameters are there; 1 is the exponent round's

Levels = npt.NDArray[np.uint32]
Chunks = npt.NDArray[np.int64]


class Restored(NamedTuple):
    """Chunks that a server has received.

    server: the receiver.
    source: the server or worker they came from; the receiver itself, if it was their backup and is
        now their primary; None: a worker that has left handed them over.
    chunks: how many.
    """

    server: Membership
    source: Membership | None
    chunks: int


@dataclass(frozen=True)
class Holding:
    """The shards of a job whose servers run the optimizer.

    servers, addresses: servers of the next plan epoch by rank.
    before: servers of the last plan epoch; empty if unknown or there was none.
    counts: chunks of each key.
    workers: number of workers that the job was created with.
    propagation: says how chunks are assigned to servers.
    moved, was: slices, and numbers of the servers, that the chunk maps of the next plan epoch and
        of the last one put them at.
    callers: IPv4 addresses, besides their own, from which servers may call each other.
    """

    servers: tuple[Membership, ...]
    addresses: tuple[Address, ...]
    before: tuple[Membership, ...]
    optimizer: OptimizerPlan
    counts: tuple[int, ...]
    lanes: int
    chunks_per_slice: int
    workers: int = 0
    propagation: Propagation = USUAL
    callers: tuple[int, ...] = ()
    moved: Moved = ()
    was: Moved = ()

    @property
    def chunks(self) -> int:
        """Number of chunks of the job."""
        return sum(self.counts)

    @property
    def alone(self) -> bool:
        """True if each step uses a single worker's gradient.

        A worker's level then counts its own contributions, a server's the steps with those of all,
        and only levels of servers are comparable.
        """
        return not self.optimizer.consistency.together

    def top(self, levels: Mapping[Membership, Levels]) -> Levels:
        """Computes (chunks,) levels that servers have to reach with asynchronous steps.

        A chunk that no server holds has the level of a worker, which supplies the parameters.
        """
        servers = _highest((one for p, one in levels.items() if p.role is Role.SERVER), self.chunks)
        workers = _highest((one for p, one in levels.items() if p.role is Role.WORKER), self.chunks)
        return np.where(servers < STARTED, workers, servers)

    def applied(self, levels: Mapping[Membership, Levels], chunk: int) -> bytes:
        """Encodes, as in Result, the contributions of each worker that count as applied to a chunk
        whose parameters come from a worker: those it has an answer to."""
        counts = np.zeros(self.workers, "<u4")
        for place, own in levels.items():
            if place.role is Role.WORKER and own[chunk]:
                counts[place.rank] = own[chunk] - 1
        return counts.tobytes()

    def halt(self, reason: str) -> jobs_pb2.Halt:
        """Builds the first instruction of a change."""
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
        """Computes which server needs which chunks from which source.

        top: (chunks,) levels that all have to reach.
        levels: (chunks,) reported levels of each server.
        """
        count = len(self.servers)
        primary = self._primary(self.servers, self.moved)
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
        """Builds a server's instruction to fetch chunks."""
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
        """Returns (chunks,) flags of those whose primary this server was before."""
        if not self.before:
            return np.ones(self.chunks, np.bool_)
        ranks = self._primary(self.before, self.was)
        here: npt.NDArray[np.bool_] = np.array([server == place for server in self.before])
        return np.asarray(here[ranks], np.bool_)

    def _primary(self, servers: Sequence[Membership], moved: Moved) -> Chunks:
        """Returns (chunks,) ranks of each chunk's primary among these servers."""
        where = shares(
            *(self.counts, self.chunks_per_slice, len(servers), self.propagation.classes),
            *(self.propagation, ranked(moved, [place.rank for place in servers])),
        )
        return np.asarray(where.server_of(np.arange(self.chunks)), np.int64)


def _highest(levels: Iterable[Levels], chunks: int) -> Levels:
    top = np.zeros(chunks, np.uint32)
    for own in levels:
        np.maximum(top, own, out=top)
    return top


@dataclass(frozen=True)
class Needs:
    """The transfers of a change.

    fetches: chunks by receiver and source.
    orphans: chunks that no server has, by receiver.
    restored: a record of all transfers except orphans.
    """

    fetches: dict[Membership, dict[Membership, Chunks]]
    orphans: dict[Membership, Chunks]
    restored: list[Restored]
