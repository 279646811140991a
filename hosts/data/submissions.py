# SPDX-License-Identifier: Apache-2.0
"""References to the values that a worker has submitted, and to the destinations of their sums.

Neither is copied on the way: code that processes chunks gets their addresses.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from protocol.payloads import Floats

Addresses = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.int64]


class Submission:
    """Values of n chunks and the destination of their sums, (n, lanes) float32 each, contiguous.

    They may be one array: a chunk's values are not read again once its sum has arrived. Raises
    ValueError for sums of another shape or type.
    """

    __slots__ = ("_sums_at", "_values_at", "_width", "sums", "values")

    def __init__(self, values: Floats, sums: Floats) -> None:
        if sums.shape != values.shape or sums.dtype != np.float32 or not sums.flags.c_contiguous:
            raise ValueError(f"sums of {values.shape} float32 do not come into {sums.shape}")
        self.values, self.sums = values, sums
        self._values_at, self._sums_at = values.ctypes.data, sums.ctypes.data
        self._width = values.shape[1] * values.itemsize

    def values_at(self, rows: Any) -> Any:
        """Returns the addresses of the values of rows."""
        return self._values_at + rows * self._width

    def sums_at(self, rows: Any) -> Any:
        """Returns the addresses of the sums of rows."""
        return self._sums_at + rows * self._width


class ChunkRefs(NamedTuple):
    """References to n chunks: the Submission (n,) of each and its row there (n,)."""

    submissions: npt.NDArray[np.object_]
    rows: npt.NDArray[np.int64]

    def select(self, which: Any) -> ChunkRefs:
        """Returns some of them, or another order."""
        return ChunkRefs(self.submissions[which], self.rows[which])

    def values_at(self) -> Addresses:
        """Returns the addresses (n,) of their values."""
        return self._addresses(Submission.values_at)

    def sums_at(self) -> Addresses:
        """Returns the addresses (n,) of their sums."""
        return self._addresses(Submission.sums_at)

    def values(self, lanes: int) -> Floats:
        """Returns a copy of their values (n, lanes)."""
        found = np.empty((len(self.rows), lanes), np.float32)
        for one, where, rows in self._together():
            found[where] = one.values[rows]
        return found

    def sums(self, lanes: int) -> Floats:
        """Returns a copy of their sums (n, lanes)."""
        found = np.empty((len(self.rows), lanes), np.float32)
        for one, where, rows in self._together():
            found[where] = one.sums[rows]
        return found

    def put(self, sums: Floats) -> None:
        """Stores their sums (n, lanes)."""
        for one, where, rows in self._together():
            one.sums[rows] = sums[where]

    def _addresses(self, of: Any) -> Addresses:
        found = np.empty(len(self.rows), np.uint64)
        for one, where, rows in self._together():
            found[where] = of(one, rows)
        return found

    def _together(self) -> Iterator[tuple[Submission, Any, npt.NDArray[np.int64]]]:
        """Yields each submission, an index of its chunks, and their rows."""
        left = np.arange(len(self.rows))
        while len(left):
            first = self.submissions[left[0]]
            mine = self.submissions[left] == first
            if mine.all() and len(left) == len(self.rows):
                yield first, slice(None), self.rows
                return
            yield first, left[mine], self.rows[left[mine]]
            left = left[~mine]
