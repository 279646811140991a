# SPDX-License-Identifier: Apache-2.0
"""Workloads of layers with given sizes and random gradients, to measure their exchange.

``resnet50``: He et al., "Deep Residual Learning for Image Recognition" (2016), table 1, 50 layers,
with batch normalisation after each convolution: 25,557,032 parameters, 102 MB. ``layers``: one for
each size of the job file. ``model``: those of a published network (``workloads.architectures``).
Gradients are uniform random numbers, drawn with the job's seed; the
result of a job are the means of its last iteration.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from specs.jobspec import JobSpec
from workloads.architectures.registry import keys_of
from workloads.models import Parameters

_BYTES = 4
_CLASSES = 1000
_WIDTHS = (64, 128, 256, 512)  # channels of the inner convolutions, by stage
_BLOCKS = (3, 4, 6, 3)
_EXPANSION = 4
# Gradients are windows into one table, at offsets by iteration and layer, so they cost no time.
_SHIFTS = 1 << 16
_STEPS = 4099, 257  # offsets of an iteration and a layer; primes

Shapes = dict[str, tuple[int, ...]]


def resnet50() -> Shapes:
    """Returns the shape of each parameter, in the order of the forward pass."""
    shapes: Shapes = {}

    def convolution(name: str, inputs: int, outputs: int, size: int) -> None:
        shapes[f"{name}.weights"] = (outputs, inputs, size, size)
        shapes[f"{name}.scales"] = (outputs,)
        shapes[f"{name}.shifts"] = (outputs,)

    convolution("conv1", 3, _WIDTHS[0], 7)
    inputs = _WIDTHS[0]
    for stage, (width, blocks) in enumerate(zip(_WIDTHS, _BLOCKS, strict=True), start=2):
        for block in range(1, blocks + 1):
            name, outputs = f"conv{stage}_{block}", _EXPANSION * width
            convolution(f"{name}.1", inputs, width, 1)
            convolution(f"{name}.2", width, width, 3)
            convolution(f"{name}.3", width, outputs, 1)
            if block == 1:
                convolution(f"{name}.projection", inputs, outputs, 1)
            inputs = outputs
    shapes["fc.weights"] = (_CLASSES, inputs)
    shapes["fc.biases"] = (_CLASSES,)
    return shapes


def shapes_of(job: JobSpec) -> Shapes:
    """Returns the shape of each parameter of a job with such a workload."""
    if job.model is not None:
        return {key.name: key.shape for key in keys_of(job.model)}
    if job.workload == "resnet50":
        return resnet50()
    return {f"layer{i}": (size // _BYTES,) for i, size in enumerate(job.layers, start=1)}


class Sizes:
    """A model without computation; its parameters are the last means of gradients, 0 at first.

    separator: what ends the name of the layer in a parameter's name.
    """

    learns = False

    def __init__(self, shapes: Shapes, separator: str) -> None:
        self._separator = separator
        self.parameters: Parameters = {name: _nothing(shape) for name, shape in shapes.items()}

    @property
    def by_layer(self) -> dict[str, tuple[str, ...]]:
        """Groups parameters by the part of their names before the last separator."""
        found: dict[str, tuple[str, ...]] = {}
        for name in self.parameters:
            layer = name.rpartition(self._separator)[0] or name
            found[layer] = (*found.get(layer, ()), name)
        return found

    def gradients(self, batch: Any) -> tuple[None, Parameters]:
        """Returns the batch itself, without a loss."""
        return None, batch

    def evaluate(self, data: Any) -> None:
        """Returns None, as there is no quality."""


class Layers:
    """Implements ``workloads.workloads.Workload``."""

    unit = "example"
    data = "none: random gradients"
    sha256 = ""
    test = None

    def __init__(self, job: JobSpec) -> None:
        self.examples = job.batch
        self._job = job
        self._shapes = shapes_of(job)

    @staticmethod
    def model(job: JobSpec) -> Sizes:
        """Implements Workload."""
        return Sizes(shapes_of(job), "." if job.model is None else "_")

    def batches(self, rank: int, world: int, first: int = 0) -> Iterator[Parameters]:
        """Yields the gradients themselves, read-only."""
        if self._job.payload == "none":
            yield from itertools.repeat({n: _nothing(s) for n, s in self._shapes.items()})
        sizes = {name: math.prod(shape) for name, shape in self._shapes.items()}
        random = np.random.default_rng([self._job.seed, 6, rank])
        table = random.random(_SHIFTS + max(sizes.values()), np.float32)
        table *= 2
        table -= 1
        for iteration in itertools.count(first):
            gradients = {}
            for number, (name, size) in enumerate(sizes.items()):
                start = (iteration * _STEPS[0] + number * _STEPS[1]) % _SHIFTS
                gradients[name] = table[start : start + size].reshape(self._shapes[name])
            yield gradients


def _nothing(shape: tuple[int, ...]) -> Any:
    """Returns zeros that take no memory."""
    return np.broadcast_to(np.float32(0), shape)
