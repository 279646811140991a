# SPDX-License-Identifier: Apache-2.0
"""The values that a worker has submitted, and the destinations of their sums.

Neither is copied on the way: code that processes chunks gets their addresses.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from protocol.payloads import Floats


class Scattered(NamedTuple):
    """Values of n chunks, each contiguous, wherever they are.

    rows: (n,) addresses of the values of each, a chunk's lanes of float32, zero padded.
    within: what they are addresses in, which has to stay.
    """

    rows: npt.NDArray[np.uint64]
    within: tuple[Any, ...]

    def __len__(self) -> int:
        return len(self.rows)


class Submission:
    """Values of n chunks and the destination of their sums, (n, lanes) float32 each, contiguous,
    unless the values are scattered.

    They may be one array: a chunk's values are not read again once its sum has arrived. Raises
    ValueError for sums of another shape or type.

    averages: the destination gets means over the workers in place of sums.
    missing: chunks without a sum.
    """

    __slots__ = ("averages", "missing", "sums", "values")

    def __init__(self, values: Floats | Scattered, sums: Floats, *, averages: bool = False) -> None:
        shape = (len(values), *sums.shape[1:]) if isinstance(values, Scattered) else values.shape
        if sums.shape != shape or sums.dtype != np.float32 or not sums.flags.c_contiguous:
            raise ValueError(f"sums of {shape} float32 do not come into {sums.shape}")
        self.values, self.sums, self.averages = values, sums, averages
        self.missing = len(values)

    def own(self) -> None:
        """Copies the values if they are scattered, so that they may change where they were."""
        if not isinstance(self.values, Scattered):
            return
        copy = np.empty_like(self.sums)
        stride = copy.strides[0]
        for row, at in enumerate(self.values.rows.tolist()):
            ctypes.memmove(copy.ctypes.data + row * stride, at, stride)
        self.values = copy
