# SPDX-License-Identifier: Apache-2.0
"""Simulated links in virtual time, deterministic for a seed, that lose, duplicate and delay."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from protocol.header import Batch


@dataclass
class Impairments:
    """Probabilities per packet and hop; `jitter` is the most extra delay in seconds (it reorders).

    corrupt: given a datagram and the generator, returns the datagram to deliver instead.
    """

    loss: float = 0.0
    duplicate: float = 0.0
    jitter: float = 0.0
    corrupt: Callable[[bytes, random.Random], bytes] | None = None

    def copies(self, draw: random.Random) -> Iterator[bool]:
        """Yields for each copy of a packet whether it gets through."""
        for _ in range(1 + (draw.random() < self.duplicate)):
            yield draw.random() >= self.loss

    def delay(self, draw: random.Random) -> float:
        """Draws an extra delay in seconds."""
        return draw.random() * self.jitter


class Events:
    """Runs actions in the order of their virtual times, in seconds."""

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.random = random.Random(seed)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()

    def at(self, time: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._count), action))

    def at_alarm(self, time: float, action: Callable[[], None]) -> None:
        """Runs an action at a machine's next alarm; never, if that is infinite."""
        if math.isfinite(time):
            self.at(max(time, self.now), action)

    def run(self, until: Callable[[], bool], limit: float) -> bool:
        """Runs until a condition holds; False if `limit` (virtual seconds) comes first."""
        while not (self.may_have_changed() and until()):
            if not self._events or self._events[0][0] > limit:
                return False
            self._next()
        return True

    def run_for(self, seconds: float) -> None:
        """Runs for a period of virtual time."""
        end = self.now + seconds
        while self._events and self._events[0][0] <= end:
            self._next()
        self.now = end

    def may_have_changed(self) -> bool:
        """Returns whether to look at the condition of ``run`` again."""
        return True

    def _next(self) -> None:
        self.now, _, action = heapq.heappop(self._events)
        action()


def send_all(machine, now: float, send: Callable[[Batch], None]) -> float:
    """Sends all that a machine has to send now; returns the time of its next alarm."""
    for _ in range(10_000):
        batch, alarm = machine.poll(now)
        if batch is None:
            return alarm
        send(batch)
        if alarm > now:
            return alarm
    raise AssertionError(f"{machine} never stops sending")
