# SPDX-License-Identifier: Apache-2.0
"""Which optimizer a job's servers run, as everybody in it is told.

Numbers are float32: whoever computes with them rounds nothing further, so all get the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from protocol import jobs_pb2

SGD = "sgd"
MOMENTUM = "momentum"


@dataclass(frozen=True, slots=True)
class OptimizerPlan:
    """`sgd`, or `momentum` (Polyak); see hosts.optimizers for what they compute.

    Raises ValueError, naming the number, for what no optimizer can use.
    """

    name: str
    rate: float
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if self.name not in (SGD, MOMENTUM):
            raise ValueError(f"optimizer {self.name[:40]!r} is none of {SGD}, {MOMENTUM}")
        for field in ("rate", "momentum", "weight_decay"):
            object.__setattr__(self, field, float(np.float32(getattr(self, field))))
        momentum = 0 <= self.momentum < 1 and (self.name == MOMENTUM or self.momentum == 0)
        finite = np.isfinite(self.rate) and np.isfinite(self.weight_decay)
        if not (finite and self.rate > 0 and momentum and self.weight_decay >= 0):
            raise ValueError(
                f"optimizer {self.name}: rate {self.rate:g} must be positive, momentum"
                f" {self.momentum:g} in 0..1 (1 excluded; 0 for {SGD}) and weight decay"
                f" {self.weight_decay:g} not negative"
            )

    def __str__(self) -> str:
        numbers = f"rate {self.rate:g}"
        for text, number in (("momentum", self.momentum), ("weight decay", self.weight_decay)):
            numbers += f", {text} {number:g}" if number else ""
        return f"{self.name} ({numbers})"

    @staticmethod
    def from_message(message: jobs_pb2.Optimizer) -> OptimizerPlan:
        """Raises ValueError."""
        return OptimizerPlan(message.name, message.rate, message.momentum, message.weight_decay)

    def to_message(self) -> jobs_pb2.Optimizer:
        return jobs_pb2.Optimizer(
            name=self.name,
            rate=self.rate,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
        )
