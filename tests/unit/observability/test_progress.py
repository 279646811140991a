# SPDX-License-Identifier: Apache-2.0
"""Tests that progress figures do not depend on the order of worker reports."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from observability.progress import Progress


def report(
    iteration: int, *losses: float, accuracy: float | None = None, late: float = 0.0
) -> dict[str, Any]:
    """Iterations begin every second; the worker needs half of it, and ``late``."""
    first = iteration - len(losses) + 1
    return {
        "iteration": iteration,
        "passes": iteration / 4,
        "losses": list(losses),
        "spans": [(i, i + 0.5 + late) for i in range(first, iteration + 1)],
        "accuracy": accuracy,
        "statistics": {"completed": 9 * iteration, "completed_direct": iteration},
    }


def test_losses_of_one_iteration_are_averaged_whenever_they_arrive() -> None:
    progress = Progress(world=2, iterations=8)
    assert progress.message() == {"iteration": 0, "iterations": 8}
    assert not progress.take(0, report(3, 8.0, 4.0, 2.0))  # rank 1 has reported nothing
    assert progress.message()["iteration"] == 0
    assert progress.take(1, report(2, 6.0, 5.0))
    result = progress.message()
    assert (result["iteration"], result["loss"], result["passes"]) == (2, 4.5, 0.5)
    assert result["share_in_network"] == 0.9
    assert progress.take(1, report(4, 4.0, 3.0))
    assert (progress.message()["iteration"], progress.message()["loss"]) == (3, 3.0)


def test_every_order_of_the_last_reports_ends_with_the_same_figures() -> None:
    ends = set()
    for order in permutations(range(3)):
        progress = Progress(world=3, iterations=2)
        for rank in order:
            progress.take(rank, report(1, 0.1 * (rank + 1)))
        taken = []
        for rank in reversed(order):
            taken.append(progress.take(rank, report(2, 0.7 / (rank + 1), accuracy=0.5)))
        assert taken == [False, False, True]
        ends.add((progress.message()["loss"], progress.message()["accuracy"]))
    ((loss, accuracy),) = ends
    assert loss == pytest.approx((0.7 + 0.35 + 0.7 / 3) / 3)
    assert accuracy == 0.5


def test_accuracy_is_reported_from_its_iteration() -> None:
    progress = Progress(world=2, iterations=8)
    progress.take(0, report(4, 1.0, 1.0, 1.0, 1.0, accuracy=0.25))
    progress.take(1, report(3, 1.0, 1.0, 1.0))
    assert progress.message()["accuracy"] is None
    progress.take(1, report(5, 1.0, 1.0, accuracy=None))
    assert progress.message()["accuracy"] == 0.25


def test_iteration_is_reported_once_when_last_worker_ends() -> None:
    progress = Progress(world=2, iterations=8)
    progress.take(0, report(2, 8.0, 4.0, accuracy=0.5))
    assert progress.latest == []
    progress.take(1, report(3, 6.0, 2.0, 1.0, late=0.25))
    assert progress.latest == [(1, 1.75, 7.0, None), (2, 2.75, 3.0, 0.5)]
    progress.take(1, report(4, 1.0))
    assert progress.latest == []
    progress.take(0, report(4, 3.0, 1.0, late=0.5))
    assert progress.latest == [(3, 4.0, 2.0, None), (4, 5.0, 1.0, None)]


def test_progress_continues_without_lost_worker() -> None:
    progress = Progress(world=3, iterations=8)
    for rank in range(3):
        progress.take(rank, report(1, 3.0))
    progress.drop(0)
    assert not progress.take(0, report(2, 1.0))  # what was still on its way
    assert not progress.take(1, report(4, 3.0, 2.0, 1.0))
    assert progress.take(2, report(4, 5.0, 4.0, 3.0))
    result = progress.message()
    assert (result["iteration"], result["loss"], result["passes"]) == (4, 2.0, 1.0)


def rates(*reports: tuple[float, int]) -> list[float | None]:
    """Chunks per second after each report of a lone worker: (when, its iteration)."""
    now = 0.0
    progress = Progress(world=1, iterations=99, clock=lambda: now)
    messages = []
    for when, iteration in reports:
        now = when
        progress.take(0, report(iteration, *[1.0] * (iteration - progress.iteration)))
        messages.append(progress.message()["chunks_per_second"])
    return messages


def test_reports_that_bunch_up_do_not_make_a_job_look_faster() -> None:
    """10 chunks an iteration, 2 iterations a second; one report is late, so two come at once."""
    result = rates((1.0, 2), (2.0, 4), (3.999, 6), (4.0, 8), (5.0, 10))
    assert result[:2] == [None, 20.0]
    assert result[2] == result[3] == pytest.approx(20 / 1.999)
    assert result[4] == pytest.approx(40 / 1.001)  # all since the last measure
