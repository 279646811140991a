# SPDX-License-Identifier: Apache-2.0
"""The points of the experiment: real models in a rack, and ways to sum their gradients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import yaml

from experiments.common.declaration import Point
from experiments.common.sensitivity import setting, variations

__all__ = [
    "CHARACTERS",
    "DIGITS",
    "INC",
    "P3",
    "REAL",
    "SHARDED",
    "VARIED",
    "WAYS",
    "Model",
    "models",
    "points",
]

INC = "in-network"
SHARDED = "sharded PS"
COLOCATED = "colocated PS"
P3 = "P3"
WAYS: Mapping[str, str] = {
    INC: "the rack's switch (`inc`)",
    COLOCATED: "a server beside each worker, which has a ring's traffic (`cs`)",
    P3: "the same with P3's slices and priorities",
    SHARDED: "four servers of their own (`ncs`)",
    "one PS": "one of them (`ncc`)",
}
REAL = (INC, COLOCATED, P3, SHARDED)  # also run in real time
_PLACEMENTS = {INC: "inc", SHARDED: "ncs", COLOCATED: "cs", P3: "cs", "one PS": "ncc"}
_COMPUTE = 0.02  # seconds of an iteration, assumed; a third of it forward
_DIGITS_RATE, _DELAY_US, _WINDOW = 20, 50, 64
VARIED = {
    "computing": "time of computing",
    "rate": "rate of links",
    "slice": "parameters of a slice",
    "delay": "delay of a link",
    "window": "window",
}


@dataclass(frozen=True)
class Model:
    """A model that is trained.

    rate: of all links. layers: parameters of each layer.
    slice: that a server sums, in parameters: small, for few keys over eight servers.
    job: the rest of the job file.
    """

    name: str
    rate: str
    layers: Mapping[str, int]
    slice: int
    job: Mapping[str, Any]


DIGITS = Model(
    "digits",
    f"{_DIGITS_RATE} Mbit/s",
    {"layer1": 8_320, "layer2": 8_256, "layer3": 650},
    1_024,
    {
        "hidden": [128, 64],
        "iterations": 60,
        "batch": 512,
        "optimizer": {"name": "momentum", "rate": 0.05, "momentum": 0.9},
    },
)
CHARACTERS = Model(
    "characters",
    "100 Mbit/s",
    {"embeddings": 1_552, "layer1": 65_792, "layer2": 24_929},
    4_096,
    {
        "hidden": [256],
        "iterations": 40,
        "batch": 1024,
        "optimizer": {"name": "adam", "rate": 0.004},
    },
)


def models(quick: bool) -> Sequence[Model]:
    """Returns the models that are trained."""
    return (DIGITS,) if quick else (CHARACTERS, DIGITS)


def points(quick: bool) -> Iterator[Point]:
    """Yields the points."""
    for model in models(quick):
        for way in (INC, COLOCATED, P3) if quick else WAYS:
            yield _point(model, way, "virtual", quick)
    for way in () if quick else REAL:
        yield _point(DIGITS, way, "emulated", quick)
    if not quick:
        yield from _sensitivity()


def _sensitivity() -> Iterator[Point]:
    """Yields a few iterations of digits with a parameter halved and doubled: all take as long."""
    for parameter, factor, of in variations(VARIED):
        model = replace(
            DIGITS,
            rate=f"{_DIGITS_RATE * of['rate']:g} Mbit/s",
            slice=int(DIGITS.slice * of["slice"]),
            job={**DIGITS.job, "iterations": 6},
        )
        for way in REAL:
            point = _point(model, way, "virtual", quick=False)
            topology = {**point.topology, "defaults": {**point.topology["defaults"]}}
            topology["defaults"]["delay"] = f"{_DELAY_US * of['delay']:g} us"
            yield replace(
                point,
                values={**setting(parameter, factor), "way": way},
                topology=topology,
                job={**point.job, "window": int(_WINDOW * of["window"])},
                files={"layers.yaml": _layer_times(model, _COMPUTE * of["computing"])},
            )


def _point(model: Model, way: str, clock: str, quick: bool) -> Point:
    emulated = clock == "emulated"
    links = {"rate": model.rate, "queue_bytes": "1 MiB", "mtu": 1500}
    if not emulated:  # where links have none
        links["delay"] = f"{_DELAY_US} us"
    return Point(
        {"clock": clock, "model": model.name, "way": way},
        {"name": "training", "defaults": links, "racks": [{"workers": 8, "servers": 4}]},
        _job(model, way, emulated=emulated, quick=quick),
        {} if emulated else {"layers.yaml": _layer_times(model)},
        by=f"experiments.training.{'emulated:run' if emulated else 'curves:virtual'}",
        emulated=emulated,
    )


def _job(model: Model, way: str, *, emulated: bool, quick: bool) -> Mapping[str, Any]:
    job: dict[str, Any] = {
        "name": "training",
        "workload": model.name,
        **model.job,
        "placement": _PLACEMENTS[way],
        "window": _WINDOW,
        "schedule": {"slice": model.slice},
    }
    if not emulated:  # which takes the time that it takes
        job["compute"] = {"layers": "layers.yaml"}
    if quick:
        job["iterations"] = 20
    if way == P3:
        job["schedule"] = {"slice": model.slice, "order": "priority", "release": "slice"}
    return job


def _layer_times(model: Model, compute: float = _COMPUTE) -> str:
    """Returns the layer trace: an iteration's time over its layers, by their parameters."""
    total = sum(model.layers.values())
    rows = [
        {
            "name": name,
            "forward_seconds": compute / 3 * count / total,
            "backward_seconds": 2 * compute / 3 * count / total,
        }
        for name, count in model.layers.items()
    ]
    return "# SPDX-License-Identifier: Apache-2.0\n" + yaml.safe_dump({"layer_times": rows})
