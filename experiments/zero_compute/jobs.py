# SPDX-License-Identifier: Apache-2.0
"""The points of the experiment: ResNet-18's gradients, nothing computed, 1 to 120 workers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from experiments.common.collectives import NAMED, sums
from experiments.common.declaration import COMPARED, InRealTime, Point, Real, Values
from experiments.common.phub import (
    MXNET,
    MXNET_IB,
    PBOX,
    PSHARD,
    SWITCHES,
    WORKERS,
    System,
    job,
    topology,
)
from experiments.common.sensitivity import setting, variations

__all__ = [
    "COLLECTIVES",
    "COUNTS",
    "IN_REAL_TIME",
    "MANY",
    "MODEL",
    "PLANNED",
    "RATE",
    "SYSTEMS",
    "VARIED",
    "points",
]

MODEL = "resnet18-v2"
RATE = 56  # Gbit/s
COUNTS = (1, 2, 4, 8)  # published: 1 to 8
MANY = (16, 32, 60, 120)
_AT_SERVERS = 32  # workers that a server can have
_RACK = 15  # workers, where there are more racks
SYSTEMS = (PBOX, PSHARD, MXNET_IB, MXNET, SWITCHES)
COLLECTIVES = ("ring", "halving-doubling")
PLANNED = "planned"
_ITERATIONS = 2  # the first also agrees on exponents
_COALESCED = 16
_DELAY_US = 10  # of a link, as of ``topology``
VARIED = {
    "copies": ("time of copies", (PBOX, MXNET)),
    "sums": ("time of sums", (PBOX, MXNET_IB, MXNET)),
    "packets": ("packets that a host gets at a time", (PBOX, PSHARD, MXNET_IB, MXNET)),
    "delay": ("delay of a link", (PBOX, PSHARD, MXNET_IB, MXNET)),
}
"""Assumed parameters, in words, and the systems that they matter for."""


def points(quick: bool) -> Iterator[Point]:
    """Yields the points, the shortest runs first."""
    if quick:
        for system in (PBOX, PSHARD, SWITCHES):
            for workers in (2, 8):
                yield _job(system, workers)
        yield _collective("ring", 4, run=True)
        return
    for workers in COUNTS + MANY:
        for system in SYSTEMS:
            if _can_run(system, workers):
                yield _job(system, workers)
        for name in COLLECTIVES if workers > 1 else ():
            if workers in COUNTS:
                yield _collective(name, workers, run=True)
            yield _collective(name, workers, run=False)
    for parameter, factor, of in variations(VARIED):
        for system in VARIED[parameter][1]:
            yield _varied(system, parameter, factor, of)


def _varied(system: System, parameter: str, factor: float, of: Mapping[str, float]) -> Point:
    """Returns a point of eight workers with a parameter times a factor. of: Factors of all."""
    network = topology(
        system, RATE, WORKERS, copies=of["copies"], sums=of["sums"],
        coalesced=int(_COALESCED * of["packets"]),
    )  # fmt: skip
    network["defaults"]["delay"] = f"{_DELAY_US * of['delay']:g} us"
    values: Values = {
        **setting(parameter, factor),
        "workers": WORKERS,
        "system": system.name,
    }
    return Point(values, network, job(system, MODEL, 0, _ITERATIONS))


def _can_run(system: System, workers: int) -> bool:
    if system is SWITCHES:
        return True
    most = max(COUNTS) if system.sums else _AT_SERVERS
    return workers <= most and (workers > 1 or system is PBOX)


def _network(system: System, workers: int) -> dict[str, Any]:
    """Returns the topology file: one rack, or racks of 15 under a core."""
    network = topology(system, RATE, workers, coalesced=_COALESCED)
    if workers > _AT_SERVERS:
        network["racks"] = [
            {"workers": _RACK, "count": math.ceil(workers / _RACK)},
            {"workers": 0, "servers": 1},
        ]
        network["cores"] = 1
        network["links"] = []
    return network


def _job(system: System, workers: int) -> Point:
    values: Values = {"of": "run", "workers": workers, "system": system.name}
    return Point(values, _network(system, workers), job(system, MODEL, 0, _ITERATIONS))


def _collective(name: str, workers: int, *, run: bool) -> Point:
    content = {"name": name, "workload": "model", "model": MODEL, "iterations": 1}
    values: Values = {"of": "run" if run else PLANNED, "workers": workers, "system": name}
    by = f"experiments.zero_compute.collectives:{'run' if run else 'planned'}"
    network = _network(PSHARD, workers)
    if "cores" in network:  # so that racks do not share a link
        network["uplinks"] = {"rate": f"{_RACK * RATE} Gbit/s"}
    return Point(values, network, content, by=by)


def _real(name: str) -> Real:
    """Returns a small setting: four workers and a server with a link for all of them."""
    network = {
        "name": "zero-compute",
        "defaults": {"rate": "10 Mbit/s"},
        "racks": [{"workers": 4, "servers": 1}],
        "links": [{"ends": ["s0", "tor0"], "rate": "40 Mbit/s"}],
    }
    content = {
        "name": "zero-compute",
        "workload": "layers",
        "layers": ["64 KiB", "64 KiB"],
        "iterations": 8,
    }
    placed = {PBOX.name: "ncc", PSHARD.name: "cs", SWITCHES.name: "inc"}
    if name in placed:
        return Real(name, network, {**content, "placement": placed[name]})
    return Real(name, network, content, sums(name), by=NAMED, real=COMPARED)


IN_REAL_TIME = InRealTime(
    "Four workers that compute nothing, links of 10 Mbit/s and one of 40 Mbit/s to a PBox, 128 KiB"
    " of gradients in two keys; chunks of 1 KiB, as this project's switch sums them. MXNet's costs"
    " are those of a model of hosts, which real hosts do not have.",
    [_real(name) for name in (PBOX.name, PSHARD.name, SWITCHES.name, "ring")],
)
