# SPDX-License-Identifier: Apache-2.0
"""Predictions of ``rackhub plan`` for the experiment's networks."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import cache

from experiments.aggregation.jobs import CHUNK_BYTES, FRAME_BYTES, INC, SIZE, scaled
from planner.iteration_time import Setting, Work
from planner.network import Network
from planner.predictions import predictions
from topologies.model.spec import parse

__all__ = ["planned"]


def planned(workers: int, way: str, quick: bool) -> float | None:
    """Returns the predicted seconds of an iteration; None if there is no prediction.

    Args:
        way: A baseline, or aggregation in the network.
    """
    return _all(workers, SIZE // 4 if quick else SIZE).get(way)


@cache
def _all(workers: int, size: int) -> Mapping[str, float]:
    topology = parse(json.dumps(scaled(workers)))
    work = Work(math.ceil(size / CHUNK_BYTES), FRAME_BYTES, data_bytes=size)
    names = [node.name for node in topology.workers]
    servers = [node.name for node in topology.servers]
    found = {}
    network = Network.of(topology, names, servers)
    for one in predictions(network, work, Setting(topology.costs, window=256)):
        if one.placement == "inc" and one.tree == "two-level":
            found[INC] = one.seconds
        elif not one.tree:
            found[one.placement] = one.seconds
    return found
