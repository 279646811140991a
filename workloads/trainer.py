# SPDX-License-Identifier: Apache-2.0
"""The training loop of one worker, independent of the aggregation.

An iteration consists of the gradient of the worker's own batch, its mean over all workers, and one
step of the optimizer, here or at the servers. The shard of a lost worker is lost with it; means are
over the participants of a sum. A worker that rejoins continues its shard at the position that it
would have reached.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from threadpoolctl import threadpool_info

from hosts.data.checkpoint import Checkpoint
from hosts.data.tensors import dtype_of
from hosts.optimizers import Optimizer, rule_of
from protocol.runtime import REAL
from specs.jobspec import JobSpec
from workloads.models import Parameters, Quality
from workloads.poison import Poison
from workloads.workloads import open_workload

# The quality is measured at least this often, however large the data.
_LOOKS = 10


@dataclass(frozen=True)
class Progress:
    """The progress of a run after an iteration.

    began, ended: times of the iteration by the clock of ``train``.
    loss: mean loss of the worker's last batch, if any.
    is_measured: whether the quality is measured after it, by this worker or another.
    quality: quality on the test set, if this worker measured it.
    """

    iteration: int
    began: float
    ended: float
    loss: float | None
    is_measured: bool
    quality: Quality | None


class Replica:
    """One rank's copy of the model, its shard of the data and its optimizer."""

    def __init__(self, job: JobSpec, rank: int, world: int) -> None:
        self.workload = open_workload(job)
        # Iterations of one pass through the training set.
        self.per_pass = self.workload.examples / job.batch
        self.looks_every = min(self.per_pass, max(1.0, job.iterations / _LOOKS))
        self.model = self.workload.model(job)
        self._where = rank, world
        self._batches = self.workload.batches(rank, world)
        self.optimizer = optimizer(job, self.parameters)
        self._kept = _kept(job)
        self._seed = job.seed
        self._poison = Poison(job, rank, world)
        self._steps_here = job.optimizer.at == "workers"
        self._rounded_to = dtype_of(job.gradients)

    @property
    def parameters(self) -> Parameters:
        """The model's parameters by name."""
        return self.model.parameters

    def gradients(self) -> tuple[float | None, Parameters]:
        """Computes loss and gradients of this rank's next batch, in the job's gradient type."""
        loss, gradients = self.model.gradients(next(self._batches))
        self._poison.spoil(gradients)
        if self._rounded_to == np.float32:
            return loss, gradients
        # Values out of range become infinite, which all workers see.
        with np.errstate(over="ignore"):
            return loss, {name: one.astype(self._rounded_to) for name, one in gradients.items()}

    def skip(self) -> None:
        """Skips an iteration."""
        next(self._batches)
        self._poison.iteration += 1

    def state(self) -> Parameters:
        """Returns the state for a worker that joins: parameters, optimizer state and the seed.

        ``misfit`` recognizes the state of another job by the seed.
        """
        kept = {f"{self._kept} {i}": one for i, one in enumerate(self.optimizer.state())}
        named = {f"parameter {name}": one for name, one in self.parameters.items()}
        return {"seed": np.array(self._seed), **named, **kept}

    def resume(self, iterations: int, state: Parameters) -> None:
        """Resumes after `iterations` iterations with another rank's ``state``."""
        self.model.parameters = {name: state[f"parameter {name}"] for name in self.parameters}
        kept = [one for name, one in state.items() if name.startswith(f"{self._kept} ")]
        self.optimizer.restore(kept, iterations)
        self._batches = self.workload.batches(*self._where, first=iterations)
        self._poison.iteration = iterations

    def apply(self, came: Parameters) -> None:
        """Applies results: means of gradients, or the parameters after the servers' step."""
        if not self.model.learns:
            given = self.parameters.items()
            self.model.parameters = {name: came[name].reshape(one.shape) for name, one in given}
            return
        if self._steps_here:
            apply(self.optimizer, self.parameters, self.cure(came))
            return
        for name, values in self.parameters.items():
            values[...] = came[name].reshape(values.shape)

    def cure(self, means: Parameters) -> Parameters:
        """Returns means with poison removed, for a step."""
        return self._poison.cure(means)


