# SPDX-License-Identifier: Apache-2.0
"""Paces packets to the rate of the link: a packet handed to the network cannot be overtaken."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from protocol.frames import OVERHEAD
from protocol.header import HEADER_BYTES, LANE_BYTES

BACKLOG = 0.004  # s


class Pacer:
    """Limits the packets handed over ahead of time to `backlog` seconds of the link.

    rate: bit/s, 0 for no limit.
    clear: time at which the link has sent everything handed over.
    """

    def __init__(self, rate: int, backlog: float = BACKLOG, clear: float = -math.inf) -> None:
        self.rate = rate
        self.backlog = backlog
        self.clear = clear

    def room(self, now: float) -> float:
        """Returns the bytes that may be handed over now; one packet may exceed it."""
        if self.rate <= 0:
            return math.inf
        return max(0.0, (self.backlog - max(0.0, self.clear - now)) * self.rate / 8)

    def hand_over(self, now: float, wire_bytes: int) -> float:
        """Accounts for a packet handed over now; returns the time at which the link has sent it.

        wire_bytes: its size, headers below UDP included.
        """
        if self.rate <= 0:
            return now
        self.clear = max(now, self.clear) + wire_bytes * 8 / self.rate
        return self.clear

    def hand_over_all(
        self, now: float, wire_bytes: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float64]:
        """Accounts for n consecutive packets, see `hand_over`; returns (n,) times."""
        if self.rate <= 0 or not len(wire_bytes):
            return np.full(len(wire_bytes), now)
        spans = wire_bytes * 8 / self.rate
        spans[0] += max(now, self.clear)
        leave = np.add.accumulate(spans)
        self.clear = float(leave[-1])
        return leave

    def next_time(self) -> float:
        """Returns the time at which half of the backlog is gone and a poll is worthwhile."""
        return self.clear - self.backlog / 2

    @staticmethod
    def wire_bytes(full: npt.NDArray[np.bool_], lanes: int) -> npt.NDArray[np.int64]:
        """Returns the bytes on the wire (n,) of packets with (`full`) or without payload."""
        return np.where(full, LANE_BYTES * lanes, 0) + (HEADER_BYTES + OVERHEAD)
