# SPDX-License-Identifier: Apache-2.0
"""A worker's transport as its arrays, for what goes number by number in C (``runtime/worker.h``).

Each method is what it names does in Python with numpy, which says what it is to come to. The arrays
are those of `Slots` and `Exponents` themselves, so either way goes on from what the other has left.
"""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hosts.native.library import library
from hosts.net.arrivals import Clock, Numbers, Seconds
from hosts.net.pacer import Pacer
from hosts.worker.loss_detection import LossDetector
from hosts.worker.round_trips import Measured, RoundTrips
from hosts.worker.slots import Rows, Slots
from protocol.exponents import Exponents
from protocol.header import HEADER_BYTES, PEER, Array, Batch
from protocol.plan import WorkerPlan
from switch.lines import address

_BY_ROW = ("stage", "flags", "due", "probe_pending", "seq", "hash", "server", "failures", "mark",
           "exponent", "entry", "progress", "deadline", "results", "stream")  # fmt: skip
_BY_STREAM = ("common", "bases", "masks", "windows", "priorities", "stream_index")
_BY_CHUNK = ("contacted", "first", "after", "folded", "chunk_server", "servers")
_NUMBERS = ("streams", "chunks", "width", "exponent_headroom", "world", "rank", "job", "epoch")


class _Worker(ctypes.Structure):
    """`struct worker` of runtime/worker.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in (*_BY_ROW, *_BY_STREAM, *_BY_CHUNK)),
        *((name, ctypes.c_int64) for name in _NUMBERS),
    )


class _Releases(ctypes.Structure):
    """`struct releases` of runtime/releases.c."""

    _fields_ = (
        *(
            (name, ctypes.c_void_p)
            for name in (
                "worker", "left", "next", "taken", "entries", "starts", "smoothed", "variation",
                "timeouts", "late", "rings", "after", "times", "rows", "released", "sent_rows",
                "sent_sizes", "sent_times", "sent_leave", "sent_deadlines",
            )
        ),
        *((name, ctypes.c_int64) for name in ("results", "large", "small")),
        *(
            (name, ctypes.c_double)
            for name in ("rate", "backlog", "clear", "least", "most", "tick", "second", "following")
        ),
        *((name, ctypes.c_int64) for name in ("releases", "sent", "spent")),
    )  # fmt: skip


class _Quiet(ctypes.Structure):
    """`struct quiet` of runtime/releases.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("latest", "lowest", "smoothed", "timeouts")),
        ("least", ctypes.c_double),
        ("servers", ctypes.c_int64),
    )


class _Taken(ctypes.Structure):
    """`struct taken` of runtime/rows.c."""

    _fields_ = (
        *(
            (name, ctypes.c_void_p)
            for name in ("rows", "tickets", "chunks", "flags", "places", "exponents")
        ),
        ("coarse", ctypes.c_int64),
    )


_NO_MEMORY, _RELEASED = 0, 1


class Taken(NamedTuple):
    """Of results that were taken those with data: their rows, tickets, chunks, flags and places
    among all; how many sums are coarse. found, exponents: chunks of exponent rounds, and what these
    have found."""

    rows: Rows
    tickets: Numbers
    chunks: Numbers
    flags: npt.NDArray[np.uint8]
    places: Numbers
    coarse: int
    found: Numbers
    exponents: npt.NDArray[np.int8]


class Quiet(NamedTuple):
    """Behind results that lead to no question: the streams' lowest round trips, and `latest` of
    LossDetector; None: it is not known."""

    lowest: Seconds
    latest: Seconds | None


class SendSchedule(NamedTuple):
    """What is sent (n,): rows of the slots in their order, bytes on the wire, when they are handed
    over, when they leave the host, and when to ask about them. taken: by stream, how many entries
    of its queue entered the window. rings: by stream, the time before which none of its timers
    rings; -inf: no result of it came. sent: whether anything left at the last result; following:
    when to ask again. released: rows that were held at first, and became due. after: by stream, of
    each entry that could enter whether its exponent is what the one before it finds. measured:
    round trips as they are then (see RoundTrips.take); clear: as of the pacer."""

    rows: Rows
    sizes: Numbers
    times: Seconds
    leave: Seconds
    deadlines: Seconds
    taken: list[int]
    rings: Seconds
    sent: bool
    following: float
    released: Rows
    after: list[npt.NDArray[np.uint8]]
    measured: Measured
    clear: float


