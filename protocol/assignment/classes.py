# SPDX-License-Identifier: Apache-2.0
"""Divides keys into classes of urgency.

Keys are in the order of the forward pass, so the first are the most urgent. A class has consecutive
keys. Chunks of one class wait for each other, whichever is more urgent; so the largest class that
has several keys is as small as possible. A key that is longer has a class of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]


def classes_of(counts: Sequence[int], classes: int) -> Indices:
    """Returns the class (keys,) of each key: classes - 1 for the first keys, and down.

    counts: chunks of each key. Fewer classes than that are used if there are fewer keys.
    """
    low, high = 1, max(1, sum(counts))
    while low < high:
        middle = (low + high) // 2
        if _cut(counts, middle)[-1] < classes:
            high = middle
        else:
            low = middle + 1
    return classes - 1 - np.array(_cut(counts, low), np.int64)


def _cut(counts: Sequence[int], most: int) -> list[int]:
    """Returns the place of each key's class, from 0 on, if those with several keys have up to
    `most` chunks."""
    place, held, found = 0, 0, []
    for count in counts:
        if held and held + count > most:
            place, held = place + 1, 0
        held += count
        found.append(place)
    return found
