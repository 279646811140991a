# SPDX-License-Identifier: Apache-2.0
"""Optimizers in plain float32 numpy, elementwise only: the same bits on every machine.

A `Rule` updates parameters in place from their mean gradient and a state of its own. As operations
are elementwise, applying it to tensors at a worker or to chunks at a server is equivalent. Every
operation is one float32 numpy operation, rounded as in IEEE 754; values that depend on the step's
number alone are computed in float64 and rounded once.

Below, rate is that of the step and the key: the plan's times its schedule's share. Weight decay is
added to the gradient: gradient + weight_decay * parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from protocol.learning_rate import power
from protocol.optimizer_plan import ADAM, NESTEROV, OptimizerPlan
from protocol.optimizer_plan import SGD as SGD_NAME
from protocol.payloads import Floats

Steps = npt.NDArray[np.int64]


class At(NamedTuple):
    """Hyperparameters of one update, for all rows (0-d) or each row (n, 1): rate and weight decay
    (float32), and the step's number, from 0 on."""

    rate: npt.NDArray[np.float32]
    weight_decay: npt.NDArray[np.float32]
    step: Steps


class Rule(Protocol):
    """An update rule. `arrays`: number of its state arrays, shaped like the parameters, zero at
    first."""

    arrays: int

    def update(
        self, parameters: Floats, gradients: Floats, state: Sequence[Floats], at: At
    ) -> None:
        """Updates `parameters` and `state` in place; all are float32 of one shape."""


class SGD:
    """Plain stochastic gradient descent.

    parameter = parameter - rate * (gradient + weight_decay * parameter)
    """

    arrays = 0

    def __init__(self, plan: OptimizerPlan) -> None:
        self._decays = plan.decays

    def update(
        self, parameters: Floats, gradients: Floats, state: Sequence[Floats], at: At
    ) -> None:
        """See Rule."""
        if self._decays:
            gradients = gradients + at.weight_decay * parameters
        parameters -= at.rate * gradients


class MomentumSGD:
    """Stochastic gradient descent with momentum (Polyak).

    velocity = momentum * velocity + gradient + weight_decay * parameter
    parameter = parameter - rate * velocity
    """

    arrays = 1

    def __init__(self, plan: OptimizerPlan) -> None:
        self._momentum = np.float32(plan.momentum)
        self._decays = plan.decays

    def update(
        self, parameters: Floats, gradients: Floats, state: Sequence[Floats], at: At
    ) -> None:
        """See Rule."""
        (velocity,) = state
        velocity *= self._momentum
        velocity += gradients
        if self._decays:
            velocity += at.weight_decay * parameters
        parameters -= at.rate * velocity


class NesterovSGD:
    """Nesterov's accelerated gradient, as PHub has it (SoCC'18): u is the step itself.

    u' = momentum * u - rate * (gradient + weight_decay * parameter)
    parameter = parameter + (-momentum * u + (1 + momentum) * u')
    """

    arrays = 1

    def __init__(self, plan: OptimizerPlan) -> None:
        self._momentum = np.float32(plan.momentum)
        self._ahead = np.float32(1) + self._momentum
        self._decays = plan.decays

    def update(
        self, parameters: Floats, gradients: Floats, state: Sequence[Floats], at: At
    ) -> None:
        """See Rule."""
        (u,) = state
        if self._decays:
            gradients = gradients + at.weight_decay * parameters
        before = self._momentum * u
        np.subtract(before, at.rate * gradients, out=u)
        parameters += self._ahead * u - before


class Adam:
    """Adam (Kingma and Ba, 2015, algorithm 1); t is the step's number, counted from 1.

    m = beta1 * m + (1 - beta1) * gradient
    v = beta2 * v + (1 - beta2) * gradient^2
    parameter = parameter - rate * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon)
    """

    arrays = 2

    def __init__(self, plan: OptimizerPlan) -> None:
        self._betas = plan.beta1, plan.beta2
        self._epsilon = np.float32(plan.epsilon)
        self._decays = plan.decays

    def update(
        self, parameters: Floats, gradients: Floats, state: Sequence[Floats], at: At
    ) -> None:
        """See Rule."""
        if self._decays:
            gradients = gradients + at.weight_decay * parameters
        moments: list[Floats] = []
        for kept, given, beta in zip(
            state, (gradients, gradients * gradients), self._betas, strict=True
        ):
            kept *= np.float32(beta)
            kept += np.float32(1 - beta) * given
            rest = by_step(at.step, partial(_left, beta)).astype(np.float32)
            moments.append(kept / rest)
        mean, square = moments
        np.sqrt(square, out=square)
        square += self._epsilon
        mean *= at.rate
        mean /= square
        parameters -= mean


