# SPDX-License-Identifier: Apache-2.0
"""A worker's chunks in flight: one row per slot, all streams in one set of arrays.

A stream with window W has 2W rows, as the nodes of its tree have 2W slots; number `seq` is in row
`base + seq mod 2W`. Numbers enter in order, `seq` only after the result of `seq - W`, so at most W
rows are open, and the results of the last W numbers are still in the others. C changes the arrays
(``hosts/native/worker.h``); what is rare, such as a change of epoch, reads them here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hosts.data.array_pool import demand_columns
from hosts.data.submissions import Scattered, Submission
from hosts.native.structures import structures
from hosts.worker.chunk_queues import ENTRY
from protocol.header import HEADER, LANE, Array, Words
from protocol.plan import WorkerPlan
from switch.ports.paced_line import address

Rows = npt.NDArray[np.intp]


# Stages of a number: plain integers, as they are compared with arrays everywhere.
EMPTY = 0
HELD = 1  # in the window, its exponent is not known yet
WAITING = 2  # sent, or due, for its integer sum
DIRECT = 3  # sent, or due, for its float32 sum, to the server
DONE = 4  # its result has arrived

PROGRESS = np.dtype(structures("worker.h")["progress"])
_PLACE = np.dtype(structures("worker.h")["submission"])
PROBING = np.dtype(structures("worker.h")["probing"])
_UNPROBED = np.zeros((), PROBING)
_UNPROBED["state_time"] = np.nan


# Arrays by row. For `probing`, see `Slots.probing_of`.
_COLUMNS: dict[str, Any] = {
    "stage": np.uint8, "seq": np.uint32, "entry": ENTRY, "progress": PROGRESS, "probing": PROBING,
    "result_headers": HEADER,
}  # fmt: skip


class Submissions:
    """The submissions of which a sum is missing, by place.

    table: (places,) where each has its values and sums, as C reads it; another one after `add`.
    """

    def __init__(self) -> None:
        self.table: Array = np.zeros(2, _PLACE)
        self._held: dict[int, Submission] = {}
        self._free = [1, 0]

    def add(self, submission: Submission) -> int:
        """Adds a submission; returns its place."""
        if not self._free:
            size = len(self.table)
            self.table = np.concatenate([self.table, self.table])
            self._free = [*range(2 * size - 1, size - 1, -1)]
        place = self._free.pop()
        self._held[place] = submission
        self._point(place, submission)
        return place

    def own(self) -> None:
        """Copies scattered values of all submissions."""
        for place, submission in self._held.items():
            submission.own()
            self._point(place, submission)

    def _point(self, place: int, submission: Submission) -> None:
        values, sums = submission.values, address(submission.sums)
        if isinstance(values, Scattered):
            self.table[place] = 0, sums, submission.averages, address(values.rows)
        else:
            self.table[place] = address(values), sums, submission.averages, 0

    def take(self, place: int, sums: int) -> Submission:
        """Returns a submission of which so many more sums are there; removes a complete one."""
        submission = self._held[place]
        submission.missing -= sums
        if not submission.missing:
            del self._held[place]
            self._free.append(place)
        return submission


class Slots:
    """The arrays, of which some are fields of `entry` and `progress`.

    payload: true if chunks have one; else `width`, the values of each, is 0.
    """

    def __init__(self, plan: WorkerPlan, *, payload: bool = True) -> None:
        self.width = plan.lanes if payload else 0
        self.windows = [stream.window for stream in plan.streams]
        self.bases = np.concatenate(([0], np.cumsum([2 * w for w in self.windows])))[:-1]
        self.masks = np.array([2 * w - 1 for w in self.windows])
        n = sum(2 * window for window in self.windows)
        places = np.arange(len(plan.streams), dtype=np.uint8)
        streams = np.repeat(places, [2 * w for w in self.windows])
        # Of the stream that a row belongs to.
        self.stream = streams
        self.stream_number = np.array([s.stream for s in plan.streams], np.uint8)[streams]
        # Of the number that is in it.
        columns = demand_columns(n, _COLUMNS)
        self.stage, self.seq, self.entry, self.progress, self.probing, self.result_headers = (
            columns.values()
        )
        self.exponent_round = self.entry["exponent_round"]
        self.chunk = self.entry["chunk"]
        self.round = self.entry["round"]
        self.order = self.entry["order"]
        self.sent = self.progress["sent"]
        # The result, kept until the row is used again.
        self.result_words: Words = np.zeros((n, self.width), LANE)
        # By stream: most numbers in flight (see hosts.worker.congestion), a number that all before
        # have their results, and the next to enter.
        self.limits = np.array(self.windows, np.int64)
        self.left = np.zeros(len(plan.streams), np.int64)
        self.next = np.zeros(len(plan.streams), np.int64)
        self.submissions = Submissions()

    def probing_of(self, rows: Rows) -> Array:
        """Returns what few numbers have, of these rows (n,): PROBING, as if fresh of the others."""
        found = self.probing[rows]
        found[~self.progress["probed"][rows]] = _UNPROBED
        return found

    def rows(self, stream: int, numbers: Any) -> Rows:
        """Returns the rows of these numbers of a stream (by index)."""
        result: Rows = self.bases[stream] + (numbers & self.masks[stream])
        return result
