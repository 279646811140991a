# SPDX-License-Identifier: Apache-2.0
"""Allocates the slots of a switch to jobs.

A stream with window W needs a run of 2W consecutive slots: a slot keeps a result until every worker
has advanced by W chunks. Runs are powers of two, aligned to their size, so that freed neighbours
merge (Knuth, The Art of Computer Programming, 2.5, "buddy system").
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SlotRange:
    """The resources of one tree node in its switch.

    base: its first slot.
    group: its multicast group.
    """

    base: int
    group: int


class SlotsExhaustedError(Exception):
    """No free run is large enough; ``largest`` is the size of the largest one (or 0)."""

    def __init__(self, switch: str, wanted: int, largest: int, free: int, total: int) -> None:
        self.switch = switch
        self.wanted = wanted
        self.largest = largest
        fits = (
            f"the largest free run is {largest}, which fits a window of {largest // 2}"
            if largest >= 2
            else "no window fits until a job ends"
        )
        super().__init__(
            f"{switch} has no run of {wanted} free slots (window {wanted // 2}):"
            f" {free} of {total} are free; {fits}"
        )


class SlotBudget:
    """The slots of one switch. Runs are identified by their first slot."""

    def __init__(self, switch: str, total: int) -> None:
        self.switch = switch
        self.total = total
        self.used = 0
        self._held: dict[int, int] = {}
        self._free: dict[int, set[int]] = {}
        start = 0
        while start < total:  # the largest aligned runs
            fitting = 1 << ((total - start).bit_length() - 1)
            size = min(fitting, start & -start) if start else fitting
            self._free.setdefault(size, set()).add(start)
            start += size

    @property
    def largest(self) -> int:
        """Size of the largest free run."""
        return max((size for size, starts in self._free.items() if starts), default=0)

    def allocate(self, size: int) -> int:
        """Allocates the lowest of the smallest free runs that fit and returns its first slot.

        Raises SlotsExhaustedError.
        """
        if size < 1 or size & (size - 1):
            raise ValueError(f"runs are powers of two, not {size}")
        fitting = [length for length, starts in self._free.items() if starts and length >= size]
        if not fitting:
            raise SlotsExhaustedError(
                self.switch, size, self.largest, self.total - self.used, self.total
            )
        length = min(fitting)
        start = min(self._free[length])
        self._free[length].remove(start)
        while length > size:
            length //= 2
            self._free.setdefault(length, set()).add(start + length)
        self._held[start] = size
        self.used += size
        return start

    def claim(self, start: int, size: int) -> None:
        """Takes a run that ``allocate`` returned earlier; raises ValueError if it is not free."""
        around = [
            (first, length)
            for length, starts in self._free.items()
            for first in starts
            if first <= start and start + size <= first + length
        ]
        if not around or start % size:
            raise ValueError(f"{self.switch}: slots {start} to {start + size - 1} are not free")
        ((first, length),) = around
        self._free[length].remove(first)
        while length > size:
            length //= 2
            low, high = first, first + length
            first, other = (high, low) if start >= high else (low, high)
            self._free.setdefault(length, set()).add(other)
        self._held[start] = size
        self.used += size

    def free(self, start: int) -> None:
        """Frees a run; raises KeyError if it is not held."""
        size = self._held.pop(start)
        self.used -= size
        while True:
            buddy = start ^ size
            if buddy not in self._free.get(size, ()):
                break
            self._free[size].remove(buddy)
            start = min(start, buddy)
            size *= 2
        self._free.setdefault(size, set()).add(start)
