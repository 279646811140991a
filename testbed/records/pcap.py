# SPDX-License-Identifier: Apache-2.0
"""Reads packet captures: those of the embedded target (nanoseconds) and BMv2's (microseconds).

https://www.ietf.org/archive/id/draft-ietf-opsawg-pcap-05.html
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

_FILE_HEADER = 24
_RECORD_HEADER = 16
# Magic number in the writer's byte order -> ticks per second.
_TICKS = {0xA1B2C3D4: 1_000_000, 0xA1B23C4D: 1_000_000_000}


class CaptureError(Exception):
    """A file is no capture; the text names it."""


def packets(
    path: Path, wanted: Callable[[memoryview], bool] = lambda frame: True
) -> Iterator[tuple[int, bytes]]:
    """(nanoseconds since 1970, frame) of each wanted packet, in order.

    A capture that is still being written may end within a packet, which is left out then, and so
    may one whose writer was killed. Raises CaptureError.
    """
    with path.open("rb") as file:
        if file.seek(0, 2) < _FILE_HEADER:
            return  # an idle port's, or one that was just made
        with (
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
            memoryview(mapped) as data,
        ):
            yield from _records(path, data, wanted)


def _records(
    path: Path, data: memoryview, wanted: Callable[[memoryview], bool]
) -> Iterator[tuple[int, bytes]]:
    order = next((o for o in "<>" if struct.unpack_from(f"{o}I", data)[0] in _TICKS), None)
    if order is None:
        raise CaptureError(f"{path}: it does not begin as a packet capture (pcap) does")
    tick = 1_000_000_000 // _TICKS[struct.unpack_from(f"{order}I", data)[0]]
    record = struct.Struct(f"{order}IIII")
    at, end = _FILE_HEADER, len(data)
    while at + _RECORD_HEADER <= end:
        seconds, ticks, kept, _ = record.unpack_from(data, at)
        at += _RECORD_HEADER
        if at + kept > end:
            return
        with data[at : at + kept] as frame:
            take = bytes(frame) if wanted(frame) else None
        if take is not None:
            yield seconds * 1_000_000_000 + ticks * tick, take
        at += kept
