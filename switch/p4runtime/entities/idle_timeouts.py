# SPDX-License-Identifier: Apache-2.0
"""Ages table entries (P4Runtime spec, "Idle-timeout", "Table Idle Timeout Notification").

The pipeline records when an entry was last hit. A heap orders entries by the earliest time at which
they can have been idle for their timeout, so an entry costs a look only when its timeout may be
over, and entries without a timeout cost nothing.
"""

from __future__ import annotations

import heapq

from switch.p4runtime.entities.entry import Entry
from switch.p4runtime.p4info.schema import Table
from switch.pipeline.meters_and_digests import Externs

# The smallest timeout; smaller ones are raised to it.
SHORTEST_US = 10_000


class Ageing:
    """The idle timers of one program's entries. Not thread safe: the device has a lock."""

    def __init__(self, externs: Externs) -> None:
        self._externs = externs
        self._heap: list[tuple[int, int, Table, Entry]] = []
        self._timers = 0  # the last number assigned

    def start(self, table: Table, entry: Entry) -> None:
        """Starts an entry's timer when it is written: it counts as hit now."""
        now_us = self._externs.now_us()
        self._externs.touch(table.name, entry.pipeline_handle, now_us)
        self._set(now_us + _timeout_us(entry), table, entry)

    def stop(self, entry: Entry) -> None:
        """Stops the timer of a deleted entry."""
        entry.timer = 0

    def idle_ns(self, table: Table, entry: Entry) -> int:
        """Returns the time since the entry was last hit."""
        [hit_us] = self._externs.last_hits(table.name, [entry.pipeline_handle])
        return 1000 * max(0, self._externs.now_us() - (hit_us or 0))

    def due_us(self) -> int | None:
        """Returns when an entry may next time out, None if no entry has a timeout."""
        while self._heap and not self._runs(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def expired(self, now_us: int) -> list[tuple[Table, Entry]]:
        """Returns the entries that are idle for their timeout. Each is returned again after another
        timeout."""
        looked: dict[str, list[tuple[Table, Entry]]] = {}
        while (at := self.due_us()) is not None and at <= now_us:
            _, _, table, entry = heapq.heappop(self._heap)
            looked.setdefault(table.name, []).append((table, entry))
        found = []
        for name, pairs in looked.items():
            hits = self._externs.last_hits(name, [entry.pipeline_handle for _, entry in pairs])
            for (table, entry), hit_us in zip(pairs, hits, strict=True):
                until = (hit_us or 0) + _timeout_us(entry)
                if until <= now_us:
                    found.append((table, entry))
                    until = now_us + _timeout_us(entry)
                self._set(until, table, entry)
        return found

    def _set(self, at_us: int, table: Table, entry: Entry) -> None:
        if not entry.idle_timeout_ns:
            entry.timer = 0
            return
        self._timers += 1
        entry.timer = self._timers
        heapq.heappush(self._heap, (at_us, self._timers, table, entry))
        # Stopped timers stay in the heap until their turn, or until they are too many.
        if len(self._heap) > 1024 and self._timers % len(self._heap) == 0:
            self._heap = [one for one in self._heap if self._runs(one)]
            heapq.heapify(self._heap)

    @staticmethod
    def _runs(timer: tuple[int, int, Table, Entry]) -> bool:
        return timer[3].timer == timer[1]


def _timeout_us(entry: Entry) -> int:
    return max(SHORTEST_US, -(-entry.idle_timeout_ns // 1000))
