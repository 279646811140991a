# SPDX-License-Identifier: Apache-2.0
"""Running a state machine per slot over many packets at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt


def waves(slots: npt.NDArray[Any]) -> Iterator[npt.NDArray[np.intp]]:
    """Splits packets into waves in which no slot occurs twice; yields indices of packets.

    The k-th packet of each slot is in wave k, so whoever takes one wave after the other treats
    each slot's packets in their order, and may treat a wave's packets all at once.
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
