# SPDX-License-Identifier: Apache-2.0
"""Tests training without a network: real data, real gradients, reproducible bits."""

from __future__ import annotations

import json
import subprocess

import numpy as np
import pytest
from sklearn.datasets import load_digits as sklearn_digits

from emulation.nodes.processes import environment, python
from specs.jobfile import parse
from specs.jobspec import JobSpec
from tests.conftest import ROOT
from workloads import trainer as training
from workloads.digits import Images, load_digits, split
from workloads.models import Parameters, batch_indices, shard_indices
from workloads.reference import Means
from workloads.workloads import model_of, open_workload

WORLD = 4
LEARNING = ("digits", "characters")


def job(**fields: object) -> JobSpec:
    given = {"name": "x", "iterations": 20, "hidden": [16], "batch": 64, **fields}
    return parse(json.dumps(given)).spec


def test_data_are_scikit_learns_digits() -> None:
    data = load_digits()
    images, classes = sklearn_digits(return_X_y=True)
    assert np.array_equal(data.images * 16, images)
    assert np.array_equal(data.classes, classes)


def test_test_set_is_held_out_and_shards_part_the_training_set() -> None:
    data = load_digits()
    numbered = Images(np.arange(len(data), dtype=np.float32)[:, None], data.classes)
    rest, held_out = split(numbered, seed=7)
    parts = [rest.select(shard_indices(len(rest), 7, rank, WORLD)) for rank in range(WORLD)]
    seen = np.concatenate([held_out.images, *(part.images for part in parts)])
    assert sorted(seen[:, 0].tolist()) == list(range(len(data)))
    # A fifth of each class, so no class is missing from the test.
    shares = np.bincount(held_out.classes) / np.bincount(data.classes)
    assert np.all(np.abs(shares - 0.2) < 0.01)


def test_a_pass_shows_every_example_of_a_shard_once() -> None:
    stream = batch_indices(43, 10, 1, 0)
    first = np.concatenate([next(stream) for _ in range(5)])[:43]
    assert sorted(first.tolist()) == list(range(43))
    assert np.array_equal(next(batch_indices(43, 10, 1, 0, first=5)), next(stream))


@pytest.mark.parametrize("name", LEARNING)
def test_gradients_are_those_of_the_loss(name: str) -> None:
    spec = job(workload=name, hidden=[12, 8], batch=32)
    model = model_of(spec)
    batch = next(open_workload(spec).batches(0, 1))
    _, gradients = model.gradients(batch)
    random = np.random.default_rng(0)
    for name, values in model.parameters.items():
        # Along a direction, the loss changes by the gradient's part in it (central difference).
        direction = random.standard_normal(values.shape).astype(np.float32)
        direction /= np.linalg.norm(direction)
        step = np.float32(1e-2)
        values += step * direction
        above, _ = model.gradients(batch)
        values -= 2 * step * direction
        below, _ = model.gradients(batch)
        values += step * direction
        slope = (above - below) / (2 * float(step))
        assert slope == pytest.approx(float((gradients[name] * direction).sum()), abs=2e-3), name


def test_workers_that_share_exact_sums_stay_equal_and_learn() -> None:
    spec = job(iterations=60)
    replicas = [training.Replica(spec, rank, WORLD) for rank in range(WORLD)]
    for _ in range(spec.iterations):
        everyone = [replica.gradients()[1] for replica in replicas]
        sums: Parameters = {
            name: np.sum([own[name] for own in everyone], axis=0) for name in everyone[0]
        }
        for replica in replicas:
            replica.apply(sums)
    assert len({training.digest(replica.parameters) for replica in replicas}) == 1
    assert replicas[0].model.evaluate(replicas[0].workload.test).accuracy > 0.85


def test_an_evaluation_is_of_the_parameters_at_that_time() -> None:
    one, other = (training.Replica(job(), rank, WORLD) for rank in range(2))
    found = one.model.evaluate(one.workload.test)
    assert other.model.evaluate(other.workload.test) == found
    biases = one.parameters["biases2"]
    biases[3] += 100  # every digit is a 3
    threes = float(np.mean(one.workload.test.classes == 3))
    assert one.model.evaluate(one.workload.test).accuracy == threes
    assert other.model.evaluate(other.workload.test) == found
    some = one.workload.test.select(one.workload.test.classes == 3)
    assert one.model.evaluate(some).accuracy == 1
    biases[3] -= 100
    assert one.model.evaluate(one.workload.test) == found


def reference(path: str, world: int) -> dict[str, object]:
    command = python("workloads.reference", "--job", path, "--world", str(world), "--lanes", "256")
    result = subprocess.run(command, capture_output=True, text=True, env=environment(), check=True)
    answer: dict[str, object] = json.loads(result.stdout)
    return answer


def test_reference_is_repeatable_and_the_default_job_reaches_95_percent() -> None:
    path = str(ROOT / "jobs" / "digits.yaml")
    first, second = reference(path, 8), reference(path, 8)
    assert first == second
    assert isinstance(first["accuracy"], float)
    assert first["accuracy"] >= 0.95


def test_more_than_one_blas_thread_is_refused() -> None:
    script = "from workloads.trainer import check_one_thread; check_one_thread()"
    many = {**environment(), "OPENBLAS_NUM_THREADS": "2", "OMP_NUM_THREADS": "2"}
    command = [*python("x")[:1], "-c", f"import numpy; {script}"]
    result = subprocess.run(command, capture_output=True, text=True, env=many)
    assert result.returncode != 0
    assert "set OPENBLAS_NUM_THREADS=1" in result.stderr
    assert subprocess.run(command, env=environment()).returncode == 0


def test_chunks_with_poison_and_no_others_do_not_fit() -> None:
    spec, world, lanes = job(poison=3, hidden=[64]), 4, 256
    clean = spec.model_copy(update={"poison": 0})
    ranks = [training.Replica(spec, rank, world) for rank in range(world)]
    others = [training.Replica(clean, rank, world) for rank in range(world)]
    means = Means([values.size for values in ranks[0].parameters.values()], lanes, world)
    spoiled_ranks = set()
    total = 0
    for _ in range(spec.iterations):
        gradients = {number: rank.gradients()[1] for number, rank in enumerate(ranks)}
        spoiled, not_finite = set(), set()
        for number, (mine, other) in enumerate(zip(gradients.values(), others, strict=True)):
            for name, clear in other.gradients()[1].items():
                for place in np.flatnonzero(mine[name] != clear):
                    chunk = (name, int(place) // lanes)
                    spoiled.add(chunk)
                    spoiled_ranks.add(number)
                    if not np.isfinite(mine[name].flat[place]):
                        not_finite.add(chunk)
        means_of_all = ranks[0].cure(means(gradients))
        assert all(np.isfinite(values).all() for values in means_of_all.values())
        assert len(not_finite) <= means.in_float32 - total <= len(spoiled)
        total = means.in_float32
    assert spoiled_ranks == set(range(world))
    assert total > spec.iterations
