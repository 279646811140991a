# SPDX-License-Identifier: Apache-2.0
"""Native sending and receiving of packet trains, with one call for all that are there."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hosts.net.broadcast_batch import BroadcastBatch
from protocol.header import (
    HEADER,
    HEADER_BYTES,
    PEER,
    Batch,
    decode,
    decode_wire,
    opaque,
    packet_bytes,
    parts_of,
)

LARGEST_RECEIVE = 1 << 16
"""Room that a train needs to be received."""

_TRAIN = np.dtype([("bytes", "u4"), ("segment", "u4"), ("source", PEER)])
_MOST_BEYOND = LARGEST_RECEIVE // HEADER_BYTES


class _Arrivals(ctypes.Structure):
    """`struct arrivals` of hosts/native/trains.c."""

    _fields_ = (
        ("trains", ctypes.c_uint64),
        ("packets", ctypes.c_uint64),
        ("error", ctypes.c_int32),
        ("regular", ctypes.c_int32),
    )


@dataclass(frozen=True, slots=True)
class Arrived:
    """A result of `Receiver.receive`: well-formed packets, the number of malformed ones, system
    calls."""

    batch: Batch
    malformed: int
    calls: int


class Receiver:
    """Reads up to a fixed number of datagrams at once into `arena`."""

    def __init__(self, lib: ctypes.CDLL, arena: npt.NDArray[np.uint8], most_datagrams: int) -> None:
        self._lib = lib
        self._arena = arena
        self._most = most_datagrams
        most_packets = most_datagrams + _MOST_BEYOND
        self._trains = np.empty(most_datagrams, _TRAIN)
        self._headers = np.empty((most_packets, HEADER_BYTES), np.uint8)
        self._full = np.empty(most_packets, np.bool_)
        self._sources = np.empty(most_packets, PEER)
        self._arrivals = _Arrivals()
        # Cached: reading an array's address takes as long as much of the work here.
        self._arena_at = arena.ctypes.data
        self._pointers = [
            self._trains.ctypes.data,
            self._headers.ctypes.data,
            self._full.ctypes.data,
            self._sources.ctypes.data,
            ctypes.addressof(self._arrivals),
        ]

    def receive(self, socket: int, lanes: int) -> Arrived | None:
        """Reads what has arrived at a socket (file descriptor), with payloads in the arena.

        Returns None if nothing has. Raises OSError.
        """
        arrivals, wide, arena = self._arrivals, packet_bytes(lanes), self._arena
        self._lib.receive_trains(
            socket, self._arena_at, len(arena), self._most, wide, *self._pointers
        )
        if arrivals.error:
            raise OSError(arrivals.error, os.strerror(arrivals.error))
        if not arrivals.trains:
            return None
        n = arrivals.packets
        if not arrivals.regular:
            return self._sort_out(lanes)
        wire = arena[: n * wide].reshape(n, wide)
        headers = self._headers[:n].copy().view(HEADER)[:, 0]
        sources = opaque(self._sources)[:n].copy().view(PEER)
        batch = Batch(headers, parts_of(wire)[1], self._full[:n].copy(), sources)
        return Arrived(batch, 0, arrivals.trains)

    def _sort_out(self, lanes: int) -> Arrived:
        """Separates packets of different sizes."""
        trains, wide = self._trains[: self._arrivals.trains], packet_bytes(lanes)
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
    refused. That is zero if packets are not in wire format, or a destination's packets are not
    consecutive.
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
