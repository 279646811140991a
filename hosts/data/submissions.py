# SPDX-License-Identifier: Apache-2.0
"""The values that a worker has submitted, and the destinations of their sums.

Neither is copied on the way: code that processes chunks gets their addresses.
"""

from __future__ import annotations

import numpy as np

from protocol.payloads import Floats


class Submission:
    """Values of n chunks and the destination of their sums, (n, lanes) float32 each, contiguous.

    They may be one array: a chunk's values are not read again once its sum has arrived. Raises
    ValueError for sums of another shape or type.

    averages: the destination gets means over the workers in place of sums.
    missing: chunks without a sum.
    """

    __slots__ = ("averages", "missing", "sums", "values")

    def __init__(self, values: Floats, sums: Floats, *, averages: bool = False) -> None:
        if sums.shape != values.shape or sums.dtype != np.float32 or not sums.flags.c_contiguous:
            raise ValueError(f"sums of {values.shape} float32 do not come into {sums.shape}")
        self.values, self.sums, self.averages = values, sums, averages
        self.missing = len(values)
