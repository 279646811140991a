# SPDX-License-Identifier: Apache-2.0
"""Reliable streams between simulated hosts, framed like TCP.

A message is cut into segments, each with Ethernet, IPv4 and TCP headers with timestamps on the
wire. Every second segment, and the last of a message, is acknowledged on arrival by a frame without
data. A sender has a fixed window of segments in flight: large enough that the network is the limit,
and small enough for the queues that nothing is lost. Hence there is no slow start, loss recovery or
connection setup (docs/explanation/baselines.md). Frames hold headers only: the data of a segment is
copied from the sender's memory when the segment arrives.

Frames are processed in C (native/streams.c); virtual time needs a compiler anyway.
"""

from __future__ import annotations

import ctypes
import struct
from collections import deque
from ctypes import POINTER, byref, c_int, c_int64, c_uint32, c_uint64
from ctypes import c_void_p as pointer
from functools import cache

import numpy as np

from protocol.ethernet import TCP_HEADERS
from protocol.frames import ETHERTYPE_IPV4, Interface
from simulation.errors import VirtualError
from simulation.links.native import load_native
from simulation.links.trains import Frames, Lengths, Times, Train
from switch.compiler import Functions
from switch.ports.paced_line import address

__all__ = ["Content", "StreamError", "Streams", "head"]

_TCP = 6
_NO_MEMORY, _MISSING = -1, -2


class StreamError(VirtualError):
    """A stream has lost a segment, which its window should have prevented."""


@cache
def _library() -> ctypes.CDLL:
    number, size = c_uint32, c_uint64
    functions: Functions = {
        "streams_create": (pointer, [size]),
        "streams_destroy": (None, [pointer]),
        "streams_connect": (c_int, [pointer, number, number, ctypes.c_char_p, c_int64, c_int64]),
        "streams_put": (c_int, [pointer, number, c_int64, c_int64]),
        "streams_want": (c_int, [pointer, number, c_int64]),
        "streams_take": (c_int64, [pointer, pointer, pointer, size, size]),
        "streams_next": (c_int64, [pointer]),
        "streams_arrive": (c_int64, [pointer, c_int64, POINTER(c_uint32), POINTER(c_int64)]),
        "streams_leaving": (size, [pointer, size]),
        "streams_leave": (None, [pointer, size, pointer, pointer, pointer]),
    }
    return load_native(functions)


class Streams:
    """The stream ends of a host, each identified by the ports of arriving frames.

    Ports are the sender's and the receiver's, 16 bits each. interfaces: number of interfaces.
    Methods may raise MemoryError; the constructor raises VirtualError without a compiler.
    """

    def __init__(self, interfaces: int) -> None:
        self._native = _library()
        handle = self._native.streams_create(interfaces)
        if not handle:
            raise MemoryError("no memory for streams")
        self._handle = pointer(handle)
        self._interfaces = range(interfaces)
        self._ends = 0
        self._woken = (c_uint32 * 0)()
        self._now = c_int64()

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._native.streams_destroy(self._handle)

    def connect(self, ports: int, interface: int, head: bytes, window: int, segment: int) -> None:
        """Adds an end, before any frame arrives.

        head: the headers of its frames.
        window: the most segments in flight.
        segment: bytes of data in a full segment.
        """
        self._check(
            self._native.streams_connect(self._handle, ports, interface, head, window, segment)
        )
        self._ends += 1
        self._woken = (c_uint32 * self._ends)()

    def put(self, ports: int, size: int, now: int) -> None:
        """Sends a message of `size` > 0 bytes to the peer of an end."""
        self._check(self._native.streams_put(self._handle, ports, size, now))

    def want(self, ports: int, upto: int) -> bool:
        """True if the first `upto` bytes have arrived at an end; if not, `arrive` reports when they
        have."""
        return bool(self._native.streams_want(self._handle, ports, upto))

    def take(self, times: Times, frames: Frames) -> int:
        """Adds frames that arrive at these times, in order; returns how many have no stream."""
        times, frames = np.ascontiguousarray(times), np.ascontiguousarray(frames)
        found: int = self._native.streams_take(
            self._handle, address(times), address(frames), *frames.shape
        )
        self._check(found)
        return found

    @property
    def next(self) -> int:
        """Returns the arrival time (ps) of the first frame taken; NEVER if none is left."""
        found: int = self._native.streams_next(self._handle)
        return found

    def arrive(self, before: int) -> tuple[list[int], int]:
        """Processes arrivals before a time, but at most up to those that complete a wait.

        All frames of that time are processed. Requires a pending frame. Returns the ports of the
        ends whose waits are complete, in order, and the time of the last frame. Raises StreamError
        for data out of order.
        """
        found = self._native.streams_arrive(self._handle, before, self._woken, byref(self._now))
        self._check(found)
        return self._woken[:found], self._now.value

    def leave(self) -> list[tuple[int, Train]]:
        """Returns the frames to send since the last call, by interface."""
        return [
            (number, self._train(number, count))
            for number in self._interfaces
            if (count := self._native.streams_leaving(self._handle, number))
        ]

    def _train(self, interface: int, count: int) -> Train:
        times: Times = np.empty(count, np.int64)
        lengths: Lengths = np.empty(count, np.int64)
        frames: Frames = np.empty((count, TCP_HEADERS), np.uint8)
        parts = address(times), address(lengths), address(frames)
        self._native.streams_leave(self._handle, interface, *parts)
        return Train(times, frames, lengths)

    def _check(self, result: int) -> None:
        if result == _NO_MEMORY:
            raise MemoryError("no memory for streams")
        if result == _MISSING:
            raise StreamError("a segment of a stream is missing: some queue on its way was full")


class Content:
    """The data in flight from one end of a stream to the other; in memory, not in frames.

    taken: bytes read so far.
    """

    def __init__(self) -> None:
        self.taken = 0
        self._messages: deque[memoryview] = deque()
        self._offset = 0  # in the first of these

    def put(self, data: bytes) -> None:
        """Adds a message."""
        self._messages.append(memoryview(data))

    def read(self, into: memoryview) -> None:
        """Copies the next bytes, which must have arrived."""
        self.taken += len(into)
        while into:
            first = self._messages[0]
            part = first[self._offset : self._offset + len(into)]
            into[: len(part)] = part
            into = into[len(part) :]
            self._offset += len(part)
            if self._offset == len(first):
                self._messages.popleft()
                self._offset = 0


def head(interface: Interface, target: int, ports: tuple[int, int]) -> bytes:
    """Builds the headers of frames from an interface to an IPv4 address, (TCP_HEADERS,) bytes."""
    return struct.pack(
        ">6s6sHBBHHHBBHIIHHIIBBHHHBBBBII",
        *(interface.gateway, interface.mac, ETHERTYPE_IPV4),
        *(0x45, 0, 0, 0, 0x4000, 64, _TCP, 0, interface.ipv4, target),
        *(*ports, 0, 0, 0x80, 0, 0xFFFF, 0, 0),
        *(1, 1, 8, 10, 0, 0),  # timestamps (RFC 7323, appendix A)
    )
