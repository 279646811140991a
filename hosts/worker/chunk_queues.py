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

from hosts.data.submissions import Submission
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
        """Appends entries to a stream."""
        pending = self.pending(stream)
        kept, at = self._entries[stream], int(self.table["tail"][stream])
        if at + len(entries) > len(kept):  # no room behind: make it, without what was taken
            kept = np.empty(2 * (len(pending) + len(entries)), ENTRY)
            kept[: len(pending)] = pending
            self._entries[stream], at = kept, len(pending)
            self.table[stream] = address(kept), 0, at
        kept[at : at + len(entries)] = entries
        self.table["tail"][stream] = at + len(entries)

    def pending(self, stream: int) -> Array:
        """Returns the entries of a stream, in order."""
        _, head, tail = self.table[stream].tolist()
        return self._entries[stream][head:tail]


def entries_of(
    arranged: npt.NDArray[np.int64],
    chunks: npt.NDArray[np.int64],
    rounds: npt.NDArray[np.int64],
    first: npt.NDArray[np.bool_],
    own: npt.NDArray[np.int16],
    unfit: npt.NDArray[np.uint8],
    lanes: npt.NDArray[np.int64],
    ticket: int,
    order: int,
    submission: Submission,
) -> Array:
    """Returns the entries of n chunks of one submission, in the order of their numbers; the
    chunks' rows are 0..n-1.

    arranged: (n,) that order, see ChunkScheduler.arrange.
    first: (n,) true for chunks that need an exponent round.
    own, unfit: (n,) see ENTRY.
    ticket, order: of the first chunk submitted, and of the first number.
    """
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
    entries["submission"] = submission.identifier
    entries["values_at"] = submission.values_at(source)
    entries["sums_at"] = submission.sums_at(source)
    return entries


def enqueue(ways: Ways, queues: Queues, entries: Array) -> None:
    """Appends entries, whose servers it sets, to the queues of their chunks' streams, one queue per
    stream of the plan."""
    entries["server"], streams = ways(entries["chunk"])
    if len(queues.table) == 1:
        queues.push(0, entries)
        return
    for stream in np.flatnonzero(np.bincount(streams)).tolist():
        queues.push(stream, entries[streams == stream])
