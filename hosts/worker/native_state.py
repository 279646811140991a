# SPDX-License-Identifier: Apache-2.0
"""A worker's transport state as arrays, for the C code that works number by number
(``hosts/native/worker.h``).

Each method is equivalent to the numpy method that its docstring names, which is the reference. The
arrays are those of `Slots` and `Exponents` themselves, so either implementation can follow the
other.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hosts.native.loader import check_constants, load_native
from hosts.net.arrivals import Clock, Numbers, Seconds
from hosts.net.pacer import Pacer
from hosts.worker.chunk_queues import ENTRY
from hosts.worker.loss_detection import KINDS, SOONER, LossDetector
from hosts.worker.round_trips import RoundTrips
from hosts.worker.slots import DONE, PROGRESS, Rows, Slots
from protocol.exponents import Exponents
from protocol.header import HEADER_BYTES, LANE, LANE_BYTES, PEER, Array, Batch
from protocol.payloads import NO_EXPONENT
from protocol.plan import WorkerPlan
from switch.ports.paced_line import address

_BY_ROW = ("stage", "flags", "due", "probe_pending", "seq", "hash", "server", "failures", "mark",
           "exponent", "entry", "progress", "deadline", "results", "stream")  # fmt: skip
_BY_STREAM = ("common", "bases", "masks", "limits", "priorities", "stream_index")
_BY_CHUNK = ("contacted", "first", "after", "folded", "chunk_server", "servers")
_NUMBERS = ("streams", "chunks", "width", "exponent_headroom", "world", "rank", "job", "epoch")
_OF_CODEC = ("sum_digits", "finest_scale", "least_digits", "least_exponent", "most_exponent")


class _Worker(ctypes.Structure):
    """`struct worker` of hosts/native/worker.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in (*_BY_ROW, *_BY_STREAM, *_BY_CHUNK)),
        *((name, ctypes.c_int64) for name in (*_NUMBERS, *_OF_CODEC)),
    )


class _Releases(ctypes.Structure):
    """`struct releases` of hosts/native/releases.c."""

    _fields_ = (
        *(
            (name, ctypes.c_void_p)
            for name in (
                "worker", "left", "next", "taken", "entries", "starts", "detection", "rings",
                "after", "times", "rows", "released", "sent_rows", "sent_sizes", "sent_times",
                "sent_leave", "sent_deadlines",
            )
        ),
        *((name, ctypes.c_int64) for name in ("results", "large", "small")),
        *(
            (name, ctypes.c_double)
            for name in ("rate", "backlog", "clear", "tick", "second", "following")
        ),
        *((name, ctypes.c_int64) for name in ("releases", "sent", "spent")),
    )  # fmt: skip


class Detection(ctypes.Structure):
    """`struct detection` of hosts/native/detection.h."""

    _fields_ = (
        *(
            (name, ctypes.c_void_p)
            for name in (
                "latest", "smoothed", "variation", "timeouts", "late", "lowest", "last", "gap",
                "gap_variation",
            )
        ),
        *((name, ctypes.c_double) for name in ("least", "most")),
        *((name, ctypes.c_int64) for name in ("servers", "lossy")),
    )  # fmt: skip

    @classmethod
    def of(
        cls,
        detector: LossDetector,
        trips: RoundTrips,
        latest: Seconds,
        state: Seconds,
        gaps: Seconds,
    ) -> Detection:
        """Returns the structure for these arrays: `LossDetector.latest`, and `state` of RoundTrips
        and ResultGaps, or copies."""
        rows = [
            address(array) + row * array.strides[0]
            for array in (state, gaps)
            for row in range(len(array))
        ]
        return cls(
            address(latest), *rows, trips.least, trips.most, detector.servers, detector.lossy
        )


class _Taken(ctypes.Structure):
    """`struct taken` of hosts/native/rows.c."""

    _fields_ = (
        *(
            (name, ctypes.c_void_p)
            for name in ("rows", "tickets", "chunks", "flags", "places", "exponents")
        ),
        ("coarse", ctypes.c_int64),
    )


_NO_MEMORY, _RELEASED = 0, 1


class Taken(NamedTuple):
    """Results that were taken.

    rows, tickets, chunks, flags: of results with data.
    places: indices of these among all results.
    coarse: number of coarse sums.
    found, exponents: chunks of exponent rounds and the exponents that they found.
    """

    rows: Rows
    tickets: Numbers
    chunks: Numbers
    flags: npt.NDArray[np.uint8]
    places: Numbers
    coarse: int
    found: Numbers
    exponents: npt.NDArray[np.int8]


class Quiet(NamedTuple):
    """State of loss detection after results that lead to no probe; its arrays are copies.

    native: the same, for C.
    latest, trips, gaps: of LossDetector, RoundTrips and ResultGaps.
    """

    native: Detection
    latest: Seconds
    trips: Seconds
    gaps: Seconds


