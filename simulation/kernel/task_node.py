# SPDX-License-Identifier: Apache-2.0
"""Nodes that run threaded code as tasks: hosts and the controller."""

from __future__ import annotations

from abc import abstractmethod

from simulation.kernel.engine import Node, Unfinished
from simulation.kernel.tasks import Tasks


class TaskNode(Node):
    """A node that runs tasks.

    tasks: its Runtime. Events at the same time are processed in the order calls, packets, alarms;
        tasks that they wake run after all of them.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.tasks = Tasks(lambda: self.now)
        self._until = 0
        self._work: Unfinished | None = None

    def next(self) -> int:
        """Implements Node."""
        return self.now if self.tasks.busy else min(self.next_call(), self.tasks.due)

    def run(self, until: int) -> None:
        """Implements Node."""
        unfinished = self.start_run(until)
        if unfinished is not None:
            unfinished.finish()

    def start_run(self, until: int) -> Unfinished | None:
        """Implements Node."""
        self._until = until
        self.take(until)
        return self if self._run() else None

    def ready(self) -> bool:
        """Implements Unfinished."""
        return self._work is None or self._work.ready()

    def finish(self) -> None:
        """Implements Unfinished."""
        while self._work is not None:
            work, self._work = self._work, None
            work.finish()
            self.tasks.ring()
            self._run()

    def put_off_to_finish(self, work: Unfinished) -> None:
        """Ends the run for now, as `work` has to be finished before it goes on."""
        self._work = work

    def _run(self) -> bool:
        """Runs until the horizon, or until there is work to finish; returns whether there is."""
        while True:
            self.tasks.run()
            at = min(self.arrival(), self.next_call(), self.tasks.due)
            if at >= self._until:
                self.ran(self._until)
                return False
            self.now = max(self.now, at)
            while self.next_call() <= self.now:
                self.answer()
            self.arrive()
            if self._work is not None:
                return True
            self.tasks.ring()

    def ran(self, until: int) -> None:
        """Called when all events before `until` are processed."""

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
