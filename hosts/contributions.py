# SPDX-License-Identifier: Apache-2.0
"""The packets that a worker sends: CONTRIBUTEs and QUERYs of rows of its slots."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hosts.slots import DIRECT, WAITING, Rows, Slots
from protocol.fixed_point import chunk_hash, float_words, quantise, word_sums
from protocol.header import FLAGGED, Array, Batch, Flag, Op, blank
from protocol.plan import WorkerPlan

_FLAGGED = np.uint8(FLAGGED)
_RETRANSMIT = np.uint8(Flag.RETRANSMIT)
_DIRECT_FLAG = np.uint8(Flag.DIRECT)
_QUERY = np.uint8(Op.QUERY - Op.CONTRIBUTE)


class Contributions:
    """Builds packets; servers: (n,) PEER by rank."""

    def __init__(self, plan: WorkerPlan, slots: Slots, servers: Array) -> None:
        self._plan = plan
        self._slots = slots
        self._servers = servers
        # What every packet of a row has in common, whatever number is in it.
        self._common = blank(len(slots.stage), Op.CONTRIBUTE)
        self._common["job"] = plan.job
        self._common["epoch"] = plan.epoch
        self._common["stream"] = slots.stream_number
        self._common["sender"] = slots.sender
        self._common["node"] = slots.node
        self._common["workers"] = 1
        # What is sent first: a sum is tried in integers, a step with one's own gradient needs none.
        self._first = DIRECT if plan.alone else WAITING

    def carry(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """(n,) whether the CONTRIBUTE of a row has a payload (before `packets`: as a guess)."""
        slots = self._slots
        whole: npt.NDArray[np.bool_] = (slots.flags[rows] & _FLAGGED) == 0
        whole |= slots.stage[rows] == DIRECT
        whole &= slots.lanes[rows] != 0
        return whole

    def packets(self, late: Rows, due: Rows) -> Batch:
        """QUERYs of the rows `late`, then CONTRIBUTEs of the rows `due`.

        Quantises the chunks that are sent for the first time.
        """
        slots = self._slots
        rows = np.concatenate((late, due)) if len(late) else due
        headers = self._common[rows]
        headers["seq"] = slots.seq[rows]
        headers["chunk"] = slots.chunk[rows]
        direct = (slots.stage[rows] == DIRECT).nonzero()[0]
        if len(direct):
            headers["flags"][direct] = _DIRECT_FLAG
            headers["node"][direct] = 0
            headers["sender"][direct] = self._plan.rank & 0xFF
        if self._plan.alone:
            headers["children"] = slots.round[rows] + 1
        headers["version_op"][: len(late)] += _QUERY
        payloads = np.empty((len(rows), self._plan.lanes), ">i4")
        full = np.zeros(len(rows), np.bool_)
        if len(due):
            self._quantise(due)
            self._contribute(due, headers[len(late) :], payloads[len(late) :])
            full[len(late) :] = self.carry(due)
        return Batch(headers, payloads, full, self._servers[slots.server[rows]])

    def _quantise(self, rows: Rows) -> None:
        slots = self._slots
        fresh = (slots.sent[rows] == 0) & (slots.stage[rows] == self._first)
        if not fresh.any():
            return
        rows = rows[fresh]
        slots.hash[rows] = chunk_hash(
            self._plan.job,
            slots.stream_number[rows],
            slots.seq[rows],
            slots.chunk[rows],
            slots.exponent[rows],
        )
        rows = rows[~slots.exponent_round[rows]]
        if len(rows) and not self._plan.alone:
            slots.words[rows], slots.own[rows], slots.flags[rows] = quantise(
                slots.values[rows], slots.exponent[rows], self._plan.world
            )
            if self._plan.optimizer is not None:
                # Initial parameters are not to be rounded: the server gets them in float32.
                slots.flags[rows[slots.round[rows] == 0]] |= np.uint8(Flag.OVERFLOW)

    def _contribute(self, rows: Rows, headers: Array, payloads: npt.NDArray[np.int32]) -> None:
        """Fills in what only CONTRIBUTEs have."""
        slots = self._slots
        headers["flags"] |= slots.flags[rows]
        headers["flags"] |= np.where(slots.sent[rows] > 0, _RETRANSMIT, np.uint8(0))
        headers["exponent"] = slots.exponent[rows]
        headers["max_exponent"] = slots.own[rows]
        headers["lanes"] = slots.lanes[rows]
        payloads[:] = slots.words[rows]
        direct = (slots.stage[rows] == DIRECT).nonzero()[0]
        if len(direct):
            payloads[direct] = float_words(slots.values[rows[direct]])
        sums = word_sums(payloads)
        sums[slots.exponent_round[rows]] = 0
        headers["checksum"] = sums + slots.hash[rows]
