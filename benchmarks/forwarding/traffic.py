# SPDX-License-Identifier: Apache-2.0
"""The frames that the load sends, prepared before measuring.

A *train* is what a port sends at a time: in GSO mode one frame of many segments behind a virtio-net
header, otherwise as many frames of one packet each.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from protocol.header import HEADER_BYTES, PORT, VERSION, Op, blank
from protocol.payloads import header_hashes, word_sums

Mode = Literal[
    "gso", "plain", "tcp", "router_64_1", "router_64_10000", "router_1400_1", "router_1400_10000"
]

PORTS = 4
LANES = 256
JOB = EPOCH = NODE = 1
STREAM = 0
ROUTER_MAC = 0x02_00_00_00_00_99
WORKER_MACS = 0x02_00_00_00_01_00
WORKER_ADDRESSES = 0x0A_00_00_01  # 10.0.0.1 on
SERVER_ADDRESS = 0x0A_00_01_01
WORKER_UDP_PORTS = 40000

GSO_SEGMENTS = 56
PLAIN_PACKETS = 32
TCP_SEGMENT = 1448  # of an MTU of 1500 with timestamps, which all TCP has
_TCP_SEGMENTS = 44

_ETHERNET, _IPV4, _UDP = 14, 20, 8
_TCP = 32  # with timestamps
_VNET = 10  # struct virtio_net_hdr
_NEEDS_CSUM, _GSO_TCPV4, _GSO_UDP_L4 = 1, 1, 5
PAYLOAD_AT = _ETHERNET + _IPV4 + _UDP
_SEQ, _CHUNK = 8, 12  # within the aggregation header
NUMBER_AT = PAYLOAD_AT + _SEQ  # of a packet's number, in its frame

Words = NDArray[Any]


@dataclass(frozen=True)
class Traffic:
    """A load; fields as in struct ends_traffic (native/ends.c).

    trains: By port.
    packets: Per train of a port.
    sign: (offset, byte) of every right reply.
    varying: By port, the bytes that replace `varying_bytes` bytes at `varying_at` of successive
        messages, cyclically.
    across: Packets sent through a port come back at its neighbour.
    """

    mode: Mode
    trains: tuple[bytes, ...]
    messages: int
    vnet: bool
    numbers: int
    number_at: int
    number_stride: int
    number_step: int
    number_again: int
    headers: int
    segment: int
    packets: int
    window: int
    sign: tuple[int, int]
    varying: tuple[bytes, ...] = ()
    varying_at: int = 0
    varying_bytes: int = 0
    across: bool = False


def aggregation(gso: bool, window: int, answer: Op, packets: int | None = None) -> Traffic:
    """Returns contributions of four workers, one per port, each sequence number from all.

    Args:
        window: Packets in flight per worker.
        answer: The operation of replies.
        packets: Per train; by default what fits best.
    """
    count = min(packets or (GSO_SEGMENTS if gso else PLAIN_PACKETS), window)
    size = HEADER_BYTES + 4 * LANES
    trains = []
    for worker in range(PORTS):
        segment = contribution(worker)
        if gso:
            trains.append(_udp(worker, segment * count, size))
        else:
            trains.append(packet(worker) * count)
    vnet = _VNET if gso else 0
    return Traffic(
        mode="gso" if gso else "plain",
        trains=tuple(trains),
        messages=1 if gso else count,
        vnet=gso,
        numbers=count if gso else 1,
        number_at=vnet + NUMBER_AT,
        number_stride=size,
        number_step=1,
        number_again=_CHUNK - _SEQ,
        headers=PAYLOAD_AT,
        segment=size,
        packets=count,
        window=window,
        sign=(PAYLOAD_AT, VERSION << 4 | answer),
    )


def tcp(window: int) -> Traffic:
    """Returns TCP frames as a host with segmentation offload sends them, to the next port."""
    count = min(_TCP_SEGMENTS, window)
    payload = np.random.default_rng(1).bytes(TCP_SEGMENT * count)
    trains = []
    for worker in range(PORTS):
        length = _TCP + len(payload)
        header = struct.pack(
            ">HHIIBBHHHBBBBII", 5001, 5001, 0, 1, (_TCP // 4) << 4, 0x10, 0xFFFF, 0, 0,
            1, 1, 8, 10, 1, 1,
        )  # fmt: skip
        source, destination = WORKER_ADDRESSES + worker, WORKER_ADDRESSES + (worker ^ 1)
        pseudo = _pseudo_sum(source, destination, 6, length)
        header = header[:16] + struct.pack(">H", pseudo) + header[18:]
        vnet = _vnet_header(_GSO_TCPV4, _TCP, TCP_SEGMENT, 16)
        trains.append(
            vnet + _ethernet(worker) + _ipv4(source, destination, 6, length) + header + payload
        )
    return Traffic(
        mode="tcp",
        trains=tuple(trains),
        messages=1,
        vnet=True,
        numbers=1,
        number_at=_VNET + _ETHERNET + _IPV4 + 4,
        number_stride=0,
        number_step=len(payload),
        number_again=0,
        headers=_ETHERNET + _IPV4 + _TCP,
        segment=TCP_SEGMENT,
        packets=count,
        window=window,
        sign=(_ETHERNET + 9, 6),
        across=True,
    )


def words(worker: int, lanes: int = LANES) -> Words:
    """Returns a worker's contribution to every chunk: (lanes,) int32."""
    drawn = np.random.default_rng(worker).integers(-(1 << 20), 1 << 20, lanes, np.int32)
    return drawn.astype(">i4")


