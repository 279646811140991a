# SPDX-License-Identifier: Apache-2.0
"""How far a job is, by what its workers report (``testbed.worker``, ``progress``).

Workers report when it suits them, each at another iteration, with the losses of all iterations
since. What is told of an iteration is told once every worker has reported it, so that it is the
same in every run of the job.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

Message = dict[str, Any]

# Over less, chunks/s would say how reports bunch up, not how fast the job is.
_RATE_SECONDS = 0.5


class Iteration(NamedTuple):
    """An iteration that all workers have done: when the last of them ended it (by
    the clock), mean loss over workers, accuracy if it was measured then."""

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
        self.iteration = before  # the last that all have reported
        self.latest: list[Iteration] = []  # what the last report made complete
        self._before = before
        self._reached = dict.fromkeys(range(world), before)  # by rank
        self._losses: dict[int, list[float | None]] = {}  # of iterations that not all have reported
        self._ended: dict[int, float] = {}  # the same
        self._loss: float | None = None
        self._accuracies: dict[int, float] = {}  # the same
        self._accuracy: float | None = None
        self._per_pass = 1.0
        self._statistics = {"completed": 0, "completed_direct": 0}  # of the first
        self._rate: tuple[float, int, float] = (0.0, 0, 0.0)  # when, chunks then, chunks/s

    def drop(self, rank: int) -> None:
        """A worker is lost; there are others."""
        self._reached.pop(rank, None)

    def join(self, rank: int, iteration: int) -> None:
        """A worker that was lost goes on after so many iterations."""
        self._reached[rank] = iteration

    def take(self, rank: int, report: Message) -> bool:
        """A worker's report; returns whether there is an iteration more that all have done."""
        if rank not in self._reached:
            return False
        reached, losses = int(report["iteration"]), report["losses"]
        self._reached[rank] = reached
        first = reached - len(losses) + 1
        for iteration, loss in enumerate(losses, start=first):
            self._losses.setdefault(iteration, []).append(loss)
        for iteration, (_, ended) in enumerate(report["spans"], start=first):
            self._ended[iteration] = max(ended, self._ended.get(iteration, ended))
        if report["accuracy"] is not None:
            self._accuracies[reached] = report["accuracy"]
        if rank == min(self._reached):
            self._statistics = report["statistics"]
            self._per_pass = reached / report["passes"]
        before, self.iteration = self.iteration, min(self._reached.values())
        self.latest = []
        for iteration in range(before + 1, self.iteration + 1):
            # In the same order always, as a sum of floats depends on it.
            together = sorted(loss for loss in self._losses.pop(iteration) if loss is not None)
            self._loss = sum(together) / len(together) if together else None
            measured = self._accuracies.pop(iteration, None)
            self._accuracy = self._accuracy if measured is None else measured
            ended = self._ended.pop(iteration)
            self.latest.append(Iteration(iteration, ended, self._loss, measured))
        return self.iteration > before

    def message(self) -> Message:
        """Iteration, passes over the data, mean loss over workers, accuracy, chunks/s, summed in
        the tree (0-1).

        Without figures before all workers have done an iteration.
        """
        told: Message = {"iteration": self.iteration, "iterations": self.iterations}
        if self.iteration == self._before:
            return told
        in_tree = self._statistics["completed"]
        chunks = in_tree + self._statistics["completed_direct"]
        now = self._clock()
        then, before, rate = self._rate
        if not before or chunks < before:  # fewer: another process, which counts from 0
            self._rate = (now, chunks, rate)
        elif chunks > before and now - then >= _RATE_SECONDS:
            rate = (chunks - before) / (now - then)
            self._rate = (now, chunks, rate)
        return {
            **told,
            "passes": self.iteration / self._per_pass,
            "loss": self._loss,
            "accuracy": self._accuracy,
            "chunks_per_second": rate or None,
            "share_in_tree": in_tree / chunks if chunks else 0.0,
        }
