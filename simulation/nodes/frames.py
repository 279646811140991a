# SPDX-License-Identifier: Apache-2.0
"""Converts datagrams to frames and back, many at a time, as a host's kernel does.

IPv4 without options, don't fragment, TTL 64, and no UDP checksum (RFC 768 allows 0).
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hosts.native.loader import check_constants, load_native
from hosts.native.structures import structures
from hosts.net.broadcast_batch import BroadcastBatch
from protocol.frames import ETHERTYPE_IPV4, OVERHEAD, Interface
from protocol.header import (
    HEADER,
    HEADER_BYTES,
    LANE,
    LANE_BYTES,
    PEER,
    Batch,
    decode_rows,
    opaque,
    packet_bytes,
    parts_of,
    peer_array,
)
from protocol.priorities import PRIORITIES
from simulation.links.trains import Frames, Lengths
from switch.ports.paced_line import address

_UDP = 17
_DONT_FRAGMENT = 0x4000
_SOURCE = OVERHEAD - 16, OVERHEAD - 8  # bytes of an IPv4 header, and of UDP's, that name the sender
_INCOMING, _OUTGOING = (structures("frames.h")[one] for one in ("incoming", "outgoing"))


class Datagrams(NamedTuple):
    """Frames of UDP datagrams for one endpoint: (n, stored) leading bytes, (n,) lengths; and when
    (ps) they reached the host."""

    frames: Frames
    lengths: Lengths
    at: int = 0

    def select(self, rows: Any) -> Datagrams:
        """Selects the datagrams of `rows`."""
        return Datagrams(self.frames[rows], self.lengths[rows], self.at)


class Written(NamedTuple):
    """Frames to send, (n, stored) leading bytes and (n,) lengths: those for other hosts first.

    local: the last ones, which are for this host.
    counts, totals: of the others, by priority: frames, and their bytes.
    """

    frames: Frames
    lengths: Lengths
    local: int
    counts: list[int]
    totals: list[int]


class Framing:
    """Converts packets of one interface and UDP port.

    own: IPv4 addresses of the host.
    empty_lanes: lanes of payloads that only occupy the wire; 0: payloads have content.
    """

    empty_lanes = 0

    def __init__(self, interface: Interface, port: int, own: Sequence[int]) -> None:
        fields = struct.pack(
            ">6s6sHBBHHHBBHIIHHHH",
            *(interface.gateway, interface.mac, ETHERTYPE_IPV4),
            *(0x45, 0, 0, 0, _DONT_FRAGMENT, 64, _UDP, 0, interface.ipv4, 0),
            *(port, 0, 0, 0),
        )
        self._lib = load_native()
        _check(self._lib)
        self._mine = peer_array([(interface.ipv4, port)])
        self._template = np.frombuffer(bytearray(fields), np.uint8)
        self._own = np.array(own, PEER["ipv4"])
        self._counts, self._totals = np.zeros((2, PRIORITIES), np.int64)
        self._outgoing = _OUTGOING(
            template=address(self._template),
            own=address(self._own),
            own_count=len(self._own),
            counts=address(self._counts),
            bytes=address(self._totals),
        )
        self._at = ctypes.addressof(self._outgoing)
        self._mine_at = address(self._mine)
        self._make_room(0)

    def frames(self, batch: Batch, *, by_priority: bool = False) -> Written:
        """Converts a batch to frames; bytes of a row behind its length are no part of the frame.

        by_priority: in descending order of priorities; packets keep theirs otherwise.
        """
        outgoing, n, room = self._outgoing, len(batch), None
        if isinstance(batch, BroadcastBatch):
            packets, full, peers = batch.packets, batch.whole, batch.destinations
            nodes = np.ascontiguousarray(batch.nodes)
            outgoing.nodes, outgoing.peer_count = address(nodes), len(nodes)
        else:
            packets, full, peers = _rows_of(batch), batch.full, batch.peers
            outgoing.nodes, room = None, batch.room
        lanes = (packets.shape[1] - HEADER_BYTES) // LANE_BYTES
        full, peers = np.ascontiguousarray(full), np.ascontiguousarray(peers)
        stored = HEADER_BYTES + (LANE_BYTES * lanes if lanes and full.any() else 0)
        outgoing.n, outgoing.stride, outgoing.stored = len(packets), packets.strides[0], stored
        outgoing.wide = HEADER_BYTES + LANE_BYTES * (self.empty_lanes or lanes)
        outgoing.sorts = by_priority
        lengths = np.empty(n, np.int64)
        outgoing.full, outgoing.peers = address(full), address(peers)
        outgoing.lengths = address(lengths)
        if lanes and room is not None and room.shape[1] == OVERHEAD + stored:
            outgoing.frames = address(room)
            outgoing.packets = outgoing.frames + OVERHEAD
            if self._lib.write_frames(self._at):
                return self._written(room, lengths)
        frames = np.empty((n, OVERHEAD + stored), np.uint8)
        outgoing.frames, outgoing.packets = address(frames), packets.ctypes.data
        self._lib.write_frames(self._at)
        return self._written(frames, lengths)

    def _written(self, frames: Frames, lengths: Lengths) -> Written:
        outgoing = self._outgoing
        counts, totals = self._counts.tolist(), self._totals.tolist()
        return Written(frames, lengths, outgoing.local, counts, totals)

    def packets(self, frames: Frames, lengths: Lengths, lanes: int) -> Batch | None:
        """Converts frames to packets with payloads of `lanes` lanes, valid until the next call.

        Returns None unless all are well-formed and for this interface and port.
        """
        n, stored = frames.shape
        if stored < OVERHEAD + HEADER_BYTES:
            return None
        wide = packet_bytes(lanes)
        frames, lengths = np.ascontiguousarray(frames), np.ascontiguousarray(lengths)
        if n > len(self._headers):
            self._make_room(2 * n)
        if not self._lib.read_frames(
            address(frames), stored, n, address(lengths), self._mine_at, wide, *self._packets_at
        ):
            return None
        headers, full, sources = self._headers[:n], self._full[:n], self._sources[:n]
        if self.empty_lanes:
            words = self._no_words[:n]
        elif stored >= OVERHEAD + wide:
            words = frames[:, OVERHEAD + HEADER_BYTES : OVERHEAD + wide].view(LANE)
        elif full.any():
            return None
        else:
            words = np.empty((n, lanes), LANE)
        return Batch(headers, words, full, sources)

    def _make_room(self, n: int) -> None:
        """Allocates the results of `packets`."""
        self._headers, self._full = np.empty(n, HEADER), np.empty(n, np.bool_)
        self._sources, self._no_words = np.empty(n, PEER), np.empty((n, 0), LANE)
        self._packets_at = [address(one) for one in (self._headers, self._full, self._sources)]

    def decode(self, found: Datagrams, lanes: int) -> tuple[Batch, int]:
        """Returns the well-formed packets of datagrams for this endpoint, and the number of others.

        lanes: of their payloads.
        """
        batch = self.packets(found.frames, found.lengths, lanes)
        if batch is not None:
            return batch, 0
        first, last = _SOURCE
        sources = np.ascontiguousarray(
            found.frames[:, [*range(first, first + 4), *range(last, last + 2)]]
        )
        return decode_rows(
            found.frames[:, OVERHEAD:],
            found.lengths - OVERHEAD,
            sources.view(PEER)[:, 0],
            lanes,
            payload=not self.empty_lanes,
        )


class Demultiplexer:
    """Sorts arrived frames by the endpoints that they are for."""

    def __init__(self) -> None:
        self._lib = load_native()
        _check(self._lib)
        self._owners: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        self.listen(())

    def listen(self, endpoints: Sequence[tuple[int, int]]) -> None:
        """Sets the endpoints, each an IPv4 address and a UDP port."""
        self._endpoints = peer_array(endpoints)
        self._order, self._counts = np.zeros((2, max(1, len(endpoints))), np.int64)
        self._incoming = _INCOMING(
            endpoints=address(self._endpoints),
            count=len(endpoints),
            owners=address(self._owners),
            order=address(self._order),
            counts=address(self._counts),
        )
        self._at = ctypes.addressof(self._incoming)

    def sort(
        self, frames: Frames, lengths: Lengths, at: int, *, runs: bool = False
    ) -> tuple[list[tuple[int, Datagrams]], int]:
        """Returns the datagrams for each endpoint that gets any, by its index, in the order of
        their first ones; and the number of frames that no endpoint gets.

        lengths: (n,) bytes of each whole frame, of which the first are stored. at: when (ps) they
        reached the host. runs: return each run of datagrams for one endpoint by itself, in the
        order of arrival, as processors that are idle begin with the first.
        """
        n, stored = frames.shape
        frames, lengths = np.ascontiguousarray(frames), np.ascontiguousarray(lengths)
        if n > len(self._owners):
            self._owners = np.empty(2 * n, np.int64)
            self._incoming.owners = address(self._owners)
        given = address(frames), stored, n, address(lengths)
        if runs or len(self._endpoints) == 1:
            found = self._lib.sort_frames(self._at, *given, None, None)
            if found and self._counts[0] == n:
                return [(int(self._order[0]), Datagrams(frames, lengths, at))], 0
            if runs:
                return self._runs(Datagrams(frames, lengths, at))
        frames, lengths = np.empty((n, stored), np.uint8), np.empty(n, np.int64)
        found = self._lib.sort_frames(self._at, *given, address(frames), address(lengths))
        counts = self._counts.tolist()
        parts, first = [], 0
        for k, place in enumerate(self._order[:found].tolist()):
            last = first + counts[k]
            parts.append((place, Datagrams(frames[first:last], lengths[first:last], at)))
            first = last
        return parts, n - first

    def _runs(self, found: Datagrams) -> tuple[list[tuple[int, Datagrams]], int]:
        """Divides frames, which have just been sorted, where their endpoints change."""
        owners = self._owners[: len(found.lengths)]
        bounds = [0, *(np.flatnonzero(owners[1:] != owners[:-1]) + 1).tolist(), len(owners)]
        parts = [
            (int(self._order[owners[first]]), found.select(slice(first, last)))
            for first, last in pairwise(bounds)
            if first < last and owners[first] >= 0
        ]
        return parts, int((owners < 0).sum())


def _check(lib: ctypes.CDLL) -> None:
    """Raises RuntimeError if structures and constants here differ from those of the C code."""
    found = {"incoming": _INCOMING, "outgoing": _OUTGOING}
    sizes = {f"{name}_bytes": ctypes.sizeof(one) for name, one in found.items()}
    check_constants(lib, {**sizes, "frame_priorities": PRIORITIES})


def _rows_of(batch: Batch) -> npt.NDArray[np.uint8]:
    """Returns packets (n, bytes), header and payload, each in one piece."""
    if batch.wire is not None:
        return batch.wire
    rows = np.empty((len(batch), packet_bytes(batch.payloads.shape[1])), np.uint8)
    headers, words = parts_of(rows)
    opaque(headers)[:] = opaque(batch.headers)
    words[:] = batch.payloads
    return rows
