# SPDX-License-Identifier: Apache-2.0
"""State machine of one change of plan epoch: brings all workers of a job to the same results.

All members halt and report, then results are transferred. Events go in, each member's instruction
comes out; there is no clock, socket or lock.

A chunk's *level* is the number of its results that are complete at a worker. A worker sends a
chunk's next round only after the result of the last, and every round needs all workers, so levels
of a chunk differ by at most one between the workers of a plan epoch, and a worker that is ahead
still holds the result. All members have the same result of a level, so one that was handed over
stays valid whatever happens to its sender, or to this change.

Servers that run the job's optimizer have levels, too, and a step they have taken counts even if no
worker has its result. Before results move to workers, each chunk's parameters and optimizer state
are placed on all servers that hold them (``shards``), so no worker gets a result that only one
server has.

With asynchronous steps, workers' results are unrelated, and none is transferred.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from controller.jobs.members import Membership, Role
from controller.jobs.shards import Holding, Restored
from protocol import jobs_pb2
from protocol.header import HEADER_BYTES

__all__ = ["PAGE_BYTES", "Change", "Pool", "ResyncError", "levels_of"]

# Bytes of results in one message: gRPC accepts 4 MiB by default, including the overhead.
PAGE_BYTES = 4 * 1024 * 1024 - 64 * 1024

Levels = npt.NDArray[np.uint32]
ResultKey = tuple[int, int]  # chunk, level


class ResyncError(ValueError):
    """An invalid answer of a member; the text says what is wrong with it."""


def levels_of(data: bytes, chunks: int) -> Levels:
    """Decodes reported levels; empty data means a worker without results. Raises ResyncError."""
    if not data:
        return np.zeros(chunks, np.uint32)
    if len(data) != 4 * chunks:
        raise ResyncError(f"{len(data)} B of levels; the keys make {chunks} chunks of 4 B")
    return np.frombuffer(data, "<u4").astype(np.uint32)


def check_result(result: jobs_pb2.Result, chunks: int, payload_bytes: int) -> ResultKey:
    """Returns a result's chunk and level; raises ResyncError for an invalid one."""
    if result.chunk >= chunks or result.level == 0:
        raise ResyncError(f"a result of chunk {result.chunk}, level {result.level}: no such")
    if len(result.header) != HEADER_BYTES or len(result.payload) not in (0, payload_bytes):
        raise ResyncError(
            f"the result of chunk {result.chunk} has {len(result.header)} B of header and"
            f" {len(result.payload)} B of payload, not {HEADER_BYTES} and {payload_bytes} (or 0)"
        )
    return result.chunk, result.level


@dataclass
class Pool:
    """Results that the controller holds, and the levels of workers that left.

    Members may no longer have either.
    """

    results: dict[ResultKey, jobs_pb2.Result] = field(default_factory=dict)
    left: Levels | None = None

    def add(self, results: Iterable[jobs_pb2.Result]) -> None:
        """Adds results; those already held stay."""
        for result in results:
            self.results.setdefault((result.chunk, result.level), result)

    def leave(self, levels: Levels) -> None:
        """Adds the levels of a worker that has left."""
        self.left = levels.copy() if self.left is None else np.maximum(self.left, levels)

    def raise_to(self, top: Levels) -> None:
        """Raises levels to the highest of the pool, in place."""
        if self.left is not None:
            np.maximum(top, self.left, out=top)
        for chunk, level in self.results:
            top[chunk] = max(int(top[chunk]), level)


