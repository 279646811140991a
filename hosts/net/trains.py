# SPDX-License-Identifier: Apache-2.0
"""Native sending and receiving of packet trains, with one call for all that are there."""

from __future__ import annotations

import ctypes
import functools
import os
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hosts.native.loader import check_constants
from hosts.native.structures import structures
from hosts.net.broadcast_batch import BroadcastBatch
from protocol.header import (
    HEADER,
    HEADER_BYTES,
    PEER,
    Batch,
    copied,
    decode,
    decode_wire,
    opaque,
    packet_bytes,
    parts_of,
)
from switch.ports.paced_line import address

LARGEST_RECEIVE = 1 << 16
"""Room that a train needs to be received."""

_TRAIN = np.dtype([("bytes", "u4"), ("segment", "u4"), ("source", PEER)])
INBOX = structures("trains.h")["inbox"]
_MOST_BEYOND = LARGEST_RECEIVE // HEADER_BYTES


@dataclass(frozen=True, slots=True)
class Arrived:
    """A result of `Receiver.receive`: well-formed packets, the number of malformed ones, system
    calls."""

    batch: Batch
    malformed: int
    calls: int


class Receiver:
    """Reads up to a fixed number of datagrams at once into `arena`.

    inbox: `struct inbox` of hosts/native/trains.h, for other native code that receives; `at`: its
        address.
    most_packets: that one call may read.
    """

    def __init__(self, lib: ctypes.CDLL, arena: npt.NDArray[np.uint8], most_datagrams: int) -> None:
        _check(lib)
        self._lib = lib
        self._arena = arena
        self.most_packets = most_packets = most_datagrams + _MOST_BEYOND
        self._trains = np.empty(most_datagrams, _TRAIN)
        self._headers = np.empty((most_packets, HEADER_BYTES), np.uint8)
        self._full = np.empty(most_packets, np.bool_)
        self._sources = np.empty(most_packets, PEER)
        self.inbox = INBOX(
            arena=address(arena), trains=address(self._trains), headers=address(self._headers),
            full=address(self._full), sources=address(self._sources), room=len(arena),
            most=most_datagrams,
        )  # fmt: skip
        self.at = ctypes.addressof(self.inbox)

    def receive(self, socket: int, lanes: int) -> Arrived | None:
        """Reads what has arrived at a socket (file descriptor), with payloads in the arena.

        Returns None if nothing has. Raises OSError.
        """
        self.inbox.wide = packet_bytes(lanes)
        self._lib.receive_trains(socket, self.at)
        return self.received(lanes)

    def received(self, lanes: int) -> Arrived | None:
        """Returns what the last call has read into `inbox`. Raises OSError."""
        inbox = self.inbox
        if inbox.error:
            raise OSError(inbox.error, os.strerror(inbox.error))
        if not inbox.trains_length:
            return None
        n, wide = inbox.packets, packet_bytes(lanes)
        if not inbox.regular:
            return self._sort_out(inbox.trains_length, lanes)
        wire = self._arena[: n * wide].reshape(n, wide)
        headers = self._headers[:n].copy().view(HEADER)[:, 0]
        sources = copied(self._sources[:n])
        batch = Batch(headers, parts_of(wire)[1], self._full[:n].copy(), sources)
        return Arrived(batch, 0, inbox.trains_length)

    def _sort_out(self, count: int, lanes: int) -> Arrived:
        """Separates packets of different sizes in so many trains."""
        trains, wide = self._trains[:count], packet_bytes(lanes)
        lengths, sizes = trains["bytes"].astype(np.int64), trains["segment"]
        ends = np.cumsum(lengths)
        if (sizes == wide).all() and not (lengths % wide).any():
            sources = opaque(np.ascontiguousarray(trains["source"])).repeat(lengths // wide)
            wire = self._arena[: int(ends[-1])].reshape(-1, wide)
            batch, malformed = decode_wire(wire, sources.view(PEER))
        else:
            pieces = np.split(self._arena[: int(ends[-1])], ends[:-1])
            buffers = [piece.data for piece in pieces]
            batch, malformed = decode(buffers, trains["source"], lanes, sizes.tolist())
        return Arrived(batch, malformed, len(trains))


def send(lib: ctypes.CDLL, socket: int, batch: Batch, most_packets: int) -> tuple[int, int]:
    """Sends packets that are in wire format, in trains of up to `most_packets`; destinations take
    turns.

    Returns the number of trains and packets that the socket took before the first train that it
    refused. That is zero if packets are not in wire format, or there are too many destinations.
    """
    packets = ctypes.c_uint64()
    trains: int
    if isinstance(batch, BroadcastBatch):
        wire, destinations = batch.packets, np.ascontiguousarray(opaque(batch.destinations))
        if not batch.whole.all():
            return 0, 0
        trains = lib.cast_trains(
            socket, wire.ctypes.data, wire.shape[1], len(wire), destinations.ctypes.data,
            batch.nodes.ctypes.data, len(destinations), most_packets, packets,
        )  # fmt: skip
        return trains, packets.value
    if batch.wire is None or not batch.full.all():
        return 0, 0
    wire, peers = batch.wire, np.ascontiguousarray(opaque(batch.peers))
    trains = lib.send_trains(
        socket, wire.ctypes.data, wire.shape[1], peers.ctypes.data, len(wire), most_packets,
        packets,
    )  # fmt: skip
    return trains, packets.value


@functools.cache
def _check(lib: ctypes.CDLL) -> None:
    """Raises RuntimeError if the structure here differs from that of the C code."""
    check_constants(lib, {"inbox_bytes": ctypes.sizeof(INBOX)})
