# SPDX-License-Identifier: Apache-2.0
"""Accesses meters, digests and idle times of a running program. (Tables, counters and registers are
methods of Pipeline.)

    externs = Externs(pipeline)
    externs.set_meter("Ingress.limit", 3, Rates(1000, 1500, 2000, 3000))
    externs.enable_digest("learned_t", 16)
    externs.take("learned_t", 16)          # -> [DigestMessage(slot, values)]

Every method may be called from any thread, as those of Pipeline.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from switch.codegen.layout import limbs
from switch.pipeline import abi
from switch.pipeline.errors import PipelineError
from switch.pipeline.keys import position
from switch.pipeline.pipeline import Pipeline

MOST_TOKENS = (1 << 63) - 1  # largest rate or burst
DIGEST_ROOM = 8192  # SW_DIGEST_ROOM: messages of a digest that wait or are unreleased

_GONE = (1 << 64) - 1
_Words = ctypes.c_uint64 * 4


class Rates(NamedTuple):
    """Rates of a meter (RFC 2698): committed and peak, each in tokens (packets or bytes) per second
    with a burst in tokens."""

    cir: int
    cburst: int
    pir: int
    pburst: int


class DigestMessage(NamedTuple):
    """A message of a digest. slot: to be passed to release(). values: its fields, unsigned."""

    slot: int
    values: tuple[int, ...]


class Externs:
    """Meters, digests and idle times of one pipeline.

    Unknown names raise a KeyError that lists the known ones, values that do not fit ValueError.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        program, layout = pipeline.program, pipeline.layout
        self._native = pipeline.native
        self._meters = layout.meter_index
        self._digests = layout.digest_index
        self._tables = layout.table_index
        shapes = {one.name: one.elements for one in program.learn_lists.values()}
        self._widths = {name: [one.width for one in shapes[name]] for name in self._digests}

    def now_us(self) -> int:
        """Returns Pipeline.now_us(), the clock of meters, digests and hits."""
        return self._pipeline.now_us()

    # Meters. Rates None: every packet is green.

    def meter(self, name: str, index: int) -> Rates | None:
        """Returns an indexed meter's rates. Raises IndexError."""
        words = _Words()
        result = self._native.sw_meter_read(
            self._handle, position(self._meters, name, "meter"), index, words
        )
        self._in_range(name, index, result)
        return Rates(*words) if result else None

    def set_meter(self, name: str, index: int, rates: Rates | None) -> None:
        """Sets an indexed meter's rates and fills its buckets. Raises IndexError."""
        result = self._native.sw_meter_write(
            self._handle, position(self._meters, name, "meter"), index, _rate_words(rates)
        )
        self._in_range(name, index, result)

    def direct_meter(self, table: str, handle: int) -> Rates | None:
        """Returns the rates of an entry's meter. Raises EntryNotFound, PipelineError (no meter)."""
        words = _Words()
        number = position(self._tables, table, "table")
        result = self._native.sw_table_meter_read(self._handle, number, handle, words)
        self._has(table, handle, result, "direct meter")
        return Rates(*words) if result else None

    def set_direct_meter(self, table: str, handle: int, rates: Rates | None) -> None:
        """Sets the rates of an entry's meter and fills its buckets. Raises as direct_meter."""
        number = position(self._tables, table, "table")
        words = _rate_words(rates)
        result = self._native.sw_table_meter_write(self._handle, number, handle, words)
        self._has(table, handle, result, "direct meter")

    # Last hits of tables with `support_timeout`, in the time of Pipeline.now_us.

    def touch(self, table: str, handle: int, now_us: int) -> None:
        """Sets an entry's last hit to now. Raises EntryNotFound, PipelineError (hits are not
        kept)."""
        number = position(self._tables, table, "table")
        result = self._native.sw_table_touch(self._handle, number, handle, now_us)
        self._has(table, handle, result, "times of hits")

    def last_hits(self, table: str, handles: Sequence[int]) -> list[int | None]:
        """Returns the last hit of each entry, None for deleted entries. Raises PipelineError (hits
        are not kept)."""
        number = position(self._tables, table, "table")
        times = (ctypes.c_uint64 * max(len(handles), 1))()
        asked = (ctypes.c_int64 * max(len(handles), 1))(*handles)
        result = self._native.sw_table_hits(self._handle, number, len(handles), asked, times)
        self._has(table, 0, result, "times of hits")
        return [None if one == _GONE else one for one in times[: len(handles)]]

    # Digests, by the name of their type

    def enable_digest(self, name: str, signal_at: int) -> None:
        """Starts to collect messages of a digest, and writes to set_notice's descriptor when one
        message waits and when signal_at do. 0: stops, and discards all messages."""
        number = position(self._digests, name, "digest")
        self._native.sw_digest_enable(self._handle, number, min(signal_at, DIGEST_ROOM))

    def waiting(self, name: str) -> tuple[int, int]:
        """Returns how many messages wait, and since when the first does (µs; 0 without one)."""
        since = ctypes.c_uint64()
        number = position(self._digests, name, "digest")
        count = self._native.sw_digest_waiting(self._handle, number, since)
        return int(count), since.value

    def take(self, name: str, most: int) -> list[DigestMessage]:
        """Returns the first waiting messages, at most `most`. Equal messages are suppressed until
        these are released."""
        number, widths = position(self._digests, name, "digest"), self._widths[name]
        words = sum(limbs(one) for one in widths)
        most = min(most, DIGEST_ROOM)
        values, slots = (ctypes.c_uint64 * max(words * most, 1))(), (ctypes.c_uint32 * most)()
        count = self._native.sw_digest_take(self._handle, number, most, values, slots)
        found = []
        for i in range(count):
            at, fields = words * i, []
            for width in widths:
                size = limbs(width)
                own = values[at : at + size]
                fields.append(sum(word << (64 * k) for k, word in enumerate(own)))
                at += size
            found.append(DigestMessage(slots[i], tuple(fields)))
        return found

    def release(self, name: str, slots: Iterable[int]) -> None:
        """Releases messages that were taken."""
        number, listed = position(self._digests, name, "digest"), list(slots)
        array = (ctypes.c_uint32 * max(len(listed), 1))(*listed)
        self._native.sw_digest_release(self._handle, number, len(listed), array)

    def set_notice(self, descriptor: int) -> None:
        """Sets the non-blocking eventfd that is written to when digests wait; -1: none."""
        self._native.sw_set_notice(self._handle, descriptor)

    # Checks

    @property
    def _handle(self) -> ctypes.c_void_p:
        return self._pipeline.handle

    def _in_range(self, name: str, index: int, result: int) -> None:
        self._pipeline.in_range(result, "meter", name, index, self._pipeline.program.meters)

    def _has(self, table: str, handle: int, result: int, what: str) -> None:
        if result == abi.RANGE:
            raise PipelineError(f"table '{table}' has no {what}")
        self._pipeline.found(result, table, handle)


def _rate_words(rates: Rates | None) -> ctypes.Array[ctypes.c_uint64] | None:
    if rates is None:
        return None
    for name, value in rates._asdict().items():
        if not 0 <= value <= MOST_TOKENS:
            raise ValueError(f"a meter's {name}: {value} is not in 0 .. 2^63 - 1")
    return _Words(*rates)