def packet(worker: int, lanes: int = LANES) -> bytes:
    """Returns a frame with one contribution, without offload and UDP checksum."""
    return _udp(worker, contribution(worker, lanes), None)


def contribution(worker: int, lanes: int = LANES) -> bytes:
    """Returns a contribution's UDP payload. Sequence number, chunk and their part of the checksum,
    which no switch verifies, are 0."""
    header = blank(1, Op.CONTRIBUTE)
    for name, value in (
        ("job", JOB), ("epoch", EPOCH), ("stream", STREAM), ("sender", worker), ("workers", 1),
        ("lanes", lanes), ("node", NODE),
    ):  # fmt: skip
        header[name] = value
    payload = words(worker, lanes)
    header["checksum"] = word_sums(payload[None]) + header_hashes(header)
    return header.tobytes() + payload.tobytes()


def datagram(worker: int, destination: int, size: int) -> bytes:
    """Returns a frame of `size` bytes from a worker to the router, without UDP checksum."""
    length = size - _ETHERNET - _IPV4
    udp = struct.pack(">HHHH", WORKER_UDP_PORTS + worker, PORT, length, 0)
    header = _ipv4(WORKER_ADDRESSES + worker, destination, 17, length)
    return (_ethernet(worker) + header + udp).ljust(size, b"\0")


def wrong_sum(frame: bytes) -> str | None:
    """Describes an error in a frame (from Ethernet on) of RESULTs; None if it is right."""
    size = HEADER_BYTES + 4 * LANES
    expected = sum(words(worker).astype(np.int64) for worker in range(PORTS))
    body = frame[PAYLOAD_AT:]
    if len(body) % size or not body:
        return f"{len(body)} bytes of UDP payload are not packets of {size}"
    for at in range(0, len(body), size):
        if body[at] != VERSION << 4 | Op.RESULT:
            return f"the first byte of a packet is {body[at]:#x}"
        found = np.frombuffer(body, ">i4", LANES, at + HEADER_BYTES)
        if not (found == expected).all():
            return f"lane {int(np.argmax(found != expected))} of a sum is wrong"
    return None


def _udp(worker: int, payload: bytes, segment: int | None) -> bytes:
    """Returns a frame. segment: payload bytes per GSO segment; None: no offload or checksum."""
    source = WORKER_ADDRESSES + worker
    length = _UDP + len(payload)
    checksum, vnet = 0, b""
    if segment is not None:
        checksum = _pseudo_sum(source, SERVER_ADDRESS, 17, length)
        vnet = _vnet_header(_GSO_UDP_L4, _UDP, segment, 6)
    udp = struct.pack(">HHHH", WORKER_UDP_PORTS + worker, PORT, length, checksum)
    return vnet + _ethernet(worker) + _ipv4(source, SERVER_ADDRESS, 17, length) + udp + payload


def _ethernet(worker: int) -> bytes:
    destination, source = ROUTER_MAC.to_bytes(6, "big"), (WORKER_MACS + worker).to_bytes(6, "big")
    return destination + source + b"\x08\x00"


def _ipv4(source: int, destination: int, protocol: int, length: int) -> bytes:
    def packed(checksum: int) -> bytes:
        return struct.pack(
            ">BBHHHBBHII", 0x45, 0, _IPV4 + length, 0, 0x4000, 64, protocol, checksum,
            source, destination,
        )  # fmt: skip

    return packed(~internet_sum(packed(0)) & 0xFFFF)


def _pseudo_sum(source: int, destination: int, protocol: int, length: int) -> int:
    """Returns the initial checksum field for an interface that completes it."""
    return internet_sum(struct.pack(">IIHH", source, destination, protocol, length))


def internet_sum(data: bytes) -> int:
    """Returns the ones' complement sum of 16-bit words (RFC 1071)."""
    total: int = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def _vnet_header(kind: int, l4_bytes: int, segment: int, checksum_at: int) -> bytes:
    """Returns a struct virtio_net_hdr (linux/virtio_net.h), in the machine's byte order."""
    start = _ETHERNET + _IPV4
    return struct.pack("=BBHHHH", _NEEDS_CSUM, kind, start + l4_bytes, segment, start, checksum_at)
