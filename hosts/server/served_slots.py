# SPDX-License-Identifier: Apache-2.0
"""The slots of one stream at a server: the number in each, and its state.

Sums of a tree's root (`hosts.server.root_node`) and float32 sums (`hosts.server.direct_sums`)
differ in how they are made; ownership of slots, answers to QUERYs and the headers of RESULTs are
the same.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from protocol.header import LANE, PHASE_SHIFT, Array, Batch, Op, Phase, blank
from protocol.plan import ServerPlan

Indices = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]

# A number that is 1 to so many behind the slot's is a late copy of a packet whose sum every worker
# has long had; any other is of the slot's next owner, and claims it. The two cannot be told apart
# by the half circle of RFC 1982. A live number is never behind: who sends `seq` has all results up
# to `seq - W`, so everyone has sent those and has all up to `seq - 2W`, the number in the slot
# before. But it may be far ahead: only this server's chunks, and of the DIRECT ones only those that
# integers could not hold, come here, so a slot may rest for billions of numbers (up to 2^32 - 2^24
# of a stream, hours at a million chunks a second). A copy is late by what the stream moves on while
# the network holds it back, which has nothing to do with W: this allows for 16 s at a million
# chunks a second, minutes at what hosts here can send.
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

    def select(self, rows: Indices | Mask) -> Match:
        """Returns the matches of some of the packets."""
        return Match(self.slots[rows], self.newer[rows], self.same[rows], self.current[rows])


class ServedSlots:
    """2W slots, `seq` in slot `seq mod 2W`, as at a switch's node (docs/reference/protocol.md)."""

    def __init__(self, plan: ServerPlan, stream: int, window: int, counters: Counter[str]) -> None:
        self._plan = plan
        self._stream = stream
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

    def _answerable(self, headers: Array) -> tuple[Indices, Match]:
        """Returns the rows of QUERYs that get an answer, and their matches; counts them."""
        match = self._match(headers)
        answered = match.newer | match.current
        self._count("query_stale", int(np.count_nonzero(~answered)))
        self._count("query_answered", int(np.count_nonzero(answered)))
        rows = np.flatnonzero(answered)
        return rows, match.select(rows)

    def _states(self, headers: Array, match: Match, children: Array, flag: int = 0) -> Array:
        """Returns STATEs for QUERYs; children: (n,) the bitmap of current slots."""
        states = blank(len(headers), Op.STATE)
        for name in ("job", "epoch", "stream", "sender", "seq", "chunk", "node", "workers"):
            states[name] = headers[name]
        states["children"] = np.where(match.current, children, 0)
        phase = np.where(match.current & self._final[match.slots], Phase.FINAL, Phase.AGGREGATING)
        states["flags"] = phase << PHASE_SHIFT | flag
        return states

    def _without_payload(self, headers: Array, peers: Array) -> list[Batch]:
        if not len(headers):
            return []
        words = np.zeros((len(headers), self._plan.lanes), LANE)
        return [Batch(headers, words, np.zeros(len(headers), np.bool_), peers)]

    def _result_headers(self, slots: Indices) -> Array:
        """Returns the headers of RESULTs of these slots."""
        headers = blank(len(slots), Op.RESULT)
        headers["job"] = self._plan.job
        headers["epoch"] = self._plan.epoch
        headers["stream"] = self._stream
        headers["flags"] = self._flags[slots]
        headers["seq"] = self._seq[slots]
        headers["chunk"] = self._chunk[slots]
        headers["lanes"] = self._lanes[slots]
        headers["exponent"] = self._exponent[slots]
        headers["max_exponent"] = self._max_exponent[slots]
        return headers

    def _mine(self, headers: Array) -> Mask:
        """Returns a mask (n,) of packets whose chunk this server sums."""
        chunks = headers["chunk"].astype(np.int64)
        return np.asarray(self._plan.server_of(chunks) == self._plan.rank, np.bool_)

    def _count(self, outcome: str, n: int) -> None:
        if n:
            self._counters[outcome] += n
