# SPDX-License-Identifier: Apache-2.0
"""A server's own times in one job: how long it has sums, and what waits in its hands.

A sum is handled from the arrival of its last contribution until its result is ready to leave. What
follows, such as waiting for the link, is propagation. The arrival is the one at the host's network
interface (in emulation the kernel's time stamp), so time in the socket's queue counts: a server
that lacks processor time reads late. Of contributions that are read together, each counts as having
waited for the mean of all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from hosts.net.broadcast_batch import BroadcastBatch
from protocol import jobs_pb2
from protocol.frames import OVERHEAD
from protocol.header import HEADER_BYTES, LANE_BYTES, Batch


@dataclass(frozen=True)
class Watch:
    """Clocks to measure with.

    now: in seconds.
    queued: returns for how many seconds what was read last had waited to be, in the mean.
    """

    now: Callable[[], float]
    queued: Callable[[], float]


class ServerTimes:
    """Measurements of a server in one job since its last report.

    lanes: of a payload.
    round_sums: how many sums make a round.
    """

    def __init__(self, watch: Watch, lanes: int, round_sums: int) -> None:
        self.watch, self.round_sums = watch, round_sums
        self._payload = LANE_BYTES * lanes
        self._reset()

    def _reset(self) -> None:
        self._since = self.watch.now()
        self._sums = self._received = self._sent = 0
        self._handled = self._queued = self._optimized = 0.0

    @property
    def left(self) -> int:
        """The sums until a report is due; 0: one is."""
        return max(0, max(1, self.round_sums) - self._sums)

    def took(self, now: float, batch: Batch, sums: int, *, queued: bool = True) -> None:
        """Counts contributions that were read at a time, once the sums that they completed are
        made. queued: they waited before that."""
        before = self.watch.queued() if queued else 0.0
        self._sums += sums
        self._queued += sums * before
        self._handled += sums * (before + (self.watch.now() - now if queued else 0.0))
        self._received += self._bytes(batch)

    def gave(self, results: Iterable[Batch]) -> None:
        """Counts packets that are ready to leave."""
        self._sent += sum(self._bytes(batch) for batch in results)

    def held(self, sums: int, since: float) -> None:
        """Counts the time that results took longer, from a time until now."""
        self._handled += sums * (self.watch.now() - since)

    def stepped(self, since: float) -> None:
        """Counts the time of optimizer steps, from a time until now."""
        self._optimized += self.watch.now() - since

    def report(self, summing: int) -> jobs_pb2.ServerMeasured:
        """Returns what was measured since the last call."""
        found = jobs_pb2.ServerMeasured(
            seconds=self.watch.now() - self._since,
            sums=self._sums,
            handled=self._handled,
            queued=self._queued,
            optimized=self._optimized,
            received_bytes=self._received,
            sent_bytes=self._sent,
            summing=summing,
        )
        self._reset()
        return found

    def _bytes(self, batch: Batch) -> int:
        if isinstance(batch, BroadcastBatch):
            full = np.count_nonzero(batch.whole) * len(batch.destinations)
        else:
            full = np.count_nonzero(batch.full)
        return len(batch) * (OVERHEAD + HEADER_BYTES) + int(full) * self._payload
