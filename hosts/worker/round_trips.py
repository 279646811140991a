# SPDX-License-Identifier: Apache-2.0
"""Retransmission timeouts, RFC 6298 (sections 2 and 5), one per stream."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from protocol.plan import WorkerPlan

# So many may be before one's own in a queue on the way, which is no loss.
LEAST_PACKETS = 64
# Trees in which contributions of several workers take one link, one by one: who begins first has
# filled its queue when the last one begins.
_APART = ("none", "core", "core-server")
# The tree in which each link takes as much as a worker's own.
_SUMMED = "two-level"

Times = npt.NDArray[np.float64]


class RoundTrips:
    """Smoothed round-trip times of n streams and their timeouts, in seconds.

    An early timeout costs a header-only probe, so `least` can be far below the second of RFC 6298.

    initial: timeout before the first sample.
    least, most: bounds of a timeout.
    state: (5, n), in place, so that native code can use it: rows are smoothed round trips and their
        variation, timeouts, when a sample that waited was last counted, and the lowest round trip
        of a result, not of an answer (inf before the first).
    """

    def __init__(self, streams: int, initial: float, least: float, most: float) -> None:
        if not 0 < least <= initial <= most:
            raise ValueError(f"timeouts must obey 0 < {least=} <= {initial=} <= {most=}")
        self._initial = initial
        self.least = least
        self.most = most
        self.state: Times = np.zeros((5, streams))
        self.smoothed: Times = self.state[0]
        self._variation: Times = self.state[1]
        self.timeouts: Times = self.state[2]
        self._late: Times = self.state[3]
        self.lowest: Times = self.state[4]
        self.smoothed[:], self.timeouts[:] = np.nan, initial
        self._late[:], self.lowest[:] = -np.inf, np.inf

    @classmethod
    def of(
        cls, plan: WorkerPlan, packet: float, initial: float, least: float, most: float
    ) -> RoundTrips:
        """Returns round trips for the streams of a plan.

        The bounds are raised to the time that packets queued at the worker's link may take: of
        windows as far as there are chunks to fill them. packet: seconds of one packet on that link.
        """
        window = min(sum(stream.window for stream in plan.streams), sum(plan.counts))
        before = plan.world * window if plan.tree in _APART else 0
        least = max(least, max(LEAST_PACKETS, before) * packet)
        # A server's link takes what all workers may send, one by one, and as many results; below
        # switches alone every link takes one worker's.
        workers = 1 if plan.tree == _SUMMED else plan.world
        longest = least + 2 * workers * window * packet
        return cls(len(plan.streams), max(initial, longest), least, max(most, longest))

    def fresh(self, streams: int) -> RoundTrips:
        """Returns round trips of other streams, without samples, with the same bounds."""
        return RoundTrips(streams, self._initial, self.least, self.most)

    def sample(
        self, now: float, streams: npt.NDArray[np.intp], times: npt.NDArray[np.float64]
    ) -> None:
        """Takes round trips that end now: the slowest of a stream represents its batch.

        Excluded are packets sent or probed twice (Karn's algorithm) and header-only ones, which
        return long before packets with payload.
        """
        if len(self.timeouts) == 1:
            self.sample_one(now, 0, float(times.max()))
            return
        for stream in set(streams.tolist()):
            self.sample_one(now, stream, float(times[streams == stream].max()))

    def sample_one(self, now: float, stream: int, time: float) -> None:
        """Takes one round trip, as `sample` does."""
        # What took far longer than others waited for another worker, perhaps until that one's
        # timeout. If all of it counted, workers' timeouts would drive each other up as soon as
        # packets are lost; if none of it did, longer round trips would never be known. Of what
        # waited together, for one thing, one counts, as a timeout at most: a window of them would
        # make the timeout hundreds of times as long.
        timeout, smoothed = float(self.timeouts[stream]), float(self.smoothed[stream])
        if time > min(2 * smoothed, timeout):  # not before the first: NaN
            if now - time < self._late[stream]:
                return
            self._late[stream] = now
        time = min(time, timeout)
        if math.isnan(smoothed):
            smoothed, variation = time, time / 2
        else:
            variation = 0.75 * float(self._variation[stream]) + 0.25 * abs(smoothed - time)
            smoothed = 0.875 * smoothed + 0.125 * time
        self.smoothed[stream] = smoothed
        self._variation[stream] = variation
        # Two round trips at least (as RFC 8985, 7.2): variation goes to 0 where all is regular.
        timeout = min(max(smoothed + max(4 * variation, smoothed), self.least), self.most)
        self.timeouts[stream] = timeout

    def after(self, streams: Any, backoffs: Any) -> npt.NDArray[np.float64]:
        """Returns (n,) seconds to wait on each stream after `backoffs` consecutive timeouts
        (doubling)."""
        if isinstance(backoffs, int) and backoffs == 0:
            return np.asarray(self.timeouts[streams], np.float64)
        doubled = self.timeouts[streams] * np.exp2(np.minimum(backoffs, 30))
        return np.asarray(np.minimum(doubled, self.most), np.float64)
