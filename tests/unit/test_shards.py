# SPDX-License-Identifier: Apache-2.0
"""Optimizers at servers: the same bits as at workers, each step once, replicas that agree."""

from __future__ import annotations

import numpy as np
import pytest

from hosts.optimizers import Optimizer
from hosts.shards import STARTED, Shards
from protocol.optimizer import OptimizerPlan

pytestmark = pytest.mark.unit

LANES = 8
PLANS = [
    OptimizerPlan("sgd", 0.1),
    OptimizerPlan("sgd", 0.03, weight_decay=0.01),
    OptimizerPlan("momentum", 0.1, 0.9),
    OptimizerPlan("momentum", 0.1, 0.9, 1e-4),
]


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(7).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_chunks_at_servers_step_as_tensors_at_workers_do_to_the_bit(plan: OptimizerPlan) -> None:
    tensor = drawn(6, LANES)
    shards = Shards(plan, 6, LANES)
    shards.start(np.arange(6), tensor)
    worker = Optimizer(plan)
    for number in range(20):
        gradients = drawn(20, 6, LANES)[number]
        # In another order, and not all in one step.
        for chunks in (np.array([4, 1]), np.array([0, 2, 5, 3])):
            shards.step(chunks, gradients[chunks])
        worker.step([tensor], [gradients])
    held = shards.snapshot(np.arange(6))
    assert np.array_equal(held.parameters.view(np.uint32), tensor.view(np.uint32))
    assert held.levels.tolist() == [STARTED + 20] * 6


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_a_replica_goes_on_with_the_very_same_steps(plan: OptimizerPlan) -> None:
    primary, backup = Shards(plan, 3, LANES), Shards(plan, 3, LANES)
    every = np.arange(3)
    primary.start(every, drawn(3, LANES))
    for number in range(3):
        primary.step(every, drawn(3, 3, LANES)[number])
        backup.take(primary.snapshot(every))
    old = primary.snapshot(every[:2])
    gradients = drawn(5, 3, LANES)[4]
    assert np.array_equal(primary.step(every, gradients), backup.step(every, gradients))
    # What comes late, or twice, takes nothing back.
    backup.take(old)
    assert backup.levels.tolist() == [STARTED + 4] * 3
    assert np.array_equal(backup.snapshot(every).parameters, primary.snapshot(every).parameters)


def test_what_is_no_chunk_of_the_job_is_refused() -> None:
    shards = Shards(PLANS[2], 3, LANES)
    larger = Shards(PLANS[2], 5, LANES)
    larger.start(np.array([4]), drawn(1, LANES))
    with pytest.raises(ValueError, match="none of a job of 3 chunks"):
        shards.take(larger.snapshot(np.array([4])))
    stateless = Shards(PLANS[0], 3, LANES)
    stateless.start(np.array([1]), drawn(1, LANES))
    with pytest.raises(ValueError, match="1 arrays of state"):
        shards.take(stateless.snapshot(np.array([1])))
    with pytest.raises(KeyError, match="chunk 0 is not held"):
        shards.snapshot(np.array([0]))


@pytest.mark.parametrize(
    ("name", "numbers"),
    [("adam", (0.1,)), ("sgd", (0.0,)), ("sgd", (0.1, 0.5)), ("momentum", (0.1, 1.0)),
     ("momentum", (float("nan"), 0.9)), ("sgd", (0.1, 0.0, -1.0))],
)  # fmt: skip
def test_optimizers_that_cannot_be_are_refused(name: str, numbers: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match=f"optimizer .?{name}"):
        OptimizerPlan(name, *numbers)


def test_everybody_gets_the_same_float32_numbers() -> None:
    plan = OptimizerPlan("momentum", 0.1, 0.9, 1e-5)
    assert OptimizerPlan.from_message(plan.to_message()) == plan
