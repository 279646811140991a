# SPDX-License-Identifier: Apache-2.0
"""How long frames take on a line, and a queue with strict priorities in front of one.

(`switch.lines` has the queue without priorities, which is that of the switches' ports, too.)
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from protocol.ethernet import FRAMING, HEADER, LEAST_ON_WIRE
from simulation.links.trains import NEVER, SECOND
from switch.lines import Line, LineCounters, LineError

PRIORITIES = 8


@dataclass(frozen=True)
class LineRate:
    """A byte takes `parts / whole` picoseconds; `overhead` bytes go with each frame."""

    parts: int
    whole: int
    overhead: int

    @staticmethod
    def of(rate: int, framing: bool) -> LineRate:
        """Of a rate in bit/s."""
        common = math.gcd(8 * SECOND, rate)
        return LineRate(8 * SECOND // common, rate // common, FRAMING if framing else 0)

    @property
    def min_time(self) -> int:
        """Whole picoseconds that every frame takes at least."""
        return self.time(LEAST_ON_WIRE + self.overhead)

    def time(self, wire: int) -> int:
        """Whole picoseconds of so many bytes on the wire."""
        return wire * self.parts // self.whole

    def wire_bytes(self, length: int) -> int:
        """Bytes that a frame of this length occupies."""
        return max(length, LEAST_ON_WIRE) + self.overhead

    def line(self, queue_bytes: int, mtu: int) -> Line:
        """With a queue of so many bytes, for IP packets of at most so many."""
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
    """A packet in a queue with priorities; `item` is whatever the link knows it by."""

    at: int
    size: int
    wire: int
    item: int


class StrictPriorityQueue:
    """Strict priorities: whenever the line is free the highest that waits goes, the oldest first.

    What waits may be overtaken, so a departure is decided only once the sender's time has come to
    it (`settle`). A full queue drops what comes, unless dropping packets of lower priorities, the
    lowest and latest first, makes room (as the target's ports do, switch/runtime/io/tm.c).
    """

    def __init__(self, line_rate: LineRate, line: Line) -> None:
        self._line_rate = line_rate
        self._line = line
        self._free = 0
        self._queues: list[deque[QueuedPacket]] = [deque() for _ in range(PRIORITIES)]
        self._held = [0] * PRIORITIES
        self._dropped = self._dropped_bytes = self._oversized = self._most = 0

    @property
    def free(self) -> int:
        """When all that was decided has left (ps, rounded down)."""
        return self._free // self._line_rate.whole

    @property
    def pending(self) -> int:
        """When the earliest that waits undecided came; NEVER if nothing does."""
        return min((queue[0].at for queue in self._queues if queue), default=NEVER)

    @property
    def held(self) -> int:
        """Bytes that wait undecided."""
        return sum(self._held)

    def settle(self, until: int) -> list[tuple[int, int]]:
        """(item, when its last bit leaves) of all that starts up to then: nothing else will come
        before."""
        line_rate, found = self._line_rate, []
        while (earliest := self.pending) != NEVER:
            start = max(self._free, earliest * line_rate.whole)
            if start > until * line_rate.whole:
                break
            # Who came after `start` is no candidate yet, and the head of each queue is its oldest.
            priority = max(
                p
                for p, queue in enumerate(self._queues)
                if queue and queue[0].at * line_rate.whole <= start
            )
            one = self._queues[priority].popleft()
            self._held[priority] -= one.size
            self._free = start + one.wire * line_rate.parts
            found.append((one.item, self._free // line_rate.whole))
        return found

    def offer(self, at: int, size: int, priority: int, item: int) -> list[int]:
        """One packet, after `settle(at)`; returns the items that are dropped, which may be its own.

        Raises LineError for a priority that there is not.
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
        """Since it was made."""
        return LineCounters(self._dropped, self._dropped_bytes, self._oversized, self._most)

    def _drop(self, size: int) -> None:
        self._dropped += 1
        self._dropped_bytes += size
