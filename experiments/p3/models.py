# SPDX-License-Identifier: Apache-2.0
"""The models of P3's evaluation, and how long their iterations take, which it does not publish.

Figures of the paper: figures.yaml of the project's notes, from Jayarajan et al., "Priority-based
Parameter Propagation for Distributed DNN Training", SysML 2019, and its artifact (anandj91/p3).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import yaml

from workloads.architectures.registry import keys_of

__all__ = ["BATCH", "MODELS", "RESNET", "SOCKEYE", "VGG", "Model", "compute", "line_seconds"]

BATCH = 32  # of a worker
WORKERS = 4
_BYTES = 4  # of a parameter
_FORWARD = 1 / 3  # the gradients of inputs and of weights take a multiplication each for one


@dataclass(frozen=True)
class Model:
    """A model.

    name: Of the job key `model`. title: For readers.
    seconds: Of an iteration of one worker without communication.
    source: Where that is from.
    rates: Gbit/s of links over which it is run.
    rate: That of the published gain.
    window: Chunks in flight of whole keys, more than it has for a server: MXNet has no window.
    """

    name: str
    title: str
    seconds: float
    source: str
    rates: tuple[float, ...]
    rate: float
    window: int


# P3 keeps ResNet-50's throughput down to 4 Gbit/s, as recalled from the paper: there an iteration
# takes as long as its bytes take on a link.
_RESNET = 0.3066
# Iterations of 32 images on a GTX 1080 Ti, recalled from PHub (SoCC 2018): those of jobs/models/.
_PHUB = {"resnet50-v2": 0.161, "vgg19": 0.268, "inception-v3": 0.225}


def _as_phub(name: str) -> float:
    return _RESNET * _PHUB[name] / _PHUB["resnet50-v2"]


RESNET = Model(
    "resnet50-v2",
    "ResNet-50",
    _RESNET,
    "derived: 153.3 MB each way take so long at 4 Gbit/s, down to which P3 keeps its throughput"
    " (recalled from the paper)",
    (1, 2, 3, 4, 6, 8, 10),
    4,
    2048,
)
VGG = Model(
    "vgg19",
    "VGG-19",
    _as_phub("vgg19"),
    "ResNet-50's, times 268/161: PHub's iterations on another GPU (recalled)",
    (5, 10, 15, 20, 30),
    15,
    8192,
)
SOCKEYE = Model(
    "sockeye-iwslt15",
    "Sockeye",
    0.3328,
    "assumed: as long as its bytes take at 4 Gbit/s, as with ResNet-50",
    (1, 2, 4, 6, 10, 15),
    4,
    2048,
)
INCEPTION = Model(
    "inception-v3",
    "Inception-v3",
    _as_phub("inception-v3"),
    "ResNet-50's, times 225/161: PHub's iterations on another GPU (recalled)",
    (1, 2, 4, 6, 10),
    4,
    2048,
)
MODELS = (RESNET, VGG, SOCKEYE, INCEPTION)


def line_seconds(model: Model, rate: float) -> float:
    """Returns how long an iteration's bytes take on a machine's link, in one direction: 3/4 of the
    gradients to the other machines' servers, and as many sums from its own. rate: Gbit/s."""
    size = _BYTES * sum(key.parameters for key in keys_of(model.name))
    return 2 * size * (WORKERS - 1) / WORKERS * 8 / (rate * 1e9)


def compute(
    model: Model, factor: float = 1.0, forward: float = 1.0
) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the job key `compute`, and files that it names.

    Args:
        factor: Of the iteration's time.
        forward: Of the forward pass's share of it, a third; only for Sockeye.

    Sockeye's multiplications depend on the sentences. Each weight is used once for each word but
    for embeddings, of which a word looks up one row, so its layers' times are in proportion to
    their weights.
    """
    seconds, share = model.seconds * factor, _FORWARD * forward
    if model is not SOCKEYE:
        return {"iteration": f"{seconds * 1e3:.6g} ms"}, {}
    weights: dict[str, int] = {}
    for key in keys_of(model.name):
        embeds = key.layer.endswith("_embed")
        weights[key.layer] = weights.get(key.layer, 0) + (0 if embeds else key.parameters)
    whole = sum(weights.values())
    rows = [
        {
            "name": layer,
            "forward_seconds": seconds * share * count / whole,
            "backward_seconds": seconds * (1 - share) * count / whole,
        }
        for layer, count in weights.items()
    ]
    return {"layers": "layers.yaml"}, {"layers.yaml": yaml.safe_dump({"layer_times": rows})}
