# SPDX-License-Identifier: Apache-2.0
"""What one worker computes, whoever sums the gradients.

Every iteration: the gradient of the worker's own batch, summed over all workers, divided by their
number, one step of the optimizer.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_info

from hosts.optimizers import MomentumSGD
from testbed.digits import Data, Parameters, Perceptron, batches, load_digits, shard, split
from testbed.jobfile import JobSpec


@dataclass(frozen=True)
class Progress:
    """How far a run is: mean loss of the worker's last batch, accuracy on the test set or None."""

    iteration: int
    loss: float
    accuracy: float | None


class Replica:
    """One rank's copy of the model, its shard of the data and its optimizer."""

    def __init__(self, job: JobSpec, rank: int, world: int) -> None:
        training, self.test = split(load_digits(), job.seed)
        self.world = world
        self.per_pass = len(training) / job.batch  # iterations for once through the training set
        self.model = Perceptron(job.hidden, job.seed)
        part = shard(training, job.seed, rank, world)
        self._batches = batches(part, job.batch // world, job.seed, rank)
        self.optimizer = optimizer(job)

    @property
    def parameters(self) -> Parameters:
        """The model's, by name."""
        return self.model.parameters

    def gradients(self) -> tuple[float, Parameters]:
        """Loss and gradients of this rank's next batch."""
        batch: Data = next(self._batches)
        return self.model.gradients(batch)

    def apply(self, sums: Parameters) -> None:
        """One step with the gradients' sums over all ranks."""
        apply(self.optimizer, self.parameters, sums, self.world)


def optimizer(job: JobSpec) -> MomentumSGD:
    """The job's optimizer, fresh."""
    momentum = job.optimizer.momentum if job.optimizer.name == "momentum" else 0.0
    return MomentumSGD(job.optimizer.rate, momentum)


def apply(step: MomentumSGD, parameters: Parameters, sums: Parameters, world: int) -> None:
    """One step with mean gradients, the sums divided by the number of workers in float32."""
    means = [sums[name].reshape(p.shape) / np.float32(world) for name, p in parameters.items()]
    step.step(list(parameters.values()), means)


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
    all_reduce: Callable[[Parameters], Parameters],
    report: Callable[[Progress], None],
) -> list[float]:
    """Runs the iterations; returns the seconds that each took.

    all_reduce: a dict of arrays to the same dict of sums over all workers. report: called after
    each iteration; the accuracy is measured after each pass through the data and at the end.
    """
    seconds = []
    measured = 0
    for iteration in range(1, iterations + 1):
        start = time.monotonic()
        loss, gradients = replica.gradients()
        replica.apply(all_reduce(gradients))
        seconds.append(time.monotonic() - start)
        accuracy = None
        passes = int(iteration / replica.per_pass)
        if passes > measured or iteration == iterations:
            measured = passes
            accuracy = replica.model.accuracy(replica.test)
        report(Progress(iteration, loss, accuracy))
    return seconds