class Change:
    """A change to ``epoch`` among its ``members`` (workers and servers).

    pool: results that are available; what members hand over is added.
    holding: the shards of a job whose servers run the optimizer.
    installed: set by the caller once switches have the new entries; needed to settle.
    restored: transfers between servers that ``news`` has not returned yet.
    """

    def __init__(
        self,
        epoch: int,
        reason: str,
        members: Collection[Membership],
        chunks: int,
        pool: Pool | None = None,
        holding: Holding | None = None,
    ) -> None:
        self.epoch = epoch
        self.reason = reason
        self.chunks = chunks
        self.pool = pool if pool is not None else Pool()
        self.installed = False
        self.failure = ""  # why it can never be settled
        self.hopeless: dict[Membership, str] = {}  # workers that it cannot be settled with, and why
        self._members = set(members)
        self._levels: dict[Membership, Levels] = {}
        self._reported: set[Membership] = set()
        self.restored: list[Restored] = []
        self._holding = holding
        self._fetching: dict[Membership, int] = {}  # servers, and chunks that they still fetch
        self._asked = False  # holders have been asked for results
        self._matched = False  # all have reported, and the missing results are known
        self._wants: dict[Membership, set[ResultKey]] = {}  # by holder, still to be handed over
        self._more: set[Membership] = set()  # holders that got a second, longer request
        self._lacks: dict[Membership, list[ResultKey]] = {}  # by worker, in the order of pages
        self._pages: dict[Membership, tuple[int, int]] = {}  # page, its first index in _lacks
        told = holding.halt(reason) if holding is not None else jobs_pb2.Halt(reason=reason)
        halt = self._instruct(halt=told)
        self._instructions = dict.fromkeys(self._members, halt)

    # --- instructions ---

    def instruction(self, place: Membership) -> jobs_pb2.Instruction | None:
        """Returns a member's instruction, the same object until it is replaced; None if none."""
        return self._instructions.get(place)

    @property
    def settled(self) -> bool:
        """True if all workers have the same results and switches have the new entries."""
        done = self._asked and not self._wants and not self._lacks
        return done and self.installed and not self.failure and not self.hopeless

    def news(self) -> list[Restored]:
        """Returns the transfers to servers that became certain since the last call.

        They persist even if this change is abandoned; a replica serves only once all is settled.
        """
        supplied = self._asked and not self._wants and not self.failure and not self.hopeless
        told = [one for one in self.restored if supplied and one.server != one.source]
        if self.settled:
            told = self.restored
        self.restored = [one for one in self.restored if one not in told]
        return told

    @property
    def owing(self) -> dict[Membership, str]:
        """Members that the change waits for, and what they have to do."""
        if not self._matched:
            return dict.fromkeys(self._members - self._reported, "to report")
        if self._fetching:
            return {
                place: f"to fetch parameters of {count} chunks"
                for place, count in self._fetching.items()
            }
        if self._wants:
            wanted = self._wants.items()
            return {place: f"to hand over {len(wants)} results" for place, wants in wanted}
        return {place: f"to take {len(keys)} results" for place, keys in self._lacks.items()}

    # --- answers; those that do not fit the phase are outdated and ignored ---

    def report(self, place: Membership, data: bytes) -> None:
        """Handles a halted member's levels.

        data: uint32 of each chunk; empty from a server without parameters. Raises ResyncError.
        """
        if place not in self._members or place in self._reported:
            return
        if place.role is Role.WORKER or self._holding is not None:
            self._levels[place] = levels_of(data, self.chunks)
        elif data:
            raise ResyncError(f"{len(data)} B of levels; servers hold no parameters of this job")
        self._reported.add(place)
        self._advance()

    def fetched(self, place: Membership) -> None:
        """Handles a server's report that it has fetched all its chunks."""
        if self._fetching.pop(place, None) is not None:
            self._advance()

    def handed(
        self, place: Membership, results: Iterable[jobs_pb2.Result], last: bool, payload: int
    ) -> None:
        """Handles results that a holder hands over.

        payload: bytes of a payload. Raises ResyncError if they are not as requested.
        """
        wants = self._wants.get(place)
        if wants is None:
            return
        for result in results:
            key = check_result(result, self.chunks, payload)
            if key in wants:
                self.pool.results[key] = result
                wants.remove(key)
        if last and place in self._more:
            self._more.remove(place)
        elif last and wants:
            chunk, level = min(wants)
            raise ResyncError(
                f"{len(wants)} results were not handed over, such as chunk {chunk}, level {level}"
            )
        if not wants:
            del self._wants[place]
            self._advance()

    def taken(self, place: Membership, page: int) -> None:
        """Handles a worker's report that it has taken a page of results."""
        if place not in self._pages or self._pages[place][0] != page:
            return
        count = len(self._instructions[place].take.results)
        first = self._pages[place][1] + count
        if first < len(self._lacks[place]):
            self._show(place, page + 1, first)
        else:
            del self._lacks[place], self._pages[place]

    def left(self, place: Membership) -> None:
        """Removes a worker that has left; its results and levels are already in the pool."""
        self._members.discard(place)
        self._reported.discard(place)
        self._fetching.pop(place, None)
        self._levels.pop(place, None)
        self._instructions.pop(place, None)
        self._lacks.pop(place, None)
        self._pages.pop(place, None)
        wanted = self._wants.pop(place, set()) - self.pool.results.keys()
        self._ask(wanted)
        self._advance()

    # --- inside ---

    def _advance(self) -> None:
        if not self._matched:
            if self._members - self._reported:
                return
            self._matched = True
            self._match()
        if self._fetching or self.failure or self.hopeless:
            return
        if not self._asked:
            self._asked = True
            wanted = {key for keys in self._lacks.values() for key in keys}
            self._ask(wanted - self.pool.results.keys())
        if self._wants or self._pages or self.failure or self.hopeless:
            return
        for place in self._lacks:
            self._show(place, 0, 0)

    def _match(self) -> None:
        """Determines the missing results, once all members have reported."""
        if self._holding is not None and self._holding.alone:
            self._place_shards(self._holding, self._holding.top(self._levels))
            return
        top = np.zeros(self.chunks, np.uint32)
        for levels in self._levels.values():
            np.maximum(top, levels, out=top)
        self.pool.raise_to(top)
        for place, levels in sorted(self._levels.items(), key=lambda item: item[0].rank):
            if place.role is Role.SERVER:
                continue
            behind = np.flatnonzero(levels < top)
            if not len(behind):
                continue
            worst = int(behind[np.argmax(top[behind] - levels[behind])])
            if top[worst] - levels[worst] > 1:
                self.hopeless[place] = (
                    f"has {levels[worst]} results of chunk {worst} where others have {top[worst]}:"
                    " more than one behind, which they cannot make good"
                )
                continue
            self._lacks[place] = [(int(chunk), int(top[chunk])) for chunk in behind]
        if self._holding is not None:
            self._place_shards(self._holding, top)

    def _place_shards(self, holding: Holding, top: Levels) -> None:
        """Lets servers fetch missing chunks from servers, or else take results like workers."""
        needs = holding.needs(top, self._levels)
        for place, sources in needs.fetches.items():
            self._fetching[place] = sum(map(len, sources.values()))
            self._instructions[place] = self._instruct(fetch=holding.fetch(sources))
        self.restored = needs.restored
        for place, chunks in needs.orphans.items():
            self._lacks[place] = [(chunk, int(top[chunk])) for chunk in chunks.tolist()]
            counts = Counter(self._holder(key) for key in self._lacks[place])
            self.restored += [Restored(place, source, n) for source, n in counts.items()]

    def _holder(self, key: ResultKey) -> Membership | None:
        """Selects the holder of a result: a worker if one has it, else a server, else None."""
        chunk, level = key
        for role in (Role.WORKER, Role.SERVER):
            having = [p for p, own in self._levels.items() if own[chunk] == level]
            holders = sorted((p for p in having if p.role is role), key=lambda place: place.rank)
            if holders:
                return holders[chunk % len(holders)]
        return None

    def _ask(self, wanted: Collection[ResultKey]) -> None:
        """Requests results from their holders, spread evenly."""
        asked: set[Membership] = set()
        for chunk, level in sorted(wanted):
            holder = self._holder((chunk, level))
            if holder is None:
                self.failure = f"no member has the result of chunk {chunk}, level {level}, any more"
                return
            self._wants.setdefault(holder, set()).add((chunk, level))
            asked.add(holder)
        for place in asked:
            if self._instructions[place].WhichOneof("what") == "hand":
                self._more.add(place)
            wants = [
                jobs_pb2.Want(chunk=chunk, level=level)
                for chunk, level in sorted(self._wants[place])
            ]
            self._instructions[place] = self._instruct(hand=jobs_pb2.Hand(wants=wants))

    def _show(self, place: Membership, page: int, first: int) -> None:
        """Instructs a worker to take a page of missing results."""
        self._pages[place] = (page, first)
        take = jobs_pb2.Take(results=self._fitting(self._lacks[place][first:]), page=page)
        self._instructions[place] = self._instruct(take=take)

    def _fitting(self, keys: Collection[ResultKey]) -> Iterator[jobs_pb2.Result]:
        """Yields as many results as fit in a page, at least one."""
        size = 0
        for key in keys:
            result = self._told(self.pool.results[key])
            size += result.ByteSize() + 8
            if size > PAGE_BYTES and size > result.ByteSize() + 8:
                return
            yield result

    def _told(self, result: jobs_pb2.Result) -> jobs_pb2.Result:
        """Adds to a result the applied contributions that asynchronous servers need."""
        holding = self._holding
        if holding is None or not holding.alone:
            return result
        applied = holding.applied(self._levels, result.chunk)
        told = jobs_pb2.Result(applied=applied)
        told.MergeFrom(result)
        return told

    def _instruct(self, **what: Any) -> jobs_pb2.Instruction:
        return jobs_pb2.Instruction(epoch=self.epoch, **what)
