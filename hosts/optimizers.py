# SPDX-License-Identifier: Apache-2.0
"""Optimizers in plain float32 numpy, elementwise only: the same bits on every machine.

An optimizer keeps its state per parameter, by position, and changes parameters in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from protocol.fixed_point import Floats


class Optimizer(Protocol):
    """Takes one step."""

    def step(self, parameters: Sequence[Floats], gradients: Sequence[Floats]) -> None:
        """Changes `parameters` in place by their mean `gradients`, both float32, same shapes."""


class MomentumSGD:
    """Stochastic gradient descent with momentum (Polyak; momentum 0 is plain SGD).

        velocity = momentum * velocity + gradient + weight_decay * parameter
        parameter = parameter - rate * velocity

    Every operation is one float32 numpy operation, so rounding is that of IEEE 754 throughout.
    """

    def __init__(self, rate: float, momentum: float = 0.0, weight_decay: float = 0.0) -> None:
        if rate <= 0 or not 0 <= momentum < 1 or weight_decay < 0:
            raise ValueError(
                f"rate {rate} must be positive, momentum {momentum} in 0..1 (1 excluded) and "
                f"weight decay {weight_decay} not negative"
            )
        self._rate = np.float32(rate)
        self._momentum = np.float32(momentum)
        self._decay = np.float32(weight_decay)
        self._velocities: list[Floats] = []

    def state(self) -> list[Floats]:
        """All that it has kept so far, by position; nothing before the first step."""
        return self._velocities

    def restore(self, state: Sequence[Floats]) -> None:
        """Goes on from what another one's `state` was; the arrays are kept and changed."""
        self._velocities = list(state)

    def step(self, parameters: Sequence[Floats], gradients: Sequence[Floats]) -> None:
        """One step. Raises ValueError for gradients of another number, shape or type."""
        if len(parameters) != len(gradients):
            raise ValueError(f"{len(parameters)} parameters but {len(gradients)} gradients")
        if not self._velocities:
            self._velocities = [np.zeros_like(parameter) for parameter in parameters]
        for i, (parameter, gradient) in enumerate(zip(parameters, gradients, strict=True)):
            if parameter.shape != gradient.shape or gradient.dtype != np.float32:
                raise ValueError(
                    f"parameter {i} is float32 {parameter.shape}, "
                    f"its gradient {gradient.dtype} {gradient.shape}"
                )
            velocity = self._velocities[i]
            velocity *= self._momentum
            velocity += gradient
            if self._decay:
                velocity += self._decay * parameter
            parameter -= self._rate * velocity
