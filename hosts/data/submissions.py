# SPDX-License-Identifier: Apache-2.0
"""References to the values that a worker has submitted, and to the destinations of their sums.

Neither is copied on the way: code that processes chunks gets their addresses.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from protocol.payloads import Floats

_identifiers = itertools.count(1)


class Submission:
    """Values of n chunks and the destination of their sums, (n, lanes) float32 each, contiguous.

    They may be one array: a chunk's values are not read again once its sum has arrived. Raises
    ValueError for sums of another shape or type.

    identifier: differs from that of any other in this process.
    missing: chunks without a sum.
    """

    __slots__ = ("identifier", "missing", "sums", "values")

    def __init__(self, values: Floats, sums: Floats) -> None:
        if sums.shape != values.shape or sums.dtype != np.float32 or not sums.flags.c_contiguous:
            raise ValueError(f"sums of {values.shape} float32 do not come into {sums.shape}")
        self.values, self.sums = values, sums
        self.identifier, self.missing = next(_identifiers), len(values)


class ChunkRefs(NamedTuple):
    """References to n chunks.

    submissions: by identifier.
    identifiers, rows: (n,) of each chunk's submission, and its row there.
    """

    submissions: dict[int, Submission]
    identifiers: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]

    def select(self, which: Any) -> ChunkRefs:
        """Returns some of them, or another order."""
        return ChunkRefs(self.submissions, self.identifiers[which], self.rows[which])

    def sums(self, lanes: int) -> Floats:
        """Returns a copy of their sums (n, lanes)."""
        found = np.empty((len(self.rows), lanes), np.float32)
        for place, (one, row) in enumerate(zip(self.identifiers, self.rows, strict=True)):
            found[place] = self.submissions[int(one)].sums[row]
        return found
