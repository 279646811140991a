# SPDX-License-Identifier: Apache-2.0
"""The networks that a job file's ``model`` names."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

from workloads.architectures.alexnet import alexnet
from workloads.architectures.googlenet import googlenet
from workloads.architectures.inception import inception_v3
from workloads.architectures.network import Key
from workloads.architectures.resnet import resnet_v1, resnet_v2, resnext
from workloads.architectures.sockeye import sockeye
from workloads.architectures.vgg import vgg

_UNITS_50, _UNITS_269 = (3, 4, 6, 3), (3, 30, 48, 8)

ARCHITECTURES: dict[str, Callable[[], list[Key]]] = {
    "alexnet": alexnet,
    "vgg11": partial(vgg, (1, 1, 2, 2, 2)),
    "vgg19": partial(vgg, (2, 2, 4, 4, 4)),
    "googlenet-224-full": partial(googlenet, 224, partial=True),
    "googlenet-299": partial(googlenet, 299, partial=False),
    "inception-v3": inception_v3,
    "resnet18-v2": partial(resnet_v2, (2, 2, 2, 2), bottleneck=False),
    "resnet50-v1": partial(resnet_v1, _UNITS_50),
    "resnet50-v2": partial(resnet_v2, _UNITS_50, bottleneck=True),
    "resnet269-v2": partial(resnet_v2, _UNITS_269, bottleneck=True),
    "resnext269": partial(resnext, _UNITS_269),
    "sockeye-iwslt15": sockeye,
}


@cache
def keys_of(model: str) -> tuple[Key, ...]:
    """Returns the parameters of a model in forward order, as workers exchange them."""
    return tuple(ARCHITECTURES[model]())
