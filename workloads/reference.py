# SPDX-License-Identifier: Apache-2.0
"""The reference run: the same training in one process, without a network.

``python -m workloads.reference --help``.

It holds every worker's shard, quantises every worker's gradients as the workers do (exponent
rounds, exponents from round to round, DIRECT sums where a chunk does not fit), adds the integers,
and takes the same steps. It knows the job file, the number of workers and, if some were lost or
rejoined, the participants of each sum (``workloads.attendance``), but nothing else of a run.
Integer sums do not depend on order, so a run whose weights differ in a single bit has lost, added
or changed data.

Quantisation is the workers' own code. Every round's sums are therefore checked against exact ones
(``workloads.exact``); on a mismatch the reference fails, and no run matches it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import numpy as np

from hosts.data.checkpoint import Checkpoint, read
from hosts.data.chunks import Indices, Layout
from hosts.data.tensors import as_float32
from hosts.errors import CheckpointError
from hosts.optimizers import mean_of
from protocol.exponents import Exponents
from protocol.reference import reference_round, reference_start
from specs.jobfile import JobFileError, load
from specs.jobspec import JobSpec
from workloads.attendance import Entry, entries
from workloads.exact import ExactSums, InexactSumError
from workloads.models import Floats, Parameters, Quality
from workloads.trainer import Replica, apply, check_one_thread, digest, optimizer

_AT_ONCE = 1 << 18  # values of all workers, which fit in a CPU cache


class Means:
    """Computes means as the network and clients do, from the arrays of all participants."""

    def __init__(self, sizes: Sequence[int], lanes: int, world: int) -> None:
        self._layout = Layout(sizes, lanes)
        self._policy = Exponents(self._layout.chunks, world)
        self._everyone: Entry = ((tuple(range(world)), None),)
        self.exact = ExactSums(self._layout.chunks)
        self.in_float32 = 0  # sums so far of chunks that exceeded fixed point

    def start(self, arrays: Parameters) -> None:
        """Records initial parameters, which set the scale of the first gradients."""
        values = self._packed(arrays)[np.newaxis]
        reference_start(values, np.arange(self._layout.chunks), self._policy)
        self.exact.start(values)

    def resume(self, checkpoint: Checkpoint) -> None:
        """Sets the scale of gradients to that of a job that resumes from this."""
        if checkpoint.lanes != self._layout.lanes:
            return
        self._policy.resume(checkpoint.exponents)
        rows = np.arange(self._layout.chunks)
        rounds = self._policy.rounds(rows)
        known = self._policy.ready(rows, rounds)
        self.exact.resume(known, self._policy.exponents(rows, rounds).astype(np.int64))

    def _packed(self, arrays: Parameters) -> Floats:
        given = enumerate(arrays.items())
        return np.concatenate([self._layout.pack(key, as_float32(*one)) for key, one in given])

    def __call__(self, arrays: Mapping[int, Parameters], entry: Entry | None = None) -> Parameters:
        """Computes the means of arrays[rank][name] by name, float32 and flat.

        entry: the participants of the sums; None: all. Raises InexactSumError.
        """
        layout = self._layout
        packed = {rank: self._packed(own) for rank, own in arrays.items()}
        means = np.empty((layout.chunks, layout.lanes), np.float32)
        for ranks, chunks in entry or self._everyone:
            all_of_them: Indices = np.arange(layout.chunks) if chunks is None else np.array(chunks)
            self._policy.world = len(ranks)
            at_once = max(1, _AT_ONCE // (layout.lanes * len(ranks)))
            for first in range(0, len(all_of_them), at_once):
                mine = all_of_them[first : first + at_once]
                values = np.stack([packed[rank][mine] for rank in ranks])
                result = reference_round(values, mine, self._policy)
                self.in_float32 += int(np.count_nonzero(result.flags))
                self.exact.check(values, result.sums, mine)
                means[mine] = mean_of(result.sums, np.full(len(mine), len(ranks)))
        names = next(iter(arrays.values()))
        return {
            name: layout.unpack(key, means[layout.chunks_of(key)]) for key, name in enumerate(names)
        }


class ReferenceResult(TypedDict):
    """The printed result of the reference process."""

    digest: str
    """SHA-256 of the weights."""
    accuracy: float | None
    """Share of the test set."""
    test_loss: float | None
    """Mean cross entropy of the test set in nats."""
    worst_error: float
    """``Reference.worst_error``."""
    in_float32: int
    """``Reference.in_float32``."""


@dataclass(frozen=True)
class Reference:
    """The result of the reference run.

    parameters, quality: those after the last iteration.
    worst_error: the largest error of a sum as a share of its bound.
    in_float32: number of sums of chunks that exceed fixed point.
    """

    parameters: Parameters
    quality: Quality | None
    worst_error: float
    in_float32: int

    def result(self) -> ReferenceResult:
        """Returns the result as JSON, with the weights' digest."""
        return {
            "digest": digest(self.parameters),
            "accuracy": self.quality and self.quality.accuracy,
            "test_loss": self.quality and self.quality.loss,
            "worst_error": self.worst_error,
            "in_float32": self.in_float32,
        }


