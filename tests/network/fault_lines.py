# SPDX-License-Identifier: Apache-2.0
"""Parametrizes fault scenarios as tests that share runs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console

from cli.view import View
from experiments.reliability.runner import Line, play
from experiments.reliability.scenarios import Course, Scenario, chosen, courses


class Lines:
    """What scenarios came to on a target."""

    def __init__(self, scenarios: Iterable[Scenario], folder: Path) -> None:
        self._courses = {one: run for run in courses(list(scenarios)) for one in _names(run)}
        self._folder = folder
        self._lines: dict[tuple[str, str], Line] = {}

    def of(self, scenario: Scenario, target: str) -> Line:
        """Has it, and those of the same run, if that was not yet."""
        if (scenario.identity, target) not in self._lines:
            course = self._courses[scenario.identity]
            with View(Console(file=sys.stderr)) as view:
                lines = play(course, target, self._folder, view)
            for one, line in zip(course.scenarios, lines, strict=True):
                self._lines[one.identity, target] = line
        return self._lines[scenario.identity, target]


def _names(course: Course) -> list[str]:
    return [one.identity for one in course.scenarios]


@contextmanager
def runs_in(folder: Path) -> Iterator[None]:
    """Run directories are made there meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RACKHUB_RUNS", str(folder / "runs"))
        yield


def parameters(scenarios: Iterable[Scenario], *marks: pytest.MarkDecorator) -> list[object]:
    """For ``pytest.mark.parametrize``, by name."""
    return [pytest.param(one, id=one.identity, marks=marks) for one in scenarios]


def named(topology: str, *names: str) -> list[Scenario]:
    """Scenarios of a topology, all or some."""
    return chosen(names, topology)
