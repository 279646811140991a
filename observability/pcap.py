# SPDX-License-Identifier: Apache-2.0
"""Reads packet captures of the embedded target (nanoseconds) and BMv2 (microseconds), and writes
those of virtual time.

https://www.ietf.org/archive/id/draft-ietf-opsawg-pcap-05.html
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from protocol.errors import Error

_FILE_HEADER = 24
_RECORD_HEADER = 16
_MICROSECONDS, _NANOSECONDS = 0xA1B2C3D4, 0xA1B23C4D  # magic numbers
# Magic number in the writer's byte order -> ticks per second.
_TICKS = {_MICROSECONDS: 1_000_000, _NANOSECONDS: 1_000_000_000}
_LONGEST = 1 << 18


class CaptureError(Error):
    """A file is not a capture; the text names it."""


def header(magic: int = _MICROSECONDS) -> bytes:
    """Returns the file header of a capture of Ethernet frames, in this machine's byte order."""
    # Section 4: magic number, version, two fields of 0, the longest packet, Ethernet.
    return struct.pack("=IHHIIII", magic, 2, 4, 0, 0, _LONGEST, 1)


class Writer:
    """Writes a capture with nanosecond times. Raises ``OSError`` if it cannot be written."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._file.write(header(_NANOSECONDS))

    def write(
        self,
        times: npt.NDArray[np.int64],
        frames: npt.NDArray[np.uint8],
        lengths: npt.NDArray[np.int64],
    ) -> None:
        """Adds n packets.

        times: (n,) ns since 1970. frames: (n, kept), the first bytes of each frame.
        lengths: (n,) bytes of the whole frames; bytes of ``frames`` beyond them are ignored.
        """
        count, kept = frames.shape
        records = np.empty((count, _RECORD_HEADER + kept), np.uint8)
        fields = np.empty((count, 4), np.uint32)
        fields[:, 0], fields[:, 1] = np.divmod(times, 1_000_000_000)
        fields[:, 2], fields[:, 3] = np.minimum(lengths, kept), lengths
        records[:, :_RECORD_HEADER] = fields.view(np.uint8)
        records[:, _RECORD_HEADER:] = frames
        if count and int(lengths.min()) < kept:
            there = np.arange(_RECORD_HEADER + kept) < _RECORD_HEADER + lengths[:, None]
            records = records[there]
        self._file.write(records.data)

    def close(self) -> None:
        """Writes out what is buffered and closes the file."""
        self._file.close()


def packets(
    path: Path, wanted: Callable[[memoryview], bool] = lambda frame: True
) -> Iterator[tuple[int, bytes, int]]:
    """Yields (nanoseconds since 1970, frame, its length) of each wanted packet, in order.

    A frame without payload (virtual time, ``payload: none``) has fewer bytes than its length. A
    packet cut off at the end of the file, by a writer that runs or was killed, is left out. Raises
    ``CaptureError``.
    """
    with _opened(path) as data:
        for time, length, first, end in _records(path, data):
            with data[first:end] as frame:
                take = bytes(frame) if wanted(frame) else None
            if take is not None:
                yield time, take, length


def heads(path: Path, most: int) -> Iterator[tuple[bytes, int]]:
    """Yields the first bytes, at most ``most``, and the length of each packet, like ``packets``."""
    with _opened(path) as data:
        for _, length, first, end in _records(path, data):
            yield bytes(data[first : min(end, first + most)]), length


@contextmanager
def _opened(path: Path) -> Iterator[memoryview]:
    """Maps a capture into memory; yields no bytes for a file without a complete header."""
    with path.open("rb") as file:
        if file.seek(0, 2) < _FILE_HEADER:
            yield memoryview(b"")
            return
        with (
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
            memoryview(mapped) as data,
        ):
            yield data


def _records(path: Path, data: memoryview) -> Iterator[tuple[int, int, int, int]]:
    """Yields time (ns), frame length, and begin and end offsets of the captured bytes."""
    if not data:
        return
    order = next((o for o in "<>" if struct.unpack_from(f"{o}I", data)[0] in _TICKS), None)
    if order is None:
        raise CaptureError(f"{path}: not a packet capture (pcap): wrong magic number")
    tick = 1_000_000_000 // _TICKS[struct.unpack_from(f"{order}I", data)[0]]
    record = struct.Struct(f"{order}IIII")
    at, end = _FILE_HEADER, len(data)
    while at + _RECORD_HEADER <= end:
        seconds, ticks, kept, length = record.unpack_from(data, at)
        at += _RECORD_HEADER
        if at + kept > end:
            return
        yield seconds * 1_000_000_000 + ticks * tick, length, at, at + kept
        at += kept
