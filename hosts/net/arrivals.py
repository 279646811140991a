# SPDX-License-Identifier: Apache-2.0
"""Batches of timed packets: the clock of a driver, arrival times, and departures."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hosts.net.background import Background
from protocol.header import Batch

Seconds = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]

# Integers up to here are exact in float64.
EXACT = 2.0**53

# Returns how many of these tickets' sums, in order of arrival (-1: none), may be taken at once, and
# true if the last of them may complete a call.
Enough = Callable[[Numbers], tuple[int, bool]]


class Clock(NamedTuple):
    """The clock of a state machine's driver.

    second: ticks of the clock in a second; alarms are at a whole number of them.
    tick: shortest wait in seconds after a poll that sent nothing.
    room: returns true if frames of these sizes (n,) in bytes, handed over at these times (n,), fit
        into the queue.
    queue: returns the bytes that leave the queue each second, at least; those that wait in it now;
        and its limit.
    background: threads that may take packets while the caller does something else; None: none.
    """

    second: float
    tick: float
    room: Callable[[Seconds, Numbers], bool]
    queue: Callable[[], tuple[float, float, float]]
    background: Background | None = None

    def alarm(self, now: float, seconds: float) -> float:
        """Returns the time of the alarm for a wait of `seconds` that begins at `now`."""
        return (round(now * self.second) + round(seconds * self.second)) / self.second


class Pending(NamedTuple):
    """Packets that threads take in the background.

    ready: returns true if `finish` would not wait.
    finish: waits for the end, once; until then nothing else happens to the state machine. Raises
        what taking them raises.
    """

    ready: Callable[[], bool]
    finish: Callable[[], Released]


class Released(NamedTuple):
    """Packets sent in response to a batch of arrivals, valid until more are taken from any batch.

    taken: arrivals that were processed.
    batch: packets to send, None if there are none.
    times: (n,) when each of them leaves, no later than the last of these arrivals.
    sent: true if a packet left at the time of the last processed arrival.
    following: time of the next poll; None: now.
    ends: what the driver waits for may have happened.
    """

    taken: int
    batch: Batch | None
    times: Seconds
    sent: bool
    following: float | None
    ends: bool = False
