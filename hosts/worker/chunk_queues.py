# SPDX-License-Identifier: Apache-2.0
"""Queues of submitted chunks, one per stream.

A chunk's number in its stream is fixed when it is submitted, so a stream is never reordered; a
chunk scheduler (hosts.worker.scheduling) decides the order of a submission's chunks and the stream
of each, and urgent chunks go into streams of higher priority.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from hosts.native.structures import structures
from hosts.worker.scheduling.scheduler import Numbers
from protocol.header import Array
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
            kept[:at] = pending
            self._set(stream, kept, at)
        kept[at : at + len(entries)] = entries
        self.table["tail"][stream] = at + len(entries)

    def redirect(self, stream: int, servers: Numbers) -> None:
        """Sets the servers of a stream's entries, by chunk."""
        entries = self.pending(stream).copy()
        entries["server"] = servers[entries["chunk"]]
        self._set(stream, entries, len(entries))

    def pending(self, stream: int) -> Array:
        """Returns the entries of a stream, in order."""
        _, head, tail = self.table[stream].tolist()
        return self._entries[stream][head:tail]

    def _set(self, stream: int, entries: Array, length: int) -> None:
        self._entries[stream] = entries
        self.table[stream] = address(entries), 0, length


# Of n chunks of one submission, in its order, whose rows are 0..n-1: the order in which they get
# numbers (see ChunkScheduler.arrange); chunks; rounds; which need an exponent round; own, unfit:
# see ENTRY; lanes; ranks of their servers, and their streams.
Columns = tuple[npt.NDArray[Any], ...]
# The ticket of the first chunk, the order of the first number, and the submission's place.
Firsts = tuple[int, int, int]
Pieces = list[tuple[int, Array]]

_last: tuple[Columns, Firsts, Pieces] | None = None


def entries_of(columns: Columns, firsts: Firsts) -> Pieces:
    """Returns each stream that gets entries, and these, in the order of their numbers.

    They are not writeable: workers of one process that submit the same get the same.
    """
    global _last
    if _last is not None and _last[1] == firsts and all(map(np.array_equal, _last[0], columns)):
        return _last[2]
    pieces = _made(columns, firsts)
    for _, entries in pieces:
        entries.flags.writeable = False
    _last = columns, firsts, pieces
    return pieces


def _made(columns: Columns, firsts: Firsts) -> Pieces:
    arranged, chunks, rounds, first, own, unfit, lanes, servers, streams = columns
    ticket, order, submission = firsts
    # Exponent round and data take two numbers, one after the other: then a stream's numbers do
    # not depend on how submissions are split into calls, unless the scheduler makes them.
    repeats = 1 + first[arranged]
    entries = np.zeros(int(repeats.sum()), ENTRY)
    source = np.repeat(arranged, repeats)
    data = np.cumsum(repeats) - 1
    entries["exponent_round"] = True
    entries["exponent_round"][data] = False
    entries["chunk"] = chunks[source]
    entries["round"] = rounds[source]
    entries["ticket"] = ticket + source
    entries["lanes"][data] = lanes[arranged]
    entries["order"] = order + np.arange(len(entries))
    entries["own"] = own[source]
    entries["unfit"][data] = unfit[arranged]
    entries["row"] = source
    entries["submission"] = submission
    entries["server"] = servers[source]
    return _by_stream(streams[source], entries)


def enqueue(ways: Ways, queues: Queues, entries: Array) -> None:
    """Appends entries, whose servers it sets, to the queues of their chunks' streams."""
    entries["server"], streams = ways(entries["chunk"].astype(np.int64))
    for stream, piece in _by_stream(streams, entries):
        queues.push(stream, piece)


def _by_stream(streams: Numbers, entries: Array) -> Pieces:
    """Divides entries (n,) by their streams (n,)."""
    counts = np.bincount(streams, minlength=1)
    if counts[0] == len(entries):
        return [(0, entries)] if len(entries) else []
    return [(stream, entries[streams == stream]) for stream in np.flatnonzero(counts).tolist()]
