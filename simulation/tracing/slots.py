# SPDX-License-Identifier: Apache-2.0
"""Counts the slots of a switch in use, by the packets that pass it.

A slot is in use from the arrival of the first contribution to its sum until the result arrives from
the parent, or leaves if the switch is the root (as in ``observability.outcomes.OpenSlots``, but
with times).
"""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt

from protocol.header import Array, Flag, Op, ops
from simulation.links.trains import Times
from simulation.tracing.sampling import Sampled, Tell

_CLAIM, _RESULT = 0, 1  # the order of simultaneous events
_SEQ_BITS = 32


class SlotTrace:
    """The most slots of a switch in use in each span. step, tell: as in Sampled."""

    def __init__(self, step: int, tell: Tell) -> None:
        self._step = step
        self._used = Sampled(step, tell)
        self._nodes: dict[tuple[int, int], int] = {}  # the switch's node, by job and stream
        self._flows: dict[int, _Flow] = {}
        self._seen: list[tuple[Times, npt.NDArray[np.int64], int]] = []

    def watch(self, job: int, stream: int, node: int) -> None:
        """Sets the switch's node in a stream's tree."""
        self._nodes[job, stream] = node

    def contributions(self, headers: Array, times: Times) -> None:
        """Handles packets that arrive at the switch from below."""
        self._see(headers, times, Op.CONTRIBUTE, _CLAIM)

    def results(self, headers: Array, times: Times) -> None:
        """Handles packets that arrive from the parent, or begin to leave the root."""
        self._see(headers, times, Op.RESULT, _RESULT)

    def _see(self, headers: Array, times: Times, op: Op, kind: int) -> None:
        if not self._nodes:
            return
        direct = (headers["flags"] & np.uint8(Flag.DIRECT)) != 0
        rows = np.flatnonzero((ops(headers) == np.uint8(op)) & ~direct)
        chosen = headers[rows]
        flows = chosen["job"].astype(np.int64) << 24 | chosen["epoch"].astype(np.int64) << 8
        flows |= chosen["stream"]
        good = np.zeros(len(rows), np.bool_)
        for flow in np.unique(flows).tolist():
            node = self._nodes.get((flow >> 24, flow & 0xFF))
            if node is None:
                continue
            mine = flows == flow
            good |= mine & (chosen["node"] == node) if kind == _CLAIM else mine
        if good.any():
            keys = flows[good] << _SEQ_BITS | chosen["seq"][good]
            self._seen.append((times[rows[good]], keys, kind))

    def settle(self, until: int) -> None:
        """Processes all packets before a time; no earlier one may follow."""
        times, keys, kinds = [], [], []
        later = []
        for at, key, kind in self._seen:
            count = int(np.searchsorted(at, until, "left"))
            if count:
                times.append(at[:count])
                keys.append(key[:count])
                kinds.append(np.full(count, kind))
            if count < len(at):
                later.append((at[count:], key[count:], kind))
        self._seen = later
        if times:
            self._take(np.concatenate(times), np.concatenate(keys), np.concatenate(kinds))
        self._used.advance(until // self._step)

    def _take(
        self, times: Times, keys: npt.NDArray[np.int64], kinds: npt.NDArray[np.int64]
    ) -> None:
        order = np.lexsort((keys, kinds, times))
        # Only the first contribution to a sum and its first result count.
        _, first = np.unique(keys[order] << 1 | kinds[order], return_index=True)
        for row in order[np.sort(first)].tolist():
            at, key, kind = int(times[row]), int(keys[row]), int(kinds[row])
            flow = self._flow(key >> _SEQ_BITS)
            seq = key & ((1 << _SEQ_BITS) - 1)
            change = flow.claim(seq) if kind == _CLAIM else flow.end(seq)
            if change:
                used = self._used
                used.advance(at // self._step)
                used.level += change
                used.value = max(used.value, used.level)

    def _flow(self, number: int) -> _Flow:
        found = self._flows.get(number)
        if found is None:
            found = self._flows[number] = _Flow()
        return found


class _Flow:
    """The open and completed sums of one stream in one plan epoch."""

    def __init__(self) -> None:
        self._open: set[int] = set()
        self._over: list[int] = []  # a heap of completed sums above the first open one
        self._next = 0

    def claim(self, seq: int) -> int:
        """Returns the change of slots in use by a contribution."""
        if seq < self._next or seq in self._open or seq in self._over:
            return 0
        self._open.add(seq)
        return 1

    def end(self, seq: int) -> int:
        """Returns the change of slots in use by a result."""
        if seq not in self._open:
            return 0
        self._open.remove(seq)
        heapq.heappush(self._over, seq)
        while self._over and self._over[0] == self._next:
            heapq.heappop(self._over)
            self._next += 1
        return -1
