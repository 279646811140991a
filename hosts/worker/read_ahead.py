# SPDX-License-Identifier: Apache-2.0
"""Processes a batch of results with known arrival times in one call (read-ahead).

In virtual time arrival times are known in advance. The transport must end in the state that
processing result by result gives, and each contribution must leave when the result arrives that
makes room for it. Where results are plain and no other event can happen meanwhile, this module
computes that for many results, in C (``hosts/native/releases.c``): windows, pacing and timeouts go
step by step without touching values, and payloads are processed together. The transport itself
processes one result after the other; `tests/unit/worker/test_releases.py` compares the two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hosts.data.reports import Statistics
from hosts.net.arrivals import EXACT, Clock, Enough, Released, Seconds
from hosts.net.pacer import Pacer
from hosts.worker.chunk_queues import Queue
from hosts.worker.contributions import Contributions
from hosts.worker.loss_detection import LossDetector
from hosts.worker.native_state import NativeState, Quiet, SendSchedule, behind
from hosts.worker.round_trips import RoundTrips
from hosts.worker.slots import Rows, Slots
from protocol.exponents import Exponents
from protocol.header import Array, Batch, Flag
from protocol.plan import WorkerPlan

_NONE = np.zeros(0, np.intp)


class ReadAhead:
    """Read-ahead for one transport, whose parts are passed in; only where `can` returns true.

    complete: takes good results (rows, headers, payloads) and moves the windows.
    """

    def __init__(
        self,
        plan: WorkerPlan,
        slots: Slots,
        native: NativeState,
        exponents: Exponents,
        queues: Sequence[Queue],
        detector: LossDetector,
        contributions: Contributions,
        trips: RoundTrips,
        pacer: Pacer,
        statistics: Statistics,
        complete: Callable[[Rows, Array, Any], None],
    ) -> None:
        self._plan, self._slots, self._native = plan, slots, native
        self._exponents, self._queues = exponents, queues
        self._detector, self._contributions = detector, contributions
        self._trips, self._pacer, self._statistics = trips, pacer, statistics
        self._complete = complete

    @staticmethod
    def can(plan: WorkerPlan) -> bool:
        """Returns true if results of such a plan are plain."""
        return not (plan.is_asynchronous or plan.pipeline.pulls or plan.optimizer is not None)

    def release(
        self, times: Seconds, batch: Batch, clock: Clock, enough: Enough
    ) -> Released | None:
        """Takes a prefix of results that arrived at these ascending times (n,).

        The prefix ends at `enough` or before the first result that needs individual processing.
        Returns None, with nothing changed, if that is the first.
        """
        slots, native = self._slots, self._native
        trips, pacer, statistics = self._trips, self._pacer, self._statistics
        if not behind(batch) or float(times[-1]) * clock.second >= EXACT / 2:
            return None
        rows = native.plain(times, batch)
        if not len(rows) or not self._due_fits():
            return None
        tickets = np.where(slots.exponent_round[rows], -1, slots.ticket[rows])
        most = enough(tickets)
        if most < len(times) and times[most] <= times[most - 1]:
            most -= 1  # both arrive at the same time
        most = self._detector.constant(most)
        taken, quiet = self._longest(times, rows, most)
        if quiet is None:
            return None
        if taken < len(times):
            times, rows, batch = times[:taken], rows[:taken], batch.select(slice(taken))
        windows = zip(self._queues, slots.windows, strict=True)
        entries = [queue.first(window) for queue, window in windows]
        sizes = Pacer.wire_bytes(np.array([False, True]), self._plan.lanes)
        small, large = (int(size) for size in sizes)
        found = native.steps(times, rows, quiet, pacer, entries, (small, large), clock)
        if found is None or not self._fits(found) or not clock.room(found.times, found.sizes):
            return None
        trips.state[:] = quiet.trips
        self._detector.adopt(len(rows), quiet.latest, quiet.gaps)
        native.rearm_timers(found.rings.tolist(), self._detector.timeouts().tolist())
        congested = int(np.count_nonzero(batch.headers["flags"] & np.uint8(Flag.ECN)))
        statistics.congested += congested
        self._complete(rows, batch.headers, batch.payloads)
        sent = None
        if len(found.rows):
            sent = self._contributions.packets(_NONE, found.rows)
            statistics.sent += len(found.rows)
            native.note_sent(found.rows, found.leave, found.deadlines)
        pacer.clear = found.clear
        following = found.following
        if math.isinf(following):
            none = [-math.inf] * len(slots.windows)
            following = native.rearm_timers(none, none)
        return Released(taken, sent, found.times, found.sent, following)

    def _longest(self, times: Seconds, rows: Rows, most: int) -> tuple[int, Quiet | None]:
        """Returns the length of the longest quiet prefix of the results, up to `most`, and what
        `NativeState.quiet` gives for it. Every prefix of a quiet prefix is quiet."""
        quiet, loud, found = 0, most + 1, None
        count = most
        while loud - quiet > 1:
            last = self._native.quiet(times[:count], rows[:count], self._trips, self._detector)
            if last is None:
                loud = count
            else:
                quiet, found = count, last
            count = (quiet + loud) // 2
        return quiet, found

    def _due_fits(self) -> bool:
        """Returns true if data that is due but unsent, in windows from before, fits into integers:
        it is quantised when it is sent."""
        slots = self._slots
        if not slots.width:
            return True
        data = (slots.due & ~slots.exponent_round).nonzero()[0]
        return not (slots.unfit[data].any() or (slots.own[data] > slots.exponent[data]).any())

    def _fits(self, found: SendSchedule) -> bool:
        """Returns true if all data that entered or became due fits into integers."""
        slots, exponents = self._slots, self._exponents
        if not slots.width:
            return True
        if slots.unfit[found.released].any():
            return False
        for queue, after, taken in zip(self._queues, found.after, found.taken, strict=True):
            at = 0
            for entries, _ in queue.pending():
                piece = entries[: taken - at]
                if not len(piece):
                    break
                waits = after[at : at + len(piece)] != 0
                at += len(piece)
                if piece["unfit"].any():
                    return False
                ones = piece[~piece["exponent_round"] & ~waits]
                if (ones["own"] > exponents.exponents(ones["chunk"], ones["round"])).any():
                    return False
        return True
