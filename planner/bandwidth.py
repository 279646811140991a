# SPDX-License-Identifier: Apache-2.0
"""Lower bounds on the bandwidth that hides communication behind computation, by server placement.

PHub (SoCC'18, section 2.3 and table 2) derives them from a model's size M, the computation time T
of an iteration and the number of workers N: all gradients and parameters of an iteration have to
pass within T. Both directions are added; headers are not counted.

PHub gives sizes in MB that are 2^20 bytes: 194, 38, 91 and 390 of them for the models of its table.
The sizes here are those of the models' parameters, which agree. The times are those with which such
sizes need the rates of the table. They are not the iterations' times that PHub's evaluation is
remembered to have had (16, 100, 225 and 350 ms, in ``jobs/models``), which are 6 to 13 % less.
"""

from __future__ import annotations

from dataclasses import dataclass

from specs.placements import Kind
from workloads.architectures.registry import keys_of


@dataclass(frozen=True)
class Model:
    """A model to train: `size` of its gradients in bytes, `seconds` to compute an iteration."""

    name: str
    size: float
    seconds: float

    @property
    def rate(self) -> float:
        """Rate in bit/s of one copy of the gradients per iteration."""
        return 8 * self.size / self.seconds


_BYTES_PER_PARAMETER = 4


def _model(name: str, architecture: str, seconds: float) -> Model:
    size = _BYTES_PER_PARAMETER * sum(key.parameters for key in keys_of(architecture))
    return Model(name, size, seconds)


# PHub, table 2: ImageNet on a GTX 1080 Ti.
MODELS = (
    _model("AlexNet", "alexnet", 18.49e-3),
    _model("GoogleNet", "googlenet-299", 112.4e-3),
    _model("Inception", "inception-v3", 243.7e-3),
    _model("ResNet-269", "resnet269-v2", 373.9e-3),
)


def minimum(model: Model, workers: int, kind: Kind) -> float:
    """Computes the bit/s at one server host, both directions.

    Raises ValueError for fewer than 2 workers.
    """
    if workers < 2:
        raise ValueError(f"{workers} workers exchange nothing: there must be at least 2")
    return kind.copies(workers, kind.servers(workers)) * model.rate


def uplink(model: Model, rack: int, *, aggregated: bool) -> float:
    """Computes the bit/s between a rack of `rack` workers and the core, both directions.

    aggregated: the rack sends one copy up and gets one; otherwise one for each worker.
    """
    return 2 * (1 if aggregated else rack) * model.rate