def train(
    job: JobSpec,
    world: int,
    lanes: int,
    attendance: Iterable[Entry] | None = None,
    restore: Checkpoint | None = None,
    joined: int = 0,
) -> Reference:
    """Trains a job that began with ``world`` workers with the given participants, from a checkpoint
    on.

    joined: further workers that joined it. Raises InexactSumError.
    """
    ranks = [Replica(job, rank, world) for rank in range(world + joined)]
    if restore is not None:
        for rank in ranks:
            rank.resume(restore.calls, restore.arrays)
    # One set of weights for all: every rank would take the same steps.
    shared = ranks[0].parameters
    for rank in ranks:
        rank.model.parameters = shared
    step = optimizer(job, shared)
    means = Means([values.size for values in shared.values()], lanes, world)
    if job.optimizer.at == "servers":
        means.start(shared)
    if restore is not None:
        kept = ranks[0].optimizer.state()
        if job.optimizer.at == "servers":
            named = [(name, values.shape) for name, values in shared.items()]
            kept = [part[name].reshape(shape) for name, shape in named for part in restore.state]
        step.restore(kept, restore.calls)
        means.resume(restore)
    everyone: Entry = ((tuple(range(world)), None),)
    left = job.iterations - (restore.calls if restore is not None else 0)
    for entry in attendance or [everyone] * left:
        there = {rank for part, _ in entry for rank in part}
        gradients = {rank: ranks[rank].gradients()[1] for rank in sorted(there)}
        for away in set(range(len(ranks))) - there:
            ranks[away].skip()
        came = means(gradients, entry)
        if ranks[0].model.learns:
            apply(step, shared, ranks[0].cure(came))
        else:
            shared = came
    quality = ranks[0].model.evaluate(ranks[0].workload.test)
    return Reference(shared, quality, means.exact.worst, means.in_float32)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the reference process; prints digest, accuracy and largest error as JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m workloads.reference",
        description="Trains a job in one process and prints the SHA-256 of its weights.",
    )
    parser.add_argument("--job", required=True, type=Path, metavar="FILE", help="job file")
    parser.add_argument("--world", required=True, type=int, help="workers it began with")
    parser.add_argument("--joined", type=int, default=0, help="further workers that joined later")
    parser.add_argument("--lanes", required=True, type=int, help="values per chunk")
    parser.add_argument(
        "--attendance",
        type=Path,
        metavar="JSON",
        help="who is in which sums: [[first iteration, last, [[ranks, chunks or null]...]]...]",
    )
    parser.add_argument("--restore", type=Path, metavar="FILE", help="checkpoint to go on from")
    options = parser.parse_args(arguments)
    check_one_thread()
    try:
        spec, attendance = load(options.job).spec, None
        restore = read(options.restore) if options.restore else None
        if options.attendance:
            spans = json.loads(options.attendance.read_text())
            before = restore.calls if restore is not None else 0
            attendance = entries(spans, spec.iterations, before)
        result = train(spec, options.world, options.lanes, attendance, restore, options.joined)
    except (JobFileError, InexactSumError, CheckpointError) as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(result.result()), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
