# SPDX-License-Identifier: Apache-2.0
"""The aggregation header and its codec, many packets at a time.

A packet is Ethernet / IPv4 / UDP (one of `SERVER_PORTS` at the server's side) / 32 bytes of header
in network order / payload. The payload is always one full chunk (`lanes` of the data plane in use,
`LANE_BYTES` each, zero padded) or absent; `carries_payload` is the rule that says which, so a
datagram's length follows from its header and any other length is malformed.

Nothing here loops over packets in Python: headers are rows of a numpy structured array whose
memory is the wire format, payloads rows of a big-endian int32 matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

# Ports of server processes, which switches match: 16 consecutive ones, the first a multiple of 16,
# so that one mask matches all. `PORT` is that of switches and of a server's first process.
SERVER_PORTS = range(47104, 47120)
PORT = 47110
VERSION = 1
# A UDP datagram's payload over IPv4: 65,535 bytes less the IPv4 and UDP headers.
LARGEST_DATAGRAM = 65507

HEADER = np.dtype(
    [
        ("version_op", "u1"),
        ("flags", "u1"),
        ("job", ">u2"),
        ("epoch", ">u2"),
        ("stream", "u1"),
        ("sender", "u1"),
        ("seq", ">u4"),
        ("chunk", ">u4"),
        ("children", ">u4"),
        ("workers", ">u2"),
        ("exponent", "i1"),
        ("max_exponent", "i1"),
        ("lanes", ">u2"),
        ("node", ">u2"),
        ("checksum", ">u4"),
    ]
)
HEADER_BYTES = HEADER.itemsize

# A lane of a payload, the unit that switches add: two's complement, or float32 bits in DIRECT.
LANE = np.dtype(">i4")
LANE_BYTES = LANE.itemsize

# An IPv4 address and a UDP port, host byte order values in network order memory.
PEER = np.dtype([("ipv4", ">u4"), ("port", ">u2")])

Array: TypeAlias = npt.NDArray[Any]
"""A structured array (HEADER or PEER), whose fields numpy's own types cannot name."""
Words: TypeAlias = npt.NDArray[np.int32]
"""Payload words, (n, lanes) big-endian int32; float32 bits in a DIRECT packet."""
Wire: TypeAlias = npt.NDArray[np.uint8]
"""Packets with payload as they are on the wire, (n, HEADER_BYTES + 4 lanes)."""


class Op(IntEnum):
    """The operation of a packet."""

    CONTRIBUTE = 1
    RESULT = 2
    QUERY = 3
    STATE = 4


class Flag(IntFlag):
    """Bits of header byte 1."""

    OVERFLOW = 0x01
    RETRANSMIT = 0x02
    DIRECT = 0x04
    NONFINITE = 0x08
    PHASE = 0x30  # a Phase, in STATE
    ECN = 0x40
    BYPASS = 0x80


FLAGGED = Flag.OVERFLOW | Flag.NONFINITE
"""A sum with one of these has no integer payload; its chunk is summed by the server in float32."""


class Phase(IntEnum):
    """The phase of a chunk at a node, as in a STATE (the bits of `Flag.PHASE`)."""

    AGGREGATING = 0
    PARTIAL = 1
    FINAL = 2


PHASE_SHIFT = 4

# numpy scalars: enumeration members cost a look-up and widen arrays.
_CONTRIBUTE = _FIRST_OP = np.uint8(Op.CONTRIBUTE)
_RESULT = np.uint8(Op.RESULT)
_LAST_OP = np.uint8(Op.STATE)
_FLAGGED = np.uint8(FLAGGED)
_DIRECT = np.uint8(Flag.DIRECT)
_OP_BITS = np.uint8(0x0F)


