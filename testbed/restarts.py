# SPDX-License-Identifier: Apache-2.0
"""Decides which processes that end by themselves are started again."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Hashable

# A process that ends more often than this within this time is not restarted.
MOST_RESTARTS = 5
RESTARTS_SECONDS = 60.0


class Restarts:
    """The ends of processes, by name, on a clock in seconds."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._ends: dict[Hashable, deque[float]] = {}

    def again(self, name: Hashable) -> bool:
        """Records that a process has ended; returns whether it may be started again."""
        now = self._now()
        ends = self._ends.setdefault(name, deque(maxlen=MOST_RESTARTS))
        if len(ends) == MOST_RESTARTS and now - ends[0] < RESTARTS_SECONDS:
            return False
        ends.append(now)
        return True
