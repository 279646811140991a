# SPDX-License-Identifier: Apache-2.0
"""Splits packets into batches without conflicts: a slot occurs once per wave."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]


def waves(slots: npt.NDArray[Any]) -> Iterator[Indices]:
    """Splits packets into waves in which no slot occurs twice; yields indices of packets.

    The k-th packet of each slot is in wave k. So processing the waves in order keeps each slot's
    packets in order, and the packets of a wave may be processed together.
    """
    n = len(slots)
    if n == 0:
        return
    by_slot = np.argsort(slots, kind="stable")
    ordered = slots[by_slot]
    begins = np.concatenate(([True], ordered[1:] != ordered[:-1]))
    starts = np.flatnonzero(begins)
    turn = np.arange(n) - starts[np.cumsum(begins) - 1]
    for wave in range(int(turn.max()) + 1):
        yield np.sort(by_slot[turn == wave])
