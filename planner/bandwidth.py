# SPDX-License-Identifier: Apache-2.0
"""Lower bounds on the bandwidth that hides communication behind computation, by server placement.

PHub (SoCC'18, section 2.3 and table 2) derives them from a model's size M, the computation time T
of an iteration and the number of workers N: all gradients and parameters of an iteration have to
pass within T. Both directions are added; headers are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass

from specs.placements import Kind

__all__ = ["MODELS", "Model", "minimum", "uplink"]


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


# PHub, table 2: ImageNet on a GTX 1080 Ti.
MODELS = (
    Model("AlexNet", 194e6, 17.6e-3),
    Model("GoogleNet", 38e6, 106e-3),
    Model("Inception", 91e6, 233e-3),
    Model("ResNet-269", 390e6, 357e-3),
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
