# SPDX-License-Identifier: Apache-2.0
"""The transmission time of frames, and a queue with strict priorities.

`switch.ports.paced_line` has the FIFO queue, which switch ports use as well.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from protocol.ethernet import FRAMING, HEADER, LEAST_ON_WIRE
from protocol.priorities import PRIORITIES
from simulation.links.trains import NEVER, SECOND
from switch.ports.paced_line import Change, Line, LineCounters, LineError

_LARGEST = 1 << 48  # of the numbers in a rate, so that the time of a packet fits into 64 bits


@dataclass(frozen=True)
class LineRate:
    """A byte takes `parts / whole` picoseconds; `overhead` bytes go with each frame."""

    parts: int
    whole: int
    overhead: int

    @staticmethod
    def of(rate: int, framing: bool) -> LineRate:
        """Converts a rate in bit/s."""
        common = math.gcd(8 * SECOND, rate)
        return LineRate(8 * SECOND // common, rate // common, FRAMING if framing else 0)

    def slowed(self, factor: Fraction) -> LineRate:
        """Returns a rate at which all takes that many times as long; to 9 digits at least."""
        exact = Fraction(self.parts, self.whole) * factor
        if max(exact.numerator, exact.denominator) > _LARGEST:
            exact = Fraction(8 * SECOND, max(1, round(8 * SECOND / exact)))
        return LineRate(exact.numerator, exact.denominator, self.overhead)

    @property
    def min_time(self) -> int:
        """Lower bound of a frame's transmission time, in whole ps."""
        return self.time(LEAST_ON_WIRE + self.overhead)

    def time(self, wire: int) -> int:
        """Computes the transmission time of `wire` bytes on the wire, in whole ps."""
        return wire * self.parts // self.whole

    def wire_bytes(self, length: int) -> int:
        """Computes the bytes that a frame of this length occupies on the wire."""
        return max(length, LEAST_ON_WIRE) + self.overhead

    def line(self, queue_bytes: int, mtu: int) -> Line:
        """Builds a line of this rate with a queue of `queue_bytes`, for IP packets up to `mtu`."""
        return Line(
            parts=self.parts,
            whole=self.whole,
            overhead=self.overhead,
            least=LEAST_ON_WIRE,
            longest=mtu + HEADER,
            queue_bytes=queue_bytes,
        )


@dataclass(slots=True)
class QueuedPacket:
    """A packet in a queue with priorities; `item` identifies it for the link."""

    at: int
    size: int
    wire: int
    item: int


class StrictPriorityQueue:
    """A queue with strict priorities: highest first, FIFO within each.

    A waiting packet may be overtaken, so a departure is decided only when the sender's time reaches
    it (`settle`). A full queue drops the new packet, unless dropping packets of lower priorities,
    the lowest and latest first, makes room (as in the target's
    switch/runtime/interfaces/traffic_manager.c).
    """

    def __init__(self, line_rate: LineRate, line: Line) -> None:
        self._line_rate = line_rate
        self._line = line
        self._free = 0
        self._changes: deque[Change] = deque()
        self._queues: list[deque[QueuedPacket]] = [deque() for _ in range(PRIORITIES)]
        self._held = [0] * PRIORITIES
        self._dropped = self._dropped_bytes = self._oversized = self._most = 0

    @property
    def free(self) -> int:
        """Time when all decided packets have left (ps, rounded down)."""
        return self._free // self._line_rate.whole

    def change(self, changes: Sequence[Change]) -> None:
        """Replaces the changes of rate that have not happened (`LineQueue.change`)."""
        self._changes = deque(changes)

    def hold(self, until: int) -> None:
        """Has no packet begin to leave before a time (ps)."""
        self._free = max(self._free, until * self._line_rate.whole)

    def _change_rate(self, start: int) -> int:
        """Makes the changes that have happened at the start of a packet (in parts of ps); returns
        the start."""
        while self._changes and self._changes[0][0] <= start // self._line_rate.whole:
            _, parts, whole = self._changes.popleft()
            start = start // self._line_rate.whole * whole
            self._line_rate = replace(self._line_rate, parts=parts, whole=whole)
        return start

    @property
    def pending(self) -> int:
        """Arrival time of the earliest undecided packet; NEVER if there is none."""
        return min((queue[0].at for queue in self._queues if queue), default=NEVER)

    @property
    def held(self) -> int:
        """Bytes of undecided packets."""
        return sum(self._held)

    def settle(self, until: int) -> list[tuple[int, int]]:
        """Decides all departures that start up to `until`, before which no packet arrives later.

        Returns (item, time of its last bit) for each.
        """
        line_rate, found = self._line_rate, []
        while (earliest := self.pending) != NEVER:
            start = max(self._free, earliest * line_rate.whole)
            if start > until * line_rate.whole:
                break
            # Packets that arrived after `start` are no candidates, and each head is the oldest.
            priority = max(
                p
                for p, queue in enumerate(self._queues)
                if queue and queue[0].at * line_rate.whole <= start
            )
            one = self._queues[priority].popleft()
            self._held[priority] -= one.size
            start, line_rate = self._change_rate(start), self._line_rate
            self._free = start + one.wire * line_rate.parts
            found.append((one.item, self._free // line_rate.whole))
        return found

    def offer(self, at: int, size: int, priority: int, item: int) -> list[int]:
        """Enqueues a packet, after `settle(at)`; returns the dropped items, maybe its own.

        Raises LineError for an invalid priority.
        """
        if not 0 <= priority < PRIORITIES:
            raise LineError(f"a priority of {priority}; allowed: 0 to {PRIORITIES - 1}")
        held, limit = self._held, self._line.queue_bytes
        if size > self._line.longest:
            self._oversized += 1
            return [item]
        dropped: list[int] = []
        if sum(held) + size > limit:
            if sum(held[priority:]) + size > limit:
                self._drop(size)
                return [item]
            for lower in range(priority):
                queue = self._queues[lower]
                while queue and sum(held) + size > limit:
                    victim = queue.pop()
                    held[lower] -= victim.size
                    self._drop(victim.size)
                    dropped.append(victim.item)
        self._queues[priority].append(
            QueuedPacket(at, size, self._line_rate.wire_bytes(size), item)
        )
        held[priority] += size
        self._most = max(self._most, sum(held))
        return dropped

    def counters(self) -> LineCounters:
        """Returns the counters since its creation."""
        return LineCounters(self._dropped, self._dropped_bytes, self._oversized, self._most)

    def _drop(self, size: int) -> None:
        self._dropped += 1
        self._dropped_bytes += size
