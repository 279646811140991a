# SPDX-License-Identifier: Apache-2.0
"""Reliable streams between simulated hosts, framed like TCP.

What is sent at once is cut into segments; a segment takes Ethernet, IPv4 and TCP headers with
timestamps on the wire. Every second segment, and the last of what was sent at once, is
acknowledged as it arrives, by a frame that carries nothing else. A sender has no more than a window
of segments in flight, which is fixed: large enough and it is the network that limits; small enough
for the queues and nothing is ever lost. So there is no slow start, no loss recovery and no
connection setup (docs/compare.md). Frames hold headers only: the data of a segment is taken from
the sender's memory when the segment is there.

What goes frame by frame is in C (native/streams.c), as that of switches is: there is no virtual
time without a compiler.
"""

from __future__ import annotations

import ctypes
import struct
from collections import deque
from ctypes import POINTER, byref, c_int, c_int64, c_uint32, c_uint64
from ctypes import c_void_p as pointer
from functools import cache
from pathlib import Path

import numpy as np

from protocol.ethernet import TCP_HEADERS
from protocol.frames import ETHERTYPE_IPV4, Interface
from simulation.errors import VirtualError
from simulation.links.trains import Frames, Lengths, Times, Train
from switch.compile import CompilerError
from switch.native import build
from switch.paced_line import address

__all__ = ["Content", "StreamError", "Streams", "head"]

_TCP = 6
_NO_MEMORY, _MISSING = -1, -2
_FOLDER = Path(__file__).parents[1] / "native"


class StreamError(VirtualError):
    """A stream that lost something, which its window should have prevented."""


@cache
def _library() -> ctypes.CDLL:
    try:
        lib = ctypes.CDLL(str(build("streams", _FOLDER, _FOLDER)))
    except CompilerError as error:
        raise VirtualError(str(error)) from error
    number, size = c_uint32, c_uint64
    for name, result, arguments in (
        ("create", pointer, [size]),
        ("destroy", None, [pointer]),
        ("connect", c_int, [pointer, number, number, ctypes.c_char_p, c_int64, c_int64]),
        ("put", c_int, [pointer, number, c_int64, c_int64]),
        ("want", c_int, [pointer, number, c_int64]),
        ("take", c_int64, [pointer, pointer, pointer, size, size]),
        ("next", c_int64, [pointer]),
        ("arrive", c_int64, [pointer, c_int64, POINTER(c_uint32), POINTER(c_int64)]),
        ("leaving", size, [pointer, size]),
        ("leave", None, [pointer, size, pointer, pointer, pointer]),
    ):
        function = getattr(lib, f"streams_{name}")
        function.restype, function.argtypes = result, arguments
    return lib


class Streams:
    """The ends of a host's streams, each known by the ports of what arrives: the sender's and the
    receiver's, 16 bits each.

    interfaces: how many it has. Raises MemoryError anywhere, VirtualError if there is no compiler.
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
        """An end, before anything has come. head: of its frames. window: its segments in flight at
        most. segment: bytes of data in a full one."""
        self._check(
            self._native.streams_connect(self._handle, ports, interface, head, window, segment)
        )
        self._ends += 1
        self._woken = (c_uint32 * self._ends)()

    def put(self, ports: int, size: int, now: int) -> None:
        """Sends a message of so many bytes, more than 0, to the peer of an end."""
        self._check(self._native.streams_put(self._handle, ports, size, now))

    def want(self, ports: int, upto: int) -> bool:
        """Whether so many bytes, from the beginning, have arrived at an end; if not, `arrive` tells
        when they have."""
        return bool(self._native.streams_want(self._handle, ports, upto))

    def take(self, times: Times, frames: Frames) -> int:
        """Frames that arrive at these times, none before those of before; returns how many are of
        no stream."""
        times, frames = np.ascontiguousarray(times), np.ascontiguousarray(frames)
        found: int = self._native.streams_take(
            self._handle, address(times), address(frames), *frames.shape
        )
        self._check(found)
        return found

    @property
    def next(self) -> int:
        """When the first of those arrives that were taken (ps); NEVER if none is left."""
        found: int = self._native.streams_next(self._handle)
        return found

    def arrive(self, before: int) -> tuple[list[int], int]:
        """All that arrives before a time, or up to what brings what somebody waits for and all that
        comes at that time; there is something. Returns the ports of ends that have it now, in
        order, and when the last one arrived.

        Raises StreamError for data out of order.
        """
        found = self._native.streams_arrive(self._handle, before, self._woken, byref(self._now))
        self._check(found)
        return self._woken[:found], self._now.value

    def leave(self) -> list[tuple[int, Train]]:
        """What is to be sent since this was asked last, of each interface that has something."""
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
    """What one end of a stream sends, for the other end to take; in memory, not in frames.

    taken: bytes.
    """

    def __init__(self) -> None:
        self.taken = 0
        self._messages: deque[memoryview] = deque()
        self._offset = 0  # in the first of these

    def put(self, data: bytes) -> None:
        """One more message."""
        self._messages.append(memoryview(data))

    def read(self, into: memoryview) -> None:
        """Copies the next bytes, which have arrived."""
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
    """What frames from an interface to an IPv4 address and port have in common, (TCP_HEADERS,)."""
    return struct.pack(
        ">6s6sHBBHHHBBHIIHHIIBBHHHBBBBII",
        *(interface.gateway, interface.mac, ETHERTYPE_IPV4),
        *(0x45, 0, 0, 0, 0x4000, 64, _TCP, 0, interface.ipv4, target),
        *(*ports, 0, 0, 0x80, 0, 0xFFFF, 0, 0),
        *(1, 1, 8, 10, 0, 0),  # timestamps (RFC 7323, appendix A)
    )
