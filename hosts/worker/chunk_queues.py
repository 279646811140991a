# SPDX-License-Identifier: Apache-2.0
"""Queues of submitted chunks, one per stream.

A chunk's number in its stream is fixed when it is submitted, so a stream is never reordered; a
chunk scheduler (hosts.worker.scheduling) decides the order of a submission's chunks and the stream
of each, and urgent chunks go into streams of higher priority.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from hosts.data.submissions import Submission
from hosts.worker.scheduling.scheduler import ChunkScheduler
from protocol.header import Array

# One number in a stream. `row` is that of its chunk in the submission it came with; `own` is the
# chunk's own exponent, and `unfit` the flags of data that cannot be integers of any exponent
# (`chunk_exponents`); `order` is the position among all that got numbers.
ENTRY = np.dtype(
    [
        ("exponent_round", "?"),
        ("unfit", "u1"),
        ("lanes", "u2"),
        ("own", "i2"),
        ("chunk", "i8"),
        ("round", "i8"),
        ("ticket", "i8"),
        ("order", "i8"),
        ("row", "i8"),
    ],
    align=True,
)


class Queue:
    """The entries of one stream that are not yet in the window."""

    def __init__(self) -> None:
        self._blocks: deque[tuple[Array, Submission]] = deque()
        self._taken = 0  # of the first block
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def push(self, entries: Array, submission: Submission) -> None:
        """Appends entries of a submission."""
        if len(entries):
            self._blocks.append((entries, submission))
            self._length += len(entries)

    def first(self, most: int) -> Array:
        """Returns the entries that `take(most)` would return, without removing them."""
        pieces, left = [], most
        for entries, _ in self.pending():
            pieces.append(entries[:left])
            left -= len(pieces[-1])
            if not left:
                break
        if len(pieces) == 1:
            return pieces[0]
        return np.concatenate(pieces, dtype=ENTRY) if pieces else np.zeros(0, ENTRY)

    def pending(self) -> Iterator[tuple[Array, Submission]]:
        """Yields all entries in order, as `take` does, without removing them."""
        taken = self._taken
        for entries, submission in self._blocks:
            yield entries[taken:], submission
            taken = 0

    def take(self, most: int) -> Iterator[tuple[Array, Submission]]:
        """Removes up to `most` entries in order: pieces of (entries, the submission they index)."""
        while most > 0 and self._blocks:
            entries, submission = self._blocks[0]
            piece = entries[self._taken : self._taken + most]
            self._taken += len(piece)
            self._length -= len(piece)
            most -= len(piece)
            if self._taken == len(entries):
                self._blocks.popleft()
                self._taken = 0
            yield piece, submission


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
    return entries


def enqueue(
    scheduler: ChunkScheduler, queues: Sequence[Queue], entries: Array, submission: Submission
) -> None:
    """Appends entries to the queues of their chunks' streams, one queue per stream of the plan."""
    if len(queues) == 1:
        queues[0].push(entries, submission)
        return
    streams = scheduler.streams(entries["chunk"])
    for stream in np.unique(streams).tolist():
        queues[stream].push(entries[streams == stream], submission)
