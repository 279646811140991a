# SPDX-License-Identifier: Apache-2.0
"""Runs several jobs at once in virtual time."""

from __future__ import annotations

import json
from typing import Any

from observability.record import RunDirectory
from simulation import session
from sweeps.execution import JOB, Order, write_files
from testbed.program import program_for
from topologies.model.spec import read as read_topology

__all__ = ["run"]


def run(directory: RunDirectory, order: Order) -> dict[str, Any]:
    """Runs an order's job and those of its files ``job-*.yaml``, all from the beginning.

    Returns: What ``summary.json`` says of each, ``jobs``.

    Raises:
        JobError, VirtualError: One failed.
    """
    write_files(directory, order)
    paths = [directory.path / JOB, *sorted(directory.path.glob("job-*.yaml"))]
    plane = program_for(paths)[2]
    checked = session.check(read_topology(directory.topology), paths, plane)
    (directory.path / "testbed.json").write_text(json.dumps({"name": checked.topology.name}))
    session.Session(checked, plane, directory, lambda _: None).execute()
    return {"jobs": directory.read_summary()["jobs"]}
