# SPDX-License-Identifier: Apache-2.0
"""Load generator of ``rackhub bench server``: a process that sends the workers' contributions.

All packets are prepared: two sets of all chunks, whose sequence numbers are half of the 32-bit
space apart, so each set is newer than the other to a server and they can alternate for ever.
Replies are received, counted, and checked by sampling.
"""

from __future__ import annotations

import ctypes
import socket
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from benchmarks.common import BenchError, pin
from hosts.net.offload import MAX_SEGMENTS, UDP_GRO, received_segment_size, segment_size_message
from hosts.net.udp import grow_receive_buffer
from protocol.header import (
    HEADER,
    HEADER_BYTES,
    LANE,
    LARGEST_DATAGRAM,
    Array,
    Op,
    Words,
    blank,
    packet_bytes,
)
from protocol.payloads import header_hashes, word_sums

JOB = EPOCH = NODE = 1
EXPONENT = 0
_HALF_CIRCLE = 1 << 31
_BUFFER = 4 << 20
_LOOK_EVERY = 64  # trains between checks
_PATIENCE_SECONDS = 5.0
_LARGEST_WORD = 1 << 20  # keeps sums from overflowing


@dataclass(frozen=True)
class Traffic:
    """`workers` repeatedly send `chunks` chunks of `lanes` lanes from 127.0.0.1.

    window: Chunks a worker may have in flight.
    """

    workers: int
    chunks: int
    lanes: int
    window: int
    core: int

    @property
    def packet_bytes(self) -> int:
        """Bytes of a datagram."""
        return packet_bytes(self.lanes)

    @property
    def train(self) -> int:
        """Packets per system call."""
        return min(MAX_SEGMENTS, LARGEST_DATAGRAM // self.packet_bytes, self.window)


class Shared(ctypes.Structure):
    """State in shared memory, which both sides read without a system call."""

    _fields_ = (("received", ctypes.c_int64), ("stop", ctypes.c_int64))


def words_of(traffic: Traffic, worker: int) -> Words:
    """Returns a worker's contribution: (chunks, lanes)."""
    rng = np.random.default_rng(worker)
    return rng.integers(
        -_LARGEST_WORD, _LARGEST_WORD, (traffic.chunks, traffic.lanes), np.int32
    ).astype(LANE)


def send(traffic: Traffic, control: Connection, shared: Any) -> None:
    """Runs the load process.

    It reports the workers' ports. For each order (port, answered, summed, sums) it sends to that
    port of 127.0.0.1 until it is stopped, and reports packets sent and received. None ends it.

    answered: As many packets come back.
    summed: These are results.
    sums: They must be the workers' sums.
    """
    pin(traffic.core)
    sockets = [_socket() for _ in range(traffic.workers)]
    sets = [
        [_packets(traffic, worker, start) for worker in range(traffic.workers)]
        for start in (0, _HALF_CIRCLE)
    ]
    total = sum(words_of(traffic, worker).astype(np.int64) for worker in range(traffic.workers))
    control.send([one.getsockname()[1] for one in sockets])
    while (order := control.recv()) is not None:
        port, answered, summed, sums = order
        wanted = np.asarray(total, np.int64).astype(LANE) if sums else None
        counts = _Round(traffic, sockets, sets, shared, summed, wanted).run(port, answered)
        control.send(counts)


class _Round:
    """One order of the load process."""

    def __init__(
        self,
        traffic: Traffic,
        sockets: list[socket.socket],
        sets: list[list[memoryview]],
        shared: Any,
        summed: bool,
        wanted: Words | None,
    ) -> None:
        self._traffic, self._sockets, self._sets = traffic, sockets, sets
        self._shared, self._summed, self._wanted = shared, summed, wanted
        self._looked = memoryview(bytearray(1 << 16))
        self._sent = self._results = self._trains = 0

    def run(self, port: int, answered: bool) -> dict[str, int]:
        """Sends until stopped, and until all results have arrived."""
        traffic, to = self._traffic, ("127.0.0.1", port)
        ahead = traffic.window * traffic.workers
        while not self._shared.stop:
            for buffers in self._sets:
                for first in range(0, traffic.chunks, traffic.window):
                    # Self-clocking: the result of `seq - window` permits sending `seq`.
                    while self._sent - self._shared.received > ahead and not self._shared.stop:
                        self._take()
                    if self._shared.stop:
                        break
                    self._send(buffers, first, to, answered)
        patience = time.perf_counter() + _PATIENCE_SECONDS
        while answered and self._results < self._sent and time.perf_counter() < patience:
            self._take()
        return {"sent": self._sent, "results": self._results}

    def _send(
        self, buffers: list[memoryview], first: int, to: tuple[str, int], answered: bool
    ) -> None:
        """Sends a window of each worker, alternating by train."""
        traffic = self._traffic
        size = traffic.packet_bytes
        ancillary = [segment_size_message(size)]
        end = min(first + traffic.window, traffic.chunks)
        for at in range(first, end, traffic.train):
            count = min(traffic.train, end - at)
            for sender, buffer in zip(self._sockets, buffers, strict=True):
                part = buffer[at * size : (at + count) * size]
                sender.sendmsg([part], ancillary if count > 1 else [], 0, to)
            self._sent += count * traffic.workers
            if answered:
                self._take()

    def _take(self) -> None:
        """Receives results; short buffers make the kernel copy only their beginnings."""
        for worker, receiver in enumerate(self._sockets):
            while True:
                self._trains += 1
                look = self._summed and self._trains % _LOOK_EVERY == 0
                room = self._looked if look else self._looked[:HEADER_BYTES]
                try:
                    length, ancillary, _, _ = receiver.recvmsg_into(
                        [room], socket.CMSG_SPACE(4), socket.MSG_TRUNC | socket.MSG_DONTWAIT
                    )
                except BlockingIOError:
                    break
                self._results += length // received_segment_size(ancillary, length)
                if look:
                    self._look(worker)

    def _look(self, worker: int) -> None:
        """Checks the first result of a train."""
        header: Array = np.frombuffer(self._looked, HEADER, 1)[0]
        words = np.frombuffer(self._looked, LANE, self._traffic.lanes, HEADER_BYTES)
        checksum = word_sums(words[None]) + self._traffic.workers * header_hashes(header[None])
        right = header["version_op"] & 15 == Op.RESULT and header["sender"] == worker
        right &= bool(header["checksum"] == checksum[0].astype(np.uint32))
        if self._wanted is not None:
            right &= bool((words == self._wanted[header["chunk"]]).all())
        if not right:
            raise BenchError(f"worker {worker} got a wrong result of chunk {header['chunk']}")


def _socket() -> socket.socket:
    result = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    grow_receive_buffer(result, _BUFFER)
    result.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
    result.bind(("127.0.0.1", 0))
    return result


def _packets(traffic: Traffic, worker: int, start: int) -> memoryview:
    """Returns the packets of all chunks of a worker, numbered from `start`."""
    headers = blank(traffic.chunks, Op.CONTRIBUTE)
    numbers = np.arange(traffic.chunks)
    for name, value in (
        ("job", JOB), ("epoch", EPOCH), ("sender", worker), ("seq", start + numbers),
        ("chunk", numbers), ("workers", 1), ("exponent", EXPONENT), ("max_exponent", EXPONENT),
        ("lanes", traffic.lanes), ("node", NODE),
    ):  # fmt: skip
        headers[name] = value
    words = words_of(traffic, worker)
    headers["checksum"] = word_sums(words) + header_hashes(headers)
    packets = np.empty((traffic.chunks, traffic.packet_bytes), np.uint8)
    packets[:, :HEADER_BYTES] = headers.view(np.uint8).reshape(-1, HEADER_BYTES)
    packets[:, HEADER_BYTES:] = words.view(np.uint8).reshape(traffic.chunks, -1)
    return packets.reshape(-1).data
