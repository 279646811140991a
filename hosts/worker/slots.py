# SPDX-License-Identifier: Apache-2.0
"""A worker's chunks in flight: one row per slot, all streams in one set of arrays.

A stream with window W has 2W rows, as the nodes of its tree have 2W slots; number `seq` is in row
`base + seq mod 2W`. Numbers enter in order, `seq` only after the result of `seq - W`, so at most W
rows are open, and the results of the last W numbers are still in the others.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from hosts.data.submissions import ChunkRefs
from hosts.worker.chunk_queues import ENTRY, Queue
from protocol.header import HEADER, LANE, Array, Words, opaque
from protocol.plan import WorkerPlan

Rows = npt.NDArray[np.intp]


# Stages of a number: plain integers, as they are compared with arrays everywhere.
EMPTY = 0
HELD = 1  # in the window, its exponent is not known yet
WAITING = 2  # sent, or due, for its integer sum
DIRECT = 3  # sent, or due, for its float32 sum, to the server
DONE = 4  # its result has arrived

# Progress of a number in its stage. Times are in seconds; those of sending are when a packet leaves
# the host: a window may be handed over at once, but its packets leave one by one.
PROGRESS = np.dtype(
    [
        ("sent", "i8"),  # CONTRIBUTEs
        ("sent_first", "f8"),
        ("sent_last", "f8"),
        ("backoff", "i8"),
        ("probes", "i8"),  # unanswered QUERYs
        ("probed_last", "f8"),
        ("clean", "?"),  # its round trip may be a sample
        ("failed", "?"),  # a result of the last CONTRIBUTE failed its check
        ("state_node", "u2"),  # of the last STATE; time NaN if there was none
        ("state_phase", "u1"),
        ("state_children", "u4"),
        ("state_time", "f8"),
    ],
    align=True,
)
_UNSENT = np.zeros((), PROGRESS)
_UNSENT["state_time"] = np.nan


class NativeWindow(Protocol):
    """Moves windows in C; see `hosts.worker.native_state.NativeState`."""

    def first_open(self, stream: int, left: int, following: int) -> int: ...

    def enter(self, stream: int, number: int, entries: Array) -> None: ...


class Slots:
    """The arrays, public because the transport works on many rows of many columns at once.

    payload: true if chunks have one; else `width`, the values of each, is 0.
    native: moves windows number by number; None: numpy does.
    """

    native: NativeWindow | None = None

    def __init__(self, plan: WorkerPlan, *, payload: bool = True) -> None:
        self.width = plan.lanes if payload else 0
        self.windows = [stream.window for stream in plan.streams]
        self.bases = np.concatenate(([0], np.cumsum([2 * w for w in self.windows])))[:-1]
        self.masks = np.array([2 * w - 1 for w in self.windows])
        n = sum(2 * window for window in self.windows)
        streams = np.repeat(np.arange(len(plan.streams)), [2 * w for w in self.windows])
        # Of the stream that a row belongs to.
        self.stream = streams
        self.stream_number = np.array([s.stream for s in plan.streams], np.uint8)[streams]
        # Of the number that is in it. Columns that change together share memory as the fields of
        # one structured array, so that one assignment sets them all.
        self.stage = np.zeros(n, np.uint8)
        self.seq = np.zeros(n, np.uint32)
        self.server = np.zeros(n, np.intp)
        self.entry = np.zeros(n, ENTRY)
        self.exponent_round = self.entry["exponent_round"]
        self.chunk = self.entry["chunk"]
        self.lanes = self.entry["lanes"]
        self.round = self.entry["round"]
        self.ticket = self.entry["ticket"]
        self.order = self.entry["order"]
        self.own = self.entry["own"]
        self.unfit = self.entry["unfit"]
        self.row = self.entry["row"]
        self.submission = np.full(n, None, object)  # until it is complete
        # Where its values are, and where its sums go, as long.
        self.values_at = np.zeros(n, np.uint64)
        self.sums_at = np.zeros(n, np.uint64)
        self.exponent = np.zeros(n, np.int16)
        self.flags = np.zeros(n, np.uint8)
        self.hash = np.zeros(n, np.uint32)
        self.failures = np.zeros(n, np.int64)
        # Progress.
        self.due = np.zeros(n, np.bool_)  # a CONTRIBUTE is to be sent
        self.probe_pending = np.zeros(n, np.bool_)  # a QUERY is to be sent
        self.progress = np.full(n, _UNSENT, PROGRESS)
        self.sent = self.progress["sent"]
        self.sent_first = self.progress["sent_first"]
        self.sent_last = self.progress["sent_last"]
        self.deadline = np.full(n, np.inf)  # of the next probe; contiguous, as it is scanned
        self.backoff = self.progress["backoff"]
        self.probes = self.progress["probes"]
        self.probed_last = self.progress["probed_last"]
        self.clean = self.progress["clean"]
        self.failed = self.progress["failed"]
        self.state_node = self.progress["state_node"]
        self.state_phase = self.progress["state_phase"]
        self.state_children = self.progress["state_children"]
        self.state_time = self.progress["state_time"]
        self.mark = np.zeros(n, np.intp)  # for `first_of_each`
        # The result, kept until the row is used again.
        self.result_headers: Array = np.zeros(n, HEADER)
        self.result_words: Words = np.zeros((n, self.width), LANE)
        # By stream: most numbers in flight (see hosts.worker.congestion), lowest number without a
        # result, and the next to enter.
        self.limits = np.array(self.windows, np.int64)
        self.left = [0] * len(plan.streams)
        self.next = [0] * len(plan.streams)

    def rows(self, stream: int, numbers: Any) -> Rows:
        """Returns the rows of these numbers of a stream (by index)."""
        result: Rows = self.bases[stream] + (numbers & self.masks[stream])
        return result

    def places(self, rows: Rows) -> ChunkRefs:
        """Returns references to the chunks in these rows."""
        return ChunkRefs(self.submission[rows], self.row[rows])

    def pass_complete(self, stream: int) -> int:
        """Moves a stream's `left` past numbers that have their results; returns it."""
        left, following = self.left[stream], self.next[stream]
        if self.native is not None:
            left = self.native.first_open(stream, left, following)
        elif left < following:
            open_rows = self.rows(stream, np.arange(left, following))
            pending = self.stage[open_rows] != DONE
            left += int(pending.argmax()) if pending.any() else following - left
        self.left[stream] = left
        return left

    def enter(self, stream: int, queue: Queue, plan: WorkerPlan) -> int:
        """Moves numbers from a stream's queue into its window; returns how many.

        Exponent rounds are due at once; data is HELD until its exponent is known.
        """
        left, following = self.pass_complete(stream), self.next[stream]
        entered = 0
        for entries, submission in queue.take(left + int(self.limits[stream]) - following):
            number = following
            following += len(entries)
            entered += len(entries)
            numbers = np.arange(number, following)
            rows = self.rows(stream, numbers)
            self.submission[rows] = submission
            self.values_at[rows] = submission.values_at(entries["row"])
            self.sums_at[rows] = submission.sums_at(entries["row"])
            if self.native is not None:
                self.native.enter(stream, number, entries)
                continue
            whole = ~entries["exponent_round"]
            self.seq[rows] = numbers & 0xFFFFFFFF
            opaque(self.entry)[rows] = opaque(entries)
            self.server[rows] = plan.server_of(entries["chunk"])
            self.stage[rows] = np.where(whole, HELD, WAITING)
            self.due[rows] = ~whole
            self.exponent[rows] = 0
            self.flags[rows] = 0
            self.failures[rows] = 0
            self.restart(rows)
        self.next[stream] = following
        return entered

    def restart(self, rows: Rows) -> None:
        """Resets the progress of these rows: nothing is sent or probed in their stage."""
        opaque(self.progress)[rows] = opaque(_UNSENT)
        self.deadline[rows] = np.inf

    def first_of_each(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Returns a mask (n,) of the first occurrence of each value in `rows`."""
        here = np.arange(len(rows))
        self.mark[rows[::-1]] = here[::-1]  # of repeats the last assigned stays
        return np.asarray(self.mark[rows] == here, np.bool_)

    def finish(self, rows: Rows) -> None:
        """Marks rows whose results have arrived."""
        self.stage[rows] = DONE
        self.due[rows] = False
        self.probe_pending[rows] = False
        self.deadline[rows] = np.inf
