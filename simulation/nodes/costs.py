# SPDX-License-Identifier: Apache-2.0
"""Processing costs of packets at hosts and servers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Generic, TypeVar

import numpy as np

from hosts.net.priority_queue import PriorityQueue
from simulation.links.timeline import Timeline
from simulation.links.trains import SECOND, Lengths, Times, picoseconds
from topologies.model.topology import Costs

_PARTS = 10**6  # of a picosecond, that a byte's cost is rounded to

Item = TypeVar("Item")


@dataclass(frozen=True)
class ProcessingCost:
    """per_packet: ps. A byte takes parts / whole ps more."""

    per_packet: int
    parts: int = 0
    whole: int = 1

    def of(self, lengths: Lengths) -> Times:
        """Computes (n,) costs in ps of packets of these lengths, each rounded down."""
        took: Times = lengths * self.parts // self.whole + self.per_packet
        return took


def of_hosts(costs: Costs) -> ProcessingCost | None:
    """Returns the cost of a frame at a worker's host, each way; None if it is 0."""
    if not (costs.host_per_packet or costs.host_per_byte):
        return None
    byte = Fraction(round(costs.host_per_byte * SECOND * _PARTS), _PARTS)
    return ProcessingCost(picoseconds(costs.host_per_packet), byte.numerator, byte.denominator)


def of_servers(costs: Costs) -> ProcessingCost | None:
    """Returns the cost of a received payload at a server process; None if it is 0."""
    if costs.server_rate is None:
        return None
    byte = Fraction(8 * SECOND, costs.server_rate)
    return ProcessingCost(0, byte.numerator, byte.denominator)


class Core:
    """A processor that handles packets in FIFO order.

    cost: the cost of a packet.
    slowdown: how many times as long a packet takes with which it begins at a time.
    free: time (ps) when it has handled all packets so far.
    """

    def __init__(self, cost: ProcessingCost, slowdown: Timeline | None = None) -> None:
        self.cost = cost
        self.slowdown = slowdown or Timeline()
        self.free = 0

    def ends(self, times: Times, lengths: Lengths) -> Times:
        """Computes when each packet is handled; times are in order with earlier packets."""
        if self.slowdown.plain:
            return self._ends(times, self.cost.of(lengths))
        found, first = np.empty(len(times), np.int64), 0
        while first < len(times):
            factor, until = self.slowdown.span(max(int(times[first]), self.free))
            costs = self.cost.of(lengths[first:]) * factor.numerator // factor.denominator
            before = self.free
            ends = self._ends(times[first:], costs)
            count = int(np.searchsorted(ends - costs, until, "left"))  # that begin before
            if count < len(ends):
                self.free = max(before, int(ends[count - 1]))
            found[first : first + count] = ends[:count]
            first += count
        return found

    def _ends(self, times: Times, costs: Times) -> Times:
        took = np.cumsum(costs)
        before = np.concatenate(([0], took[:-1]))
        # end[i] is the maximum over j <= i of times[j] plus the costs of packets j to i.
        ends: Times = took + np.maximum.accumulate(np.maximum(times - before, self.free))
        if len(ends):
            self.free = int(ends[-1])
        return ends


class UrgentFirstCore(Generic[Item]):
    """A processor that handles the most urgent packet first, in FIFO order within a priority; what
    it has begun it finishes.

    cost: the cost of a packet.
    slowdown: how many times as long a packet takes with which it begins at a time.
    stream_of: returns the stream of one, which says its priority.
    busy: it has begun with a packet, until `end`.
    """

    def __init__(
        self,
        cost: ProcessingCost,
        stream_of: Callable[[Item], int],
        slowdown: Timeline | None = None,
    ) -> None:
        self.cost, self.slowdown = cost, slowdown or Timeline()
        self._waiting: PriorityQueue[tuple[int, Item]] = PriorityQueue(
            lambda waiting: stream_of(waiting[1])
        )
        self.busy = False

    def add(self, lengths: Lengths, items: Iterable[Item]) -> None:
        """Queues packets of these lengths."""
        self._waiting.extend(zip(self.cost.of(lengths).tolist(), items, strict=True))

    def begin(self, at: int) -> tuple[int, Item] | None:
        """Begins with the next packet; returns how long (ps) it takes, and the packet.

        Returns None if none waits, or it is busy.
        """
        if self.busy or not self._waiting:
            return None
        self.busy = True
        took, item = self._waiting.popleft()
        return self._slowed(took, at), item

    def following(self, at: int) -> Iterator[tuple[int, Item]]:
        """Iterates over the packets that it handles from a time on, and when it ends each, as long
        as no others arrive."""
        for took, item in self._waiting:
            at += self._slowed(took, at)
            yield at, item

    def _slowed(self, took: int, at: int) -> int:
        if self.slowdown.plain:
            return took
        factor, _ = self.slowdown.span(at)
        return took * factor.numerator // factor.denominator

    def end(self) -> None:
        """Ends the packet that was begun."""
        self.busy = False