class SendSchedule(NamedTuple):
    """Packets that leave while a batch of results arrives.

    rows, sizes: (n,) of the packets in sending order; bytes on the wire.
    times, leave, deadlines: (n,) when they are handed over, leave the host, and are to be probed.
    taken: by stream, entries that entered the window.
    rings: by stream, lower bound of its timers; -inf: no result of it arrived.
    sent: true if anything left at the time of the last result.
    following: time of the next poll.
    released: rows that were held and became due.
    after: by stream, for each entry that could enter, 1 if the entry before it finds its exponent.
    clear: of the pacer.
    """

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
    clear: float


class NativeState:
    """Native view of one transport's state, available only where `can` returns true.

    common: (streams,) HEADER, the fields shared by all packets of a stream.
    servers: (n,) PEER by rank.
    stream_index: (256,) index by the stream number in packets; -1: none.
    priorities: (streams,) of the scheduler.
    """

    def __init__(
        self,
        plan: WorkerPlan,
        slots: Slots,
        exponents: Exponents,
        common: Array,
        servers: Array,
        stream_index: npt.NDArray[np.intp],
        priorities: Numbers,
    ) -> None:
        self._lib: Any = load_native()
        _check(self._lib)
        self._slots = slots
        shares = plan.shares.servers
        self._arrays: dict[str, Any] = {
            "stage": slots.stage, "flags": slots.flags, "due": slots.due,
            "probe_pending": slots.probe_pending, "seq": slots.seq, "hash": slots.hash,
            "server": slots.server, "failures": slots.failures, "mark": slots.mark,
            "exponent": slots.exponent, "entry": slots.entry, "progress": slots.progress,
            "deadline": slots.deadline, "results": slots.result_headers,
            "common": common, "stream": slots.stream, "bases": slots.bases, "masks": slots.masks,
            "limits": slots.limits, "priorities": priorities,
            "stream_index": stream_index, "chunk_server": shares, "servers": servers,
            **exponents.columns(),
        }  # fmt: skip
        self._worker = _Worker(
            **{name: address(array) for name, array in self._arrays.items()},
            streams=len(slots.windows), chunks=len(shares) - 1, width=slots.width,
            exponent_headroom=exponents.exponent_headroom, world=plan.world, rank=plan.rank,
            job=plan.job, epoch=plan.epoch,
            **{name: getattr(plan.codec, name) for name in _OF_CODEC},
        )  # fmt: skip
        self.at = ctypes.addressof(self._worker)
        self._rows = len(slots.stage)
        self._nearest = plan.codec.rounds_to_nearest
        self._sums = address(slots.sums_at), address(slots.result_words)
        self._most = 3 * sum(slots.windows)  # due at first, activated, and entering

    @staticmethod
    def can(plan: WorkerPlan, exponents: Exponents) -> bool:
        """Returns true if there is a compiler and the job has plain sums only."""
        return load_native() is not None and plan.optimizer is None and not exponents.staleness

    def plain(self, times: Seconds, batch: Batch) -> Rows:
        """Returns the rows of the longest prefix of results that are plain.

        A plain result is an integer sum that a number waits for, arrives once and at a time of its
        own, and nothing else is due in the transport meanwhile. Headers and peers must be
        contiguous.
        """
        n, words, numbers = len(times), batch.payloads, self.open()
        rows = np.empty(n, np.intp)
        plain = self._lib.plain_results(
            self.at, address(batch.headers), address(batch.peers),
            words.__array_interface__["data"][0], words.strides[0], address(batch.full),
            address(times), n, address(numbers), address(rows),
        )  # fmt: skip
        return rows[:plain]

    def quiet(
        self, times: Seconds, rows: Rows, trips: RoundTrips, detector: LossDetector
    ) -> Quiet | None:
        """Returns the state after these results, or None if they may lead to a probe, or a timer
        may expire before the last of them."""
        latest, state, gaps = detector.latest.copy(), trips.state.copy(), detector.gaps.state.copy()
        native, windows = Detection.of(detector, trips, latest, state, gaps), self.open()
        quiet = self._lib.stay_quiet(
            self.at, ctypes.byref(native), address(times), address(rows), len(rows),
            address(windows),
        )  # fmt: skip
        return Quiet(native, latest, state, gaps) if quiet else None

    def steps(
        self,
        times: Seconds,
        rows: Rows,
        quiet: Quiet,
        pacer: Pacer,
        entries: Sequence[Array],
        sizes: tuple[int, int],
        clock: Clock,
    ) -> SendSchedule | None:
        """Moves windows, sends what the link has room for and sets timers, result by result.

        Returns None if something waits for more than these results. Values are not touched.

        times, rows: of the results.
        quiet: after the results, but for round trips, which change.
        pacer: before the results.
        entries: by stream, those that could enter.
        sizes: bytes on the wire without and with payload.
        """
        slots = self._slots
        streams, most = len(slots.windows), self._most
        starts = [0, *itertools.accumulate(map(len, entries))]
        places = [one.ctypes.data for one in entries]
        numbers = np.array([*slots.left, *slots.next, *[0] * streams, *places, *starts], np.int64)
        after = np.empty(max(starts[-1], 1), np.uint8)
        rings = np.empty(streams)
        sent = np.empty((6, most), np.int64)
        leaving = sent[3:].view(np.float64)
        first, row, at, wide = address(numbers), 8 * streams, address(sent), 8 * most
        small, large = sizes
        native = _Releases(
            self.at, first, first + row, first + 2 * row, first + 3 * row, first + 4 * row,
            ctypes.addressof(quiet.native), address(rings), address(after), address(times),
            address(rows), *(at + place * wide for place in range(6)),
            len(times), large, small, pacer.rate, pacer.backlog, pacer.clear, clock.tick,
            clock.second, math.inf, 0, 0, 0,
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
            native.clear,
        )

    def take(self, rows: Rows, headers: Array) -> Taken:
        """Takes good, unflagged integer sums as `WorkerTransport._take` does, except for values and
        the exponents found."""
        n = len(rows)
        numbers, small = np.empty((4, n), np.int64), np.empty((2, n), np.uint8)
        first = address(numbers)
        flags = address(small)
        taken = _Taken(first, first + 8 * n, first + 16 * n, flags, first + 24 * n, flags + n)
        count = self._lib.take_results(
            self.at, address(rows), address(headers), n, ctypes.byref(taken)
        )
        found, exponents = numbers[2, count:], small[1, count:].view(np.int8)
        rows, tickets, chunks, places = numbers[:, :count]
        return Taken(
            rows, tickets, chunks, small[0, :count], places, taken.coarse, found, exponents
        )

    def keep_sums(self, rows: Rows, words: Any) -> bool:
        """Keeps the words of results with data and writes their sums: `keep_and_dequantise`.

        Returns whether it could.
        """
        if not self._nearest or words.dtype != LANE or words.strides[1] != LANE_BYTES:
            return False
        return bool(
            self._lib.keep_sums(
                self.at, address(rows), len(rows), words.__array_interface__["data"][0],
                words.strides[0], *self._sums,
            )
        )  # fmt: skip

    def first_open(self, stream: int, left: int, following: int) -> int:
        """Returns the lowest number of a stream from `left` on that has no result."""
        return int(self._lib.first_open(self.at, stream, left, following))

    def enter(self, stream: int, number: int, entries: Array) -> None:
        """Does `Slots.enter` for entries that get consecutive numbers from `number` on, except for
        values."""
        self._lib.enter_rows(self.at, stream, number, address(entries), len(entries))

    def activate_held(self, stage: int) -> None:
        """Makes held data due in `stage` where its exponent is known:
        `WorkerTransport._advance`."""
        self._lib.activate_held(self.at, self._rows, stage)

    def note_sent(self, rows: Rows, times: Seconds, deadlines: Seconds) -> None:
        """Records the first transmission of CONTRIBUTEs: `WorkerTransport._account`."""
        self._lib.note_sent(self.at, address(rows), len(rows), address(times), address(deadlines))

    def rearm_timers(self, rings: Sequence[float], timeouts: Sequence[float]) -> float:
        """Runs `LossDetector.restart` for each stream; returns the earliest deadline."""
        slots = self._slots
        first: float = min(
            self._lib.rearm_timers(
                self.at, stream, slots.left[stream], slots.next[stream], ring, timeout
            )
            for stream, (ring, timeout) in enumerate(zip(rings, timeouts, strict=True))
        )
        return first

    def write(self, rows: Rows, headers: Array, full: npt.NDArray[np.bool_]) -> Array:
        """Writes CONTRIBUTEs of chunks without payload: `Contributions.packets`; returns their
        destinations (n,) PEER."""
        peers = np.empty(len(rows), PEER)
        self._lib.write_contributions(
            self.at, address(rows), len(rows), headers.ctypes.data, headers.strides[0],
            address(full), address(peers),
        )  # fmt: skip
        return peers

    def open(self) -> Numbers:
        """Returns (streams, 2): each stream's left and next."""
        numbers: Numbers = np.array([self._slots.left, self._slots.next], np.int64).T.copy()
        return numbers


@functools.cache
def _check(lib: ctypes.CDLL) -> None:
    """Raises RuntimeError if structures or numbers here differ from those of the C code."""
    structures = {"worker": _Worker, "releases": _Releases, "detection": Detection, "taken": _Taken}
    sizes = {f"{name}_bytes": ctypes.sizeof(one) for name, one in structures.items()}
    records = {"entry_bytes": ENTRY.itemsize, "progress_bytes": PROGRESS.itemsize}
    check_constants(
        lib,
        {
            **sizes,
            **records,
            "done_stage": DONE,
            "no_exponent": NO_EXPONENT,
            "sooner": SOONER,
            "kinds": KINDS,
        },
    )


def behind(batch: Batch) -> bool:
    """Returns true if headers and peers of a batch are contiguous."""
    return (
        batch.headers.strides[0] == HEADER_BYTES
        and batch.peers.strides[0] == PEER.itemsize
        and (not batch.payloads.size or batch.payloads.strides[1] == batch.payloads.itemsize)
        and bool(batch.full.flags.c_contiguous)
    )
