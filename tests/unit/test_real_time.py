# SPDX-License-Identifier: Apache-2.0
"""Tests that pages keep what was measured in real time, and set it beside virtual time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from experiments.common import running
from experiments.common.declaration import Experiment, InRealTime, Point, Real
from experiments.common.real_time import Kept, measured_times
from observability.messages.summary import FinishedRun
from sweeps.execution import Outcome
from sweeps.store import Store, opened

RACK = {"name": "rack", "racks": [{"workers": 2, "servers": 1}]}
JOB = {"name": "job", "workload": "layers", "layers": ["4 KiB"], "iterations": 3}


def declared(job: dict[str, Any]) -> Experiment:
    def points(_: bool) -> list[Point]:
        return [Point({"one": 1}, RACK, job)]

    real = InRealTime("A small one.", [Real("slow", RACK, job)])
    return Experiment("Tiny", "Tiny", points, measured_times, lambda _: [], lambda _: [], real=real)


def finished(seconds: float, bound: bool) -> Outcome:
    summary: Any = {"seconds_per_iteration": [9.0, *[seconds] * 4], "machine": {"cpu_bound": bound}}
    found: FinishedRun = summary
    return Outcome(found, seconds=1.0)


@pytest.fixture
def fresh(tmp_path: Path) -> Callable[[str], Store]:
    def made(name: str) -> Store:
        with opened(tmp_path / name) as store:
            return store

    return made


def test_what_was_measured_in_real_time_stays_on_a_page(
    fresh: Callable[[str], Store], tmp_path: Path
) -> None:
    """Written again without it, also from another folder of results, the page still has the
    section, and says when it was measured. A changed setting has none."""
    page = tmp_path / "docs" / "tiny.md"
    course = running.prepare("tiny", declared(JOB), quick=False)
    (real,) = course.trials(emulated=True)
    first = fresh("first")
    for trial in course.trials(emulated=False):
        first.keep(trial, finished(0.1, bound=False), 1)
    first.keep(real, finished(0.12, bound=True), 1)
    running.write(course, first, page)
    row = "| slow | 100 | 120 | 1.20 | yes |"
    assert row in page.read_text()

    second = fresh("second")
    for trial in course.trials(emulated=False):
        second.keep(trial, finished(0.1, bound=False), 1)
    before = page.read_text()
    running.write(course, second, page)
    assert page.read_text() == before
    assert "What is in real time was measured on 20" in before

    other = running.prepare("tiny", declared({**JOB, "layers": ["8 KiB"]}), quick=False)
    third = fresh("third")
    for trial in other.trials(emulated=False):
        third.keep(trial, finished(0.1, bound=False), 1)
    running.write(other, third, page)
    assert "In real time" not in page.read_text()


def test_the_slowest_of_several_jobs_counts() -> None:
    jobs = [{"seconds_per_iteration": [9.0, one, one, one]} for one in (1.0, 2.0)]
    jobs[0]["machine"] = {"cpu_bound": True}  # type: ignore[assignment]
    assert measured_times({"jobs": jobs}) == {"seconds": 2.0, "cpu_bound": True}
    assert Kept.read(Path("/none")).days == []
