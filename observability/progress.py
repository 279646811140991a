# SPDX-License-Identifier: Apache-2.0
"""Tracks a job's progress from its workers' ``progress`` reports (``testbed.worker``).

Workers report at different iterations, with the losses of all iterations since their last report.
An iteration counts once every worker has reported it, so that its values are the same in every run
of the job.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from observability.messages.jobs import JobProgress
from observability.messages.process_reports import ProgressReport

# Over shorter times, chunks/s would depend on the timing of reports.
_RATE_SECONDS = 0.5


class Iteration(NamedTuple):
    """An iteration that all workers have completed.

    ended: time at which the last worker ended it.
    loss: mean over workers.
    accuracy: if it was measured after this iteration.
    """

    number: int
    ended: float
    loss: float | None
    accuracy: float | None


class Progress:
    """The progress of ``world`` workers over ``iterations``, which begin after ``before``."""

    def __init__(
        self,
        world: int,
        iterations: int,
        before: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self.iterations = iterations
        self.iteration = before  # the last that all workers have reported
        self.latest: list[Iteration] = []  # iterations that the last report completed
        self._before = before
        self._reached = dict.fromkeys(range(world), before)  # by rank
        self._lowest = 0  # rank of those
        self._workers = Counter({before: world})  # by what they have reached
        # By iteration, of those that not all workers have reported.
        self._losses: dict[int, list[float | None]] = {}
        self._ended: dict[int, float] = {}
        self._accuracies: dict[int, float] = {}
        self._loss: float | None = None
        self._accuracy: float | None = None
        self._per_pass = 1.0
        self._chunks = 0, 0  # summed in the tree, and by servers in float32, at the lowest rank
        self._rate: tuple[float, int, float] = (0.0, 0, 0.0)  # time, chunks then, chunks/s

    def drop(self, rank: int) -> None:
        """Removes a lost worker; at least one has to remain."""
        if rank in self._reached:
            self._leave(self._reached.pop(rank))
            self._lowest = min(self._reached, default=0)

    def join(self, rank: int, iteration: int) -> None:
        """Adds a worker that rejoins after so many iterations."""
        self.drop(rank)
        self._reached[rank] = iteration
        self._workers[iteration] += 1
        self._lowest = min(self._reached)

    def take(self, rank: int, report: ProgressReport) -> bool:
        """Takes a worker's report; returns whether it completes an iteration."""
        if rank not in self._reached:
            return False
        reached, losses = report["iteration"], report["losses"]
        self._leave(self._reached[rank])
        self._reached[rank] = reached
        self._workers[reached] += 1
        first = reached - len(losses) + 1
        for iteration, loss in enumerate(losses, start=first):
            self._losses.setdefault(iteration, []).append(loss)
        for iteration, (_, ended) in enumerate(report["spans"], start=first):
            self._ended[iteration] = max(ended, self._ended.get(iteration, ended))
        if report["accuracy"] is not None:
            self._accuracies[reached] = report["accuracy"]
        if rank == self._lowest:
            counts = report["statistics"]
            self._chunks = counts["completed"], counts["completed_direct"]
            self._per_pass = reached / report["passes"]
        before, self.iteration = self.iteration, min(self._workers)
        self.latest = []
        for iteration in range(before + 1, self.iteration + 1):
            # Sorted, as a sum of floats depends on the order.
            together = sorted(loss for loss in self._losses.pop(iteration) if loss is not None)
            self._loss = sum(together) / len(together) if together else None
            measured = self._accuracies.pop(iteration, None)
            self._accuracy = self._accuracy if measured is None else measured
            ended = self._ended.pop(iteration)
            self.latest.append(Iteration(iteration, ended, self._loss, measured))
        return self.iteration > before

    def _leave(self, iteration: int) -> None:
        """Records that a worker is not at this iteration any more."""
        self._workers[iteration] -= 1
        if not self._workers[iteration]:
            del self._workers[iteration]

    def message(self, *, served: bool = False) -> JobProgress:
        """Returns the progress so far. served: servers sum all chunks."""
        message: JobProgress = {"iteration": self.iteration, "iterations": self.iterations}
        if self.iteration == self._before:
            return message
        in_tree, direct = self._chunks
        chunks = in_tree + direct
        now = self._clock()
        then, before, rate = self._rate
        if not before or chunks < before:  # fewer: another process, which counts from 0
            self._rate = (now, chunks, rate)
        elif chunks > before and now - then >= _RATE_SECONDS:
            rate = (chunks - before) / (now - then)
            self._rate = (now, chunks, rate)
        return {
            **message,
            "passes": self.iteration / self._per_pass,
            "loss": self._loss,
            "accuracy": self._accuracy,
            "chunks_per_second": rate or None,
            "share_in_network": in_tree / chunks if chunks and not served else 0.0,
        }
