# SPDX-License-Identifier: Apache-2.0
"""Predicts a job's trees, workload and link loads from its file and its admission alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from controller.p4rt.dataplane import DataPlane
from controller.planning.stream_numbers import wanted_streams
from controller.planning.tree_planner import Tree, TreeKind, plan_trees
from planner.link_loads import Direction, Load, Workload, expected
from protocol.balance import STATIC
from specs.jobspec import JobSpec
from topologies.model.addressing import Addressing
from workloads.workloads import shapes


@dataclass(frozen=True)
class Forecast:
    """The predictable facts of a job with these worker hosts.

    number, tree: as admitted.
    servers: server processes by rank, as admitted.
    goes_on: it resumes from a checkpoint.
    before: iterations that the checkpoint has.
    contacted: the exponents come from the checkpoint.
    spares: some servers have no slices, or had none for a while.
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
    spares: bool = False

    @cached_property
    def trees(self) -> tuple[Tree, ...]:
        """The trees that the controller plans; valid once the job has a number."""
        return plan_trees(
            self.addressing.topology,
            self.addressing,
            self.workers,
            [self.addressing.unit(name).address for name in self.servers],
            TreeKind.of(self.tree),
            wanted_streams(
                *(self.spec.streams, self.spec.balance.plan, len(self.servers)),
                self.spec.propagation,
            ),
            self.number - 1,
            propagation=self.spec.propagation,
        )

    @property
    def workload(self) -> Workload:
        """The tensors and rounds of the job."""
        spec, plane = self.spec, self.dataplane
        sizes = tuple(shapes(spec).values())
        left = spec.iterations - self.before
        slices, start = plane.chunks_per_slice(spec.slice_size), spec.optimizer.at == "servers"
        rounds, pulls = 0 if self.contacted else 1, spec.server.plan.pulls
        if not spec.consistency.together:  # no exponents; initial parameters go like gradients
            left, rounds, start = left + 1, 0, False
        return Workload(*(sizes, plane.lanes, left, slices, rounds, start, pulls), spec.propagation)

    @property
    def predictable(self) -> bool:
        """True if the job alone determines the load of each link.

        State exchanged between servers that run the optimizer, or sent to workers for a
        checkpoint, is not predictable, and neither is load that moves.
        """
        if self.spares or self.spec.balance.policy != STATIC:
            return False
        moved = len(self.servers) > 1 or self.spec.checkpoint or self.goes_on
        return self.spec.optimizer.at == "workers" or not moved

    def expected(self) -> dict[Direction, Load]:
        """Computes the expected load of each link (``planner.link_loads``)."""
        return expected(self.addressing, self.trees, self.servers, self.workload)
