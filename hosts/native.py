# SPDX-License-Identifier: Apache-2.0
"""What hosts have in C, compiled where it is first needed, and loaded.

Everything of it (``hosts/runtime``) is also in Python with numpy, which says what it is to come to,
and which is used where there is no C compiler, or if the environment says RACKHUB_NUMPY=1. It takes
the passes over packets' bytes; what is decided of them once a batch stays in Python.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from protocol.header import (
    HEADER,
    HEADER_BYTES,
    PEER,
    Array,
    Batch,
    Wire,
    decode_wire,
    opaque,
    parts_of,
)
from switch.compile import CompilerError
from switch.native import build

log = logging.getLogger("native")

VARIABLE = "RACKHUB_NUMPY"

RECEIVED = np.dtype([("bytes", "u4"), ("segment", "u4"), ("source", PEER)])
"""One received train: its length, that of a datagram in it, and where it came from."""
SPAN = np.dtype([("first", "u4"), ("count", "u4"), ("destination", PEER)])
"""Packets of a batch that follow each other and have one destination."""

_MOST_SPANS = 64
_RUNTIME = Path(__file__).parent / "runtime"
_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_size_t
_COUNT, _SOCKET = ctypes.POINTER(ctypes.c_uint64), ctypes.c_int
_FUNCTIONS: dict[str, tuple[type[Any] | None, list[type[Any]]]] = {
    "receive_trains": (
        ctypes.c_int64,
        [_SOCKET, _POINTER, _SIZE, _SIZE, _POINTER, ctypes.POINTER(ctypes.c_int32)],
    ),
    "send_trains": (
        ctypes.c_int64,
        [_SOCKET, _POINTER, _SIZE, _POINTER, _SIZE, _SIZE, _COUNT],
    ),
    "decode_packets": (ctypes.c_int64, [_POINTER, _SIZE, _SIZE, _POINTER, _POINTER]),
    "take_contributions": (
        ctypes.c_int64,
        [
            _POINTER, _POINTER, _POINTER, _SIZE, _POINTER, _POINTER, _SIZE, _POINTER, _COUNT,
            _COUNT,
        ],
    ),
    "seal_sums": (None, [_POINTER, _POINTER, _SIZE]),
    "write_results": (ctypes.c_int, [_POINTER, _POINTER, _SIZE, _POINTER]),
    "alike": (ctypes.c_int, [_POINTER, _SIZE]),
    "find_spans": (_SIZE, [_POINTER, _SIZE, _POINTER, _SIZE]),
}  # fmt: skip


def library() -> ctypes.CDLL | None:
    """The compiled functions; None where numpy does what they do."""
    return None if os.environ.get(VARIABLE) == "1" else _loaded()


@functools.cache
def _loaded() -> ctypes.CDLL | None:
    try:
        lib = ctypes.CDLL(str(build("hosts", _RUNTIME, _RUNTIME)))
    except (CompilerError, OSError) as error:
        log.warning("numpy reads and writes packets, several times slower: %s", error)
        return None
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


def receive(
    lib: ctypes.CDLL, socket: int, arena: npt.NDArray[np.uint8], trains: Array
) -> tuple[int, int]:
    """Reads what has arrived into `arena`, without gaps, until it might not fit or as many
    datagrams are there as `trains` (RECEIVED, contiguous) has rows; returns how many of these it
    filled, and errno of what ended it (0: nothing is left)."""
    error = ctypes.c_int32()
    n: int = lib.receive_trains(
        socket, arena.ctypes.data, len(arena), len(trains), trains.ctypes.data, error
    )
    return n, error.value


def send(
    lib: ctypes.CDLL, socket: int, wire: Wire, spans: Array, most_packets: int
) -> tuple[int, int]:
    """Sends packets as they are in memory, in trains of up to `most_packets`, the destinations of
    `spans` (SPAN) taking turns; returns how many trains, and packets, were taken before the first
    train that was not."""
    packets = ctypes.c_uint64()
    trains: int = lib.send_trains(
        socket, wire.ctypes.data, wire.shape[1], spans.ctypes.data, len(spans), most_packets,
        packets,
    )  # fmt: skip
    return trains, packets.value


def decode(lib: ctypes.CDLL | None, wire: Wire, peers: Array) -> tuple[Batch, int]:
    """As `protocol.header.decode_wire`; wire: contiguous."""
    if lib is not None:
        n, size = wire.shape
        raw = np.empty((n, HEADER_BYTES), np.uint8)
        full = np.empty(n, np.bool_)
        good = lib.decode_packets(wire.ctypes.data, n, size, raw.ctypes.data, full.ctypes.data)
        if good == n:
            return Batch(raw.view(HEADER)[:, 0], parts_of(wire)[1], full, peers), 0
    return decode_wire(wire, peers)


def alike(lib: ctypes.CDLL, headers: Array) -> bool:
    """Whether at least one packet is there, and all are of one job, epoch and stream, ask the same
    and are alike DIRECT or not. False, too, where that is not quick to see."""
    if not len(headers) or headers.strides[0] != HEADER_BYTES:
        return False
    return bool(lib.alike(headers.ctypes.data, len(headers)))


def spans(lib: ctypes.CDLL, peers: Array) -> Array | None:
    """Packets of one peer each that follow each other (SPAN); None if those of a peer do not all,
    or there are many."""
    found = np.empty(_MOST_SPANS, SPAN)
    peers = np.ascontiguousarray(opaque(peers))
    n = lib.find_spans(peers.ctypes.data, len(peers), found.ctypes.data, len(found))
    if len(set(found["destination"][:n].tolist())) < n or not n:
        return None
    return found[:n]
