# SPDX-License-Identifier: Apache-2.0
"""Sums of DIRECT chunks, which do not fit into integers: by their server, in float32, in rank
order.

Rank order makes the float32 sum independent of the order of arrival; so a chunk is summed when its
last contribution has arrived, and until then all are kept.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from hosts.server.conflict_free_batches import Indices, Mask, waves
from hosts.server.update_pipeline import UpdatePipeline
from protocol.header import (
    FLAGGED,
    LANE,
    PHASE_SHIFT,
    Array,
    Batch,
    Flag,
    Op,
    Phase,
    blank,
    peer_array,
    picked,
)
from protocol.payloads import (
    Floats,
    float_words,
    floats_of,
    header_hashes,
    rank_order_sum,
    sum_checks,
    word_sums,
)
from protocol.plan import MOST_CHILDREN, ServerPlan

# How far behind its slot's a number may be and be a late copy: hosts/native/root.h.
LATEST_COPY = 1 << 24


@dataclass(frozen=True, slots=True)
class Match:
    """Packets compared with their slots: exactly one of `newer`, `same` and stale (neither)
    holds."""

    slots: Indices
    newer: Mask  # the slot is free for this number
    same: Mask  # the slot holds this number
    current: Mask  # and this chunk

    @property
    def stale(self) -> Mask:
        """A mask (n,) of late copies of numbers that left their slot."""
        return np.asarray(~self.newer & ~self.same, np.bool_)


class DirectStream:
    """One stream's DIRECT chunks at one server, in 2W slots as at a node.

    steps: turns sums into parameters, which are sent instead.
    mine: by chunk, this server sums it; false for the last. The caller may change it.
    """

    def __init__(
        self,
        plan: ServerPlan,
        stream: int,
        window: int,
        counters: Counter[str],
        steps: UpdatePipeline | None = None,
        mine: Mask | None = None,
    ) -> None:
        self._steps = steps
        if mine is None:
            mine = plan.server_of(np.arange(plan.chunks + 1)) == plan.rank
        self._mine = mine
        self._plan = plan
        self._stream = stream
        self._counters = counters
        n = 2 * window
        self._mask = n - 1
        self._used = np.zeros(n, np.bool_)
        self._seq = np.zeros(n, np.uint32)
        self._chunk = np.zeros(n, np.uint32)
        self._lanes = np.zeros(n, np.uint16)
        self._exponent = np.zeros(n, np.int8)
        self._max_exponent = np.zeros(n, np.int8)
        self._flags = np.zeros(n, np.uint8)
        self._final = np.zeros(n, np.bool_)
        self._addresses = peer_array([address.pair() for address in plan.workers])
        self._in = np.zeros((n, plan.world), np.bool_)
        # The operating system backs these pages only once DIRECT chunks use them.
        self._values = np.zeros((n, plan.world, plan.lanes), np.float32)
        self._sums = np.zeros((n, plan.lanes), LANE)

    def on_contributions(self, batch: Batch, ranks: Indices) -> list[Batch]:
        """Takes CONTRIBUTE|DIRECTs of this stream from the workers `ranks`; returns RESULTs to
        send."""
        headers = batch.headers
        good = self._well_addressed(batch, ranks)
        lanes = (headers["lanes"] >= 1) & batch.full
        self._count("direct_malformed", int(np.count_nonzero(good & ~lanes)))
        good &= lanes
        holds = sum_checks(headers, batch.payloads, batch.full)
        self._count("bad_checksum", int(np.count_nonzero(good & ~holds)))
        good &= holds
        batch, ranks = batch.select(good), ranks[good]
        results: list[Batch] = []
        for wave in waves(batch.headers["seq"] & self._mask):
            results += self._on_wave(batch.select(wave), ranks[wave])
        if self._steps is not None and self._steps.moves.expected:
            self._steps.moves.need(self._chunk[self._used & ~self._final].astype(np.int64))
        return results

    def on_queries(self, batch: Batch, ranks: Indices) -> list[Batch]:
        """Answers QUERY|DIRECTs of this stream with STATE|DIRECTs."""
        good = self._well_addressed(batch, ranks)
        batch, ranks = batch.select(good), ranks[good]
        match = self._match(batch.headers)
        answered = match.newer | match.current
        self._count("query_stale", int(np.count_nonzero(~answered)))
        self._count("query_answered", int(np.count_nonzero(answered)))
        if not answered.any():
            return []
        headers, ranks = picked(batch.headers, answered), ranks[answered]
        slots, current = match.slots[answered], match.current[answered]
        states = blank(len(headers), Op.STATE)
        for name in ("job", "epoch", "stream", "sender", "seq", "chunk", "node", "workers"):
            states[name] = headers[name]
        bit = np.uint32(1) << (ranks % MOST_CHILDREN).astype(np.uint32)
        states["children"] = np.where(current & self._in[slots, ranks], bit, np.uint32(0))
        phase = np.where(current & self._final[slots], Phase.FINAL, Phase.AGGREGATING)
        states["flags"] = phase << PHASE_SHIFT | Flag.DIRECT
        words, full = (
            np.zeros((len(states), self._plan.lanes), LANE),
            np.zeros(len(states), np.bool_),
        )
        return [Batch(states, words, full, picked(self._addresses, ranks))]

    def _well_addressed(self, batch: Batch, ranks: Indices) -> Mask:
        headers = batch.headers
        named = (headers["sender"] == (ranks & 0xFF)) & (headers["workers"] == 1)
        mine = self._mine.take(headers["chunk"].astype(np.int64), mode="clip")
        self._count("not_a_child", int(np.count_nonzero(~named)))
        self._count("other_server", int(np.count_nonzero(named & ~mine)))
        return np.asarray(named & mine, np.bool_)

    def _on_wave(self, batch: Batch, ranks: Indices) -> list[Batch]:
        """Takes contributions to distinct slots."""
        headers = batch.headers
        match = self._match(headers)
        slots, newer = match.slots, match.newer
        current = match.current & (self._lanes[slots] == headers["lanes"])
        replay = current & self._final[slots]
        seen = self._in[slots, ranks]
        add = current & ~replay & ~seen
        for outcome, rows in (
            ("direct_added", newer | add),
            ("direct_replayed", replay),
            ("duplicate", current & ~replay & seen),
            ("other_chunk", match.same & ~current),
            ("stale", match.stale),
        ):
            self._count(outcome, int(np.count_nonzero(rows)))
        self._claim(slots[newer], headers[newer])
        self._in[slots[newer]] = False
        grown = newer | add
        rows = slots[grown]
        self._values[rows, ranks[grown]] = floats_of(batch.payloads[grown])
        self._in[rows, ranks[grown]] = True
        self._flags[rows] |= headers["flags"][grown] & np.uint8(FLAGGED)
        self._max_exponent[rows] = np.maximum(
            self._max_exponent[rows], headers["max_exponent"][grown]
        )
        first = grown & (ranks == 0)  # the exponent reported is rank 0's, in any order of arrival
        self._exponent[slots[first]] = headers["exponent"][first]
        results: list[Batch] = []
        complete = rows[self._in[rows].all(axis=1)]
        if len(complete):
            self._count("direct_completed", len(complete))
            if self._steps is None:
                self._sums[complete] = float_words(rank_order_sum(self._copies(complete)))
                results += self._finish(complete)
            else:
                results += self._optimize(complete)
        if replay.any():
            results.append(self._results(slots[replay], ranks[replay]))
        return results

    def _finish(self, slots: Indices) -> list[Batch]:
        """Publishes the results of these slots."""
        self._final[slots] = True
        world = self._plan.world
        return [self._results(np.repeat(slots, world), np.tile(np.arange(world), len(slots)))]

    def _copies(self, slots: Indices) -> Floats:
        """Returns what workers have contributed (world, n, lanes)."""
        return self._values[slots].transpose(1, 0, 2)

    def _optimize(self, slots: Indices) -> list[Batch]:
        """Turns complete chunks into parameters, those that are on their way here once they are.

        Contributions are gradients, or initial parameters, of which the first worker's count.
        """
        steps = self._steps
        assert steps is not None
        slots = steps.here(self._chunk[slots].astype(np.int64), slots, self._optimize)
        if not len(slots):
            return []
        chunks, values = self._chunk[slots].astype(np.int64), self._copies(slots)
        held = steps.held(chunks)
        if not held.all():
            first = values[0, ~held]
            steps.start(chunks[~held], first)
            self._sums[slots[~held]] = float_words(first)
        if held.any():
            stepped = steps.step(chunks[held], lambda: rank_order_sum(values[:, held]))
            self._sums[slots[held]] = float_words(stepped)
        return steps.publish(chunks, self._sum_headers(slots), lambda: self._finish(slots))

    def _results(self, slots: Indices, ranks: Indices) -> Batch:
        headers = self._sum_headers(slots)
        headers["sender"] = ranks & 0xFF
        full, peers = np.ones(len(slots), np.bool_), picked(self._addresses, ranks)
        return Batch(headers, self._sums[slots], full, peers)

    def _sum_headers(self, slots: Indices) -> Array:
        """Returns the headers of RESULTs of `slots`, without their receivers."""
        headers = blank(len(slots), Op.RESULT)
        headers["job"] = self._plan.job
        headers["epoch"] = self._plan.epoch
        headers["stream"] = self._stream
        headers["flags"] = self._flags[slots] | np.uint8(Flag.DIRECT)
        headers["seq"] = self._seq[slots]
        headers["chunk"] = self._chunk[slots]
        headers["workers"] = self._plan.world
        headers["lanes"] = self._lanes[slots]
        headers["exponent"] = self._exponent[slots]
        headers["max_exponent"] = self._max_exponent[slots]
        words = self._sums[slots]
        headers["checksum"] = word_sums(words) + header_hashes(headers)
        return headers

    def _match(self, headers: Array) -> Match:
        slots = (headers["seq"] & self._mask).astype(np.intp)
        used = self._used[slots]
        behind = self._seq[slots] - headers["seq"].astype(np.uint32)
        same = used & (behind == 0)
        newer = ~used | (behind > LATEST_COPY)
        return Match(slots, newer, same, same & (self._chunk[slots] == headers["chunk"]))

    def _claim(self, slots: Indices, headers: Array) -> None:
        """Assigns the slots to these packets; their sums are empty."""
        self._used[slots] = True
        self._final[slots] = False
        self._flags[slots] = 0
        self._seq[slots] = headers["seq"]
        self._chunk[slots] = headers["chunk"]
        self._lanes[slots] = headers["lanes"]
        self._exponent[slots] = headers["exponent"]
        self._max_exponent[slots] = headers["max_exponent"]

    def _count(self, outcome: str, n: int) -> None:
        if n:
            self._counters[outcome] += n
