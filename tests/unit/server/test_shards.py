# SPDX-License-Identifier: Apache-2.0
"""Tests optimizers at servers: the same bits as at workers, each step once, equal replicas."""

from __future__ import annotations

import numpy as np
import pytest

from hosts.data.snapshot import STARTED
from hosts.optimizers import Optimizer
from hosts.server.shards import Shards
from protocol.learning_rate import Schedule
from protocol.optimizer_plan import KeyOptions, OptimizerPlan

LANES = 8
PLANS = [
    OptimizerPlan("sgd", 0.1),
    OptimizerPlan("sgd", 0.03, weight_decay=0.01),
    OptimizerPlan("momentum", 0.1, 0.9),
    OptimizerPlan("momentum", 0.1, 0.9, 1e-4),
    OptimizerPlan("nesterov", 0.1, 0.9, 1e-4, schedule=Schedule("step", every=3, factor=0.5)),
    OptimizerPlan("adam", 0.01, schedule=Schedule("cosine", warmup=4, steps=16, floor=0.1)),
    OptimizerPlan("adam", 0.01, weight_decay=0.01, first_step=5),
]


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(7).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_chunks_at_servers_step_as_tensors_at_workers_do_to_the_bit(plan: OptimizerPlan) -> None:
    tensor = drawn(6, LANES)
    shards = Shards(plan, 6, LANES)
    shards.start(np.arange(6), tensor)
    worker = Optimizer(plan)
    every = drawn(20, 6, LANES)
    # In another order, and not all in one step: some are ahead of others.
    for number in range(21):
        ahead, behind = np.array([4, 1]), np.array([0, 2, 5, 3])
        parts = [(ahead, number)] * (number < 20) + [(behind, number - 1)] * (number > 0)
        chunks = np.concatenate([part for part, _ in parts])
        shards.step(chunks, np.concatenate([every[step, part] for part, step in parts]))
    for gradients in every:
        worker.step([tensor], [gradients])
    held = shards.snapshot(np.arange(6))
    assert np.array_equal(held.parameters.view(np.uint32), tensor.view(np.uint32))
    assert held.levels.tolist() == [STARTED + 20] * 6


@pytest.mark.parametrize("name", ["sgd", "momentum", "nesterov", "adam"])
def test_keys_with_rates_of_their_own_step_alike_at_workers_and_servers(name: str) -> None:
    keys = (KeyOptions("biases*", 0.5, 0.0), KeyOptions("*2", rate=0.25))
    plan = OptimizerPlan(name, 0.1, weight_decay=0.01, keys=keys)
    names, counts = ["weights1", "biases1", "weights2", "biases2"], [3, 1, 2, 1]
    tensors = [drawn(count, LANES) for count in counts]
    # Zeros of either sign, which a decay of 0 must not change into each other.
    tensors[1][0, :2] = -0.0, 0.0
    shards = Shards(plan.by_chunk(names, counts), 7, LANES)
    shards.start(np.arange(7), np.concatenate(tensors))
    worker = Optimizer(plan, names)
    for gradients in drawn(5, 7, LANES):
        gradients[:, :2] *= -0.0
        shards.step(np.arange(7), gradients)
        worker.step(tensors, np.split(gradients, np.cumsum(counts)[:-1]))
    held = shards.snapshot(np.arange(7)).parameters
    assert np.array_equal(held.view(np.uint32), np.concatenate(tensors).view(np.uint32))
    # The options are in what came of it, not only alike in both.
    alone = Optimizer(OptimizerPlan(name, 0.5))
    (bias,) = [drawn(1, LANES)]
    bias[0, :2] = -0.0, 0.0
    for gradients in drawn(5, 7, LANES):
        gradients[:, :2] *= -0.0
        alone.step([bias], [gradients[3:4]])
    assert np.array_equal(tensors[1], bias)


def test_options_of_no_key_are_refused() -> None:
    plan = OptimizerPlan("sgd", 0.1, keys=(KeyOptions("bias*", 0.5),))
    with pytest.raises(ValueError, match=r"no key is called 'bias\*'; there are weights"):
        plan.by_chunk(["weights"], [2])
    with pytest.raises(ValueError, match="no key is called"):
        Optimizer(plan, ["weights"])
    with pytest.raises(ValueError, match="no key is named"):
        Optimizer(plan)


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


def test_unknown_chunk_is_rejected() -> None:
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
    [("lamb", (0.1,)), ("sgd", (0.0,)), ("adam", (0.1, 0.9)), ("adam", (0.1, 0.0, 0.0, 1.0)),
     ("sgd", (0.1, 0.5)), ("momentum", (0.1, 1.0)), ("momentum", (float("nan"), 0.9)),
     ("sgd", (0.1, 0.0, -1.0))],
)  # fmt: skip
def test_invalid_optimizers_are_rejected(name: str, numbers: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match=f"optimizer .?{name}"):
        OptimizerPlan(name, *numbers)


@pytest.mark.parametrize(
    "plan",
    [
        OptimizerPlan("momentum", 0.1, 0.9, 1e-5),
        OptimizerPlan(
            "adam", 0.1, schedule=Schedule("linear", 3, 9, 0.1), first_step=7,
            keys=(KeyOptions("a", 0.3, 0.7),),
        ).by_chunk(["a", "b"], [3, 2]),
    ],
    ids=str,
)  # fmt: skip
def test_parameters_are_equal_everywhere(plan: OptimizerPlan) -> None:
    assert OptimizerPlan.from_message(plan.to_message()) == plan
