# SPDX-License-Identifier: Apache-2.0
"""The points of the experiment: a rack with four workers and four servers, one of them slow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from experiments.common.declaration import Point, Values

__all__ = [
    "BALANCED",
    "BANDWIDTH",
    "CPU",
    "LINE_RATE",
    "NOTHING",
    "NO_BALANCER",
    "SERVERS",
    "SERVER_RATE",
    "K",
    "points",
]

SERVERS = 4
LINE_RATE = 10  # Gbit/s
SERVER_RATE = 5  # Gbit/s of a server's processing, where that is to bound the job
BANDWIDTH, CPU, NOTHING = "bandwidth", "cpu", "nothing"  # what is wrong
NO_BALANCER, BALANCED = "none", "psld"
K = 3.5  # of the published figure
_FACTORS = (2.0, K, 5.0)

_BASE_ROUNDS = 5  # all alike but the first, which also agrees on exponents
_ROUNDS = 28  # of which each move takes eight: three moves, or one more that is undone
_FEW = 12
_MODEL = {
    "workload": "model",
    "model": "resnet50-v1",
    "compute": {"iteration": "20 ms"},  # assumed: short, so that servers bound the job
    "schedule": {"slice": 40_000},
}
_SMALL = {
    "workload": "layers",
    "layers": ["1.6 MB", "400 kB"] * 3,
    "payload": "none",
    "schedule": {"slice": 4_000},
}


def points(quick: bool) -> Iterator[Point]:
    """Yields the points, the shortest runs first."""
    model = _SMALL if quick else _MODEL
    for balance in (NO_BALANCER, BALANCED):
        yield _point(model, NOTHING, 1.0, balance, _FEW)
    for k in (K,) if quick else _FACTORS:
        yield _point(model, BANDWIDTH, k, NO_BALANCER, _BASE_ROUNDS)
        yield _point(model, BANDWIDTH, k, BALANCED, _ROUNDS)
    if not quick:
        yield _point(model, CPU, K, NO_BALANCER, _BASE_ROUNDS)
        yield _point(model, CPU, K, BALANCED, _ROUNDS)


def _point(model: Mapping[str, Any], wrong: str, k: float, balance: str, rounds: int) -> Point:
    """Returns a point.

    Args:
        wrong: What of the first server takes k times as long.
        rounds: Iterations.
    """
    costs = {"interrupt_interval": "100 us"}
    if wrong == CPU:
        costs["server_rate"] = f"{SERVER_RATE} Gbit/s"
    network = {
        "name": "psld",
        "defaults": {
            "rate": f"{LINE_RATE} Gbit/s",
            "delay": "10 us",
            "queue_bytes": "1 GiB",
            "mtu": 16_370,
        },
        "racks": [{"workers": 4, "servers": SERVERS}],
        "costs": costs,
    }
    job = {
        "name": "psld",
        "placement": "ncs",
        "iterations": rounds,
        "chunk_bytes": 16_000,
        "window": 256,
        **model,
    }
    if balance != NO_BALANCER:
        job["balance"] = balance
    slow = {
        BANDWIDTH: {"link": ["s0", "tor0"], "by": k},
        CPU: {"host": "s0", "by": k},
    }
    faults = [{"at": 0, "slow": slow[wrong], "for": "forever"}] if wrong in slow else []
    values: Values = {"wrong": wrong, "k": k, "balance": balance}
    return Point(values, network, job, faults=faults, by="experiments.psld.logged:run")
