# SPDX-License-Identifier: Apache-2.0
"""What follows from a job's file and its admission alone: its trees, its size, and what it should
put on links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from controller.p4rt.dataplane import DataPlane
from controller.planning.tree_planner import Tree, TreeKind, plan_trees
from planner.expected import Direction, Load, Workload, expected
from specs.jobspec import JobSpec
from topologies.model.addressing import Addressing
from workloads.workloads import shapes


@dataclass(frozen=True)
class Forecast:
    """For a job with these hosts of workers.

    number, tree, servers (processes by rank): as it was admitted. goes_on: from a checkpoint;
    before: after so many iterations; contacted: with the exponents from there.
    """

    spec: JobSpec
    workers: Sequence[str]
    addressing: Addressing
    dataplane: DataPlane
    number: int = 0
    tree: str = ""
    servers: tuple[str, ...] = ()
    goes_on: bool = False
    before: int = 0
    contacted: bool = False

    @cached_property
    def trees(self) -> tuple[Tree, ...]:
        """Its trees, as the controller plans them; from when it has a number."""
        return plan_trees(
            self.addressing.topology,
            self.addressing,
            self.workers,
            [self.addressing.unit(name).address for name in self.servers],
            TreeKind.of(self.tree),
            self.spec.streams,
            self.number - 1,
        )

    @property
    def workload(self) -> Workload:
        """Its size."""
        spec, plane = self.spec, self.dataplane
        sizes = tuple(shapes(spec).values())
        left = spec.iterations - self.before
        slices, start = plane.chunks_per_slice(spec.slice_bytes), spec.optimizer.at == "servers"
        rounds, pulls = 0 if self.contacted else 1, spec.server.plan.pulls
        if not spec.consistency.together:  # no exponents; initial parameters go like gradients
            left, rounds, start = left + 1, 0, False
        return Workload(sizes, plane.lanes, left, slices, rounds, start, pulls)

    @property
    def predictable(self) -> bool:
        """Whether what it should put on each link follows from the job alone; what servers that
        take steps tell each other, or workers for a checkpoint, does not."""
        moved = len(self.servers) > 1 or self.spec.checkpoint or self.goes_on
        return self.spec.optimizer.at == "workers" or not moved

    def expected(self) -> dict[Direction, Load]:
        """What it should put on each link, see ``planner.expected``."""
        return expected(self.addressing, self.trees, self.servers, self.workload)
