# SPDX-License-Identifier: Apache-2.0
"""Whole keys at one server each, as frameworks assign them that do not cut keys."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from protocol.assignment.balanced import partition

Indices = npt.NDArray[np.int64]


def by_key(slices: Indices, servers: int) -> Indices:
    """Returns the server (n,) of each slice: that of its key. The longest key goes to the least
    loaded server."""
    numbers, place = np.unique(slices[:, 0], return_inverse=True)
    lengths = np.zeros(len(numbers), np.int64)
    np.add.at(lengths, place, slices[:, 2])
    return partition(lengths, servers)[place]