@dataclass(slots=True)
class Batch:
    """n packets.

    headers: (n,) HEADER.
    payloads: (n, lanes) big-endian int32; rows where `full` is false are undefined.
    full: (n,) bool, true for packets with their payload.
    peers: (n,) PEER, the source of a received packet or the destination of one to send.
    wire: the memory that headers and payloads are views of (`parts_of`), if there is one.
    room: `wire` with the header room before each packet, if there is any.
    """

    headers: Array
    payloads: Words
    full: npt.NDArray[np.bool_]
    peers: Array
    wire: Wire | None = None
    room: Wire | None = None

    def __len__(self) -> int:
        return len(self.headers)

    def select(self, rows: Any) -> Batch:
        """Returns the packets of `rows` (an index array, mask or slice), in that order: this very
        batch if a mask takes all."""
        if isinstance(rows, np.ndarray) and rows.dtype == np.bool_ and rows.all():
            return self
        headers, peers = picked(self.headers, rows), picked(self.peers, rows)
        return Batch(headers, self.payloads[rows], self.full[rows], peers)

    @staticmethod
    def concatenate(batches: Sequence[Batch]) -> Batch:
        """Joins batches, in order; `batches` must not be empty and have equal lanes."""
        if len(batches) == 1:
            return batches[0]
        # By default numpy concatenates big-endian arrays into one of native byte order.
        return Batch(
            joined([batch.headers for batch in batches]),
            np.concatenate([batch.payloads for batch in batches], dtype=LANE),
            np.concatenate([batch.full for batch in batches]),
            joined([batch.peers for batch in batches]),
        )

    @staticmethod
    def empty(lanes: int) -> Batch:
        """Returns a batch of no packets."""
        return Batch(
            np.zeros(0, HEADER),
            np.zeros((0, lanes), LANE),
            np.zeros(0, np.bool_),
            np.zeros(0, PEER),
        )