def _kept(job: JobSpec) -> str:
    return f"kept by {job.optimizer.name}"


def misfit(job: JobSpec, checkpoint: Checkpoint) -> str:
    """Returns the reason why a job cannot resume from a checkpoint of its model; "" if it can."""
    at_servers = job.optimizer.at == "servers"
    rule = rule_of(job.plan)
    wanted = {"seed", *(f"parameter {name}" for name in checkpoint.keys)}
    if not at_servers:
        wanted |= {f"{_kept(job)} {i}" for i in range(rule.arrays * len(checkpoint.keys))}
    if checkpoint.optimizer != (job.optimizer.name if at_servers else "") or (
        set(checkpoint.arrays) != wanted
    ):
        return f"of a job with another optimizer than {job.optimizer.name} at {job.optimizer.at}"
    if int(checkpoint.arrays["seed"]) != job.seed:
        seed = int(checkpoint.arrays["seed"])
        return f"of a job with seed {seed}, which held out other examples than seed {job.seed} does"
    if checkpoint.calls >= job.iterations:
        return f"after iteration {checkpoint.calls}, which leaves none of {job.iterations}"
    return ""


def optimizer(job: JobSpec, parameters: Parameters) -> Optimizer:
    """Creates the job's optimizer for its model's parameters."""
    return Optimizer(job.plan, list(parameters))


def apply(step: Optimizer, parameters: Parameters, means: Parameters) -> None:
    """Takes one step with mean gradients."""
    shaped = [means[name].reshape(p.shape) for name, p in parameters.items()]
    step.step(list(parameters.values()), shaped)


def digest(parameters: Parameters) -> str:
    """Computes the SHA-256 of all parameters (little endian float32, in order)."""
    total = hashlib.sha256()
    for values in parameters.values():
        total.update(np.ascontiguousarray(values, "<f4").tobytes())
    return total.hexdigest()


def check_one_thread() -> None:
    """Raises RuntimeError if numpy's BLAS has several threads, on whose number sums depend."""
    for library in threadpool_info():
        if library["num_threads"] != 1:
            raise RuntimeError(
                f"{library['internal_api']} runs {library['num_threads']} threads, not 1:"
                " set OPENBLAS_NUM_THREADS=1 (and OMP_, MKL_) before Python starts"
            )


def train(
    replica: Replica,
    iterations: int,
    exchange: Callable[[Parameters, Callable[[], object]], Parameters],
    report: Callable[[Progress], bool],
    pauses: Callable[[int], bool],
    judges: Callable[[], bool],
    done: int = 0,
    clock: Callable[[], float] = REAL.now,
) -> list[float]:
    """Runs the iterations after the first ``done``; returns the seconds that each took.

    exchange: gradients to what comes for them, see ``Replica.apply``; calls its second argument
    once they are on their way. report: called after each iteration, when the gradients of the next
    one are on their way: other workers do not wait for it then. pauses: called after each
    iteration; if it returns True, the next one begins after ``report``, and only if that returns
    True. judges: whether this worker measures the quality, which all have in common: after each
    pass through the data, each tenth of the job, and at the end.
    """
    seconds = []
    meanwhile: Callable[[], object] = _nothing
    measured = int(done / replica.looks_every)
    for iteration in range(done + 1, iterations + 1):
        start = clock()
        loss, gradients = replica.gradients()
        replica.apply(exchange(gradients, meanwhile))
        end = clock()
        seconds.append(end - start)
        looks = int(iteration / replica.looks_every)
        measures = looks > measured or iteration == iterations
        measured = looks
        progress = Progress(iteration, start, end, loss, measures, None)
        meanwhile = functools.partial(_conclude, replica, progress, report, judges)
        if pauses(iteration) or iteration == iterations:
            if not meanwhile():
                break
            meanwhile = _nothing
    return seconds


def _conclude(
    replica: Replica,
    progress: Progress,
    report: Callable[[Progress], bool],
    judges: Callable[[], bool],
) -> bool:
    if progress.is_measured and judges():
        quality = replica.model.evaluate(replica.workload.test)
        progress = replace(progress, quality=quality)
    return report(progress)


def _nothing() -> None:
    """Does nothing."""
