# SPDX-License-Identifier: Apache-2.0
"""What can be trained: the workloads of job files, by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from specs.jobspec import JobSpec
from workloads.characters import Characters
from workloads.digits import Digits
from workloads.layers import Layers
from workloads.models import Data, Parameters, Quality


class Model(Protocol):
    """Parameters by name, in order. learns: whether gradients are good for steps."""

    learns: bool
    parameters: Parameters

    @property
    def by_layer(self) -> dict[str, tuple[str, ...]]:
        """The names of each layer's parameters, in the order of the forward pass."""

    def gradients(self, batch: Any) -> tuple[float | None, Parameters]:
        """Loss of a batch, if it has one, and the gradient for every parameter."""

    def evaluate(self, data: Any) -> Quality | None:
        """How good it is on a test set, if it can be."""


class Workload(Protocol):
    """Data and a model, as a job has them.

    unit: what an example is. data, sha256: which data, as the summary has it. examples: how many
    there are to train with. test: those that are held out, if any are.
    """

    unit: str
    data: str
    sha256: str
    examples: int

    @property
    def test(self) -> Data | None: ...

    @staticmethod
    def model(job: JobSpec) -> Model:
        """As it is before the first iteration, the same at every worker."""

    def batches(self, rank: int, world: int, first: int = 0) -> Iterator[Any]:
        """Endless: what a worker learns from in each iteration, after the ``first`` ones."""


WORKLOADS: dict[str, type[Workload]] = {
    "digits": Digits,
    "characters": Characters,
    "resnet50": Layers,
    "layers": Layers,
}


def open_workload(job: JobSpec) -> Workload:
    """Reads a job's data. Raises ``RuntimeError`` where they are missing."""
    made: Any = WORKLOADS[job.workload]
    workload: Workload = made(job)
    return workload


def model_of(job: JobSpec) -> Model:
    """A job's model, without its data."""
    return WORKLOADS[job.workload].model(job)


def layers(job: JobSpec) -> dict[str, tuple[str, ...]]:
    """The names of each layer's parameters, in the order of the forward pass."""
    return model_of(job).by_layer


def shapes(job: JobSpec) -> dict[str, int]:
    """Elements of each parameter, in order: what the job's gradients are made of."""
    return {name: values.size for name, values in model_of(job).parameters.items()}
