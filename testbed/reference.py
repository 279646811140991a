# SPDX-License-Identifier: Apache-2.0
"""The same training in one process, without a network: ``python -m testbed.reference --help``.

It holds every worker's shard, quantises every worker's gradients as the workers do (exponent
rounds, exponents from round to round, DIRECT sums where a chunk does not fit), adds the integers,
and takes the same steps. It knows the job file and the number of workers, and nothing of a run. As
integer sums do not depend on order, a run whose weights differ in a single bit has lost, added or
changed something on its way.

Quantisation itself is the workers' own code. Every round's sums are therefore held against exact
ones (``testbed.exact``); where they do not fit, the reference fails and no run matches it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hosts.chunks import Layout
from protocol.exponents import Exponents, reference_round, reference_start
from testbed.digits import Floats, Parameters
from testbed.exact import ExactSums, InexactSumError
from testbed.jobfile import JobFileError, JobSpec, load
from testbed.training import Replica, apply, check_one_thread, digest, optimizer


class Means:
    """Means over all ranks as the network and clients make them, from everyone's arrays at once."""

    def __init__(self, sizes: Sequence[int], lanes: int, world: int) -> None:
        self._layout = Layout(sizes, lanes)
        self._policy = Exponents(self._layout.chunks, world)
        self._world = world
        self.exact = ExactSums(world, self._layout.chunks)

    def start(self, everyone: Sequence[Parameters]) -> None:
        """Initial parameters go to the servers: first gradients have their scale."""
        values = self._packed(everyone)
        reference_start(values, np.arange(self._layout.chunks), self._policy)
        self.exact.start(values)

    def _packed(self, everyone: Sequence[Parameters]) -> Floats:
        return np.stack(
            [
                np.concatenate(
                    [self._layout.pack(key, array) for key, array in enumerate(own.values())]
                )
                for own in everyone
            ]
        )

    def __call__(self, everyone: Sequence[Parameters]) -> Parameters:
        """everyone[rank][name]: float32 arrays; returns their means by name, flat.

        Raises ``InexactSumError``.
        """
        layout = self._layout
        values = self._packed(everyone)
        result = reference_round(values, np.arange(layout.chunks), self._policy)
        self.exact.check(values, result.sums)
        # As ``hosts.client`` divides.
        means = (result.sums.astype(np.float64) / self._world).astype(np.float32)
        return {
            name: layout.unpack(key, means[layout.chunks_of(key)])
            for key, name in enumerate(everyone[0])
        }


@dataclass(frozen=True)
class Reference:
    """Final parameters, test accuracy, and the largest error of a sum as a share of its bound."""

    parameters: Parameters
    accuracy: float
    worst_error: float


def train(job: JobSpec, world: int, lanes: int) -> Reference:
    """What a job over ``world`` workers comes to. Raises ``InexactSumError``."""
    ranks = [Replica(job, rank, world) for rank in range(world)]
    # One set of weights for all: every rank would take the same steps.
    shared = ranks[0].parameters
    for rank in ranks:
        rank.model.parameters = shared
    step = optimizer(job)
    means = Means([values.size for values in shared.values()], lanes, world)
    if job.optimizer.at == "servers":
        means.start([shared] * world)
    for _ in range(job.iterations):
        gradients = [rank.gradients()[1] for rank in ranks]
        apply(step, shared, means(gradients))
    return Reference(shared, ranks[0].model.accuracy(ranks[0].test), means.exact.worst)


def main(arguments: Sequence[str] | None = None) -> int:
    """The reference process: prints digest, accuracy and largest error as JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m testbed.reference",
        description="Trains a job in one process and prints the SHA-256 of its weights.",
    )
    parser.add_argument("--job", required=True, type=Path, metavar="FILE", help="job file")
    parser.add_argument("--world", required=True, type=int, help="number of workers")
    parser.add_argument("--lanes", required=True, type=int, help="values per chunk")
    options = parser.parse_args(arguments)
    check_one_thread()
    try:
        result = train(load(options.job).spec, options.world, options.lanes)
    except (JobFileError, InexactSumError) as error:
        print(error, file=sys.stderr)
        return 1
    answer = {
        "digest": digest(result.parameters),
        "accuracy": result.accuracy,
        "worst_error": result.worst_error,
    }
    print(json.dumps(answer), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
