# SPDX-License-Identifier: Apache-2.0
"""How far jobs are, told now and then while they run: an iteration may take minutes to simulate."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from simulation.links.trains import SECOND

Message = dict[str, Any]
PERIOD_SECONDS = 1.0


class MonitoredJob(Protocol):
    """A job. ``iterations_done``: those that all workers have done, with the share of the chunks
    of the one under way; None unless it runs."""

    name: str

    @property
    def iterations(self) -> int:
        """In all."""

    def iterations_done(self) -> float | None:
        """See above."""


class ProgressReporter:
    """Tells of jobs that run every second of real time, in events ``within`` an iteration.

    now: the virtual time, in ps. clock: of real time, in seconds. Nothing that is simulated
    depends on any of it.
    """

    def __init__(
        self,
        jobs: Sequence[MonitoredJob],
        now: Callable[[], int],
        emit: Callable[[Message], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._jobs, self._now, self._emit, self._clock = jobs, now, emit, clock
        self._began = clock()
        self._next = self._began + PERIOD_SECONDS
        self._first: dict[str, tuple[float, float]] = {}  # by job: when it was first seen, how far

    def poll(self) -> None:
        """For whoever goes on between two steps of the simulation; mostly does nothing."""
        now = self._clock()
        if now < self._next:
            return
        self._next = now + PERIOD_SECONDS
        for job in self._jobs:
            done = job.iterations_done()
            if done is not None and done < job.iterations:
                self._report(job, done, now)

    def _report(self, job: MonitoredJob, done: float, now: float) -> None:
        began, before = self._first.setdefault(job.name, (now, done))
        left = (now - began) * (job.iterations - done) / (done - before) if done > before else None
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