class WireBatch(Batch):
    """Packets in wire format, whose headers and payloads become arrays when they are first read.

    wire: (n, HEADER_BYTES + 4 lanes). full, peers, room: see Batch.
    """

    __slots__ = ()

    def __init__(
        self, wire: Wire, full: npt.NDArray[np.bool_], peers: Array, room: Wire | None = None
    ) -> None:
        # `headers` and `payloads` stay unset, so that `__getattr__` makes them on demand.
        self.wire, self.full, self.peers, self.room = wire, full, peers, room

    def __len__(self) -> int:
        return len(self.full)

    def __getattr__(self, name: str) -> Any:
        if name not in ("headers", "payloads"):
            raise AttributeError(f"{type(self).__name__} has no {name}")
        assert self.wire is not None
        self.headers, self.payloads = parts_of(self.wire)
        return getattr(self, name)


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive packets of one size to one destination: one system call with GSO.

    `buffer` holds `count` segments of `segment` bytes; `peer` is (IPv4 address, UDP port).
    """

    peer: tuple[int, int]
    buffer: memoryview
    segment: int
    count: int


def packet_bytes(lanes: int) -> int:
    """Returns the bytes of a packet whose payload has so many lanes, below no other header."""
    return HEADER_BYTES + LANE_BYTES * lanes


def opaque(items: Array) -> Array:
    """Returns the same memory as items without fields: numpy copies structured items field by
    field."""
    return items.view(_opaque_type(items.dtype.itemsize))


def picked(items: Array, rows: Any) -> Array:
    """Returns structured items of `rows` (an index array, mask or slice): a copy unless a slice."""
    found: Array = opaque(items)[rows].view(items.dtype)
    return found


def copied(items: Array) -> Array:
    """Returns a contiguous copy of structured items."""
    return opaque(items).copy().view(items.dtype)


def joined(parts: Sequence[Array]) -> Array:
    """Returns all items of structured arrays of one type, at least one, in order."""
    assert all(part.dtype == parts[0].dtype for part in parts)
    return np.concatenate([opaque(part) for part in parts]).view(parts[0].dtype)


@lru_cache
def _opaque_type(size: int) -> np.dtype[Any]:
    return np.dtype((np.void, size))


def parts_of(wire: Wire) -> tuple[Array, Words]:
    """Returns views of packets: (n,) HEADER and (n, lanes) payload words."""
    headers = wire[:, :HEADER_BYTES].view(HEADER)[:, 0]
    words: Words = wire[:, HEADER_BYTES:].view(LANE)
    return headers, words


def blank(n: int, op: Op) -> Array:
    """Returns (n,) HEADER, all zero but for version and op."""
    headers = np.zeros(n, HEADER)
    headers["version_op"] = VERSION << 4 | op
    return headers


def distinct(column: npt.NDArray[Any]) -> list[int]:
    """Returns the distinct values of a column, mostly one."""
    first = column[:1]
    found: list[int] = (first if (column == first).all() else np.unique(column)).tolist()
    return found


def ops(headers: Array) -> npt.NDArray[np.uint8]:
    """Returns the op (n,) of each header."""
    return np.asarray(headers["version_op"] & _OP_BITS, np.uint8)


def phases(headers: Array) -> npt.NDArray[np.uint8]:
    """Returns the phase (n,) in each STATE."""
    return np.asarray((headers["flags"] & Flag.PHASE) >> PHASE_SHIFT, np.uint8)


def carries_payload(headers: Array) -> npt.NDArray[np.bool_]:
    """Returns a mask (n,) of headers that a payload follows.

    CONTRIBUTE and RESULT with valid lanes have one, unless the sum is OVERFLOW or NONFINITE; a
    DIRECT packet has its float32 payload whatever its flags.
    """
    flags = headers["flags"]
    kind = ops(headers)
    data = (kind == _CONTRIBUTE) | (kind == _RESULT)
    whole = ((flags & _FLAGGED) == 0) | ((flags & _DIRECT) != 0)
    result: npt.NDArray[np.bool_] = (headers["lanes"] != 0) & data & whole
    return result


def peer_keys(peers: Array) -> npt.NDArray[np.uint64]:
    """Returns one number (n,) per (address, port), for comparing and looking up."""
    keys = peers["ipv4"].astype(np.uint64) << np.uint64(16) | peers["port"].astype(np.uint64)
    return np.asarray(keys, np.uint64)


def peer_array(peers: Sequence[tuple[int, int]]) -> Array:
    """Returns (n,) PEER from (IPv4 address, UDP port) pairs."""
    return np.array(list(peers), PEER)


def encode_runs(batch: Batch, most_packets: int = 60) -> list[Run]:
    """Returns the packets of `batch` in order, as buffers to send.

    Consecutive packets of the same size to the same peer share a run of at most `most_packets`
    packets and LARGEST_DATAGRAM bytes.
    """
    n = len(batch)
    if n == 0:
        return []
    full = batch.full
    large, small = as_sent(batch)
    keys = peer_keys(batch.peers)
    starts = np.flatnonzero((keys[1:] != keys[:-1]) | (full[1:] != full[:-1])) + 1
    bounds = [0, *starts.tolist(), n]
    before = np.concatenate(([0], np.cumsum(full))).tolist()
    runs: list[Run] = []
    for start, stop in pairwise(bounds):
        rows, first = (large, before[start]) if full[start] else (small, start - before[start])
        size = rows.shape[1]
        most = max(1, min(most_packets, LARGEST_DATAGRAM // size))
        peer = (int(batch.peers["ipv4"][start]), int(batch.peers["port"][start]))
        for offset in range(0, stop - start, most):
            count = min(most, stop - start - offset)
            part = rows[first + offset : first + offset + count]
            runs.append(Run(peer, part.reshape(-1).data, size, count))
    return runs


def as_sent(batch: Batch) -> tuple[Wire, Wire]:
    """Returns the bytes of the packets with payload, and of those without, each in order."""
    n, full = len(batch), batch.full
    if batch.wire is not None and full.all():
        return batch.wire, batch.wire[:0, :HEADER_BYTES]
    headers = np.ascontiguousarray(opaque(batch.headers)).view(np.uint8).reshape(n, HEADER_BYTES)
    payload_bytes = LANE_BYTES * batch.payloads.shape[1]
    whole = np.flatnonzero(full)
    large = np.empty((len(whole), HEADER_BYTES + payload_bytes), np.uint8)
    large[:, :HEADER_BYTES] = headers[whole]
    words = batch.payloads[whole] if len(whole) < n else batch.payloads
    words = np.ascontiguousarray(words, LANE)
    large[:, HEADER_BYTES:] = words.view(np.uint8).reshape(len(whole), payload_bytes)
    return large, headers[~full]


def encode(batch: Batch) -> list[bytes]:
    """Returns each packet of `batch` as the bytes of its datagram, in order."""
    return [
        bytes(run.buffer[i * run.segment : (i + 1) * run.segment])
        for run in encode_runs(batch)
        for i in range(run.count)
    ]


def decode(
    datagrams: Sequence[bytes | bytearray | memoryview],
    peers: Sequence[tuple[int, int]] | Array,
    lanes: int,
    segments: Sequence[int] | None = None,
) -> tuple[Batch, int]:
    """Returns the well-formed packets of received buffers, in order, and the number of others.

    datagrams: buffers, each one datagram or, with UDP_GRO, several of `segments[i]` bytes of which
        the last may be shorter.
    peers: the source of each buffer.
    lanes: of a full payload.

    Malformed: another version, an unknown op, a length other than the one the header implies.
    """
    wide = packet_bytes(lanes)
    pieces: list[tuple[npt.NDArray[np.uint8], int, int]] = []  # buffer, segment, index of peer
    for i, datagram in enumerate(datagrams):
        buffer = np.frombuffer(datagram, np.uint8)
        segment = segments[i] if segments is not None and segments[i] > 0 else len(buffer)
        segment = max(1, segment)
        even = len(buffer) // segment * segment
        if even:
            pieces.append((buffer[:even], segment, i))
        if even < len(buffer) or not len(buffer):
            pieces.append((buffer[even:], len(buffer) - even, i))
    counts = [max(1, len(buffer) // max(1, size)) for buffer, size, _ in pieces]
    total = sum(counts)
    raw = np.zeros((total, HEADER_BYTES), np.uint8)
    words = np.empty((total, lanes), LANE)
    word_bytes = words.view(np.uint8).reshape(total, LANE_BYTES * lanes)
    length = np.zeros(total, np.int64)
    at = 0
    for (buffer, size, _), count in zip(pieces, counts, strict=True):
        rows = slice(at, at + count)
        length[rows] = size
        if size in (wide, HEADER_BYTES):
            packets = buffer.reshape(count, size)
            raw[rows] = packets[:, :HEADER_BYTES]
            if size == wide:
                word_bytes[rows] = packets[:, HEADER_BYTES:]
        at += count
    headers = raw.reshape(-1).view(HEADER)
    sources = peers if isinstance(peers, np.ndarray) else peer_array(peers)
    owners = np.repeat(np.array([i for _, _, i in pieces], np.intp), counts)
    return _well_formed(Batch(headers, words, carries_payload(headers), sources[owners]), length)


def decode_wire(wire: Wire, peers: Array) -> tuple[Batch, int]:
    """Decodes datagrams that all have the size of a full packet, without copying payloads.

    peers: (n,) PEER. The payloads are a view of `wire`, unless some are malformed.
    """
    headers, words = parts_of(wire)
    # Many columns are read later: in `wire` each packet would be a cache miss.
    headers = copied(headers)
    batch = Batch(headers, words, carries_payload(headers), peers)
    return _well_formed(batch, wire.shape[1])


def decode_rows(
    rows: Wire, lengths: Any, peers: Array, lanes: int, *, payload: bool = True
) -> tuple[Batch, int]:
    """Decodes datagrams of these lengths (n,) in bytes, each at the start of its row of (n, bytes).

    payload: if false, payloads only occupy the wire: the batch's are (n, 0).
    """
    n, stored = rows.shape
    if stored < HEADER_BYTES:
        return Batch.empty(lanes if payload else 0), n
    words: Words
    if not payload:
        words = np.empty((n, 0), LANE)
    elif stored >= packet_bytes(lanes):
        words = rows[:, HEADER_BYTES : packet_bytes(lanes)].view(LANE)
    else:  # payloads are absent or truncated
        words = np.empty((n, lanes), LANE)
    headers = copied(rows[:, :HEADER_BYTES].view(HEADER)[:, 0])
    return _well_formed(Batch(headers, words, carries_payload(headers), peers), lengths, lanes)


def _well_formed(batch: Batch, length: Any, lanes: int = 0) -> tuple[Batch, int]:
    """Returns the well-formed packets of datagrams of that length (n,) in bytes, and the number of
    others.

    lanes: of a full payload, if not as many as in the batch.
    """
    kind = ops(batch.headers)
    wide = packet_bytes(lanes or batch.payloads.shape[1])
    good = length == np.where(batch.full, wide, HEADER_BYTES)
    good &= batch.headers["version_op"] >> 4 == VERSION
    good &= (kind >= _FIRST_OP) & (kind <= _LAST_OP)
    malformed = len(batch) - int(np.count_nonzero(good))
    return (batch.select(good) if malformed else batch), malformed
