# SPDX-License-Identifier: Apache-2.0
"""Queues of submitted chunks, one per stream.

A chunk's number in its stream is fixed when it is submitted, so a stream is never reordered; a
chunk scheduler (hosts.worker.scheduling) decides the order of a submission's chunks and the stream
of each, and urgent chunks go into streams of higher priority.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from hosts.native.structures import structures
from hosts.worker.scheduling.scheduler import Numbers
from protocol.header import (
    Array,
    copied,
    opaque,
)
from switch.ports.paced_line import address

# One number in a stream. `row` is that of its chunk in `submission`; `own` is the chunk's own
# exponent, and `unfit` the flags of data that cannot be integers of any exponent
# (`chunk_exponents`); `order` is the position among all that got numbers. `server` is the rank of
# the chunk's server in this round.
ENTRY = np.dtype(structures("worker.h")["entry"])
QUEUE = np.dtype(structures("worker.h")["queue"])
# Returns the rank of the server, and the stream as an index into the plan's streams, of each chunk.
Ways = Callable[[Numbers], tuple[Numbers, Numbers]]


class Queues:
    """The entries of n streams that are not yet in a window, first in, first out.

    table: (n,) QUEUE: where each stream's entries are. Entries up to `head` were taken.
    """

    def __init__(self, streams: int) -> None:
        self.table: Array = np.zeros(streams, QUEUE)
        self._entries: list[Array] = [np.zeros(0, ENTRY) for _ in range(streams)]

    def push(self, stream: int, entries: Array) -> None:
        """Appends entries to a stream; the array may become part of the queue."""
        pending = self.pending(stream)
        if not len(pending):
            self._set(stream, np.ascontiguousarray(entries), len(entries))
            return
        kept, at = self._entries[stream], int(self.table["tail"][stream])
        # No room behind, or in use by others: make some, without what was taken.
        if at + len(entries) > len(kept) or not kept.flags.writeable:
            kept, at = np.empty(2 * (len(pending) + len(entries)), ENTRY), len(pending)
            opaque(kept)[:at] = opaque(pending)
            self._set(stream, kept, at)
        opaque(kept)[at : at + len(entries)] = opaque(entries)
        self.table["tail"][stream] = at + len(entries)

    def redirect(self, stream: int, servers: Numbers) -> None:
        """Sets the servers of a stream's entries, by chunk."""
        entries = copied(self.pending(stream))
        entries["server"] = servers[entries["chunk"]]
        self._set(stream, entries, len(entries))

    def pending(self, stream: int) -> Array:
        """Returns the entries of a stream, in order."""
        _, head, tail = self.table[stream].tolist()
        return self._entries[stream][head:tail]

    def _set(self, stream: int, entries: Array, length: int) -> None:
        self._entries[stream] = entries
        self.table[stream] = address(entries), 0, length


_last: Array = np.zeros(0, ENTRY)


def shared(entries: Array) -> Array:
    """Returns a copy of entries that is not writeable.

    Workers of one process that submit the same get the same.
    """
    global _last
    last = _last
    if len(last) != len(entries) or not np.array_equal(_numbers(last), _numbers(entries)):
        last = _last = copied(entries)
        last.flags.writeable = False
    return last


def _numbers(entries: Array) -> npt.NDArray[np.int64]:
    """Views entries, which have no padding, as integers: these are compared faster."""
    return entries.view(np.int64)


def enqueue(ways: Ways, queues: Queues, entries: Array) -> None:
    """Appends entries, whose servers it sets, to the queues of their chunks' streams."""
    entries["server"], streams = ways(entries["chunk"].astype(np.int64))
    for stream in np.unique(streams).tolist():
        queues.push(stream, entries[streams == stream])
