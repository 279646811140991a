# SPDX-License-Identifier: Apache-2.0
"""Random draws by a packet's number on its link, independent of the sizes of trains."""

from __future__ import annotations

import zlib

import numpy as np
import numpy.typing as npt

_STEP = 0x9E3779B97F4A7C15
_WORD = 0xFFFFFFFFFFFFFFFF

LOSS, DUPLICATION, REORDERING = range(3)


def key(seed: int, name: str, kind: int) -> int:
    """Derives the start of a sequence of draws from seed, link and kind."""
    return (zlib.crc32(f"{seed}/{name}/{kind}".encode()) << 32 | seed & 0xFFFFFFFF) & _WORD


def draws(start: int, first: int, n: int) -> npt.NDArray[np.uint64]:
    """Draws (n,) uniform words, those of packets `first` on.

    Applies the finaliser of splitmix64 to start + step x number (Steele, Lea, Flood, "Fast
    splittable pseudorandom number generators", 2014).
    """
    numbers = np.arange(first + 1, first + n + 1, dtype=np.uint64)
    words = np.uint64(start) + numbers * np.uint64(_STEP)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: npt.NDArray[np.uint64] = words ^ (words >> np.uint64(31))
    return mixed


def chosen(start: int, first: int, n: int, probability: float) -> npt.NDArray[np.bool_]:
    """Draws (n,) whether each packet is hit, with exact results for probabilities 0 and 1."""
    if probability >= 1:
        return np.ones(n, np.bool_)
    if probability <= 0:
        return np.zeros(n, np.bool_)
    hit: npt.NDArray[np.bool_] = draws(start, first, n) < np.uint64(int(probability * 2.0**64))
    return hit
