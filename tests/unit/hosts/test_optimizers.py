# SPDX-License-Identifier: Apache-2.0
"""Tests optimizers against their papers' formulas in float64, and learning rate schedules."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hosts.optimizers import Optimizer
from protocol.learning_rate import Schedule, power
from protocol.optimizer_plan import OptimizerPlan

GRADIENTS = np.random.default_rng(5).standard_normal((30, 50))
START = np.random.default_rng(6).standard_normal(50)


def trained(plan: OptimizerPlan) -> np.ndarray:
    parameters = START.astype(np.float32)
    optimizer = Optimizer(plan)
    for gradients in GRADIENTS:
        optimizer.step([parameters], [gradients.astype(np.float32)])
    return parameters


def test_nesterov_matches_lookahead_gradient() -> None:
    """Sutskever's form keeps the point that is looked ahead from; PHub's the one ahead of it."""
    momentum, rate, decay = 0.9, 0.05, 0.01
    ahead, velocity = START.copy(), np.zeros(50)
    base = ahead.copy()
    for gradients in GRADIENTS:
        velocity = momentum * velocity - rate * (gradients + decay * ahead)
        base = base + velocity
        ahead = base + momentum * velocity
    plan = OptimizerPlan("nesterov", rate, momentum, decay)
    np.testing.assert_allclose(trained(plan), ahead, rtol=1e-4, atol=1e-5)


def test_adam_matches_paper() -> None:
    rate, beta1, beta2, epsilon = 0.01, 0.8, 0.99, 1e-6
    parameters, m, v = START.copy(), np.zeros(50), np.zeros(50)
    for t, gradients in enumerate(GRADIENTS, start=1):
        m = beta1 * m + (1 - beta1) * gradients
        v = beta2 * v + (1 - beta2) * gradients**2
        # The paper's other form, "more efficient" (end of section 2).
        alpha = rate * math.sqrt(1 - beta2**t) / (1 - beta1**t)
        parameters -= alpha * m / (np.sqrt(v) + epsilon * math.sqrt(1 - beta2**t))
    plan = OptimizerPlan("adam", rate, beta1=beta1, beta2=beta2, epsilon=epsilon)
    np.testing.assert_allclose(trained(plan), parameters, rtol=1e-4, atol=1e-5)


def test_an_optimizer_goes_on_from_anothers_state_and_number_of_steps() -> None:
    plan = OptimizerPlan("adam", 0.01, schedule=Schedule("linear", steps=30))
    parameters = START.astype(np.float32)
    first, second = Optimizer(plan), Optimizer(plan)
    for number, gradients in enumerate(GRADIENTS):
        if number == 11:
            second.restore([one.copy() for one in first.state()], first.steps)
        (first if number < 11 else second).step([parameters], [gradients.astype(np.float32)])
    assert np.array_equal(parameters, trained(plan))


@pytest.mark.parametrize(
    ("schedule", "shares"),
    [
        (Schedule(), {0: 1, 1000: 1}),
        (Schedule(warmup=4), {0: 0.25, 1: 0.5, 3: 1, 4: 1, 99: 1}),
        (Schedule("step", every=10, factor=0.5), {0: 1, 9: 1, 10: 0.5, 29: 0.25, 30: 0.125}),
        (Schedule("step", warmup=5, every=10, factor=0.5), {4: 1, 14: 1, 15: 0.5}),
        (Schedule("linear", steps=8), {0: 1, 2: 0.75, 4: 0.5, 8: 0, 1000: 0}),
        (Schedule("linear", warmup=2, steps=10, floor=0.5), {1: 1, 2: 1, 6: 0.75, 10: 0.5}),
        (Schedule("cosine", steps=6), {0: 1, 2: 0.75, 3: 0.5, 4: 0.25, 6: 0, 7: 0}),
        (Schedule("cosine", warmup=2, steps=8, floor=0.2), {1: 1, 2: 1, 5: 0.6, 8: 0.2, 9: 0.2}),
    ],
    ids=str,
)  # fmt: skip
def test_schedule_matches_definition(schedule: Schedule, shares: dict[int, float]) -> None:
    values = [schedule.share(step) for step in shares]
    assert values == pytest.approx(list(shares.values()), abs=2**-23)


def test_powers_and_cosines_are_right_to_float32() -> None:
    schedule = Schedule("cosine", steps=997)
    for step in range(997):
        wave = (1 + math.cos(math.pi * step / 997)) / 2
        assert schedule.share(step) == pytest.approx(wave, rel=1e-12, abs=1e-15)
    for times in (0, 1, 2, 7, 1000, 12345):
        assert power(0.999, times) == pytest.approx(0.999**times, rel=1e-12)


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ({"kind": "sine"}, "schedule 'sine' is none of constant, step, linear, cosine"),
        ({"warmup": -1}, "warmup -1 is not in"),
        ({"kind": "cosine"}, "cosine: steps 0 must be more than warmup 0"),
        ({"kind": "linear", "warmup": 9, "steps": 9}, "steps 9 must be more than warmup 9"),
        ({"kind": "linear", "steps": 9, "floor": 1.5}, "floor 1.5 must be in 0..1"),
        ({"kind": "step", "factor": 0.5}, "every 0 must be at least 1"),
        ({"kind": "step", "every": 5}, "factor 0 must be above 0"),
        ({"kind": "step", "every": 5, "factor": math.nan}, "factor nan must be"),
        ({"steps": 5}, "constant: steps 5 must be 0"),
    ],
)
def test_invalid_schedule_is_rejected(numbers: dict[str, float], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Schedule(**numbers)  # type: ignore[arg-type]
