# SPDX-License-Identifier: Apache-2.0
"""Detects lost packets, decides which numbers to probe or to retransmit (RACK, RFC 8985).

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

Where packets were lost of late (`lossy`), a stream's timer is the time in which the next result is
usual (`hosts.worker.result_gaps`), so that the last chunks of an iteration, which no later result
overtakes, do not wait for a timeout. Where most answers show a loss (`_lost` above `UNASKED`), what
is late is retransmitted without a probe: that is half the hops, and each node that it reaches keeps
it or passes on what it has. One try in `ASK_EVERY` is still a probe, whose answer tells losses from
stragglers; a number that waits for a straggler is probed only. Retransmissions do not back off.

A sum that was lost between nodes is missed by all workers below: the first child of each node
retransmits, the others only if the next answer is the same.

Progress is certain: the lowest of all workers' oldest numbers is probed by every worker that lacks
its sum, which suffices to complete it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hosts.worker.result_gaps import ResultGaps
from hosts.worker.round_trips import RoundTrips, Times
from hosts.worker.slots import DIRECT, Rows, Slots
from hosts.worker.verification import Mask
from protocol.header import Array, Phase, phases
from protocol.plan import MOST_CHILDREN, WorkerPlan

_AGGREGATING = np.uint8(Phase.AGGREGATING)
_FINAL = np.uint8(Phase.FINAL)
_NONE = np.zeros(0, np.intp)
KINDS = 3  # integer sums, exponent rounds, float32 sums
UNASKED = 0.5  # share of answers that show a loss
ASK_EVERY = 4
_WEIGHT = 1 / 16  # of an answer in that share
_LOSSY = 4096  # results after a loss, at least
SOONER = 16  # least timeout over the least time for which a missing result is waited for


class LossDetector:
    """Loss detection for the streams of `slots`, whose deadlines say when a number is overdue.

    `latest`, `gaps` and `servers` are public for `NativeState`.
    """

    def __init__(self, slots: Slots, plan: WorkerPlan, trips: RoundTrips) -> None:
        self._slots, self._trips = slots, trips
        self._rank, self._pulls = plan.rank, plan.pipeline.pulls
        self.servers = len(plan.servers)
        # By way (stream, server and kind): latest send time among numbers with a result.
        self.latest = np.full(KINDS * len(slots.windows) * self.servers, -np.inf)
        self.news = False  # results since the last `overtaken`
        self._nodes = np.array([stream.node for stream in plan.streams])
        self._children = np.array([stream.sender for stream in plan.streams])
        self.gaps = ResultGaps(len(plan.streams))
        self._lost = 0.0  # share of probes that no answer or a loss followed
        self._memory = max(_LOSSY, 4 * sum(slots.windows))
        self._since_loss = self._memory  # results

    @property
    def lossy(self) -> bool:
        """True if a packet was found lost among the last results."""
        return self._since_loss < self._memory

    def constant(self, results: int) -> int:
        """Returns the number of coming results, up to `results`, that do not change `lossy`."""
        return min(results, self._memory - 1 - self._since_loss) if self.lossy else results

    def late(self, now: float) -> tuple[Rows, Rows | None]:
        """Returns the rows to probe now, and the rows whose timers are armed; None for the latter
        if no timer has expired: all are. Rows to retransmit become due."""
        slots = self._slots
        unasked = self._lost > UNASKED and not self._pulls
        late, timed = _NONE, None
        if slots.deadline.min() <= now:
            timed = self.oldest()
            if unasked:
                timed = np.union1d(timed, self._overdue(now, timed))
            late = timed[slots.deadline[timed] <= now]
        slots.probe_pending[self.overtaken()] = True
        if slots.probe_pending.any():
            late = np.union1d(late, slots.probe_pending.nonzero()[0])
        if len(late):
            asked = slots.probed_last[late] + self._trips.timeouts[slots.stream[late]]
            unanswered = (slots.probes[late] > 0) & (asked <= now)
            self._learn(1.0, int(np.count_nonzero(unanswered)))
            if unasked:
                late = self._retransmit(late)
        return late, timed

    def _overdue(self, now: float, oldest: Rows) -> Rows:
        """Returns the rows sent a timeout ago, except those behind an oldest row of their stream
        that waits for another worker."""
        slots = self._slots
        waits = oldest[np.isfinite(slots.state_time[oldest]) & (slots.backoff[oldest] > 0)]
        sent = slots.sent_last + self._trips.timeouts[slots.stream]
        overdue = np.isfinite(slots.deadline) & (sent <= now)
        overdue &= ~np.isin(slots.stream, slots.stream[waits])
        return np.asarray(np.flatnonzero(overdue), np.intp)

    def _retransmit(self, late: Rows) -> Rows:
        """Makes those of the rows due that are not to be probed; returns the others."""
        slots = self._slots
        waits = np.isfinite(slots.state_time[late]) & (
            slots.sent_last[late] < slots.state_time[late]
        )
        turn = (slots.sent[late] + slots.probes[late] + late) % ASK_EVERY == 0
        probed = (waits | turn) & (slots.probes[late] == 0)
        self._make_due(late[~probed])
        kept: Rows = late[probed]
        return kept

    def _make_due(self, rows: Rows) -> None:
        slots = self._slots
        slots.due[rows] = True
        slots.probe_pending[rows] = False
        slots.deadline[rows] = np.inf
        if len(rows):
            self._since_loss = 0

    def _learn(self, lost: float, answers: int) -> None:
        """Takes a number of answers, `lost` of which, as a share, showed a loss."""
        self._lost += (1 - (1 - _WEIGHT) ** answers) * (lost - self._lost)

    def timeouts(self) -> Times:
        """Returns (streams,) seconds after a result until the oldest number is probed."""
        if not self.lossy:
            return self._trips.timeouts
        silence = np.maximum(self._trips.least / SOONER, self.gaps.longest())
        return np.asarray(np.fmin(self._trips.timeouts, silence))

    def _after(self, rows: Rows) -> Times:
        """Returns (n,) seconds to wait for the answer to a probe of each row, or its result."""
        slots, trips = self._slots, self._trips
        if not self.lossy:
            return trips.after(slots.stream[rows], slots.backoff[rows])
        shortest = np.fmin(trips.timeouts, np.fmax(self.timeouts(), trips.smoothed))
        doubled = shortest[slots.stream[rows]] * np.exp2(np.minimum(slots.backoff[rows], 30))
        return np.asarray(np.minimum(doubled, trips.most))

    def on_probed(self, now: float, rows: Rows, leave: Times) -> None:
        """Records QUERYs for these rows that are sent now and leave the host at `leave`."""
        slots = self._slots
        slots.probe_pending[rows] = False
        slots.probes[rows] += 1
        slots.probed_last[rows] = leave
        slots.backoff[rows] += slots.deadline[rows] <= now
        slots.clean[rows] = False
        slots.deadline[rows] = leave + self._after(rows)

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
        known = np.isfinite(slots.state_time[rows])
        slots.backoff[rows[moved & known]] = 0
        slots.state_node[rows] = headers["node"]
        slots.state_phase[rows] = phase
        slots.state_children[rows] = headers["children"]
        slots.state_time[rows] = now
        slots.probes[rows] = 0
        again = (phase == _FINAL) | ((phase == _AGGREGATING) & absent)
        above = ~direct & (headers["node"] != self._nodes[slots.stream[rows]])
        first = self._children[slots.stream[rows]] == 0
        again &= ~above | first | (known & ~moved)
        self._learn(float(again.mean()), len(again))
        self._make_due(rows[again])
        waiting = rows[~again]
        slots.deadline[waiting] = now + self._after(waiting)
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
        if not self.news:
            return _NONE
        self.news = False
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
        self.count(len(rows))
        if self.lossy:
            for stream in arrived.nonzero()[0].tolist():
                sent = float(slots.sent_last[rows[streams == stream]].min())
                self.gaps.sample(now, stream, sent)
        timeouts = self.timeouts()
        self.restart(np.where(arrived, now + timeouts, -np.inf), timeouts)
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

    def take(self, rows: Rows) -> None:
        """Records results of these rows, whose timers are already set."""
        slots = self._slots
        once = slots.sent[rows] == 1
        np.maximum.at(self.latest, self._ways(rows[once]), slots.sent_last[rows[once]])
        for row in rows[~once].tolist():
            before = np.isfinite(slots.deadline) & (slots.order < slots.order[row])
            self._probe_overtaken(before.nonzero()[0], row)
        self.news = True

    def count(self, results: int) -> None:
        """Counts results that arrived."""
        self._since_loss += results

    def adopt(self, results: int, latest: Times, gaps: Times) -> None:
        """Takes the state after so many results, computed elsewhere: `latest` and `gaps.state`."""
        self.count(results)
        self.latest[:], self.gaps.state[:] = latest, gaps
        self.news = True

    def _probe_overtaken(self, rows: Rows, by: int) -> None:
        """Marks those of the rows for probing that the retransmission of row `by` overtook."""
        slots = self._slots
        rows = rows[self._ways(rows) == self._ways(np.array([by]))]
        slots.probe_pending[rows[slots.sent_last[by] > self._margins(rows)]] = True

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
