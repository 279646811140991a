# SPDX-License-Identifier: Apache-2.0
"""Measures the time between successive results of each stream, to notice early that one is late.

All workers send in the same order, so results come as regularly as the slowest worker's packets
leave it. A gap of twice the usual is seen long before a retransmission timeout, which has to allow
for a whole window in a queue. It serves as the probe timeout of RFC 8985, section 7.2.
"""

from __future__ import annotations

import numpy as np

from hosts.worker.round_trips import Times


class ResultGaps:
    """Smoothed gaps of n streams and their variation, in seconds, with the weights of RFC 6298.

    state: (3, n), in place, so that native code can use it: rows are the time of the last result,
        the smoothed gap (NaN before the first) and its variation.
    """

    def __init__(self, streams: int) -> None:
        self.state: Times = np.zeros((3, streams))
        self.state[0], self.state[1] = -np.inf, np.nan

    def sample(self, now: float, stream: int, sent: float) -> None:
        """Takes results of a stream that arrive now, the earliest sent at `sent`.

        It is no sample if none of them was on its way when the last result arrived.
        """
        last, smoothed, variation = self.state[:, stream].tolist()
        gap = now - last
        self.state[0, stream] = now
        if sent > now - gap:
            return
        if np.isnan(smoothed):
            self.state[1:, stream] = gap, gap / 2
            return
        # A straggler or a loss must not hide the next one.
        gap = min(gap, 2 * (smoothed + max(4 * variation, smoothed)))
        variation = 0.75 * variation + 0.25 * abs(smoothed - gap)
        self.state[1:, stream] = 0.875 * smoothed + 0.125 * gap, variation

    def longest(self) -> Times:
        """Returns (n,) times after a result in which the next is expected; NaN before the first
        sample."""
        _, smoothed, variation = self.state
        return np.asarray(smoothed + np.maximum(4 * variation, smoothed))
