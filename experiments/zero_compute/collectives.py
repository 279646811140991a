# SPDX-License-Identifier: Apache-2.0
"""Runs a collective in virtual time as `rackhub compare` does, or predicts its time."""

from __future__ import annotations

from typing import Any

from baselines import virtual
from baselines.comparison import Work
from baselines.contenders import contenders
from controller.p4rt.dataplane import DataPlane
from controller.planning.admission import Resources
from observability.record import RunDirectory
from planner.collectives import COLLECTIVES
from planner.iteration_time import Setting
from planner.job_work import work_of
from planner.network import Network
from planner.streamed import StreamModel
from protocol.header import LANE_BYTES
from specs import jobfile
from specs.jobfile import JobFile
from specs.p4program import HEADERS
from sweeps.execution import Order
from testbed import preflight
from testbed.program import program_for, read_program
from topologies.model.addressing import Addressing
from topologies.model.spec import parse
from topologies.model.topology import Topology
from workloads.workloads import shapes

__all__ = ["planned", "run"]


def run(_: RunDirectory, order: Order) -> dict[str, Any]:
    """Runs the collective that is called as the job, among all workers.

    Returns: Seconds of an iteration, whether sums were right, and whether each link carried the
        bytes of the closed form.
    """
    topology, file = parse(order.topology), jobfile.parse(order.job)
    addressing, plane = Addressing(topology), program_for([])[2]
    work = Work(tuple(shapes(file.spec).values()), 1)
    plan = _plan(topology, addressing, plane)
    (one,) = contenders((file.spec.name,), addressing, plan, plane, work)
    row = virtual.play(one, addressing, plan, plane, work).row(addressing, framing=False)
    return {"seconds": row["seconds"], "right": row["right"] and row["bytes_as_closed_form"]}


def _plan(topology: Topology, addressing: Addressing, plane: DataPlane) -> preflight.JobPlan:
    """Returns the plan of a job of all workers, of which collectives take only the hosts."""
    file: JobFile = jobfile.parse(f"{{name: hosts, iterations: 1, batch: {len(topology.workers)}}}")
    resources = Resources((node.name for node in topology.switches), plane.slots)
    return preflight.admit(file, file.place(topology), 0, addressing, resources, plane, None)


def planned(_: RunDirectory, order: Order) -> dict[str, Any]:
    """Predicts the time of an iteration of the collective that is called as the job."""
    topology, file = parse(order.topology), jobfile.parse(order.job)
    plane = read_program(*HEADERS.files(), file.spec.chunk_bytes // LANE_BYTES)
    network = Network.of(
        topology,
        [node.name for node in topology.workers],
        [node.name for node in topology.servers],
    )
    model = StreamModel(network, work_of(file, plane), Setting(topology.costs))
    return {"seconds": COLLECTIVES[file.spec.name].predict(model).seconds, "right": True}
