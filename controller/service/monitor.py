# SPDX-License-Identifier: Apache-2.0
"""Watches the switches: notices one whose connection broke or whose tables are not as they should
be (it was restarted, its program was pushed again), connects anew, and gives it back what it lost.

One thread for each switch, so that one that hangs holds up no other.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from controller.jobs.registry import JobTable
from controller.p4rt.connection import SwitchError

__all__ = ["Monitor"]

log = logging.getLogger(__name__)

# Between looks at the connection, and at what the tables hold.
LOOK_SECONDS = 0.1
AUDIT_SECONDS = 1.0
# For a switch to answer; one that takes longer counts as not to be reached.
ANSWER_SECONDS = 2.0
# Between attempts to connect: doubled from the least to the most.
LEAST_PAUSE = 0.1
MOST_PAUSE = 1.0


class Monitor:
    """Looks after the switches of a table's fabric, once it is up. Where no time passes, ``look``
    is called instead of ``start``. ``answer``: seconds that a switch has to answer."""

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
        """Watch until ``stop``."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End; waits for what is being asked of switches."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def look(self, switch: str) -> bool:
        """Look at one switch, and mend what can be mended. Whether it is well afterwards."""
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
