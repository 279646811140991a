# SPDX-License-Identifier: Apache-2.0
"""Splits packets into batches without conflicts: a slot occurs once per wave, or has one group."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt


class Groups:
    """Packets grouped by slot, slots in ascending order (up to 65,535).

    slots: (n,) of at least one packet.
    firsts: (groups,) index of each slot's first packet.
    """

    def __init__(self, slots: npt.NDArray[Any]) -> None:
        # numpy sorts 16-bit integers by radix, which is faster.
        self.slots = slots.astype(np.uint16)
        self._order = np.argsort(self.slots, kind="stable")
        ordered = self.slots[self._order]
        self._goes_on = ordered[1:] == ordered[:-1]
        self._starts = np.concatenate(([0], np.flatnonzero(~self._goes_on) + 1))
        self.firsts = self._order[self._starts]

    def alike(self, column: npt.NDArray[Any]) -> bool:
        """Returns true if no two packets of one slot differ in a column."""
        ordered = column[self._order]
        return bool((~self._goes_on | (ordered[1:] == ordered[:-1])).all())

    def reduce(self, ufunc: np.ufunc, column: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Reduces a column over each slot's packets; returns (groups,)."""
        result: npt.NDArray[Any] = ufunc.reduceat(column[self._order], self._starts)
        return result


def waves(slots: npt.NDArray[Any]) -> Iterator[npt.NDArray[np.intp]]:
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
