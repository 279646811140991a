# SPDX-License-Identifier: Apache-2.0
"""The points of the experiment: eight workers in a rack, nine models, five systems, two rates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from experiments.common.declaration import Point, Values
from experiments.common.phub import MXNET, MXNET_IB, PBOX, RATES, SYSTEMS, job, topology
from experiments.common.sensitivity import setting, variations

__all__ = ["MODELS", "QUICK", "VARIED", "Model", "points"]

_ITERATIONS = 3  # the first also agrees on exponents, the last has no next forward pass
_PLANNED = "experiments.phub_throughput.planned:run"


@dataclass(frozen=True)
class Model:
    """A model of PHub's evaluation.

    name: Of the job key `model`. title: For readers.
    milliseconds: Of an iteration of one worker without communication; recalled.
    batch: Examples of a worker; recalled.
    over_mxnet, over_ib, over_mxnet_56: Published throughput of PHub over stock MXNet and over
        enhanced MXNet at 10 Gbit/s, and over stock MXNet at 56 Gbit/s (posters).
    shard_over_mxnet: Published throughput of PShard over stock MXNet at 10 Gbit/s (poster).
    """

    name: str
    title: str
    milliseconds: float
    batch: int
    over_mxnet: float
    over_ib: float
    over_mxnet_56: float
    shard_over_mxnet: float


MODELS = (
    Model("alexnet", "AlexNet", 16, 32, 3.3, 2.7, 7.7, 1.6),
    Model("vgg11", "VGG-11", 121, 32, 3.3, 2.3, 5.7, 1.7),
    Model("vgg19", "VGG-19", 268, 32, 3.0, 2.2, 4.1, 1.6),
    Model("googlenet-299", "GoogleNet", 100, 32, 2.7, 1.3, 2.4, 2.4),
    Model("inception-v3", "Inception-v3", 225, 32, 2.5, 1.3, 2.1, 2.3),
    Model("resnet18-v2", "ResNet-18", 54, 32, 3.9, 2.2, 3.3, 2.2),
    Model("resnet50-v2", "ResNet-50", 161, 32, 3.2, 1.9, 2.5, 2.0),
    Model("resnet269-v2", "ResNet-269", 350, 16, 3.8, 2.3, 3.5, 2.1),
    Model("resnext269", "ResNeXt-269", 386, 8, 3.7, 2.3, 3.1, 2.0),
)
_BY_NAME = {model.name: model for model in MODELS}
QUICK = (_BY_NAME["resnet18-v2"],)
VARIED = tuple(_BY_NAME[name] for name in ("alexnet", "googlenet-299", "resnet50-v2"))


def points(quick: bool) -> Iterator[Point]:
    """Yields the points, the shortest runs first."""
    models = QUICK if quick else sorted(MODELS, key=lambda one: one.name != "resnet18-v2")
    rates = RATES[:1] if quick else RATES
    for model in models:
        for rate in rates:
            for system in SYSTEMS:
                values: Values = {"model": model.name, "rate": rate, "system": system.name}
                network = topology(system, rate)
                file = job(system, model.name, model.milliseconds, _ITERATIONS)
                yield Point({"of": "planned", **values}, network, file, by=_PLANNED)
                yield Point({"of": "run", **values}, network, file)
    if not quick:
        yield from _sensitivity()


def _sensitivity() -> Iterator[Point]:
    for model in VARIED:
        for parameter, factor, of in variations(("computing", "copies", "sums")):
            for system in (PBOX, MXNET_IB, MXNET):
                values: Values = {
                    **setting(parameter, factor),
                    **{"model": model.name, "rate": RATES[0], "system": system.name},
                }
                network = topology(system, RATES[0], copies=of["copies"], sums=of["sums"])
                milliseconds = model.milliseconds * of["computing"]
                content = job(system, model.name, milliseconds, _ITERATIONS)
                yield Point(values, network, content, by=_PLANNED)
