# SPDX-License-Identifier: Apache-2.0
"""Runs a point in real time, on the embedded target."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from baselines import emulated, virtual
from baselines.comparison import Work
from baselines.contenders import contenders
from controller.planning.admission import Resources
from emulation.lifecycle.running import bringing_up
from emulation.lifecycle.running import run as run_emulated
from experiments.common.collectives import SUMS
from observability.progress_view import View
from observability.record import RunDirectory
from specs import fault_schedule, faultfile, jobfile
from sweeps.execution import FAULTS, JOB, Order, write_files
from testbed import preflight
from testbed.errors import JobError
from testbed.program import program_files, read_program
from topologies.model.addressing import Addressing
from topologies.model.spec import load as load_topology
from topologies.model.spec import parse
from workloads.workloads import shapes

__all__ = ["compare", "launched", "run", "run_all"]

_MOST_SECONDS = 60.0  # of this machine, for the same in virtual time


def launched(directory: RunDirectory, order: Order) -> RunDirectory:
    """Runs an order's job on a testbed of its own; returns that run's directory. Raises
    LaunchError."""
    write_files(directory, order)
    return _launched(directory, [directory.path / JOB])


def _launched(directory: RunDirectory, jobs: Sequence[Path]) -> RunDirectory:
    file, faults = directory.path / FAULTS, list[faultfile.Fault]()
    if file.exists():
        topology = load_topology(directory.topology)
        faults = fault_schedule.schedule(faultfile.load(file), topology, job=jobfile.load(jobs[0]))
    with View(Console(stderr=True, highlight=False)) as view:
        found, _ = run_emulated(
            directory.topology, list(jobs), view, faults=faults, target="embedded"
        )
    return found.run


def run(directory: RunDirectory, order: Order) -> dict[str, Any]:
    """Runs an order's job likewise; returns its summary."""
    return dict(launched(directory, order).read_summary())


def run_all(directory: RunDirectory, order: Order) -> dict[str, Any]:
    """Runs an order's job and those of its files ``job-*.yaml`` at once; returns what
    ``summary.json`` says of each, ``jobs``. Raises LaunchError."""
    write_files(directory, order)
    jobs = [directory.path / JOB, *sorted(directory.path.glob("job-*.yaml"))]
    return {"jobs": _launched(directory, jobs).read_summary()["jobs"]}


def compare(directory: RunDirectory, order: Order) -> dict[str, Any]:
    """Sums an order's gradients by the baseline that its file ``SUMS`` names, over TCP between all
    workers and servers of the testbed; returns its row of `rackhub compare`.

    Raises:
        JobError: A sum was wrong.
    """
    write_files(directory, order)
    name = json.loads(order.files[SUMS])["contender"]
    topology, spec = parse(order.topology), jobfile.load(directory.path / JOB).spec
    file = jobfile.parse(f"{{name: sums, iterations: 1, batch: {len(topology.workers)}}}")
    addressing, plane = Addressing(topology), read_program(*program_files(None, None))
    resources = Resources((node.name for node in topology.switches), plane.slots)
    plan = preflight.admit(file, file.place(topology), 0, addressing, resources, plane, None)
    work = Work((sum(shapes(spec).values()),), spec.iterations)
    (one,) = contenders((name,), addressing, plan, plane, work)
    with bringing_up(directory.topology, lambda _: None, target="embedded") as testbed:
        testbed.wait_until_up()
        outcome = emulated.play(testbed, one, plan, work)
    explained = virtual.explained(one, addressing, plan, plane, work, _MOST_SECONDS)
    row = replace(outcome, virtual=explained).row(addressing, framing=False)
    if not row["right"]:
        raise JobError(f"{name}: {row['wrong_values']} values of sums are wrong")
    return dict(row)
