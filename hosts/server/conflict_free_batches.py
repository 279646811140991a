# SPDX-License-Identifier: Apache-2.0
"""Running a state machine per slot over many packets at once: in waves, or by slot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt


class Groups:
    """Packets by slot, slots in ascending order (up to 65,535).

    slots: (n,) of each of at least one packet. `firsts`: (groups,) each slot's first packet.
    """

    def __init__(self, slots: npt.NDArray[Any]) -> None:
        # Of 16 bits, numpy sorts by radix: quicker than it compares.
        self.slots = slots.astype(np.uint16)
        self._order = np.argsort(self.slots, kind="stable")
        ordered = self.slots[self._order]
        self._goes_on = ordered[1:] == ordered[:-1]
        self._starts = np.concatenate(([0], np.flatnonzero(~self._goes_on) + 1))
        self.firsts = self._order[self._starts]

    def alike(self, column: npt.NDArray[Any]) -> bool:
        """Whether no two packets of one slot differ in a column."""
        ordered = column[self._order]
        return bool((~self._goes_on | (ordered[1:] == ordered[:-1])).all())

    def reduce(self, ufunc: np.ufunc, column: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """(groups,) a column reduced over each slot's packets."""
        result: npt.NDArray[Any] = ufunc.reduceat(column[self._order], self._starts)
        return result


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
