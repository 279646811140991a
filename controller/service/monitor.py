# SPDX-License-Identifier: Apache-2.0
"""Monitors the switches: detects broken connections and lost entries, reconnects and restores.

A switch loses its entries when it is restarted or its program is pushed again. Each switch has a
thread of its own, so that one that hangs does not delay the others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from controller.jobs.registry import JobTable
from controller.p4rt.connection import SwitchError

log = logging.getLogger(__name__)

# Intervals of checks of the connection, and of the tables.
LOOK_SECONDS = 0.1
AUDIT_SECONDS = 1.0
# A switch that takes longer to answer counts as unreachable.
ANSWER_SECONDS = 2.0
# Interval of attempts to connect, doubled from the least to the most.
LEAST_PAUSE = 0.1
MOST_PAUSE = 1.0


class Monitor:
    """Monitors the switches of a table's fabric, once it is up.

    answer: seconds within which a switch has to answer. Without real time, call ``look`` instead of
    ``start``.
    """

    def __init__(
        self,
        table: JobTable,
        clock: Callable[[], float] | None = None,
        answer: float = ANSWER_SECONDS,
    ) -> None:
        self.table = table
        self.fabric = table.fabric
        runtime = table.runtime
        self.clock = runtime.now if clock is None else clock
        self.answer = answer
        self._stop = runtime.event()
        self._threads = [
            runtime.thread(self._watch, f"monitor-{name}", (name,))
            for name in self.fabric.connections
        ]

    def start(self) -> None:
        """Starts monitoring; ends with ``stop``."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stops monitoring; waits for requests under way."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def look(self, switch: str) -> bool:
        """Checks one switch and repairs it if possible; returns whether it is well afterwards."""
        connection = self.fabric.connections[switch]
        try:
            if switch not in self.fabric.down:
                if connection.alive and self.table.outages.intact(switch, self.answer):
                    return True
                why = "lacks entries" if connection.alive else "the connection broke"
                log.warning("%s: %s", switch, why)
                self.table.outages.lost(switch)
            if not connection.alive:
                connection.open(self.answer)
            self.fabric.restore(switch)
            self.table.outages.regained(switch)
        except SwitchError as error:
            log.warning("%s", error)
            connection.close()
            self.table.outages.lost(switch)
            return False
        log.info("%s is there", switch)
        return True

    def _watch(self, switch: str) -> None:
        connection = self.fabric.connections[switch]
        pause = LEAST_PAUSE
        while not self._stop.is_set():
            try:
                well = self.look(switch)
            except Exception:
                log.exception("looking after %s failed; it goes on", switch)
                well = False
            if not well:
                self._stop.wait(pause)
                pause = min(2 * pause, MOST_PAUSE)
                continue
            pause = LEAST_PAUSE
            due = self.clock() + AUDIT_SECONDS
            while connection.alive and self.clock() < due and switch not in self.fabric.down:
                if self._stop.wait(LOOK_SECONDS):
                    return
