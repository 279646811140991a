# SPDX-License-Identifier: Apache-2.0
"""A node whose code is that of threads: hosts and the controller."""

from __future__ import annotations

from abc import abstractmethod

from simulation.kernel.engine import Node
from simulation.kernel.tasks import Tasks


class TaskNode(Node):
    """tasks: its Runtime. What comes at one time comes in this order: calls, packets, alarms; and
    whoever goes on because of it does so after all of them."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.tasks = Tasks(lambda: self.now)

    def next(self) -> int:
        """See Node."""
        return self.now if self.tasks.busy else min(self.next_call(), self.tasks.due)

    def run(self, until: int) -> None:
        """See Node."""
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
        """Takes packets that arrive before a time off the links."""

    @abstractmethod
    def arrival(self) -> int:
        """When the first packet arrives of those that were taken (ps); NEVER without one."""

    def arrive(self) -> None:
        """Hands over what arrives now."""

    def waits(self) -> str:
        """See Node."""
        names = sorted(f"{one.name} ({one.number})" for one in self.tasks.waiting)
        return f"in {', '.join(names)}" if names else "for nothing"
