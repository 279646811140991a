# SPDX-License-Identifier: Apache-2.0
"""What one worker computes, whoever sums the gradients.

Every iteration: the gradient of the worker's own batch, its mean over all workers, one step of the
optimizer, here or at the servers. A worker that is lost takes its shard of the data along; means
are over those who are in the sums. One that comes back goes on with its shard where it would be by
then.
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
from testbed.poison import Poison


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
        self._part = shard(training, job.seed, rank, world)
        self._how = job.batch // world, job.seed, rank
        self._batches = batches(self._part, *self._how)
        self.optimizer = optimizer(job)
        self._poison = Poison(job, rank, world)
        self._steps_here = job.optimizer.at == "workers"

    @property
    def parameters(self) -> Parameters:
        """The model's, by name."""
        return self.model.parameters

    def gradients(self) -> tuple[float, Parameters]:
        """Loss and gradients of this rank's next batch."""
        batch: Data = next(self._batches)
        loss, gradients = self.model.gradients(batch)
        self._poison.spoil(gradients)
        return loss, gradients

    def skip(self) -> None:
        """An iteration goes by without this rank."""
        next(self._batches)
        self._poison.iteration += 1

    def state(self) -> Parameters:
        """What a rank that comes back has to know: parameters, and what the optimizer keeps."""
        kept = {f"optimizer {i}": one for i, one in enumerate(self.optimizer.state())}
        return {**{f"parameter {name}": one for name, one in self.parameters.items()}, **kept}

    def resume(self, iterations: int, state: Parameters) -> None:
        """Goes on after so many iterations, with another rank's ``state`` then."""
        self.model.parameters = {name: state[f"parameter {name}"] for name in self.parameters}
        kept = len(state) - len(self.parameters)
        self.optimizer.restore([state[f"optimizer {i}"] for i in range(kept)])
        self._batches = batches(self._part, *self._how, first=iterations)
        self._poison.iteration = iterations

    def apply(self, came: Parameters) -> None:
        """What has come for the gradients: their means over all ranks, which a step is taken with,
        or the parameters after the servers' step."""
        if self._steps_here:
            apply(self.optimizer, self.parameters, self.cure(came))
            return
        for name, values in self.parameters.items():
            values[...] = came[name].reshape(values.shape)

    def cure(self, means: Parameters) -> Parameters:
        """Means that a step can be taken with, whatever they were made of."""
        return self._poison.cure(means)


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
    done: int = 0,
) -> list[float]:
    """Runs the iterations after the first ``done``; returns the seconds that each took.

    exchange: gradients to what comes for them, see ``Replica.apply``. report: called after each
    iteration; the accuracy is measured after each pass through the data and at the end.
    """
    seconds = []
    measured = int(done / replica.per_pass)
    for iteration in range(done + 1, iterations + 1):
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
