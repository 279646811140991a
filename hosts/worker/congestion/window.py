# SPDX-License-Identifier: Apache-2.0
"""The interface of congestion windows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """Measurements of one round trip of a stream.

    It ends when all numbers have results that were in flight when it began or entered the window
    while that was not full.

    results: chunks whose results arrived, exponent rounds included.
    marked: how many of these results met congestion on their way (ECN).
    retransmitted: contributions that were lost and retransmitted.
    smoothed: smoothed round-trip time in seconds; NaN before the first sample.
    lowest: lowest round-trip time of a result so far, in seconds; inf before the first.
    """

    results: int
    marked: int
    retransmitted: int
    smoothed: float
    lowest: float


class CongestionWindow(ABC):
    """Decides how many chunks of one stream may be in flight.

    One instance serves one stream of one worker in one epoch. The slots of switches and servers
    bound the window: results outside 1..slots are clipped. Workers need not agree on it, and sums
    do not depend on it. A window in bytes is divided by the bytes of a chunk
    on the wire (`hosts.net.pacer.wire_bytes`).

    slots: the stream's window in the plan, in chunks.
    adapts: false if the window never changes; `following` is then not called.
    """

    adapts: ClassVar[bool] = True

    def __init__(self, slots: int) -> None:
        self.slots = slots

    @abstractmethod
    def first(self) -> int:
        """Returns the window at the start, in chunks."""

    @abstractmethod
    def following(self, trip: RoundTrip) -> int:
        """Returns the window after a round trip, in chunks; called once per round trip, while
        chunks wait to enter the window."""
