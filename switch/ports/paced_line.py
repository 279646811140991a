# SPDX-License-Identifier: Apache-2.0
"""Simulates one direction of a link in virtual time: a rate and a bounded queue, for batches of
packets.

The work is done in C (runtime/virtual_time/line.h, which defines the model), both for the ports of
a switch (`switch.ports.virtual_time`) and for any other sender. No clock is read.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, byref, c_int, c_int64, c_uint64
from ctypes import c_void_p as pointer
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from switch.compiler import RUNTIME, Functions, load_library

NEVER = 2**63 - 1
_UNORDERED, _LATE, _SHORT = -10, -11, -12

Numbers = npt.NDArray[np.int64]


class LineError(ValueError):
    """Packets that a line cannot take; the message gives the reason."""


class LateError(LineError):
    """Packets that arrive before the last packet of an earlier call."""


@dataclass(frozen=True)
class Line:
    """The rate and queue of a line.

    parts, whole: a byte takes parts / whole ps; parts 0: no time
    overhead: bytes on the wire beside each frame
    least: bytes; shorter frames take as long as one of this size
    longest: bytes; longer frames are dropped
    queue_bytes: of frames that may wait, beside the one being sent
    exact: a frame waits to the fraction of a ps, as in a queue with priorities; else to its whole
    """

    parts: int
    whole: int = 1
    overhead: int = 0
    least: int = 0
    longest: int = 16384
    queue_bytes: int = 128 * 1024
    exact: bool = False

    def options(self) -> LineOptions:
        """Returns the struct that the C library takes."""
        return LineOptions(
            *(self.parts, self.whole, self.overhead, self.least, self.longest),
            *(self.queue_bytes, self.exact),
        )


@dataclass(frozen=True)
class LineCounters:
    """Counters of a line.

    dropped, dropped_bytes: packets that found the queue full
    oversized: packets longer than the line's longest
    queue_most: most bytes that waited at once, the last arrival included
    """

    dropped: int
    dropped_bytes: int
    oversized: int
    queue_most: int


Change = tuple[int, int, int]
"""A time (ps), and a rate from then on: a byte takes parts / whole ps."""


class NativeChange(ctypes.Structure):
    """struct line_change"""

    _fields_ = (("at", c_int64), ("parts", c_uint64), ("whole", c_uint64))


def native_changes(changes: Sequence[Change]) -> ctypes.Array[NativeChange]:
    """Returns changes of a line's rate, in order of time, as the C library takes them."""
    return (NativeChange * len(changes))(*(NativeChange(*one) for one in changes))


class LineOptions(ctypes.Structure):
    """struct line_options"""

    _fields_ = (
        ("parts", c_uint64), ("whole", c_uint64), ("overhead", c_uint64), ("least", c_uint64),
        ("longest", c_uint64), ("limit", c_uint64), ("exact", c_uint64),
    )  # fmt: skip


class NativeCounters(ctypes.Structure):
    """struct line_counters"""

    _fields_ = (
        ("dropped", c_uint64), ("dropped_bytes", c_uint64), ("oversized", c_uint64),
        ("queue_most", c_uint64),
    )  # fmt: skip

    def counters(self) -> LineCounters:
        """Returns the same counters as a Python object."""
        return LineCounters(self.dropped, self.dropped_bytes, self.oversized, self.queue_most)


class _Offer(ctypes.Structure):
    """struct line_offer"""

    _fields_ = (
        ("n", c_uint64), ("stored", c_uint64), ("mark_above", c_uint64), ("times", pointer),
        ("lengths", pointer), ("ends", pointer), ("rows", pointer), ("marks", pointer),
        ("kept", c_uint64), ("bytes", c_uint64), ("wire", c_uint64), ("marked", c_uint64),
        ("free", c_int64),
    )  # fmt: skip


_FUNCTIONS: Functions = {
    "line_create": (pointer, [POINTER(LineOptions)]),
    "line_destroy": (None, [pointer]),
    "line_read": (None, [pointer, POINTER(NativeCounters)]),
    "line_offer": (c_int, [pointer, POINTER(_Offer)]),
    "line_change": (c_int, [pointer, POINTER(NativeChange), c_uint64]),
    "line_held": (c_uint64, [pointer, c_int64]),
    "line_drained": (c_int64, [pointer, c_uint64]),
}


@cache
def load_driver() -> ctypes.CDLL:
    """Returns the compiled ports and lines of virtual time. Raises CompilerError."""
    return load_library("virtual-time", RUNTIME / "virtual_time", _FUNCTIONS, RUNTIME)


@dataclass(slots=True, eq=False)
class Sent:
    """The result of offering packets to a line.

    rows: (k,) which of them are sent, None = all
    ends: (k,) ps, when the last bit of each leaves
    marked: (m,) which of those k found more bytes waiting than `mark_above`
    length_bytes, wire_bytes: totals of the k, without and with the line's overhead
    """

    rows: Numbers | None
    ends: Numbers
    marked: npt.NDArray[np.intp]
    length_bytes: int
    wire_bytes: int


class LineQueue:
    """A FIFO queue in front of a line. The fate of a packet is decided when it is offered.

    free: when all accepted packets have left (ps, rounded down).
    """

    def __init__(self, line: Line) -> None:
        self._native = load_driver()
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
        """Offers packets to the queue.

        times: (n,) ps, not decreasing, and not before those of earlier calls
        lengths: (n,) bytes of the frames
        stored: bytes of each frame that are kept in memory, at most
        mark_above: threshold in bytes for `Sent.marked`, None = none

        Raises LineError (no packet has been accepted then), MemoryError.
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
        """Allocates the rarely used results of an offer of n packets."""
        self._room = 2 * n
        self._rows, self._marks = np.empty(2 * n, np.int64), np.empty(2 * n, np.uint8)
        self._offer.rows, self._offer.marks = address(self._rows), address(self._marks)

    def change(self, changes: Sequence[Change]) -> None:
        """Replaces the changes of rate that have not happened; each holds for packets that begin to
        leave at its time or later. Raises MemoryError."""
        native = native_changes(changes)
        if self._native.line_change(self._handle, native, len(changes)):
            raise MemoryError("no memory for changes of a line's rate")

    def waiting(self, at: int) -> int:
        """Returns the bytes that wait at a time not before the last packet's arrival."""
        return int(self._native.line_held(self._handle, at))

    def drained(self, most: int) -> int:
        """Returns the earliest time at which at most `most` bytes wait if no packet arrives; 0 if
        that is the case already."""
        return int(self._native.line_drained(self._handle, most))

    def counters(self) -> LineCounters:
        """Returns the counters since the queue was created."""
        found = NativeCounters()
        self._native.line_read(self._handle, byref(found))
        return found.counters()


_NONE = np.zeros(0, np.intp)
_number_at, _HEADER = ctypes.c_size_t.from_address, object.__basicsize__


def address(array: npt.NDArray[Any]) -> int:
    """Returns the address of the first byte of an array.

    Like `array.ctypes.data`, but eight times as fast: numpy's C API (struct PyArrayObject) has the
    address behind the header of the object, whose own address is its id.
    """
    return _number_at(id(array) + _HEADER).value


def _error(result: int) -> Exception:
    if result == _UNORDERED:
        return LineError("packets are not in the order of their times")
    if result == _LATE:
        return LateError("packets arrive before the last one of an earlier call")
    if result == _SHORT:
        return LineError("frames are shorter than an Ethernet header")
    return MemoryError("no memory for a queue")
