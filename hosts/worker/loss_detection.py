# SPDX-License-Identifier: Apache-2.0
"""Detects lost packets and decides which sequence numbers to probe (RACK, RFC 8985).

A probe is a QUERY. All workers submit in the same order, so while the oldest number of a stream
waits for a straggler the later ones do too, and one probe of the oldest is enough. A window of
probes from every worker would be a burst: it fills queues that count packets, and delayed packets
become lost ones. So a stream's timer restarts with every result (RFC 6298, section 5.3), and when
it expires the oldest number without a result is probed (5.4).

After a loss the results of later numbers arrive without the lost one, long before a timer. So a
number is probed as soon as a sum arrives that was sent later by more than reordering explains
(RACK: RFC 8985, section 6.2), and again when one arrives that was sent after the probe, or after an
answer that said to wait. Each probe needs a result of something sent later, and the window bounds
those, so probes are few. The last CONTRIBUTE counts as the time of sending: recovering one number
shows what else was lost before it. If an answer after a timeout shows a loss, all overdue numbers
of the stream are probed, so a burst of losses costs one timeout. Results are compared only with
numbers of the same stream, server and kind (exponent round, integer sum, float32 sum): others take
another path or another order. A chunk's data leaves when its exponent round is complete, and where
a server answers workers one by one, only some have sent later exponent rounds by then. Within a
kind all workers send in order of submission, so without loss or reordering nothing overtakes.

Progress is certain: the lowest of all workers' oldest numbers is probed by every worker that lacks
its sum, which suffices to complete it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hosts.worker.round_trips import RoundTrips, Times
from hosts.worker.slots import DIRECT, Rows, Slots
from hosts.worker.verification import Mask
from protocol.header import Array, Phase, phases
from protocol.plan import MOST_CHILDREN, WorkerPlan

_AGGREGATING = np.uint8(Phase.AGGREGATING)
_FINAL = np.uint8(Phase.FINAL)
_NONE = np.zeros(0, np.intp)
KINDS = 3  # integer sums, exponent rounds, float32 sums


class LossDetector:
    """Loss detection for the streams of `slots`, whose deadlines say when a number is overdue.

    `latest` and `servers` are public for `NativeState`.
    """

    def __init__(self, slots: Slots, plan: WorkerPlan, trips: RoundTrips) -> None:
        self._slots, self._trips = slots, trips
        self._rank, self._pulls = plan.rank, plan.pipeline.pulls
        self.servers = len(plan.servers)
        # By way (stream, server and kind): latest send time among numbers with a result.
        self.latest = np.full(KINDS * len(slots.windows) * self.servers, -np.inf)
        self._news = False  # since the last `overtaken`

    def late(self, now: float) -> tuple[Rows, Rows | None]:
        """Returns the rows to probe now, and the rows whose timers are armed; None for the latter
        if no timer has expired: all are."""
        slots = self._slots
        late, timed = _NONE, None
        if slots.deadline.min() <= now:
            timed = self.oldest()
            late = timed[slots.deadline[timed] <= now]
        slots.probe_pending[self.overtaken()] = True
        if slots.probe_pending.any():
            late = np.union1d(late, slots.probe_pending.nonzero()[0])
        return late, timed

    def on_probed(self, now: float, rows: Rows, leave: Times) -> None:
        """Records QUERYs for these rows that are sent now and leave the host at `leave`."""
        slots = self._slots
        slots.probe_pending[rows] = False
        slots.probes[rows] += 1
        slots.probed_last[rows] = leave
        slots.backoff[rows] += slots.deadline[rows] <= now
        slots.clean[rows] = False
        slots.deadline[rows] = leave + self._trips.after(slots.stream[rows], slots.backoff[rows])

    def on_states(self, now: float, rows: Rows, headers: Array, direct: Mask) -> None:
        """Takes STATEs (n,), direct or not, that answer probes of these distinct rows; what is lost
        becomes due."""
        slots = self._slots
        once = rows[slots.probes[rows] == 1]
        if len(once):
            took = np.maximum(now - slots.probed_last[once], 0.0)
            self._trips.sample(now, slots.stream[once], took)
        phase = phases(headers)
        bit = np.where(direct, self._rank % MOST_CHILDREN, headers["sender"]).astype(np.uint32)
        absent = (headers["children"] >> bit & 1) == 0
        # Probes of a number that waits for others back off, but restart after any change of state:
        # the next result may get lost on the way to this worker.
        moved = slots.state_node[rows] != headers["node"]
        moved |= slots.state_phase[rows] != phase
        moved |= slots.state_children[rows] != headers["children"]
        slots.backoff[rows[moved & np.isfinite(slots.state_time[rows])]] = 0
        slots.state_node[rows] = headers["node"]
        slots.state_phase[rows] = phase
        slots.state_children[rows] = headers["children"]
        slots.state_time[rows] = now
        slots.probes[rows] = 0
        again = (phase == _FINAL) | ((phase == _AGGREGATING) & absent)
        slots.due[rows[again]] = True
        slots.deadline[rows[again]] = np.inf
        waiting = rows[~again]
        waits = self._trips.after(slots.stream[waiting], slots.backoff[waiting])
        slots.deadline[waiting] = now + waits
        slots.probe_pending[rows] = False
        self.on_loss(now, rows[again])

    def oldest(self) -> Rows:
        """Returns the oldest number in flight of each stream: the rows to probe once they are
        overdue."""
        slots = self._slots
        rows = np.isfinite(slots.deadline).nonzero()[0]
        rows = rows[np.lexsort((slots.order[rows], slots.stream[rows]))]
        streams = slots.stream[rows]
        chosen: Rows = rows[np.searchsorted(streams, streams) == np.arange(len(rows))]
        return chosen

    def overtaken(self) -> Rows:
        """Returns the rows to probe at once, because sums of later numbers have arrived."""
        if not self._news:
            return _NONE
        self._news = False
        rows = np.isfinite(self._slots.deadline).nonzero()[0]
        overtaken: Rows = rows[self.latest[self._ways(rows)] > self._margins(rows)]
        return overtaken

    def on_results(self, now: float, rows: Rows, full: Mask) -> None:
        """Takes the arrival of results for these distinct rows, with payload (`full`) or
        without."""
        slots = self._slots
        times = np.maximum(now - slots.sent_last[rows], 0.0)
        own: Mask = slots.clean[rows]
        if self._pulls:  # a requested result waits for no other worker
            asked = slots.probes[rows] == 1
            since = np.maximum(now - slots.probed_last[rows], 0.0)
            times, own = np.where(asked, since, times), own | asked
        if own.any():
            np.minimum.at(self._trips.lowest, slots.stream[rows[own]], times[own])
        own &= full
        if own.any():
            self._trips.sample(now, slots.stream[rows[own]], times[own])
        streams = slots.stream[rows]
        arrived = np.bincount(streams, minlength=len(slots.windows)) > 0
        self.restart(np.where(arrived, now + self._trips.timeouts, -np.inf), self._trips.timeouts)
        # A result faster than any round trip answers the first CONTRIBUTE (RFC 8985, 6.2).
        early = (slots.sent[rows] > 1) & (now - slots.sent_last[rows] < self._trips.lowest[streams])
        slots.sent_last[rows[early]] = slots.sent_first[rows[early]]
        self.take(rows)

    def restart(self, rings: Times, timeouts: Times) -> None:
        """Restarts the timers of streams.

        Numbers that were probed in vain keep their deadline if it is later. All others get the
        timeout that holds now, counted from when they leave.

        rings: (streams,) earliest expiry; -inf: that stream's timers stay.
        timeouts: (streams,) in seconds.
        """
        slots = self._slots
        ring = rings[slots.stream]
        leaves = slots.sent_last + timeouts[slots.stream]
        ring = np.where(np.isfinite(ring), np.maximum(ring, leaves), ring)
        set_anew = np.isfinite(ring) & np.isfinite(slots.deadline) & (slots.backoff == 0)
        slots.deadline[:] = np.where(set_anew, ring, np.maximum(slots.deadline, ring))

    def on_loss(self, now: float, rows: Rows) -> None:
        """Marks all overdue numbers of these rows' streams for probing: one loss makes others
        likely."""
        slots = self._slots
        streams = np.bincount(slots.stream[rows], minlength=len(slots.windows)) > 0
        slots.probe_pending |= (slots.deadline <= now) & streams[slots.stream]

    def take(self, rows: Rows, latest: Times | None = None) -> None:
        """Records results of these rows; their timers are already set. latest: `self.latest` after
        them, if known."""
        if latest is None:
            np.maximum.at(self.latest, self._ways(rows), self._slots.sent_last[rows])
        else:
            self.latest = latest
        self._news = True

    def _margins(self, rows: Rows) -> Times:
        """Returns (n,) send times beyond which a later result makes a row due for probing."""
        slots = self._slots
        last = np.maximum(slots.sent_last[rows], slots.probed_last[rows])
        last = np.fmax(last, slots.state_time[rows])
        return np.asarray(last + self._trips.lowest[slots.stream[rows]] / 4)

    def _ways(self, rows: Rows) -> npt.NDArray[np.intp]:
        """Returns (n,) indices into `latest`."""
        slots = self._slots
        place = slots.stream[rows] * self.servers + slots.server[rows]
        kind = np.where(slots.stage[rows] == DIRECT, 2, slots.exponent_round[rows])
        return np.asarray(KINDS * place + kind, np.intp)
