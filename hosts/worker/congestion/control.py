# SPDX-License-Identifier: Apache-2.0
"""Applies congestion windows to a worker's slots, once per round trip."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hosts.worker.congestion.registry import windows_for
from hosts.worker.congestion.window import RoundTrip
from hosts.worker.policies import naming
from hosts.worker.round_trips import RoundTrips
from hosts.worker.slots import Rows, Slots
from protocol.plan import WorkerPlan

_WHAT = "congestion window"


class CongestionControl:
    """Measures the round trips of each stream and sets its limit in `slots`.

    adapts: false if limits never change; then only the constructor need be called.
    """

    def __init__(self, plan: WorkerPlan, slots: Slots, trips: RoundTrips) -> None:
        self._slots, self._trips = slots, trips
        self._windows = windows_for(plan)
        self.adapts = any(window.adapts for window in self._windows)
        streams = len(self._windows)
        for stream, window in enumerate(self._windows):
            with naming(_WHAT, type(window)):
                self._limit(stream, window.first())
        # By stream: the number whose result ends the round trip, and what it has had so far.
        self._ends = slots.limits.tolist()
        self._results, self._marked, self._retransmitted = np.zeros((3, streams), np.int64)

    def on_results(self, rows: Rows, marked: npt.NDArray[np.bool_]) -> None:
        """Counts results of these rows; marked: mask (n,) of those that met congestion."""
        np.add.at(self._results, self._slots.stream[rows], 1)
        np.add.at(self._marked, self._slots.stream[rows[marked]], 1)

    def on_retransmitted(self, rows: Rows) -> None:
        """Counts contributions that are retransmitted."""
        np.add.at(self._retransmitted, self._slots.stream[rows], 1)

    def update(self, stream: int) -> None:
        """Sets the limit of a stream if a round trip has ended; call it before numbers enter."""
        slots, trips = self._slots, self._trips
        left = slots.pass_complete(stream)
        if left < self._ends[stream]:
            return
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
        self._ends[stream] = max(slots.next[stream], left + int(slots.limits[stream]))

    def _limit(self, stream: int, window: int) -> None:
        self._slots.limits[stream] = min(max(1, window), self._slots.windows[stream])
