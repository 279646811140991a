# SPDX-License-Identifier: Apache-2.0
"""Reliable streams between simulated hosts, framed like TCP.

What is sent at once is cut into segments; a segment takes Ethernet, IPv4 and TCP headers with
timestamps on the wire. Every second segment, and the last of what was sent at once, is
acknowledged as it arrives, by a frame that carries nothing else. A sender has no more than a window
of segments in flight, which is fixed: large enough and it is the network that limits; small enough
for the queues and nothing is ever lost. So there is no slow start, no loss recovery and no
connection setup (docs/compare.md). Frames hold headers only: the data of a segment is taken from
the sender's memory when the segment is there.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from protocol.frames import ETHERTYPE_IPV4, Interface
from testbed.virtual.errors import VirtualError
from testbed.virtual.trains import Frames

__all__ = ["HEADERS", "Inbound", "Outbound", "Segments", "StreamError", "decode", "encode", "head"]

# Bytes of a frame before its data: Ethernet, IPv4, and TCP with the timestamps that all systems
# send by default (RFC 7323, 3.2).
HEADERS = 14 + 20 + 32
_IP_AND_TCP = HEADERS - 14
_TCP = 6
_PUSH, _ACK = 0x08, 0x10
_WRAP = 1 << 32

Integers = npt.NDArray[np.int64]


class StreamError(VirtualError):
    """A stream that lost something, which its window should have prevented."""


class Segments(NamedTuple):
    """Frames of streams, as arrays. data: bytes of it; 0: an acknowledgment. number: where the data
    begins, or ends that has arrived, mod 2^32. push: whether it is the last of what was sent."""

    ports: Integers  # sender's, receiver's: 16 bits each
    data: Integers
    number: Integers
    push: npt.NDArray[np.bool_]

    def select(self, rows: Any) -> Segments:
        """Those of `rows` (a slice, a mask or indices)."""
        return Segments(self.ports[rows], self.data[rows], self.number[rows], self.push[rows])


class Outbound:
    """A stream at its sender. window: segments in flight. segment: bytes of data in a full one.

    content: what the other end takes, in the order in which it was sent.
    """

    def __init__(self, window: int, segment: int) -> None:
        self.content: deque[memoryview] = deque()
        self.sent = 0  # bytes
        self._window, self._segment = window, segment
        self._waiting: deque[tuple[int, int]] = deque()  # segments and bytes of each message left
        self._flying = np.zeros(0, np.int64)  # where each segment in flight ends

    def put(self, data: bytes) -> None:
        """To be sent as one message."""
        if data:
            self.content.append(memoryview(data))
            self._waiting.append((-(-len(data) // self._segment), len(data)))

    def release(self, acks: Integers) -> tuple[Integers, Integers, npt.NDArray[np.bool_], Integers]:
        """What may leave when these acknowledgments are there, one after the other; none: what may
        leave by itself.

        Returns of each segment its data's bytes, where it begins, whether it ends a message, and
        the row of the acknowledgment that made room.
        """
        if len(acks):
            ends = self.sent - (self.sent - acks) % _WRAP
            passed = np.searchsorted(self._flying, ends, "right")
        else:
            passed = np.zeros(1, np.int64)
        room = self._window - len(self._flying) + passed
        sizes, push = self._take(int(room[-1]))
        ends = self.sent + np.cumsum(sizes)
        rows = np.searchsorted(room, np.arange(1, len(sizes) + 1), "left")
        self._flying = np.concatenate([self._flying[int(passed[-1]) :], ends])
        self.sent += int(sizes.sum())
        return sizes, ends - sizes, push, rows

    def _take(self, most: int) -> tuple[Integers, npt.NDArray[np.bool_]]:
        sizes: list[Integers] = []
        last: list[int] = []
        total = 0
        while self._waiting and total < most:
            count, left = self._waiting.popleft()
            taken = min(count, most - total)
            part = np.full(taken, self._segment, np.int64)
            total += taken
            if taken < count:
                self._waiting.appendleft((count - taken, left - taken * self._segment))
            else:
                part[-1] = left - (taken - 1) * self._segment
                last.append(total - 1)
            sizes.append(part)
        push = np.zeros(total, np.bool_)
        push[last] = True
        return np.concatenate(sizes) if sizes else np.zeros(0, np.int64), push


class Inbound:
    """A stream at its receiver. wanted: bytes from the beginning that somebody waits for; 0: none.

    Raises StreamError for data out of order.
    """

    def __init__(self, source: Outbound) -> None:
        self.arrived = 0  # bytes
        self.taken = 0
        self.wanted = 0
        self._content = source.content
        self._offset = 0  # in the first of these
        self._odd = 0  # segments that were not acknowledged yet

    def completes(self, data: Integers) -> int | None:
        """The row of the segment that brings what is waited for; None if none of them does."""
        if not self.wanted:
            return None
        row = int(np.searchsorted(np.cumsum(data), self.wanted - self.arrived, "left"))
        return row if row < len(data) else None

    def accept(
        self, data: Integers, number: Integers, push: npt.NDArray[np.bool_]
    ) -> tuple[Integers, Integers]:
        """Segments are here. Returns the rows of those that are acknowledged, and up to where."""
        ends = self.arrived + np.cumsum(data)
        if ((ends - data - number) % _WRAP).any():
            raise StreamError("a segment of a stream is missing: some queue on its way was full")
        rows = np.arange(len(data))
        before = np.full(len(data), -1 - self._odd)  # the last one that ended a message
        before[1:][push[:-1]] = rows[:-1][push[:-1]]
        since = rows - np.maximum.accumulate(before)
        acked = push | (since % 2 == 0)
        self._odd = 0 if acked[-1] else 1
        self.arrived = int(ends[-1])
        chosen = np.flatnonzero(acked)
        return chosen, ends[chosen]

    def read(self, into: memoryview) -> None:
        """Copies the next bytes, which have arrived."""
        self.taken += len(into)
        while into:
            first = self._content[0]
            part = first[self._offset : self._offset + len(into)]
            into[: len(part)] = part
            into = into[len(part) :]
            self._offset += len(part)
            if self._offset == len(first):
                self._content.popleft()
                self._offset = 0


def head(interface: Interface, target: int, ports: tuple[int, int]) -> npt.NDArray[np.uint8]:
    """What frames from an interface to an IPv4 address and port have in common."""
    fields = struct.pack(
        ">6s6sHBBHHHBBHIIHHIIBBHHHBBBBII",
        *(interface.gateway, interface.mac, ETHERTYPE_IPV4),
        *(0x45, 0, 0, 0, 0x4000, 64, _TCP, 0, interface.ipv4, target),
        *(*ports, 0, 0, 0x80, 0, 0xFFFF, 0, 0),
        *(1, 1, 8, 10, 0, 0),  # timestamps (RFC 7323, appendix A)
    )
    return np.frombuffer(fields, np.uint8)


def encode(heads: Frames, segments: Segments) -> Frames:
    """Frames, (n, HEADERS), from a head of each."""
    frames: Frames = heads.copy()
    total = segments.data + _IP_AND_TCP
    words = frames[:, 14:34].view(">u2").astype(np.int64)
    sums = words.sum(axis=1) + total
    sums = (sums & 0xFFFF) + (sums >> 16)
    sums = ~((sums & 0xFFFF) + (sums >> 16)) & 0xFFFF
    ack = segments.data == 0
    flags = np.where(ack, _ACK, np.where(segments.push, _PUSH, 0))
    number = segments.number % _WRAP
    for at, values, kind in (
        (16, total, ">u2"),
        (24, sums, ">u2"),
        (38, np.where(ack, 0, number), ">u4"),
        (42, np.where(ack, number, 0), ">u4"),
        (47, flags, "u1"),
    ):
        width = np.dtype(kind).itemsize
        frames[:, at : at + width].view(kind)[:, 0] = values
    return frames


def decode(frames: Frames) -> tuple[Segments, npt.NDArray[np.bool_]]:
    """What frames say, and which of them are of streams at all."""
    if frames.shape[1] < HEADERS:
        none = np.zeros(len(frames), np.int64)
        return Segments(none, none, none, none > 0), none > 0
    words = np.ascontiguousarray(frames[:, :HEADERS]).view(">u2").astype(np.int64)
    good = (words[:, 6] == ETHERTYPE_IPV4) & (words[:, 11] & 0xFF == _TCP)
    data = words[:, 8] - _IP_AND_TCP
    at = np.where(data > 0, 19, 21)
    rows = np.arange(len(frames))
    number = words[rows, at] << 16 | words[rows, at + 1]
    push = words[:, 23] & _PUSH > 0
    return Segments(words[:, 17] << 16 | words[:, 18], data, number, push), good