class NativeState:
    """Of one transport. common: (streams,) HEADER, what each one's packets have in common; servers:
    (n,) PEER by rank; stream_index: (256,) by the number that packets have, -1: none. Only where it
    `can` be."""

    def __init__(
        self,
        plan: WorkerPlan,
        slots: Slots,
        exponents: Exponents,
        common: Array,
        servers: Array,
        stream_index: npt.NDArray[np.intp],
    ) -> None:
        self._lib: Any = library()
        self._slots = slots
        shares = plan.shares.servers
        self._arrays: dict[str, Any] = {
            "stage": slots.stage, "flags": slots.flags, "due": slots.due,
            "probe_pending": slots.probe_pending, "seq": slots.seq, "hash": slots.hash,
            "server": slots.server, "failures": slots.failures, "mark": slots.mark,
            "exponent": slots.exponent, "entry": slots.entry, "progress": slots.progress,
            "deadline": slots.deadline, "results": slots.result_headers,
            "common": common, "stream": slots.stream, "bases": slots.bases, "masks": slots.masks,
            "windows": np.array(slots.windows, np.int64), "priorities": slots.priorities,
            "stream_index": stream_index, "chunk_server": shares, "servers": servers,
            **exponents.columns(),
        }  # fmt: skip
        self._worker = _Worker(
            **{name: address(array) for name, array in self._arrays.items()},
            streams=len(slots.windows), chunks=len(shares) - 1, width=slots.width,
            exponent_headroom=exponents.exponent_headroom, world=plan.world, rank=plan.rank,
            job=plan.job, epoch=plan.epoch,
        )  # fmt: skip
        self._at = ctypes.addressof(self._worker)
        self._rows = len(slots.stage)
        self._most = 3 * sum(slots.windows)  # due at first, let go, and entering

    @staticmethod
    def can(plan: WorkerPlan, exponents: Exponents) -> bool:
        """Whether there is a compiler, and all are plain sums; else numpy does it."""
        return library() is not None and plan.optimizer is None and not exponents.staleness

    def plain(self, times: Seconds, batch: Batch) -> Rows:
        """The rows of the first results that are nothing but sums of numbers that wait for them.

        Each is there once and at a time of its own, in a transport in which nothing else is to be
        done meanwhile. Headers and peers lie one behind the other."""
        n, words, numbers = len(times), batch.payloads, self._open()
        rows = np.empty(n, np.intp)
        plain = self._lib.plain_results(
            self._at, address(batch.headers), address(batch.peers),
            words.__array_interface__["data"][0], words.strides[0], address(batch.full),
            address(times), n, address(numbers), address(rows),
        )  # fmt: skip
        return rows[:plain]

    def quiet(
        self, times: Seconds, rows: Rows, trips: RoundTrips, detector: LossDetector
    ) -> Quiet | None:
        """The streams' lowest round trips behind these results.

        None if a question may come of them, or a timer may ring until the last, of what was sent
        before or of what is."""
        latest, lowest, numbers = detector.latest.copy(), trips.lowest.copy(), self._open()
        native = _Quiet(
            address(latest), address(lowest), address(trips.smoothed), address(trips.timeouts),
            trips.least, detector.servers,
        )  # fmt: skip
        quiet = self._lib.stay_quiet(
            self._at, ctypes.byref(native), address(times), address(rows), len(rows),
            address(numbers),
        )  # fmt: skip
        return Quiet(lowest, latest) if quiet else None

    def steps(
        self,
        times: Seconds,
        rows: Rows,
        trips: RoundTrips,
        pacer: Pacer,
        entries: Sequence[Array],
        sizes: tuple[int, int],
        clock: Clock,
    ) -> SendSchedule | None:
        """Moves windows, sends what the link has room for, and sets timers, result by result, in
        numbers alone; None if something waits for more than these results.

        times, rows: of the results; trips and pacer: as they are before them; entries: of each
        stream, those that could enter; sizes: bytes on the wire without and with payload.
        """
        slots, measured = self._slots, trips.copies()
        streams, most = len(slots.windows), self._most
        starts = [0, *itertools.accumulate(map(len, entries))]
        places = [one.ctypes.data for one in entries]
        numbers = np.array([*slots.left, *slots.next, *[0] * streams, *places, *starts], np.int64)
        after = np.empty(max(starts[-1], 1), np.uint8)
        rings = np.empty(streams)
        sent = np.empty((6, most), np.int64)
        leaving = sent[3:].view(np.float64)
        first, row, at, wide = address(numbers), 8 * streams, address(sent), 8 * most
        smoothed, variation, timeouts, late = measured
        small, large = sizes
        native = _Releases(
            self._at, first, first + row, first + 2 * row, first + 3 * row, first + 4 * row,
            address(smoothed), address(variation), address(timeouts), address(late),
            address(rings), address(after), address(times), address(rows),
            at, at + wide, at + 2 * wide, at + 3 * wide, at + 4 * wide, at + 5 * wide,
            len(times), large, small, pacer.rate, pacer.backlog, pacer.clear, trips.least,
            trips.most, clock.tick, clock.second, math.inf, 0, 0, 0,
        )  # fmt: skip
        result = self._lib.release_steps(ctypes.byref(native))
        if result == _NO_MEMORY:
            raise MemoryError("no memory for what a worker sends")
        if result != _RELEASED:
            return None
        count = native.sent
        return SendSchedule(
            sent[1, :count],
            sent[2, :count],
            leaving[0, :count],
            leaving[1, :count],
            leaving[2, :count],
            numbers[2 * streams : 3 * streams].tolist(),
            rings,
            native.spent > 0,
            native.following,
            sent[0, : native.releases],
            [after[a:b] for a, b in itertools.pairwise(starts)],
            measured,
            native.clear,
        )

    def take(self, rows: Rows, headers: Array) -> Taken:
        """Integer sums, not flagged, that are good: `WorkerTransport._take`, but for values and for
        what exponent rounds have found."""
        n = len(rows)
        numbers, small = np.empty((4, n), np.int64), np.empty((2, n), np.uint8)
        first = address(numbers)
        flags = address(small)
        told = _Taken(first, first + 8 * n, first + 16 * n, flags, first + 24 * n, flags + n)
        count = self._lib.take_results(
            self._at, address(rows), address(headers), n, ctypes.byref(told)
        )
        found, exponents = numbers[2, count:], small[1, count:].view(np.int8)
        rows, tickets, chunks, places = numbers[:, :count]
        return Taken(rows, tickets, chunks, small[0, :count], places, told.coarse, found, exponents)

    def first_open(self, stream: int, left: int, following: int) -> int:
        """The lowest number of a stream from `left` on that has no result."""
        return int(self._lib.first_open(self._at, stream, left, following))

    def enter(self, stream: int, number: int, entries: Array) -> None:
        """`Slots.enter` of entries that get these numbers, but for values."""
        self._lib.enter_rows(self._at, stream, number, address(entries), len(entries))

    def activate_held(self, stage: int) -> None:
        """Data whose exponent is known is due, in this stage: `WorkerTransport._advance`."""
        self._lib.activate_held(self._at, self._rows, stage)

    def note_sent(self, rows: Rows, times: Seconds, deadlines: Seconds) -> None:
        """CONTRIBUTEs were sent, for the first time: `WorkerTransport._account`."""
        self._lib.note_sent(self._at, address(rows), len(rows), address(times), address(deadlines))

    def rearm_timers(self, rings: Sequence[float], timeouts: Sequence[float]) -> float:
        """Runs `LossDetector.restart` for each stream; returns the earliest deadline."""
        slots = self._slots
        first: float = min(
            self._lib.rearm_timers(
                self._at, stream, slots.left[stream], slots.next[stream], ring, timeout
            )
            for stream, (ring, timeout) in enumerate(zip(rings, timeouts, strict=True))
        )
        return first

    def write(self, rows: Rows, headers: Array, full: npt.NDArray[np.bool_]) -> Array:
        """CONTRIBUTEs of chunks without payload: `Contributions.packets`; returns (n,) PEER where
        they go."""
        peers = np.empty(len(rows), PEER)
        self._lib.write_contributions(
            self._at, address(rows), len(rows), headers.ctypes.data, headers.strides[0],
            address(full), address(peers),
        )  # fmt: skip
        return peers

    def _open(self) -> Numbers:
        """(streams, 2) each one's left and next."""
        numbers: Numbers = np.array([self._slots.left, self._slots.next], np.int64).T.copy()
        return numbers


def behind(batch: Batch) -> bool:
    """Whether headers and peers of a batch lie one behind the other."""
    return (
        batch.headers.strides[0] == HEADER_BYTES
        and batch.peers.strides[0] == PEER.itemsize
        and (not batch.payloads.size or batch.payloads.strides[1] == batch.payloads.itemsize)
        and bool(batch.full.flags.c_contiguous)
    )
