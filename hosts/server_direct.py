# SPDX-License-Identifier: Apache-2.0
"""Chunks that integers could not hold, summed by their server in float32, in rank order.

Rank order makes the float32 sum the same whatever the order of arrival; so a chunk is summed when
its last contribution is there, and until then all are kept.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt

from hosts.waves import waves
from protocol.fixed_point import (
    chunk_hash,
    float_words,
    floats_of,
    rank_order_sum,
    sum_checks,
    word_sums,
)
from protocol.header import (
    FLAGGED,
    PHASE_SHIFT,
    Batch,
    Flag,
    Op,
    Phase,
    blank,
    peer_array,
    serial_newer,
)
from protocol.plan import MOST_CHILDREN, ServerPlan

Indices = npt.NDArray[np.intp]


class DirectStream:
    """One stream's DIRECT chunks at one server; 2W slots, claimed and kept as a node's are."""

    def __init__(self, plan: ServerPlan, stream: int, window: int, counters: Counter[str]) -> None:
        self._plan = plan
        self._stream = stream
        self._addresses = peer_array([address.pair() for address in plan.workers])
        self._counters = counters
        self._mask = 2 * window - 1
        n = 2 * window
        self._used = np.zeros(n, np.bool_)
        self._seq = np.zeros(n, np.uint32)
        self._chunk = np.zeros(n, np.uint32)
        self._lanes = np.zeros(n, np.uint16)
        self._exponent = np.zeros(n, np.int8)
        self._max_exponent = np.zeros(n, np.int8)
        self._flags = np.zeros(n, np.uint8)
        self._final = np.zeros(n, np.bool_)
        self._in = np.zeros((n, plan.world), np.bool_)
        # The operating system backs these pages only once DIRECT chunks use them.
        self._values = np.zeros((n, plan.world, plan.lanes), np.float32)
        self._sums = np.zeros((n, plan.lanes), ">i4")

    def on_contributions(self, batch: Batch, ranks: Indices) -> list[Batch]:
        """CONTRIBUTE|DIRECTs of this stream from the workers `ranks`; returns RESULTs to send."""
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
        return results

    def on_queries(self, batch: Batch, ranks: Indices) -> list[Batch]:
        """QUERY|DIRECTs of this stream; returns the STATE|DIRECTs to send."""
        good = self._well_addressed(batch, ranks)
        batch, ranks = batch.select(good), ranks[good]
        headers = batch.headers
        slots = (headers["seq"] & self._mask).astype(np.intp)
        same = self._used[slots] & (self._seq[slots] == headers["seq"])
        newer = ~self._used[slots] | serial_newer(headers["seq"], self._seq[slots])
        same &= self._chunk[slots] == headers["chunk"]
        answered = same | newer
        self._count("query_stale", int(np.count_nonzero(~answered)))
        self._count("query_answered", int(np.count_nonzero(answered)))
        headers, slots, same = headers[answered], slots[answered], same[answered]
        ranks = ranks[answered]
        if not len(headers):
            return []
        states = blank(len(headers), Op.STATE)
        for name in ("job", "epoch", "stream", "sender", "seq", "chunk", "node", "workers"):
            states[name] = headers[name]
        bit = np.uint32(1) << (ranks % MOST_CHILDREN).astype(np.uint32)
        states["children"] = np.where(same & self._in[slots, ranks], bit, np.uint32(0))
        phase = np.where(same & self._final[slots], Phase.FINAL, Phase.AGGREGATING)
        states["flags"] = phase << PHASE_SHIFT | Flag.DIRECT
        return [
            Batch(
                states,
                np.zeros((len(states), self._plan.lanes), ">i4"),
                np.zeros(len(states), np.bool_),
                self._addresses[ranks],
            )
        ]

    def _well_addressed(self, batch: Batch, ranks: Indices) -> npt.NDArray[np.bool_]:
        headers = batch.headers
        named = (headers["sender"] == (ranks & 0xFF)) & (headers["workers"] == 1)
        mine = self._plan.server_of(headers["chunk"].astype(np.int64)) == self._plan.rank
        self._count("not_a_child", int(np.count_nonzero(~named)))
        self._count("other_server", int(np.count_nonzero(named & ~mine)))
        result: npt.NDArray[np.bool_] = named & mine
        return result

    def _on_wave(self, batch: Batch, ranks: Indices) -> list[Batch]:
        """Contributions to distinct slots."""
        headers = batch.headers
        slots = (headers["seq"] & self._mask).astype(np.intp)
        used = self._used[slots]
        newer = ~used | serial_newer(headers["seq"], self._seq[slots])
        same = used & (self._seq[slots] == headers["seq"])
        current = same & (self._chunk[slots] == headers["chunk"])
        current &= self._lanes[slots] == headers["lanes"]
        replay = current & self._final[slots]
        seen = self._in[slots, ranks]
        add = current & ~replay & ~seen
        for outcome, rows in (
            ("direct_added", newer | add),
            ("direct_replayed", replay),
            ("duplicate", current & ~replay & seen),
            ("other_chunk", same & ~current),
            ("stale", ~newer & ~same),
        ):
            self._count(outcome, int(np.count_nonzero(rows)))
        claimed = slots[newer]
        self._used[claimed] = True
        self._seq[claimed] = headers["seq"][newer]
        self._chunk[claimed] = headers["chunk"][newer]
        self._lanes[claimed] = headers["lanes"][newer]
        self._exponent[claimed] = headers["exponent"][newer]
        self._max_exponent[claimed] = headers["max_exponent"][newer]
        self._flags[claimed] = 0
        self._final[claimed] = False
        self._in[claimed] = False
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
            self._sums[complete] = float_words(
                rank_order_sum(self._values[complete].transpose(1, 0, 2))
            )
            self._final[complete] = True
            self._count("direct_completed", len(complete))
            world = self._plan.world
            everyone = np.tile(np.arange(world), len(complete))
            results.append(self._results(np.repeat(complete, world), everyone))
        if replay.any():
            results.append(self._results(slots[replay], ranks[replay]))
        return results

    def _results(self, slots: Indices, ranks: Indices) -> Batch:
        headers = blank(len(slots), Op.RESULT)
        headers["flags"] = self._flags[slots] | np.uint8(Flag.DIRECT)
        headers["job"] = self._plan.job
        headers["epoch"] = self._plan.epoch
        headers["stream"] = self._stream
        headers["sender"] = ranks & 0xFF
        headers["seq"] = self._seq[slots]
        headers["chunk"] = self._chunk[slots]
        headers["workers"] = self._plan.world
        headers["exponent"] = self._exponent[slots]
        headers["max_exponent"] = self._max_exponent[slots]
        headers["lanes"] = self._lanes[slots]
        words = self._sums[slots]
        headers["checksum"] = word_sums(words) + chunk_hash(
            self._plan.job,
            self._stream,
            self._seq[slots],
            self._chunk[slots],
            self._exponent[slots],
        )
        return Batch(headers, words, np.ones(len(slots), np.bool_), self._addresses[ranks])

    def _count(self, outcome: str, n: int) -> None:
        if n:
            self._counters[outcome] += n
