# SPDX-License-Identifier: Apache-2.0
"""What one worker computes, whoever sums the gradients.

Every iteration: the gradient of the worker's own batch, its mean over all workers, one step of the
optimizer, here or at the servers. A worker that is lost takes its shard of the data along; means
are over those who are in the sums.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_info

from hosts.optimizers import Optimizer
from testbed.digits import Data, Parameters, Perceptron, batches, load_digits, shard, split
from testbed.jobfile import JobSpec


@dataclass(frozen=True)
class Progress:
    """How far a run is: mean loss of the worker's last batch, accuracy on the test set or None.

    began, ended: when the iteration did, by ``time.monotonic``.
    """

    iteration: int
    began: float
    ended: float
    loss: float
    accuracy: float | None


class Replica:
    """One rank's copy of the model, its shard of the data and its optimizer."""

    def __init__(self, job: JobSpec, rank: int, world: int) -> None:
        training, self.test = split(load_digits(), job.seed)
        self.per_pass = len(training) / job.batch  # iterations for once through the training set
        self.model = Perceptron(job.hidden, job.seed)
        part = shard(training, job.seed, rank, world)
        self._batches = batches(part, job.batch // world, job.seed, rank)
        self.optimizer = optimizer(job)
        self._steps_here = job.optimizer.at == "workers"

    @property
    def parameters(self) -> Parameters:
        """The model's, by name."""
        return self.model.parameters

    def gradients(self) -> tuple[float, Parameters]:
        """Loss and gradients of this rank's next batch."""
        batch: Data = next(self._batches)
        return self.model.gradients(batch)

    def apply(self, came: Parameters) -> None:
        """What has come for the gradients: their means over all ranks, which a step is taken with,
        or the parameters after the servers' step."""
        if self._steps_here:
            apply(self.optimizer, self.parameters, came)
            return
        for name, values in self.parameters.items():
            values[...] = came[name].reshape(values.shape)


def optimizer(job: JobSpec) -> Optimizer:
    """The job's optimizer, fresh."""
    return Optimizer(job.optimizer.plan)


def apply(step: Optimizer, parameters: Parameters, means: Parameters) -> None:
    """One step with mean gradients."""
    shaped = [means[name].reshape(p.shape) for name, p in parameters.items()]
    step.step(list(parameters.values()), shaped)


def digest(parameters: Parameters) -> str:
    """SHA-256 over all parameters' bytes (little endian float32, in order)."""
    total = hashlib.sha256()
    for values in parameters.values():
        total.update(np.ascontiguousarray(values, "<f4").tobytes())
    return total.hexdigest()


def check_one_thread() -> None:
    """Raises ``RuntimeError`` if numpy's BLAS has more threads: sums would depend on how many."""
    for library in threadpool_info():
        if library["num_threads"] != 1:
            raise RuntimeError(
                f"{library['internal_api']} runs {library['num_threads']} threads, not 1:"
                " set OPENBLAS_NUM_THREADS=1 (and OMP_, MKL_) before Python starts"
            )


def train(
    replica: Replica,
    iterations: int,
    exchange: Callable[[Parameters], Parameters],
    report: Callable[[Progress], None],
) -> list[float]:
    """Runs the iterations; returns the seconds that each took.

    exchange: gradients to what comes for them, see ``Replica.apply``. report: called after each
    iteration; the accuracy is measured after each pass through the data and at the end.
    """
    seconds = []
    measured = 0
    for iteration in range(1, iterations + 1):
        start = time.monotonic()
        loss, gradients = replica.gradients()
        replica.apply(exchange(gradients))
        end = time.monotonic()
        seconds.append(end - start)
        accuracy = None
        passes = int(iteration / replica.per_pass)
        if passes > measured or iteration == iterations:
            measured = passes
            accuracy = replica.model.accuracy(replica.test)
        report(Progress(iteration, start, end, loss, accuracy))
    return seconds
