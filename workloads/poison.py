# SPDX-License-Identifier: Apache-2.0
"""Injects gradients that exceed fixed point: a job's ``poison`` (docs/reference/files.md).

The affected values depend on the job file and the number of workers alone, so the reference has the
same ones.
"""

from __future__ import annotations

import numpy as np

from specs.jobspec import JobSpec
from workloads.models import Parameters

# Too large for the scale that a chunk's earlier gradients have led to, while one step with its mean
# moves a weight by little.
_LARGE = np.array([8.0, -8.0], np.float32)
_VALUES = np.array([*_LARGE, np.nan, np.inf, -np.inf], np.float32)


class Poison:
    """The poison of one rank."""

    def __init__(self, job: JobSpec, rank: int, world: int) -> None:
        self._job = job
        self._rank = rank
        self._world = world
        # Servers do not filter gradients: one NaN would spread to all their parameters.
        self._values = _VALUES if job.optimizer.at == "workers" else _LARGE
        self.iteration = 0  # the next one

    def spoil(self, gradients: Parameters) -> None:
        """Poisons the next iteration's gradients in place."""
        iteration, self.iteration = self.iteration, self.iteration + 1
        if not self._job.poison:
            return
        random = np.random.default_rng([self._job.seed, 5, iteration])
        ends = np.cumsum([values.size for values in gradients.values()])
        everything = list(gradients.values())
        for _ in range(self._job.poison):
            where, rank = int(random.integers(ends[-1])), int(random.integers(self._world))
            value = random.choice(self._values)
            if rank == self._rank:
                which = int(np.searchsorted(ends, where, side="right"))
                everything[which].flat[where - ends[which]] = value

    def cure(self, means: Parameters) -> Parameters:
        """Replaces means that are not finite by 0, so that they take no step."""
        if not self._job.poison:
            return means
        zero = np.float32(0)
        return {name: np.where(np.isfinite(m), m, zero) for name, m in means.items()}
