# SPDX-License-Identifier: Apache-2.0
"""Builds the packets that a worker sends: CONTRIBUTEs and QUERYs for rows of its slots."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hosts.data.array_pool import ArrayPool
from hosts.native.quantization import quantise_to, sums_of
from hosts.worker.native_state import NativeState
from hosts.worker.slots import DIRECT, WAITING, Rows, Slots
from protocol.header import (
    FLAGGED,
    LANE,
    Array,
    Batch,
    Flag,
    Op,
    Words,
    blank,
    opaque,
    packet_bytes,
    parts_of,
)
from protocol.payloads import chunk_hash, float_words
from protocol.plan import WorkerPlan

_FLAGGED = np.uint8(FLAGGED)
_RETRANSMIT = np.uint8(Flag.RETRANSMIT)
_DIRECT_FLAG = np.uint8(Flag.DIRECT)
_QUERY = np.uint8(Op.QUERY - Op.CONTRIBUTE)


class Contributions:
    """Builds packets.

    servers: (n,) PEER by rank.
    header_room: bytes reserved before each packet.
    native: writes packets without payload; None: numpy does.
    """

    def __init__(
        self, plan: WorkerPlan, slots: Slots, servers: Array, header_room: int = 0
    ) -> None:
        self._plan = plan
        self._slots = slots
        self._servers = servers
        self._header_room = header_room
        self._memory = ArrayPool()
        self.native: NativeState | None = None
        # Fields shared by all packets of a stream.
        self.common = blank(len(plan.streams), Op.CONTRIBUTE)
        self.common["job"] = plan.job
        self.common["epoch"] = plan.epoch
        self.common["stream"] = [stream.stream for stream in plan.streams]
        self.common["sender"] = [stream.sender for stream in plan.streams]
        self.common["node"] = [stream.node for stream in plan.streams]
        self.common["workers"] = 1
        # First stage: sums are tried in integers; asynchronous jobs have none.
        self._first = DIRECT if plan.is_asynchronous else WAITING

    def carry(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Returns a mask (n,) of rows whose CONTRIBUTE has a payload (before `packets`: an
        estimate)."""
        slots = self._slots
        whole: npt.NDArray[np.bool_] = (slots.flags[rows] & _FLAGGED) == 0
        whole |= slots.stage[rows] == DIRECT
        whole &= slots.lanes[rows] != 0
        return whole

    def packets(self, late: Rows, due: Rows) -> Batch:
        """Returns QUERYs of the rows `late`, then CONTRIBUTEs of the rows `due`, quantised."""
        slots = self._slots
        rows = np.concatenate((late, due)) if len(late) else due
        size = self._header_room + packet_bytes(slots.width)
        room = self._memory.empty((len(rows), size), np.uint8)
        wire = room[:, self._header_room :]
        headers, payloads = parts_of(wire)
        if self.native is not None and not slots.width and not len(late):
            full = np.empty(len(rows), np.bool_)
            peers = self.native.write(rows, headers, full)
            return Batch(headers, payloads, full, peers, wire, room)
        opaque(headers)[:] = opaque(self.common).take(slots.stream[rows])
        headers["seq"] = slots.seq[rows]
        headers["chunk"] = slots.chunk[rows]
        direct = (slots.stage[rows] == DIRECT).nonzero()[0]
        if len(direct):
            headers["flags"][direct] = _DIRECT_FLAG
            headers["node"][direct] = 0
            headers["sender"][direct] = self._plan.rank & 0xFF
        if self._plan.is_asynchronous:
            headers["children"] = slots.round[rows] + 1
        headers["version_op"][: len(late)] += _QUERY
        full = np.zeros(len(rows), np.bool_)
        if len(due):
            self._contribute(due, headers[len(late) :], payloads[len(late) :])
            full[len(late) :] = self.carry(due)
        return Batch(headers, payloads, full, self._servers.take(slots.server[rows]), wire, room)

    def _contribute(self, rows: Rows, headers: Array, payloads: Words) -> None:
        """Fills in the fields that only CONTRIBUTEs have."""
        slots = self._slots
        waiting = slots.stage[rows] == WAITING
        data = ~slots.exponent_round[rows]
        self._hash(rows[slots.stage[rows] == self._first])
        integers = waiting & data
        if integers.all():
            sums = self._quantise(rows, payloads)
        else:
            words: Words = np.empty((np.count_nonzero(integers), payloads.shape[1]), LANE)
            sums = np.zeros(len(rows), np.uint32)
            sums[integers] = self._quantise(rows[integers], words)
            payloads[integers] = words
            floats = ~waiting & data
            if floats.any():
                payloads[floats] = float_words(slots.places(rows[floats]).values(slots.width))
                sums[floats] = sums_of(payloads[floats])
            payloads[~data] = 0
        headers["flags"] |= slots.flags[rows]
        headers["flags"] |= np.where(slots.sent[rows] > 0, _RETRANSMIT, np.uint8(0))
        headers["exponent"] = slots.exponent[rows]
        headers["max_exponent"] = slots.own[rows]
        headers["lanes"] = slots.lanes[rows]
        headers["checksum"] = sums + slots.hash[rows]

    def _hash(self, rows: Rows) -> None:
        slots = self._slots
        slots.hash[rows] = chunk_hash(
            self._plan.job,
            slots.stream_number[rows],
            slots.seq[rows],
            slots.chunk[rows],
            slots.exponent[rows],
        )

    def _quantise(self, rows: Rows, out: Words) -> npt.NDArray[np.uint32]:
        """Quantises rows into `out`; returns the sums of their words.

        Deterministic: a retransmission is quantised again to the same bits.
        """
        slots = self._slots
        exponents, flags = slots.exponent[rows], slots.unfit[rows]
        flags[slots.own[rows] > exponents] |= np.uint8(Flag.OVERFLOW)
        slots.flags[rows] = flags
        plan = self._plan
        sums = quantise_to(plan.codec, slots.places(rows), exponents, flags, plan.world, out)
        if plan.optimizer is not None:
            # Initial parameters must not be rounded: the server gets them in float32.
            slots.flags[rows[slots.round[rows] == 0]] |= np.uint8(Flag.OVERFLOW)
        return sums
