# SPDX-License-Identifier: Apache-2.0
"""Predicts a point by the planner's model instead of running it."""

from __future__ import annotations

from typing import Any

from observability.record import RunDirectory
from planner.iteration_time import Setting, predict_placements
from planner.job_work import work_of
from planner.network import Network
from protocol.header import LANE_BYTES
from specs import jobfile
from specs.p4program import HEADERS
from sweeps.execution import Order
from testbed.program import read_program
from topologies.model.spec import parse

__all__ = ["run"]


def run(_: RunDirectory, order: Order) -> dict[str, Any]:
    """Returns the time of an iteration (`seconds`), and what limits it (`limit`)."""
    topology, file = parse(order.topology), jobfile.parse(order.job)
    plane = read_program(*HEADERS.files(), file.spec.chunk_bytes // LANE_BYTES)
    found = predict_placements(
        Network.of(
            topology,
            [node.name for node in topology.workers],
            [node.name for node in topology.servers],
        ),
        work_of(file, plane),
        Setting(topology.costs, window=file.spec.window),
        only=file.spec.placement.kind or "",
    )
    one = next(one for one in found if not one.refused)
    return {"seconds": one.seconds, "limit": one.limit}
