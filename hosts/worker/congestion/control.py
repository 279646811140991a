# SPDX-License-Identifier: Apache-2.0
"""Applies congestion windows to a worker's slots, once per round trip."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hosts.worker.congestion.registry import windows_for
from hosts.worker.congestion.window import RoundTrip
from hosts.worker.policies import naming
from hosts.worker.round_trips import RoundTrips
from hosts.worker.slots import Slots
from protocol.plan import WorkerPlan

_WHAT = "congestion window"


class CongestionControl:
    """Sets the limit of each stream in `slots` when a round trip has ended.

    adapts: false if limits never change; then `update` need not be called.
    """

    def __init__(self, plan: WorkerPlan, slots: Slots, trips: RoundTrips) -> None:
        self._slots, self._trips = slots, trips
        self._windows = windows_for(plan)
        self.adapts = any(window.adapts for window in self._windows)
        for stream, window in enumerate(self._windows):
            with naming(_WHAT, type(window)):
                self._limit(stream, window.first())
        # By stream: what the round trip has had so far, and the number whose result ends it.
        streams = len(self._windows)
        self._results, self._marked, self._retransmitted = np.zeros((3, streams), np.int64)
        self._ends = slots.limits.copy()

    def columns(self) -> dict[str, npt.NDArray[np.int64]]:
        """Returns the counts by stream, for code that counts, and calls `update`."""
        return {
            "met": self._results,
            "marked": self._marked,
            "retransmitted": self._retransmitted,
            "trip_ends": self._ends,
        }

    def update(self, stream: int) -> None:
        """Sets the limit of a stream whose round trip has ended, before numbers enter."""
        slots, trips = self._slots, self._trips
        trip = RoundTrip(
            results=int(self._results[stream]),
            marked=int(self._marked[stream]),
            retransmitted=int(self._retransmitted[stream]),
            smoothed=float(trips.smoothed[stream]),
            lowest=float(trips.lowest[stream]),
        )
        for count in self._results, self._marked, self._retransmitted:
            count[stream] = 0
        window = self._windows[stream]
        with naming(_WHAT, type(window)):
            self._limit(stream, window.following(trip))
        left, following = int(slots.left[stream]), int(slots.next[stream])
        self._ends[stream] = max(following, left + int(slots.limits[stream]))

    def _limit(self, stream: int, window: int) -> None:
        self._slots.limits[stream] = min(max(1, window), self._slots.windows[stream])
