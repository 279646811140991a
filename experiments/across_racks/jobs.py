# SPDX-License-Identifier: Apache-2.0
"""The points of the experiment: racks of four workers and a box under one core."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.across_racks.sums import SUMS
from experiments.common.declaration import Point, Values
from workloads.architectures.registry import keys_of

__all__ = [
    "BOX",
    "BOX_RACKS",
    "FLAT",
    "MODELS",
    "RING",
    "SAME_STREAMS",
    "WAYS",
    "WORKERS",
    "Model",
    "box_oversubscriptions",
    "job",
    "model_racks",
    "network",
    "oversubscriptions",
    "points",
    "racks",
    "size",
    "weak",
]

WORKERS = 4  # of a rack: a server cannot have more than 32, those of eight racks
LINE_RATE = 10  # Gbit/s
FLAT, SAME_STREAMS, RING = "cs", "sharded-ps", "box-ring"
WAYS: Mapping[str, str] = {
    FLAT: "flat: a server at each worker",
    SAME_STREAMS: "flat: boxes serve all workers",
    RING: "a box in each rack, ring",
    "box-halving-doubling": "a box in each rack, halving-doubling",
    "tor": "ToRs sum racks, boxes the sums",
    "inc": "ToRs sum racks, the core the sums",
}
BOX = 10  # workers' links that a box's link is like: a PBox has ten
_MIB = 1 << 20
_JOBS: Mapping[str, Mapping[str, Any]] = {
    FLAT: {"placement": "cs"},
    "tor": {"placement": {"servers": "all"}, "tree": "tor"},
    "inc": {"placement": "inc"},
}
BOX_RACKS = 4  # where boxes differ
_QUEUE = "1 MiB"  # of which windows of streams are shares; those of jobs are given
_SCALE = 16  # models, and the time that they take, are this many times smaller


@dataclass(frozen=True)
class Model:
    """A model of PHub's evaluation.

    seconds: of an iteration's computing (remembered), of which two thirds are the backward pass.
    published: overhead in percent, by racks (poster).
    """

    name: str
    title: str
    seconds: float
    published: Mapping[int, float]

    @property
    def bytes(self) -> int:
        """Size of its gradients, as run."""
        return 4 * (sum(key.parameters for key in keys_of(self.name)) // _SCALE)

    @property
    def forward(self) -> float:
        """Seconds of its forward pass, as run."""
        return self.seconds / 3 / _SCALE

    @property
    def backward(self) -> float:
        """Seconds in which gradients become known, as run."""
        return 2 * self.seconds / 3 / _SCALE


_RACKS = (2, 3, 4, 5, 6, 7, 8)
MODELS = (
    Model(
        "alexnet",
        "AlexNet",
        0.016,
        dict(zip(_RACKS, (14.3, 14.7, 15.1, 15.5, 15.9, 16.2, 16.5), strict=True)),
    ),
    Model(
        "resnet50-v2",
        "ResNet-50",
        0.161,
        dict(zip(_RACKS, (0.4, 1.6, 1.8, 1.8, 1.4, 1.5, 1.9), strict=True)),
    ),
)


def racks(quick: bool) -> Sequence[int]:
    """Returns the numbers of racks."""
    return (2, 4) if quick else (2, 4, 8)


def model_racks(quick: bool) -> Sequence[int]:
    """Returns the numbers of racks of models, of which one is the base."""
    return () if quick else (1, 2, 4, 8)


def weak(quick: bool) -> Sequence[int]:
    """Returns the links of other boxes, in workers' links."""
    return (2,) if quick else (1, 2, 4)


def oversubscriptions(quick: bool) -> Sequence[int]:
    """Returns by how much workers' links of a rack exceed its uplink."""
    return (1, 4) if quick else (1, 2, 4)


def box_oversubscriptions(quick: bool) -> Sequence[int]:
    """Returns the same where boxes differ."""
    return (1, 4) if quick else (1, 2, 4, 6)


def size(quick: bool) -> int:
    """Returns the bytes of gradients where ways are compared."""
    return _MIB if quick else 2 * _MIB


def points(quick: bool) -> Iterator[Point]:
    """Yields the points, the shortest runs first."""
    for count in racks(quick):
        for over in oversubscriptions(quick):
            for way in (FLAT, RING, SAME_STREAMS, "inc") if quick else WAYS:
                if way != SAME_STREAMS or over == 1:  # only its bytes matter
                    yield _point("ways", way, count, over, BOX, size(quick))
    for over in box_oversubscriptions(quick):
        if over not in oversubscriptions(quick):
            yield _point("ways", FLAT, BOX_RACKS, over, BOX, size(quick))
    for box in weak(quick):
        for over in box_oversubscriptions(quick):
            yield _point("boxes", RING, BOX_RACKS, over, box, size(quick))
    for model in MODELS:
        for count in model_racks(quick):
            yield _point(model.name, RING, count, 1, BOX, model.bytes, model.backward)


def _point(
    part: str, way: str, count: int, over: int, box: int, amount: int, compute: float = 0.0
) -> Point:
    """Returns a point of a part of the experiment.

    count: racks. over: oversubscription. box: its link, of workers' links.
    amount: bytes. compute: seconds in which workers compute gradients.
    """
    values: Values = {
        "part": part,
        "way": way,
        "racks": count,
        "oversubscription": over,
        "box": box,
    }
    if way in _JOBS:
        return Point(values, network(count, over, box, queue="1 GiB"), job(way, amount))
    topology = network(count, over, box)
    sums = {"contender": way, "compute": compute}
    return Point(
        values, topology, {**job(FLAT, amount), "iterations": 1}, {SUMS: json.dumps(sums)},
        by="experiments.across_racks.sums:run",
    )  # fmt: skip


def network(count: int, over: float, box: float, queue: str = _QUEUE) -> Mapping[str, Any]:
    """Returns the topology file.

    Args:
        count: Racks.
        over: By how much workers' links of a rack exceed its uplink.
        box: Its link, in workers' links.
        queue: Bytes of a queue.
    """
    content: dict[str, Any] = {
        "name": "across-racks",
        "defaults": {
            "rate": f"{LINE_RATE} Gbit/s",
            "delay": "1 us",
            "queue_bytes": queue,
            "ecn_bytes": 0,
            "mtu": 9000,
        },
        "racks": [{"workers": WORKERS, "servers": 1, "count": count}],
        "links": [
            {"ends": [f"s{rack}", f"tor{rack}"], "rate": f"{box * LINE_RATE:g} Gbit/s"}
            for rack in range(count)
        ],
    }
    if count > 1:
        content["cores"] = 1
        content["uplinks"] = {"rate": f"{WORKERS * LINE_RATE / over:g} Gbit/s"}
    return content


def job(way: str, amount: int) -> Mapping[str, Any]:
    """Returns the job file of a way with so many bytes of gradients."""
    return {
        "name": "across-racks",
        "workload": "layers",
        "layers": [f"{amount} B"],
        "payload": "none",
        "chunk_bytes": 8192,
        "window": 256,
        "iterations": 2,  # the first also agrees on exponents
        **_JOBS[way],
    }
