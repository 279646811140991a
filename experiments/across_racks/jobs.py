# SPDX-License-Identifier: Apache-2.0
"""The points of the experiment: racks of four workers and a box under one core."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.common.collectives import NAMED, sums
from experiments.common.declaration import COMPARED, InRealTime, Point, Real, Values
from experiments.common.sensitivity import FACTORS, variations
from workloads.architectures.registry import keys_of

__all__ = [
    "BOX",
    "BOX_RACKS",
    "FLAT",
    "IN_REAL_TIME",
    "MODELS",
    "RING",
    "SAME_STREAMS",
    "SWITCHED",
    "VARIED",
    "VARIED_OVER",
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
FLAT, SAME_STREAMS, RING, SWITCHED = "cs", "sharded-ps", "box-ring", "box-switch"
WAYS: Mapping[str, str] = {
    FLAT: "flat: a server at each worker",
    SAME_STREAMS: "flat: boxes serve all workers",
    RING: "a box in each rack, ring",
    "box-halving-doubling": "a box in each rack, halving-doubling",
    SWITCHED: "a box in each rack, the core sums",
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
VARIED: Mapping[str, str] = {
    "delay": "delay of a link",
    "queue": "queues",
    "gradients": "bytes of gradients",
}
VARIED_OVER = 2  # oversubscription where parameters vary
_DELAY = "1 us"
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
            for way in (FLAT, RING, SWITCHED, SAME_STREAMS, "inc") if quick else WAYS:
                if way != SAME_STREAMS or over == 1:  # only its bytes matter
                    yield _point("ways", way, count, over, BOX, size(quick))
    for over in box_oversubscriptions(quick):
        if over not in oversubscriptions(quick):
            yield _point("ways", FLAT, BOX_RACKS, over, BOX, size(quick))
    for box in weak(quick):
        for over in box_oversubscriptions(quick):
            for way in (RING, SWITCHED):
                yield _point("boxes", way, BOX_RACKS, over, box, size(quick))
    for model in MODELS:
        for count in model_racks(quick):
            yield _point(model.name, RING, count, 1, BOX, model.bytes, model.backward)
    if not quick:
        yield from _sensitivity()


def _sensitivity() -> Iterator[Point]:
    for parameter, factor, of in variations(VARIED):
        amount = int(size(quick=False) * of["gradients"])
        for way in (FLAT, RING, SWITCHED):
            yield _point(
                *(parameter, way, BOX_RACKS, VARIED_OVER, BOX, amount), factor=factor,
                delay=f"{of['delay']:g} us", queue=f"{of['queue']:g} MiB",
            )  # fmt: skip
    for factor in FACTORS:
        for count in (1, BOX_RACKS):
            model = MODELS[0]
            busy = model.backward * factor
            yield _point("computing", RING, count, 1, BOX, model.bytes, compute=busy, factor=factor)


def _point(
    part: str,
    way: str,
    count: int,
    over: int,
    box: int,
    amount: int,
    compute: float = 0.0,
    *,
    factor: float = 1.0,
    queue: str = _QUEUE,
    delay: str = _DELAY,
) -> Point:
    """Returns a point of a part of the experiment.

    count: racks. over: oversubscription. box: its link, of workers' links.
    amount: bytes. compute: seconds in which workers compute gradients.
    factor: of the parameter that is varied.
    """
    values: Values = {
        "part": part,
        "way": way,
        "racks": count,
        "oversubscription": over,
        "box": box,
        "factor": factor,
    }
    if way in _JOBS:
        topology = network(count, over, box, queue="1 GiB", delay=delay)
        return Point(values, topology, job(way, amount))
    topology = network(count, over, box, queue, delay)
    content = {**job(FLAT, amount), "iterations": 1}
    return Point(values, topology, content, sums(way, compute), by=NAMED)


def network(
    count: int, over: float, box: float, queue: str = _QUEUE, delay: str = _DELAY
) -> Mapping[str, Any]:
    """Returns the topology file.

    Args:
        count: Racks.
        over: By how much workers' links of a rack exceed its uplink.
        box: Its link, in workers' links.
        queue: Bytes of a queue.
        delay: Of a link, one way.
    """
    content: dict[str, Any] = {
        "name": "across-racks",
        "defaults": {
            "rate": f"{LINE_RATE} Gbit/s",
            "delay": delay,
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


def _real(way: str) -> Real:
    """Returns a small setting: two racks of two workers and a server under one core."""
    topology = {
        "name": "across-racks",
        "defaults": {"rate": "20 Mbit/s"},
        "racks": [{"workers": 2, "servers": 1, "count": 2}],
        "cores": 1,
    }
    content = {
        "name": "across-racks",
        "workload": "layers",
        "layers": ["256 KiB"],
        "iterations": 6,
        **_JOBS.get(way, {}),
    }
    if way in _JOBS:
        return Real(way, topology, content)
    return Real(way, topology, content, sums(way), by=NAMED, real=COMPARED)


IN_REAL_TIME = InRealTime(
    "Two racks of two workers and a box each, all links 20 Mbit/s, 256 KiB of gradients: flat, by"
    " boxes and by switches. A box's link is like a worker's here, so boxes do not pay.",
    [_real(way) for way in (FLAT, RING, SWITCHED, "tor", "inc")],
)
