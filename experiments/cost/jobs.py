# SPDX-License-Identifier: Apache-2.0
"""The points of the experiment: a rack of eight workers, by what sums their gradients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.common.declaration import Point
from experiments.cost.prices import Design

__all__ = [
    "BOX",
    "DESIGNS",
    "GPUS",
    "SHARDED",
    "SWITCH",
    "WORKERS",
    "Model",
    "models",
    "points",
    "sharded",
]

WORKERS = 8
GPUS = 4  # of a worker, assumed
_LINKS = 10  # of a PBox
_CHUNK_BYTES = 16_000
_MTU = 16_370

SHARDED = Design("sharded-10", "servers beside workers, 10 Gbit/s", WORKERS, GPUS)
_SHARDED_40 = Design("sharded-40", "servers beside workers, 40 Gbit/s", WORKERS, GPUS, 40)
BOX = Design("pbox-10", "PBox, 10 Gbit/s", WORKERS, GPUS, box_links=_LINKS)
_BOX_40 = Design("pbox-40", "PBox, 40 Gbit/s", WORKERS, GPUS, 40, box_links=_LINKS)
SWITCH = Design("switch-10", "switch that sums, 10 Gbit/s", WORKERS, GPUS, sums=True)
_SWITCH_40 = Design("switch-40", "switch that sums, 40 Gbit/s", WORKERS, GPUS, 40, sums=True)
DESIGNS: Sequence[Design] = (SHARDED, BOX, SWITCH, _SHARDED_40, _BOX_40, _SWITCH_40)


def sharded(design: Design) -> Design:
    """Returns servers beside workers with the links of a design."""
    return SHARDED if design.rate == SHARDED.rate else _SHARDED_40


@dataclass(frozen=True)
class Model:
    """A model. title: On the page. batch: Examples of a GPU in an iteration. job: Of the job file.

    Times and batches are PHub's for one GPU, recalled (its table 3); more GPUs of a worker compute
    as long, each with a batch of its own.
    """

    name: str
    title: str
    batch: int
    job: Mapping[str, Any]


_RESNET = Model(
    *("resnet50", "ResNet-50", 32),
    {"workload": "model", "model": "resnet50-v2", "compute": {"iteration": "161 ms"}},
)
_ALEXNET = Model(
    *("alexnet", "AlexNet", 32),
    {"workload": "model", "model": "alexnet", "compute": {"iteration": "16 ms"}},
)
_SMALL = Model(
    *("small", "a job of 8 MB", 32),
    {"workload": "layers", "layers": ["8 MB"], "payload": "none", "compute": "4 ms"},
)


def models(quick: bool) -> Sequence[Model]:
    """Returns the models."""
    return (_SMALL,) if quick else (_ALEXNET, _RESNET)


def points(quick: bool) -> Iterator[Point]:
    """Yields the points, the longest runs first."""
    for model in models(quick):
        for design in (SHARDED, BOX, SWITCH) if quick else DESIGNS:
            yield Point(
                {"model": model.name, "design": design.name}, _network(design), _job(model, design)
            )


def _network(design: Design) -> Mapping[str, Any]:
    network: dict[str, Any] = {
        "name": "cost",
        "defaults": {
            "rate": f"{design.rate} Gbit/s",
            "delay": "10 us",
            "queue_bytes": "256 MiB",
            "mtu": _MTU,
        },
        "racks": [{"workers": WORKERS, "servers": 1}],
        "costs": {"interrupt_interval": "100 us"},
    }
    if design.box_links:
        more = {"ends": ["s0", "tor0"], "add": True}
        network["links"] = [more for _ in range(design.box_links - 1)]
    return network


def _job(model: Model, design: Design) -> Mapping[str, Any]:
    placement = "ncs" if design.box_links else "inc" if design.sums else "cs"
    return {
        "name": "cost",
        **model.job,
        "iterations": 3,
        "placement": placement,
        "chunk_bytes": _CHUNK_BYTES,
        "window": 256,
        "schedule": {"slice": _CHUNK_BYTES // 2},  # of 32,000 bytes, about PHub's 32 KiB
    }
