# SPDX-License-Identifier: Apache-2.0
"""Smooths measurements of servers, and finds those that straggle.

Values are smoothed exponentially, with a time constant of `TIME_CONSTANT` rounds. A server
straggles from the `ROUNDS`-th round in a row on in which its sums keep workers waiting for more
than `SLOWER` times as long as the median server's, until one in which they do so for less than
`RECOVERED` times as long: what is between changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

TIME_CONSTANT = 4.0
SLOWER, RECOVERED, ROUNDS = 1.5, 1.2, 2
_WEIGHT = 1 - math.exp(-1 / TIME_CONSTANT)


class Smoothed:
    """Named values, smoothed from round to round; the first round's are as they are.

    rounds: those in it.
    """

    def __init__(self) -> None:
        self.rounds = 0
        self._values: dict[str, float] = {}

    def add(self, **values: float) -> None:
        """Takes the values of another round."""
        self.rounds += 1
        for name, value in values.items():
            before = self._values.get(name, value)
            self._values[name] = before + _WEIGHT * (value - before)

    def get(self, name: str) -> float:
        """Returns a value; NaN if there is none."""
        return self._values.get(name, math.nan)


class Stragglers:
    """Finds straggling servers by their numbers."""

    def __init__(self) -> None:
        self.now: frozenset[int] = frozenset()
        self._slow: dict[int, int] = {}  # rounds in a row

    def observe(self, waited: Mapping[int, float]) -> None:
        """Takes smoothed seconds that sums of each server take, of those that have any."""
        median = usual(waited.values())
        late = set()
        for server, seconds in waited.items():
            if seconds > SLOWER * median:
                self._slow[server] = self._slow.get(server, 0) + 1
            else:
                self._slow[server] = 0
            if self._slow[server] >= ROUNDS or (
                server in self.now and seconds >= RECOVERED * median
            ):
                late.add(server)
        self.now = frozenset(late)


def usual(values: Iterable[float]) -> float:
    """Returns the lower median; infinity for less than two values, which nothing is above."""
    found = sorted(values)
    return found[(len(found) - 1) // 2] if len(found) > 1 else math.inf
