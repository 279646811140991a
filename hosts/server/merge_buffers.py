# SPDX-License-Identifier: Apache-2.0
"""Merge buffers for the copies of chunks at a server's node: PHub's pipelines (SoCC'18).

A stream's 2W slots are two merge buffers of W chunks: one fills while the results of the other are
sent, and the worker's window rule (docs/reference/protocol.md) swaps them. Each slice belongs to
one server, so one core has all copies of a chunk and nothing is locked.

*Tall*: a copy is added as it arrives, while it is in the cache; the chunk is complete with its last
copy. *Wide*: every copy is kept, and all are added when the last has arrived; each is written to
memory and read again. Both give the same bits, as integer addition is associative.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from protocol.header import LANE
from protocol.server_pipelines import Pipeline

Indices = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.int32]

_LARGEST = int(np.iinfo(LANE).max)
# Below this many rows in a row it is quicker to gather them.
_SHORT_RUN = 8


class Merging(Protocol):
    """Sums the copies in each slot. Rows are (n, lanes) int32 in native byte order, zeros for a
    copy without payload.

    bound: if all copies of a chunk are within +-bound, no lane can overflow.
    rows: the buffer, (slots, lanes) or (children, slots, lanes), for callers that write to it.
    """

    bound: int
    rows: Integers

    def claim(self, slots: Indices) -> None:
        """Clears these slots."""

    def put(self, slots: Indices, senders: Indices, rows: Integers) -> Mask:
        """Adds copies for distinct slots; returns a mask (n,) of those with an overflow."""

    def take(self, slots: Indices) -> tuple[Integers, Mask]:
        """Returns the sums (n, lanes) of complete slots, and a mask (n,) of those that
        overflowed."""


def merging(pipeline: Pipeline, slots: int, children: int, lanes: int) -> Merging:
    """Returns the merge buffer that a job's plan names."""
    if not pipeline.adds:
        return Discarding(lanes)
    kind = Wide if pipeline.wide else Tall
    return kind(slots, children, lanes)


class Tall:
    """One row per slot, to which copies are added."""

    def __init__(self, slots: int, children: int, lanes: int) -> None:
        self.bound = _LARGEST // children
        self.rows = np.zeros((slots, lanes), np.int32)

    def claim(self, slots: Indices) -> None:
        """See Merging."""
        self.rows[span(slots)] = 0

    def put(self, slots: Indices, senders: Indices, rows: Integers) -> Mask:
        """See Merging."""
        before = self.rows[slots]
        after = before + rows  # wraps, as a switch's lanes do
        self.rows[slots] = after
        return _overflowed(before, rows, after)

    def take(self, slots: Indices) -> tuple[Integers, Mask]:
        """See Merging."""
        return self.rows[span(slots)], np.zeros(len(slots), np.bool_)


class Wide:
    """One row per copy; rows are added when all have arrived."""

    def __init__(self, slots: int, children: int, lanes: int) -> None:
        self.bound = _LARGEST // children
        # By sender first, so that copies of one sender for slots in a row are a block.
        self.rows = np.zeros((children, slots, lanes), np.int32)

    def claim(self, slots: Indices) -> None:
        """Does nothing: every sender's row is written before it is read."""

    def put(self, slots: Indices, senders: Indices, rows: Integers) -> Mask:
        """See Merging."""
        self.rows[senders, slots] = rows
        return np.zeros(len(slots), np.bool_)

    def take(self, slots: Indices) -> tuple[Integers, Mask]:
        """See Merging."""
        where = span(slots)
        total = self.rows[0, where].copy()
        overflowed = np.zeros(len(slots), np.bool_)
        for copies in self.rows[1:, where]:
            before = total
            total = before + copies
            overflowed |= _overflowed(before, copies, total)
        return total, overflowed


class Discarding:
    """Drops copies, to measure the cost of adding: all sums are zero."""

    bound = _LARGEST

    def __init__(self, lanes: int) -> None:
        self._lanes = lanes
        self.rows = np.zeros(0, np.int32)

    def claim(self, slots: Indices) -> None:
        """See Merging."""

    def put(self, slots: Indices, senders: Indices, rows: Integers) -> Mask:
        """See Merging."""
        return np.zeros(len(slots), np.bool_)

    def take(self, slots: Indices) -> tuple[Integers, Mask]:
        """See Merging."""
        return np.zeros((len(slots), self._lanes), np.int32), np.zeros(len(slots), np.bool_)


def span(rows: Indices) -> Any:
    """Returns an index of the same rows: a slice, which copies nothing, if they are consecutive."""
    n = len(rows)
    if n and rows[-1] - rows[0] == n - 1 and (np.diff(rows) == 1).all():
        return slice(int(rows[0]), int(rows[0]) + n)
    return rows


def _overflowed(before: Integers, added: Integers, after: Integers) -> Mask:
    """Returns a mask (n,) of rows with an overflow in a lane."""
    return np.asarray((((before ^ after) & (added ^ after)) < 0).any(axis=1), np.bool_)
