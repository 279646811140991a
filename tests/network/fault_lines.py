# SPDX-License-Identifier: Apache-2.0
"""Parametrizes fault scenarios as tests that share runs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console

from experiments.reliability.runner import Line, play
from experiments.reliability.scenarios import Course, Scenario, chosen, courses
from observability.progress_view import View


class Lines:
    """Results of scenarios on a target, run on demand."""

    def __init__(self, scenarios: Iterable[Scenario], folder: Path) -> None:
        self._courses = {one: run for run in courses(list(scenarios)) for one in _names(run)}
        self._folder = folder
        self._lines: dict[tuple[str, str], Line] = {}

    def of(self, scenario: Scenario, target: str) -> Line:
        """Returns a scenario's line; runs it, with those that share its run, if necessary."""
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
    """Redirects run directories to a folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RACKHUB_RUNS", str(folder / "runs"))
        yield


def parameters(scenarios: Iterable[Scenario], *marks: pytest.MarkDecorator) -> list[object]:
    """Returns parameters for ``pytest.mark.parametrize``, by name."""
    return [pytest.param(one, id=one.identity, marks=marks) for one in scenarios]


def named(topology: str, *names: str) -> list[Scenario]:
    """Returns the scenarios of a topology, all or by name."""
    return chosen(names, topology)
