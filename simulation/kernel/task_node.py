# SPDX-License-Identifier: Apache-2.0
"""Nodes that run threaded code as tasks: hosts and the controller."""

from __future__ import annotations

from abc import abstractmethod

from simulation.kernel.engine import Node
from simulation.kernel.tasks import Tasks


class TaskNode(Node):
    """A node that runs tasks.

    tasks: its Runtime. Events at the same time are processed in the order calls, packets, alarms;
        tasks that they wake run after all of them.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.tasks = Tasks(lambda: self.now)

    def next(self) -> int:
        """Implements Node."""
        return self.now if self.tasks.busy else min(self.next_call(), self.tasks.due)

    def run(self, until: int) -> None:
        """Implements Node."""
        self.take(until)
        while True:
            self.tasks.run()
            at = min(self.arrival(), self.next_call(), self.tasks.due)
            if at >= until:
                return
            self.now = max(self.now, at)
            while self.next_call() <= self.now:
                self.answer()
            self.arrive()
            self.tasks.ring()

    def take(self, until: int) -> None:
        """Takes the packets that arrive before a time from the links."""

    @abstractmethod
    def arrival(self) -> int:
        """Returns the arrival time (ps) of the first packet taken; NEVER without one."""

    def arrive(self) -> None:
        """Delivers the packets that arrive now."""

    def waits(self) -> str:
        """Implements Node."""
        names = sorted(f"{one.name} ({one.number})" for one in self.tasks.waiting)
        return f"in {', '.join(names)}" if names else "for nothing"