def _left(beta: float, step: int) -> float:
    """1 - beta^t"""
    return 1 - power(beta, step + 1)


def by_step(steps: Steps, of: Callable[[int], float]) -> npt.NDArray[np.float64]:
    """Evaluates a function of the step's number for all rows' steps, once for each distinct one."""
    if not steps.ndim:
        return np.asarray(of(int(steps)))
    numbers, where = np.unique(steps, return_inverse=True)
    values = np.array([of(number) for number in numbers.tolist()])
    return values[where].reshape(steps.shape)


def rule_of(plan: OptimizerPlan) -> Rule:
    """Returns the rule that a plan names."""
    if plan.name == SGD_NAME:
        return SGD(plan)
    if plan.name == ADAM:
        return Adam(plan)
    return NesterovSGD(plan) if plan.name == NESTEROV else MomentumSGD(plan)


def at_step(plan: OptimizerPlan, rate: Any, weight_decay: Any, steps: Any) -> At:
    """Returns the hyperparameters of an update of one or more rows.

    rate, weight_decay: of the plan, float32, 0-d or (n, 1).
    steps: number of steps that the job has taken before, likewise.
    """
    numbers: Steps = np.asarray(steps, np.int64) + plan.first_step
    if numbers.size and (numbers == numbers.flat[0]).all():
        numbers = np.asarray(numbers.flat[0])
    rates = np.asarray(rate, np.float64) * by_step(numbers, plan.schedule.share)
    return At(rates.astype(np.float32), np.asarray(weight_decay, np.float32), numbers)


class Optimizer:
    """A rule and its state for some parameters, by position: an optimizer at a worker.

    names: of the parameters, where the plan has options by key.
    steps: number taken.
    """

    def __init__(self, plan: OptimizerPlan, names: Sequence[str] = ()) -> None:
        if plan.keys and not names:
            raise ValueError(f"{plan} is by key, and no key is named")
        plan.by_chunk(names, [1] * len(names))  # which refuses what fits no key
        self._plan = plan
        self._rule = rule_of(plan)
        self._of_keys = [plan.of_key(name) for name in names]
        self._state: list[list[Floats]] = []
        self.steps = 0

    def state(self) -> list[Floats]:
        """Returns its state arrays by position; none before the first step."""
        return [array for arrays in self._state for array in arrays]

    def restore(self, state: Sequence[Floats], steps: int) -> None:
        """Takes over the `state` of another one after so many steps; the arrays are kept and
        changed."""
        each = self._rule.arrays
        self._state = [list(state[i : i + each]) for i in range(0, len(state), max(1, each))]
        self.steps = steps

    def step(self, parameters: Sequence[Floats], gradients: Sequence[Floats]) -> None:
        """Updates `parameters` in place from their mean `gradients`.

        Raises ValueError for gradients of another number, shape or type.
        """
        if len(parameters) != len(gradients):
            raise ValueError(f"{len(parameters)} parameters but {len(gradients)} gradients")
        hyperparameters: dict[tuple[Any, Any], At] = {}  # most keys have the same
        for i, (parameter, gradient) in enumerate(zip(parameters, gradients, strict=True)):
            if parameter.shape != gradient.shape or gradient.dtype != np.float32:
                raise ValueError(
                    f"parameter {i} is float32 {parameter.shape}, "
                    f"its gradient {gradient.dtype} {gradient.shape}"
                )
            if i == len(self._state):
                self._state.append([np.zeros_like(parameter) for _ in range(self._rule.arrays)])
            own = self._of_keys[i] if self._of_keys else (self._plan.rate, self._plan.weight_decay)
            at = hyperparameters.get(own)
            if at is None:
                at = hyperparameters[own] = at_step(self._plan, *own, self.steps)
            self._rule.update(parameter, gradient, self._state[i], at)
        self.steps += 1


def mean_of(sums: Floats, workers: npt.NDArray[np.int64]) -> Floats:
    """Returns the means (n, lanes) of n sums over so many workers each: float32(float64(sum) /
    workers)."""
    means = np.empty(sums.shape, np.float32)
    # numpy converts some thousand numbers at a time: no array of float64.
    np.divide(sums, workers[:, None], out=means, dtype=np.float64, casting="same_kind")
    return means
