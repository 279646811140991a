# SPDX-License-Identifier: Apache-2.0
"""Divides keys into classes of urgency.

Keys are in the order of the forward pass, so the first are the most urgent. A class has consecutive
keys, whose chunks wait for each other, whichever is more urgent. So classes are as equal in length
as keys allow: the sum of the squares of their lengths is the least, which is proportional to how
many chunks of its class a chunk meets on average.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]

_MOST_GROUPS = 512


def classes_of(counts: Sequence[int], classes: int) -> Indices:
    """Returns the class (keys,) of each key: classes - 1 for the first keys, and down.

    counts: chunks of each key. Fewer classes than that are used if there are fewer keys.
    """
    if classes == 1:
        return np.zeros(len(counts), np.int64)
    groups = _groups(counts)
    lengths: Indices = np.zeros(int(groups[-1]) + 1, np.int64)
    np.add.at(lengths, groups, counts)
    places = _places(lengths, min(classes, len(lengths)))
    return classes - 1 - places[groups]


def _groups(counts: Sequence[int]) -> Indices:
    """Returns the group of each key: itself, or one of few with consecutive keys if there are
    many."""
    if len(counts) <= _MOST_GROUPS:
        return np.arange(len(counts))
    ends = np.cumsum(counts)
    held = (ends - 1) * _MOST_GROUPS // int(ends[-1])
    return np.cumsum(np.diff(held, prepend=held[0]) > 0)


def _places(lengths: Indices, classes: int) -> Indices:
    """Returns the place of each group's class, from 0 on."""
    ends = np.concatenate(([0], np.cumsum(lengths)))
    # cost[i, j]: of a class with the groups i to j - 1.
    cost: npt.NDArray[np.float64] = (ends[None, :] - ends[:, None]) ** 2.0
    cost[np.tril_indices(len(ends))] = np.inf
    least, begins = cost[0], []
    for _ in range(classes - 1):
        total = least[:, None] + cost
        begins.append(np.argmin(total, axis=0))
        least = np.min(total, axis=0)
    places = np.zeros(len(lengths), np.int64)
    end = len(lengths)
    for begin in reversed(begins):
        end = int(begin[end])
        places[end:] += 1
    return places
