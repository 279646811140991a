# SPDX-License-Identifier: Apache-2.0
"""Writes inputs of the fuzzer: records.h in Python."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum


class Op(IntEnum):
    """enum operation of records.h"""

    FRAME = 0
    TAGGED_FRAME = 1
    PACKET_OUT = 2
    TIME = 3
    LINK = 4
    SEND = 5
    RECEIVE_ERROR = 6
    WRITABLE = 7
    CONTROL = 8
    ATTACH = 9


UDP_L4, TCPV4 = 5, 1
_HEADERS = {UDP_L4: (42, 6), TCPV4: (54, 16)}  # bytes of headers, place of the checksum


def event(op: Op, port: int = 1, *numbers: int, data: bytes = b"", stretch: int = 0) -> bytes:
    """A record; port 1 to 5."""
    five = [*numbers, 0, 0, 0, 0, 0][:5]
    return struct.pack("=BB7H", op, port - 1, *five, stretch, len(data)) + data


def frame(port: int, data: bytes, *, tag: int | None = None) -> bytes:
    """Returns an arriving frame. tag: a VLAN tag that the system removed."""
    if tag is not None:
        return event(Op.TAGGED_FRAME, port, 0, tag, data=data)
    return event(Op.FRAME, port, data=data)


def gso(port: int, packets: Sequence[bytes], kind: int = UDP_L4, stretch: int = 0) -> bytes:
    """Returns packets of one flow and length as one frame with an offload header."""
    headers, checksum = _HEADERS[kind]
    joined = bytearray(packets[0] + b"".join(one[headers:] for one in packets[1:]))
    total = len(joined) + stretch
    joined[16:18] = struct.pack(">H", total - 14)
    if kind == UDP_L4:
        joined[38:40] = struct.pack(">H", total - 34)
    size = len(packets[0]) - headers
    numbers = (1 | kind << 8, headers, size, 34, checksum)
    return event(Op.FRAME, port, *numbers, data=bytes(joined), stretch=stretch)
