# SPDX-License-Identifier: Apache-2.0
"""One direction of a link in virtual time: a rate and a bounded queue, for many packets at a call.

The work is in C (runtime/io/line.h, which says what holds), the same for what leaves a switch's
port (`switch.timed`) and for any other sender. Nothing here reads a clock.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_int, c_int64, c_uint64
from ctypes import c_void_p as pointer
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from switch.ports import library as ports_library

NEVER = 2**63 - 1
_UNORDERED, _LATE, _SHORT = -10, -11, -12

Numbers = npt.NDArray[np.int64]


class LineError(ValueError):
    """Packets that cannot come to a line; the message says why."""


class LateError(LineError):
    """Packets that come before the last one of before."""


@dataclass(frozen=True)
class Line:
    """How packets are paced: a byte takes parts / whole ps, each frame `overhead` bytes more;
    shorter frames than `least` take as long as that. queue_bytes: of frames that may wait, beside
    the one that is being sent. longest: bytes of a frame; longer ones are dropped. parts 0: no
    time.
    """

    parts: int
    whole: int = 1
    overhead: int = 0
    least: int = 0
    longest: int = 16384
    queue_bytes: int = 128 * 1024

    def options(self) -> LineOptions:
        """As C takes it."""
        return LineOptions(
            self.parts, self.whole, self.overhead, self.least, self.longest, self.queue_bytes
        )


@dataclass(frozen=True)
class LineCounters:
    """dropped: packets that found the queue full. oversized: longer than the line's longest.
    queue_most: bytes that waited at once, with what came last."""

    dropped: int
    dropped_bytes: int
    oversized: int
    queue_most: int


class LineOptions(ctypes.Structure):
    """struct line_options"""

    _fields_ = (
        ("parts", c_uint64), ("whole", c_uint64), ("overhead", c_uint64), ("least", c_uint64),
        ("longest", c_uint64), ("limit", c_uint64),
    )  # fmt: skip


class NativeCounters(ctypes.Structure):
    """struct line_counters"""

    _fields_ = (
        ("dropped", c_uint64), ("dropped_bytes", c_uint64), ("oversized", c_uint64),
        ("queue_most", c_uint64),
    )  # fmt: skip

    def counters(self) -> LineCounters:
        """The same, of Python."""
        return LineCounters(self.dropped, self.dropped_bytes, self.oversized, self.queue_most)


class _Offer(ctypes.Structure):
    _fields_ = (
        ("n", c_uint64), ("stored", c_uint64), ("mark_above", c_uint64), ("times", pointer),
        ("lengths", pointer), ("ends", pointer), ("rows", pointer), ("marks", pointer),
        ("kept", c_uint64), ("bytes", c_uint64), ("wire", c_uint64), ("marked", c_uint64),
        ("free", c_int64),
    )  # fmt: skip


@cache
def _library() -> ctypes.CDLL:
    lib = ports_library()
    lib.line_create.restype = pointer
    lib.line_create.argtypes = [POINTER(LineOptions)]
    lib.line_destroy.restype = None
    lib.line_destroy.argtypes = [pointer]
    lib.line_read.restype = None
    lib.line_read.argtypes = [pointer, POINTER(NativeCounters)]
    lib.line_offer.restype = c_int
    lib.line_offer.argtypes = [pointer, POINTER(_Offer)]
    lib.line_held.restype = c_uint64
    lib.line_held.argtypes = [pointer, c_int64]
    lib.line_drained.restype = c_int64
    lib.line_drained.argtypes = [pointer, c_uint64]
    return lib


@dataclass(slots=True, eq=False)
class Sent:
    """What became of packets that were offered.

    rows: (k,) which are sent, None: all. ends: (k,) when the last bit leaves. marked: (m,) which
    of those k found more waiting than was asked about. length_bytes, wire_bytes: of the k, without
    and with all that goes with a frame.
    """

    rows: Numbers | None
    ends: Numbers
    marked: npt.NDArray[np.intp]
    length_bytes: int
    wire_bytes: int


class LineQueue:
    """The queue in front of a line, first in first out: what is offered is decided at once.

    free: when all that was taken has left (ps, rounded down).
    """

    def __init__(self, line: Line) -> None:
        self._native = _library()
        options = line.options()
        handle = self._native.line_create(byref(options))
        if not handle:
            raise MemoryError("no memory for a queue")
        self._handle = pointer(handle)
        self._offer = _Offer()
        self._room = 0
        self.free = 0

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._native.line_destroy(self._handle)

    def offer(
        self, times: Numbers, lengths: Numbers, stored: int, mark_above: int | None = None
    ) -> Sent:
        """Packets that come at these times (ps), no earlier than those of before, with frames of
        these lengths, of whose content `stored` bytes at most exist.

        mark_above: bytes, see `Sent.marked`; None: nothing. Raises LineError, and then has taken
        none; MemoryError.
        """
        n, offer = len(times), self._offer
        times, lengths = np.ascontiguousarray(times), np.ascontiguousarray(lengths)
        if n > self._room:
            self._grow(n)
        ends = np.empty(n, np.int64)
        offer.n, offer.stored = n, stored
        offer.mark_above = 2**64 - 1 if mark_above is None else mark_above
        offer.times, offer.lengths, offer.ends = address(times), address(lengths), address(ends)
        result = self._native.line_offer(self._handle, byref(offer))
        if result:
            raise _error(result)
        kept = offer.kept
        self.free = offer.free if n else self.free
        marked = np.flatnonzero(self._marks[:kept]) if offer.marked else _NONE
        if kept == n:
            return Sent(None, ends, marked, offer.bytes, offer.wire)
        return Sent(self._rows[:kept].copy(), ends[:kept], marked, offer.bytes, offer.wire)

    def _grow(self, n: int) -> None:
        """Room for what is hardly ever looked at, of an offer of n packets."""
        self._room = 2 * n
        self._rows, self._marks = np.empty(2 * n, np.int64), np.empty(2 * n, np.uint8)
        self._offer.rows, self._offer.marks = address(self._rows), address(self._marks)

    def waiting(self, at: int) -> int:
        """Bytes that wait at a time no earlier than the last packet's."""
        return int(self._native.line_held(self._handle, at))

    def drained(self, most: int) -> int:
        """The earliest time at which no more than so many bytes wait, if nothing else comes; 0 if
        that is so already."""
        return int(self._native.line_drained(self._handle, most))

    def counters(self) -> LineCounters:
        """Since it was made."""
        found = NativeCounters()
        self._native.line_read(self._handle, byref(found))
        return found.counters()


_NONE = np.zeros(0, np.intp)


def address(array: npt.NDArray[Any]) -> int:
    """Of the first byte of an array whose rows lie one behind the other."""
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(array.data))
    except (TypeError, ValueError):  # read-only or empty: four times as slow
        return array.ctypes.data


def _error(result: int) -> Exception:
    if result == _UNORDERED:
        return LineError("packets that are not in the order of their times")
    if result == _LATE:
        return LateError("packets that come before the last one of before")
    if result == _SHORT:
        return LineError("frames of less than an Ethernet header")
    return MemoryError("no memory for a queue")
