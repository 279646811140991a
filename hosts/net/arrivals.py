# SPDX-License-Identifier: Apache-2.0
"""Times at which packets arrive and leave, as a driver gives and gets them for many at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from protocol.header import Batch

Seconds = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]

# Whole numbers of a clock's resolution are exact in float64 up to here.
EXACT = 2.0**53

# Of tickets whose sums come one after the other (-1: of none), how many may be taken at once.
Enough = Callable[[Numbers], int]


class Clock(NamedTuple):
    """What the driver of a state machine does between packets.

    second: of what its clock counts; who waits is asked again at a whole number of them. tick:
    seconds that it waits at least when there was nothing to send. room: whether frames of so many
    bytes each, handed over at these times, all find room.
    """

    second: float
    tick: float
    room: Callable[[Seconds, Numbers], bool]

    def alarm(self, now: float, seconds: float) -> float:
        """The time at which it asks again that waits from now on."""
        return (round(now * self.second) + round(seconds * self.second)) / self.second


class Released(NamedTuple):
    """What came of packets that were taken at once.

    taken: how many of them. Packets to send, and when each of them leaves (n,); batch None: there
    are none. sent: whether any left when the last of those taken was there; following: when to ask
    again.
    """

    taken: int
    batch: Batch | None
    times: Seconds
    sent: bool
    following: float
