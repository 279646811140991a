# SPDX-License-Identifier: Apache-2.0
"""One change of epoch of one job: everybody halts and reports, then results move until all workers
have the same ones. No clock, no socket, no lock: events go in, each member's instruction comes out.

A chunk's *level* is the number of its results that are complete at a worker. A worker sends a
chunk's next round only when it has the result of the last, and rounds need everybody, so levels of
one chunk differ by at most one between the workers of an epoch, and whoever is ahead still holds
the result. Results are facts: whoever has the result of a level has the same one, so one that a
member handed over stays good whatever happens to that member, or to this change.

Servers that run the job's optimizer hold levels, too, and what they have stepped counts even if no
worker has the result. Before any of it moves to workers, each chunk's parameters and optimizer
state are where they are to be (``shards``), so no worker gets what only one server has.

Where servers step with each worker's gradient alone, workers' results have nothing to do with each
other, and none moves.
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

__all__ = ["PAGE_BYTES", "Change", "Pool", "ResyncError", "levels_of"]

# Results in one message, in bytes: gRPC takes 4 MiB by default, with the message's own overhead.
PAGE_BYTES = 4 * 1024 * 1024 - 64 * 1024
HEADER_BYTES = 32

Levels = npt.NDArray[np.uint32]
ResultKey = tuple[int, int]  # chunk, level


class ResyncError(ValueError):
    """An answer that a member cannot give; the text says what is wrong with it."""


def levels_of(data: bytes, chunks: int) -> Levels:
    """Levels as reported; none at all stand for a worker that has nothing yet. ResyncError."""
    if not data:
        return np.zeros(chunks, np.uint32)
    if len(data) != 4 * chunks:
        raise ResyncError(f"{len(data)} B of levels; the keys make {chunks} chunks of 4 B")
    return np.frombuffer(data, "<u4").astype(np.uint32)


def check_result(result: jobs_pb2.Result, chunks: int, payload_bytes: int) -> ResultKey:
    """What a result is of; ResyncError for one that cannot be."""
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
    """Results that the controller holds, and the levels of workers that left: nobody else may know
    of them any more."""

    results: dict[ResultKey, jobs_pb2.Result] = field(default_factory=dict)
    left: Levels | None = None

    def add(self, results: Iterable[jobs_pb2.Result]) -> None:
        """Hold results; those held already stay."""
        for result in results:
            self.results.setdefault((result.chunk, result.level), result)

    def leave(self, levels: Levels) -> None:
        """A worker with these levels has left."""
        self.left = levels.copy() if self.left is None else np.maximum(self.left, levels)

    def raise_to(self, top: Levels) -> None:
        """Raise levels to the highest known here."""
        if self.left is not None:
            np.maximum(top, self.left, out=top)
        for chunk, level in self.results:
            top[chunk] = max(int(top[chunk]), level)


class Change:
    """A change to ``epoch`` among ``members`` (workers and servers that are to be in it).

    ``pool`` has the results that need nobody's hand any more; what members hand over is added to
    it. ``holding``: of a job whose servers optimize; then ``restored`` says who gets what from whom
    and was not asked for yet (``news``).
    It is not settled before ``installed`` is set: the switches are done.
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
        self._asked = False  # holders
        self._matched = False  # all have reported, and who lacks what is known
        self._wants: dict[Membership, set[ResultKey]] = {}  # of holders, still to be handed
        self._more: set[Membership] = set()  # holders asked for more than they were at first
        self._lacks: dict[Membership, list[ResultKey]] = {}  # of workers, in the order of pages
        self._pages: dict[Membership, tuple[int, int]] = {}  # page, first of it, in _lacks
        told = holding.halt(reason) if holding is not None else jobs_pb2.Halt(reason=reason)
        halt = self._instruct(halt=told)
        self._instructions = dict.fromkeys(self._members, halt)

    # --- what members are told ---

    def instruction(self, place: Membership) -> jobs_pb2.Instruction | None:
        """What holds for a member now, the same object until it is replaced; None: not in it."""
        return self._instructions.get(place)

    @property
    def settled(self) -> bool:
        """Whether all workers have the same results and the switches are done."""
        done = self._asked and not self._wants and not self._lacks
        return done and self.installed and not self.failure and not self.hopeless

    def news(self) -> list[Restored]:
        """What servers have come to hold, or are being given, since the last call.

        That is so whatever becomes of this change; a replica serves only when all is settled.
        """
        supplied = self._asked and not self._wants and not self.failure and not self.hopeless
        told = [one for one in self.restored if supplied and one.server != one.source]
        if self.settled:
            told = self.restored
        self.restored = [one for one in self.restored if one not in told]
        return told

    @property
    def owing(self) -> dict[Membership, str]:
        """Members that everybody waits for, and what they have to do."""
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

    # --- what members answer; what does not fit the phase is old and ignored ---

    def report(self, place: Membership, data: bytes) -> None:
        """A member has halted. ``data``: uint32 of each chunk; empty from a server that holds
        none. ResyncError."""
        if place not in self._members or place in self._reported:
            return
        if place.role is Role.WORKER or self._holding is not None:
            self._levels[place] = levels_of(data, self.chunks)
        elif data:
            raise ResyncError(f"{len(data)} B of levels; servers hold no parameters of this job")
        self._reported.add(place)
        self._advance()

    def fetched(self, place: Membership) -> None:
        """A server has all that it was to fetch."""
        if self._fetching.pop(place, None) is not None:
            self._advance()

    def handed(
        self, place: Membership, results: Iterable[jobs_pb2.Result], last: bool, payload: int
    ) -> None:
        """A holder's results, with payloads of ``payload`` bytes. ResyncError: not as asked."""
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
        """A worker has taken a page of results."""
        if place not in self._pages or self._pages[place][0] != page:
            return
        count = len(self._instructions[place].take.results)
        first = self._pages[place][1] + count
        if first < len(self._lacks[place]):
            self._show(place, page + 1, first)
        else:
            del self._lacks[place], self._pages[place]

    def left(self, place: Membership) -> None:
        """A worker has left; its results and levels are in the pool already."""
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
        """Everybody has reported: who lacks what, and who has it."""
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
        """Servers get what they lack from servers, or as workers get results."""
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
        """Who is asked for a result: a worker if one has it, else a server; None: nobody has."""
        chunk, level = key
        for role in (Role.WORKER, Role.SERVER):
            having = [p for p, own in self._levels.items() if own[chunk] == level]
            holders = sorted((p for p in having if p.role is role), key=lambda place: place.rank)
            if holders:
                return holders[chunk % len(holders)]
        return None

    def _ask(self, wanted: Collection[ResultKey]) -> None:
        """Spread what is wanted over those who have it."""
        asked: set[Membership] = set()
        for chunk, level in sorted(wanted):
            holder = self._holder((chunk, level))
            if holder is None:
                self.failure = f"nobody has the result of chunk {chunk}, level {level}, any more"
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
        """Give a worker a page of what it lacks."""
        self._pages[place] = (page, first)
        take = jobs_pb2.Take(results=self._fitting(self._lacks[place][first:]), page=page)
        self._instructions[place] = self._instruct(take=take)

    def _fitting(self, keys: Collection[ResultKey]) -> Iterator[jobs_pb2.Result]:
        """As many results as a page holds, one at least."""
        size = 0
        for key in keys:
            result = self._told(self.pool.results[key])
            size += result.ByteSize() + 8
            if size > PAGE_BYTES and size > result.ByteSize() + 8:
                return
            yield result

    def _told(self, result: jobs_pb2.Result) -> jobs_pb2.Result:
        """A result as who lacks it gets it."""
        holding = self._holding
        if holding is None or not holding.alone:
            return result
        applied = holding.applied(self._levels, result.chunk)
        told = jobs_pb2.Result(applied=applied)
        told.MergeFrom(result)
        return told

    def _instruct(self, **what: Any) -> jobs_pb2.Instruction:
        return jobs_pb2.Instruction(epoch=self.epoch, **what)
