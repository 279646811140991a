# SPDX-License-Identifier: Apache-2.0
"""Assigns slices to bins (servers, their interfaces or cores) of nearly equal load.

The longest-processing-time rule (Graham, "Bounds on multiprocessing timing anomalies", SIAM J.
Applied Mathematics 17(2), 1969; PHub, SoCC'18, section 3.2.4, balances its 32 KiB pieces of keys
like this): the largest remaining slice goes to the least loaded bin. It is within 4/3 - 1/(3 bins)
of the optimum, and far closer where slices are small compared to a bin.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]


def balanced(slices: Indices, servers: int) -> Indices:
    """Returns the server (n,) of each slice."""
    return partition(slices[:, 2], servers)


def partition(loads: Sequence[int] | Indices, bins: int) -> Indices:
    """Returns the bin (n,) of each load, 0 .. bins - 1; deterministic.

    loads: integers (chunks, bytes), so that rounding cannot differ; of equal ones the first goes
    first, and of bins with equal loads the lowest takes it. Raises ValueError without bins.
    """
    if bins < 1:
        raise ValueError(f"loads cannot be spread over {bins} bins")
    sizes = np.asarray(loads, np.int64)
    result = np.zeros(len(sizes), np.int64)
    order = np.argsort(-sizes, kind="stable")
    # The largest equal loads, most of a tensor's slices, go to all bins in turn.
    largest = int(sizes.max(initial=0))
    turns = int(np.count_nonzero(sizes == largest)) // bins if largest else 0
    result[order[: turns * bins]] = np.tile(np.arange(bins), turns)
    heap = [(turns * largest, number) for number in range(bins)]
    for index in order[turns * bins :].tolist():
        load, number = heap[0]
        result[index] = number
        heapq.heapreplace(heap, (load + int(sizes[index]), number))
    return result
