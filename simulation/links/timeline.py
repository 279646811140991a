# SPDX-License-Identifier: Apache-2.0
"""Slowdowns over virtual time: how many times as long a link's line, or a processor, takes."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from fractions import Fraction

from simulation.links.trains import NEVER

__all__ = ["NORMAL", "Step", "Timeline", "product"]

NORMAL = Fraction(1)
Step = tuple[int, Fraction]
"""A time (ps), and the factor from then on."""


class Timeline:
    """A factor as a function of time: 1 at first, then by steps. Factors are at least 1.

    plain: nothing was ever slow.
    """

    def __init__(self, steps: Iterable[Step] = ()) -> None:
        self._times: list[int] = [0]
        self._factors: list[Fraction] = [NORMAL]
        self.replace(0, steps)

    def replace(self, at: int, steps: Iterable[Step]) -> None:
        """Replaces all that is from a time on by these steps, in order and not earlier."""
        kept = bisect_left(self._times, at) if at else 0
        del self._times[max(kept, 1) :], self._factors[max(kept, 1) :]
        for when, factor in steps:
            if when <= self._times[-1]:
                self._factors[-1] = factor
            elif factor != self._factors[-1]:
                self._times.append(when)
                self._factors.append(factor)
        self.plain = self._factors == [NORMAL]

    def span(self, at: int) -> tuple[Fraction, int]:
        """Returns the factor at a time, and until when it holds (NEVER: for ever)."""
        row = bisect_right(self._times, at) - 1
        until = self._times[row + 1] if row + 1 < len(self._times) else NEVER
        return self._factors[row], until

    def since(self, at: int) -> list[Step]:
        """Returns the steps from a time on; the first has the factor at that time."""
        row = bisect_right(self._times, at) - 1
        return [
            (max(when, at), factor)
            for when, factor in zip(self._times[row:], self._factors[row:], strict=True)
        ]

    def slowest(self, first: int, last: int) -> Fraction:
        """Returns the largest factor between two times."""
        if self.plain:
            return NORMAL
        rows = slice(bisect_right(self._times, first) - 1, bisect_right(self._times, last))
        return max(self._factors[rows], default=self._factors[0])

    def work(self, began: int, ended: int) -> Fraction:
        """Returns what is done between two times, in ps of a processor that is not slow."""
        done = Fraction(0)
        while began < ended:
            factor, until = self.span(began)
            until = min(until, ended)
            done += (until - began) / factor
            began = until
        return done

    def finish(self, began: int, work: Fraction) -> int:
        """Returns when (ps, rounded up) work is done that begins at a time."""
        while True:
            factor, until = self.span(began)
            if until == NEVER or work <= (until - began) / factor:
                return began + -(-work * factor // 1)
            work -= (until - began) / factor
            began = until


def product(timelines: Sequence[Timeline], at: int) -> list[Step]:
    """Returns the steps from a time on of what is slowed down several times at once."""
    times = sorted({when for one in timelines for when, _ in one.since(at)} | {at})
    steps = []
    for when in times:
        factor = NORMAL
        for one in timelines:
            factor *= one.span(when)[0]
        steps.append((when, factor))
    return steps
