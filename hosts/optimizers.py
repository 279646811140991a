# SPDX-License-Identifier: Apache-2.0
"""Optimizers in plain float32 numpy, elementwise only: the same bits on every machine.

A `Rule` changes parameters in place by their mean gradient and a state of its own. As nothing but
elements of the same place meet, it makes no difference whether it is applied to tensors at a
worker or to chunks at a server.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from protocol.fixed_point import Floats
from protocol.optimizer import SGD as SGD_NAME
from protocol.optimizer import OptimizerPlan


class Rule(Protocol):
    """`arrays`: how many arrays of the parameters' shape its state has; they begin as zeros."""

    arrays: int

    def update(self, parameters: Floats, gradients: Floats, state: Sequence[Floats]) -> None:
        """Changes `parameters` and `state` in place; all float32 of one shape."""


class SGD:
    """Plain stochastic gradient descent.

        parameter = parameter - rate * (gradient + weight_decay * parameter)

    Every operation is one float32 numpy operation, so rounding is that of IEEE 754 throughout.
    """

    arrays = 0

    def __init__(self, rate: float, weight_decay: float = 0.0) -> None:
        self._rate = np.float32(rate)
        self._decay = np.float32(weight_decay)

    def update(self, parameters: Floats, gradients: Floats, state: Sequence[Floats]) -> None:
        """See Rule."""
        if self._decay:
            gradients = gradients + self._decay * parameters
        parameters -= self._rate * gradients


class MomentumSGD:
    """Stochastic gradient descent with momentum (Polyak).

    velocity = momentum * velocity + gradient + weight_decay * parameter
    parameter = parameter - rate * velocity
    """

    arrays = 1

    def __init__(self, rate: float, momentum: float = 0.0, weight_decay: float = 0.0) -> None:
        self._rate = np.float32(rate)
        self._momentum = np.float32(momentum)
        self._decay = np.float32(weight_decay)

    def update(self, parameters: Floats, gradients: Floats, state: Sequence[Floats]) -> None:
        """See Rule."""
        (velocity,) = state
        velocity *= self._momentum
        velocity += gradients
        if self._decay:
            velocity += self._decay * parameters
        parameters -= self._rate * velocity


def rule_of(plan: OptimizerPlan) -> Rule:
    """The rule that a plan names."""
    if plan.name == SGD_NAME:
        return SGD(plan.rate, plan.weight_decay)
    return MomentumSGD(plan.rate, plan.momentum, plan.weight_decay)


class Optimizer:
    """A rule and its state for some parameters, by position: an optimizer at a worker."""

    def __init__(self, plan: OptimizerPlan) -> None:
        self._rule = rule_of(plan)
        self._state: list[list[Floats]] = []

    def state(self) -> list[Floats]:
        """All that it has kept so far, by position; nothing before the first step."""
        return [array for arrays in self._state for array in arrays]

    def restore(self, state: Sequence[Floats]) -> None:
        """Goes on from what another one's `state` was; the arrays are kept and changed."""
        each = self._rule.arrays
        self._state = [list(state[i : i + each]) for i in range(0, len(state), max(1, each))]

    def step(self, parameters: Sequence[Floats], gradients: Sequence[Floats]) -> None:
        """Changes `parameters` in place by their mean `gradients`.

        Raises ValueError for gradients of another number, shape or type.
        """
        if len(parameters) != len(gradients):
            raise ValueError(f"{len(parameters)} parameters but {len(gradients)} gradients")
        for i, (parameter, gradient) in enumerate(zip(parameters, gradients, strict=True)):
            if parameter.shape != gradient.shape or gradient.dtype != np.float32:
                raise ValueError(
                    f"parameter {i} is float32 {parameter.shape}, "
                    f"its gradient {gradient.dtype} {gradient.shape}"
                )
            if i == len(self._state):
                self._state.append([np.zeros_like(parameter) for _ in range(self._rule.arrays)])
            self._rule.update(parameter, gradient, self._state[i])


def mean_of(sums: Floats, workers: npt.NDArray[np.int64]) -> Floats:
    """(n, lanes) means of n sums over so many workers each: float32(float64(sum) / workers)."""
    return (sums.astype(np.float64) / workers[:, None]).astype(np.float32)
