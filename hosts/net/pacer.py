# SPDX-License-Identifier: Apache-2.0
"""Keeps what is handed to the network close to the link's rate: what is once handed over cannot be
overtaken."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from protocol.frames import OVERHEAD
from protocol.header import HEADER_BYTES

BACKLOG = 0.004  # s


class Pacer:
    """Spends a link's rate: at most `backlog` seconds of it are handed over ahead of time.

    rate: bit/s, 0 for no limit. clear: when the link will have sent all it was given.
    """

    def __init__(self, rate: int, backlog: float = BACKLOG, clear: float = -math.inf) -> None:
        self.rate = rate
        self.backlog = backlog
        self.clear = clear

    def room(self, now: float) -> float:
        """Bytes that may go now; one packet may exceed it."""
        if self.rate <= 0:
            return math.inf
        return max(0.0, (self.backlog - max(0.0, self.clear - now)) * self.rate / 8)

    def hand_over(self, now: float, wire_bytes: int) -> float:
        """Accounts for a packet of so many bytes, headers below UDP included, that is handed over
        now; returns when the link will have sent it."""
        if self.rate <= 0:
            return now
        self.clear = max(now, self.clear) + wire_bytes * 8 / self.rate
        return self.clear

    def hand_over_all(
        self, now: float, wire_bytes: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float64]:
        """As `hand_over`, of n packets, one behind the other (n,)."""
        if self.rate <= 0 or not len(wire_bytes):
            return np.full(len(wire_bytes), now)
        spans = wire_bytes * 8 / self.rate
        spans[0] += max(now, self.clear)
        leave = np.add.accumulate(spans)
        self.clear = float(leave[-1])
        return leave

    def next_time(self) -> float:
        """When half of the backlog will be gone, so that it is worth asking again."""
        return self.clear - self.backlog / 2

    @staticmethod
    def wire_bytes(full: npt.NDArray[np.bool_], lanes: int) -> npt.NDArray[np.int64]:
        """(n,) bytes on the wire of packets with (`full`) or without a payload."""
        return np.where(full, 4 * lanes, 0) + (HEADER_BYTES + OVERHEAD)
