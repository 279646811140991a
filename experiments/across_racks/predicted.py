# SPDX-License-Identifier: Apache-2.0
"""Predicts by the planner's model what the experiment runs."""

from __future__ import annotations

from functools import cache

import yaml

from experiments.across_racks.jobs import FLAT, job, network
from planner.iteration_time import Prediction, Setting
from planner.job_work import work_of
from planner.network import Network
from planner.placement_choice import RackChoice, choose_across_racks
from planner.predictions import predictions
from protocol.header import LANE_BYTES
from specs import jobfile
from specs.p4program import HEADERS
from testbed.program import read_program
from topologies.model.spec import parse

__all__ = ["choice", "seconds"]


def choice(count: int, over: float, box: float, size: int) -> RackChoice:
    """Returns the planner's choice between one level and two.

    Args:
        count: Racks.
        over: Oversubscription.
        box: A box's link, in workers' links.
        size: Bytes of gradients.
    """
    found, net = _predicted(count, over, box, size)
    chosen = choose_across_racks(found, net)
    assert chosen is not None
    return chosen


def seconds(way: str, count: int, over: float, box: float, size: int) -> float:
    """Returns the predicted time of a sum. Arguments: as of ``choice``."""
    found, _ = _predicted(count, over, box, size)
    return next(one.seconds for one in found if one.placement == way and one.bytes)


@cache
def _predicted(count: int, over: float, box: float, size: int) -> tuple[list[Prediction], Network]:
    topology = parse(yaml.safe_dump(dict(network(count, over, box))))
    file = jobfile.parse(yaml.safe_dump(dict(job(FLAT, size))))
    plane = read_program(*HEADERS.files(), file.spec.chunk_bytes // LANE_BYTES)
    net = Network.of(
        topology,
        [node.name for node in topology.workers],
        [node.name for node in topology.servers],
    )
    setting = Setting(topology.costs, window=file.spec.window)
    return predictions(net, work_of(file, plane), setting), net
