# SPDX-License-Identifier: Apache-2.0
"""Where a server's node puts the copies of its chunks together: PHub's pipelines (SoCC'18).

A stream's 2W slots are two merge buffers of W chunks: while the results of one are on their way
the other fills, and the worker's rule (docs/protocol.md) is what turns them over. Slices belong to
one server each, so one core has all copies of a chunk and nothing is locked.

*Tall*: a copy is added as it arrives, while it is in the cache, and is gone; the chunk is done with
its last copy. *Wide*: every copy is kept until all are there, then they are added; each is written
to memory and read again. Both give the same bits: integers do not mind the order.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from hosts.server.conflict_free_batches import waves
from protocol.pipeline import Pipeline

Indices = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.int32]

_LARGEST = 2**31 - 1
# Below this many rows in a row it is quicker to gather them.
_SHORT_RUN = 8


class Merging(Protocol):
    """Sums of the copies of what is in each slot. Rows are (n, lanes) int32 in the machine's byte
    order, zeros for a copy without payload.

    `bound`: where all copies of a chunk are within +-bound, no lane can overflow. `rows`: where
    they are, (slots, lanes) or (children, slots, lanes), for whoever puts them there himself.
    """

    bound: int
    rows: Integers

    def claim(self, slots: Indices) -> None:
        """Nothing is in these slots from now on."""

    def put(self, slots: Indices, senders: Indices, rows: Integers) -> Mask:
        """Copies for distinct slots. (n,) which have overflowed some lane for certain."""

    def put_all(self, slots: Indices, senders: Indices, rows: Integers) -> None:
        """Copies within the bound, for slots of which some may be the same."""

    def take(self, slots: Indices) -> tuple[Integers, Mask]:
        """(n, lanes) sums of slots in which all copies are, and (n,) which have overflowed."""


def merging(pipeline: Pipeline, slots: int, children: int, lanes: int) -> Merging:
    """As a job's plan wants it."""
    if not pipeline.adds:
        return Discarding(lanes)
    kind = Wide if pipeline.wide else Tall
    return kind(slots, children, lanes)


class Tall:
    """One row a slot, to which copies are added."""

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

    def put_all(self, slots: Indices, senders: Indices, rows: Integers) -> None:
        """See Merging."""
        for run, part in _runs(slots):
            self.rows[run] += rows[part]

    def take(self, slots: Indices) -> tuple[Integers, Mask]:
        """See Merging."""
        return self.rows[span(slots)], np.zeros(len(slots), np.bool_)


class Wide:
    """A row for each copy, added when all are there."""

    def __init__(self, slots: int, children: int, lanes: int) -> None:
        self.bound = _LARGEST // children
        # By sender first, so that copies of one sender for slots in a row are a block.
        self.rows = np.zeros((children, slots, lanes), np.int32)

    def claim(self, slots: Indices) -> None:
        """See Merging. There is nothing to do: every sender's row is written before it is read."""

    def put(self, slots: Indices, senders: Indices, rows: Integers) -> Mask:
        """See Merging."""
        self.rows[senders, slots] = rows
        return np.zeros(len(slots), np.bool_)

    def put_all(self, slots: Indices, senders: Indices, rows: Integers) -> None:
        """See Merging."""
        children, each, lanes = self.rows.shape
        for run, part in _runs(slots + senders * each):
            self.rows.reshape(children * each, lanes)[run] = rows[part]

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
    """Copies are not added, to see what adding costs: all sums are zero."""

    bound = _LARGEST

    def __init__(self, lanes: int) -> None:
        self._lanes = lanes
        self.rows = np.zeros(0, np.int32)

    def claim(self, slots: Indices) -> None:
        """See Merging."""

    def put(self, slots: Indices, senders: Indices, rows: Integers) -> Mask:
        """See Merging."""
        return np.zeros(len(slots), np.bool_)

    def put_all(self, slots: Indices, senders: Indices, rows: Integers) -> None:
        """See Merging."""

    def take(self, slots: Indices) -> tuple[Integers, Mask]:
        """See Merging."""
        return np.zeros((len(slots), self._lanes), np.int32), np.zeros(len(slots), np.bool_)


def span(rows: Indices) -> Any:
    """An index of the same rows: a slice if they follow each other, which needs no copies."""
    n = len(rows)
    if n and rows[-1] - rows[0] == n - 1 and (np.diff(rows) == 1).all():
        return slice(int(rows[0]), int(rows[0]) + n)
    return rows


def _runs(slots: Indices) -> Any:
    """Pairs of indices, of slots and of rows for them, that cover all, no slot twice in a pair."""
    breaks = np.flatnonzero(np.diff(slots) != 1) + 1
    if _SHORT_RUN * len(breaks) > len(slots):
        for wave in waves(slots):
            yield slots[wave], wave
        return
    for first, end in pairwise([0, *breaks.tolist(), len(slots)]):
        slot = int(slots[first])
        yield slice(slot, slot + end - first), slice(first, end)


def _overflowed(before: Integers, added: Integers, after: Integers) -> Mask:
    """(n,) rows in which a lane has."""
    return np.asarray((((before ^ after) & (added ^ after)) < 0).any(axis=1), np.bool_)
