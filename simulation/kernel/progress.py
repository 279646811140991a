# SPDX-License-Identifier: Apache-2.0
"""Reports the progress of running jobs within iterations, which may take minutes to simulate."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from observability.messages.events import WithinEvent
from simulation.links.trains import SECOND

PERIOD_SECONDS = 1.0


class MonitoredJob(Protocol):
    """A job whose progress is reported."""

    name: str

    @property
    def iterations(self) -> int:
        """Number of iterations in all."""

    def iterations_done(self) -> float | None:
        """Iterations that all workers have done, plus the share of the current one's chunks.

        None unless the job runs.
        """

    def rounds(self, done: float) -> float:
        """Packets of a chunk in so many iterations: the first may have one for exponents, too."""


class ProgressReporter:
    """Reports running jobs every second of real time, in ``within`` events.

    now: returns the virtual time in ps.
    emit: receives the events.
    clock: returns the real time in seconds. The simulation does not depend on it.
    """

    def __init__(
        self,
        jobs: Sequence[MonitoredJob],
        now: Callable[[], int],
        emit: Callable[[WithinEvent], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._jobs, self._now, self._emit, self._clock = jobs, now, emit, clock
        self._began = clock()
        self._next = self._began + PERIOD_SECONDS
        # By job: when it was first seen, and its rounds then.
        self._first: dict[str, tuple[float, float]] = {}

    def poll(self) -> None:
        """Emits a report if one is due; called between steps of the simulation."""
        now = self._clock()
        if now < self._next:
            return
        self._next = now + PERIOD_SECONDS
        for job in self._jobs:
            done = job.iterations_done()
            if done is not None and done < job.iterations:
                self._report(job, done, now)

    def _report(self, job: MonitoredJob, done: float, now: float) -> None:
        rounds, last = job.rounds(done), job.rounds(job.iterations)
        began, before = self._first.setdefault(job.name, (now, rounds))
        taken = now - began
        left = taken * (last - rounds) / (rounds - before) if rounds > before else None
        self._emit(
            {
                "event": "within",
                "job": job.name,
                "iterations": job.iterations,
                "iterations_done": done,
                "virtual_seconds": self._now() / SECOND,
                "wall_seconds": now - self._began,
                "left_seconds": left,
            }
        )
