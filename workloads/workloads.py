# SPDX-License-Identifier: Apache-2.0
"""The workloads of job files, by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from specs.jobspec import JobSpec
from workloads.characters import Characters
from workloads.digits import Digits
from workloads.layers import Layers
from workloads.models import Data, Parameters, Quality


class Model(Protocol):
    """A model: parameters by name, in order. learns: steps with its gradients are meaningful."""

    learns: bool
    parameters: Parameters

    @property
    def by_layer(self) -> dict[str, tuple[str, ...]]:
        """The names of each layer's parameters, in the order of the forward pass."""

    def gradients(self, batch: Any) -> tuple[float | None, Parameters]:
        """Computes the loss of a batch, if any, and the gradient of every parameter."""

    def evaluate(self, data: Any) -> Quality | None:
        """Measures the quality on a test set, if the model has one."""


class Workload(Protocol):
    """The data and model of a job.

    unit: the kind of example.
    data, sha256: name and digest of the data, for the summary.
    examples: number of training examples.
    test: held-out examples, if any.
    """

    unit: str
    data: str
    sha256: str
    examples: int

    @property
    def test(self) -> Data | None: ...

    @staticmethod
    def model(job: JobSpec) -> Model:
        """Creates the initial model, the same at every worker."""

    def batches(self, rank: int, world: int, first: int = 0) -> Iterator[Any]:
        """Yields a worker's batches endlessly, after the ``first`` ones."""


WORKLOADS: dict[str, type[Workload]] = {
    "digits": Digits,
    "characters": Characters,
    "resnet50": Layers,
    "layers": Layers,
    "model": Layers,
}


def open_workload(job: JobSpec) -> Workload:
    """Reads a job's data. Raises RuntimeError if they are missing."""
    made: Any = WORKLOADS[job.workload]
    workload: Workload = made(job)
    return workload


def model_of(job: JobSpec) -> Model:
    """Creates a job's model without its data."""
    return WORKLOADS[job.workload].model(job)


def layers(job: JobSpec) -> dict[str, tuple[str, ...]]:
    """The names of each layer's parameters, in the order of the forward pass."""
    return model_of(job).by_layer


def shapes(job: JobSpec) -> dict[str, int]:
    """Returns the number of elements of each parameter, in order."""
    return {name: values.size for name, values in model_of(job).parameters.items()}
