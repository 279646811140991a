# SPDX-License-Identifier: Apache-2.0
"""Retransmission timeouts, RFC 6298 (sections 2 and 5), one per stream."""

from __future__ import annotations

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
    state: (5, n), changed by ``hosts/native/loss_detection.c``: rows are smoothed round trips,
        their variation, timeouts, when a sample that waited was last counted, and the lowest round
        trip of a result, not of an answer (inf before the first).
    """

    def __init__(self, streams: int, initial: float, least: float, most: float) -> None:
        if not 0 < least <= initial <= most:
            raise ValueError(f"timeouts must obey 0 < {least=} <= {initial=} <= {most=}")
        self._initial = initial
        self.least = least
        self.most = most
        self.state: Times = np.zeros((5, streams))
        self.smoothed: Times = self.state[0]
        self.timeouts: Times = self.state[2]
        self.lowest: Times = self.state[4]
        self.smoothed[:], self.timeouts[:] = np.nan, initial
        self.state[3], self.lowest[:] = -np.inf, np.inf

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
