# SPDX-License-Identifier: Apache-2.0
"""Runs a point as a baseline of ``rackhub compare`` in virtual time, with the gradients of its job
and all workers and servers of its topology. One function for each, which ``Point.by`` names."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from baselines import virtual
from baselines.comparison import Work
from baselines.contenders import contenders
from controller.planning.admission import Resources
from observability.record import RunDirectory
from planner.collectives import COLLECTIVES
from specs import jobfile
from sweeps.execution import JOB, Order, write_files
from testbed import preflight
from testbed.errors import JobError
from testbed.program import program_for
from topologies.model.addressing import Addressing
from topologies.model.spec import parse
from workloads.workloads import shapes

__all__ = [
    "BASELINES",
    "NAMED",
    "SUMS",
    "halving_doubling",
    "named",
    "ps",
    "ring",
    "run",
    "sharded_ps",
    "sums",
]

NAMED = f"{__name__}:named"
"""``Point.by`` of the baseline that the file ``SUMS`` names."""
SUMS = "sums.json"
"""The order's file with the name of a baseline, and seconds in which workers compute."""


def run(
    name: str, directory: RunDirectory, order: Order, *, compute: float = 0.0
) -> dict[str, Any]:
    """Runs a baseline; returns its row (``baselines.comparison.ComparedRow``).

    Args:
        name: As `rackhub compare` has it.
        directory: For the order's files.
        order: Of the point.
        compute: As of ``baselines.comparison.Work``.

    Raises:
        JobError: A sum was wrong.
    """
    write_files(directory, order)
    topology, spec = parse(order.topology), jobfile.load(directory.path / JOB).spec
    file = jobfile.parse(f"{{name: {name}, iterations: 1, batch: {len(topology.workers)}}}")
    addressing = Addressing(topology)
    # What switches sum has the job's chunks; streams need no program for any.
    plane = program_for([directory.path / JOB] if COLLECTIVES[name].switched else [])[2]
    resources = Resources((node.name for node in topology.switches), plane.slots)
    plan = preflight.admit(file, file.place(topology), 0, addressing, resources, plane, None)
    work = Work((sum(shapes(spec).values()),), spec.iterations, compute)
    (one,) = contenders((name,), addressing, plan, plane, work)
    framing = topology.costs.framing
    row = virtual.play(one, addressing, plan, plane, work, framing=framing).row(
        addressing, framing=framing
    )
    if row["right"] is False:
        raise JobError(f"{name}: {row['wrong_values']} values of sums are wrong")
    return dict(row)


def named(directory: RunDirectory, order: Order) -> dict[str, Any]:
    """Runs the baseline that the order's file ``SUMS`` names; returns its row."""
    how = json.loads(order.files[SUMS])
    return run(how["contender"], directory, order, compute=how["compute"])


def sums(name: str, compute: float = 0.0) -> dict[str, str]:
    """Returns the file ``SUMS`` for a baseline. compute: as of ``run``."""
    return {SUMS: json.dumps({"contender": name, "compute": compute})}


ring = partial(run, "ring")
halving_doubling = partial(run, "halving-doubling")
ps = partial(run, "ps")
sharded_ps = partial(run, "sharded-ps")

BASELINES = {
    "ring": f"{__name__}:ring",
    "halving-doubling": f"{__name__}:halving_doubling",
    "ps": f"{__name__}:ps",
    "sharded-ps": f"{__name__}:sharded_ps",
}
"""``Point.by`` of each baseline."""
