# SPDX-License-Identifier: Apache-2.0
"""Predicts by the planner's model what the experiment runs."""

from __future__ import annotations

import yaml

from controller.planning.balancing.registry import BALANCERS
from experiments.psld.jobs import LINE_RATE, SWITCHES, Case, job, network
from planner.iteration_time import Setting
from planner.job_work import work_of
from planner.network import Network
from planner.predictions import predictions
from protocol.header import LANE_BYTES
from specs import jobfile
from specs.p4program import HEADERS
from testbed.program import read_program
from topologies.model.spec import parse

__all__ = ["seconds"]


def seconds(case: Case, k: float, balance: str) -> float:
    """Returns the time of an iteration where servers' links are k times slower from the start."""
    content = dict(network(case))
    content["links"] = [
        {"ends": [f"s{number}", "tor0"], "rate": f"{LINE_RATE / k:.6g} Gbit/s"}
        for number in range(case.stragglers)
    ]
    topology = parse(yaml.safe_dump(content))
    file = jobfile.parse(yaml.safe_dump(dict(job(case, balance, quick=False))))
    plane = read_program(*HEADERS.files(), file.spec.chunk_bytes // LANE_BYTES)
    model = predictions(
        Network.of(
            topology,
            [node.name for node in topology.workers],
            [node.name for node in topology.servers],
            by_speed=BALANCERS[file.spec.balance.policy].by_speed,
        ),
        work_of(file, plane),
        Setting(topology.costs, window=file.spec.window),
    )
    wanted = "inc" if balance == SWITCHES else case.placement
    return next(one.seconds for one in model if one.placement == wanted and not one.refused)
