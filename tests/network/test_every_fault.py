# SPDX-License-Identifier: Apache-2.0
"""Tests every fault of docs/results/reliability.md: exact sums, no hang, and the expected effects.

All at two racks on the embedded target but the rarest losses, which take most chunks to meet any;
these, four racks, BMv2, and two racks whose job has priorities with ``make soak``.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from experiments.reliability.scenarios import SCENARIOS, TWO_RACKS, Scenario, chosen
from hosts.worker.scheduling.registry import PRIORITY
from tests.network.fault_lines import Lines, named, parameters, runs_in

HERE = [one for one in named(TWO_RACKS) if one.name != "loss of 0.1 %"]
REST = [one for one in SCENARIOS if one not in HERE]
URGENT_FIRST = chosen((), TWO_RACKS, PRIORITY)

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lines]:
    folder = tmp_path_factory.mktemp("here")
    with runs_in(folder):
        yield Lines(HERE, folder)


@pytest.fixture(scope="module")
def all_lines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lines]:
    folder = tmp_path_factory.mktemp("all")
    with runs_in(folder):
        yield Lines(SCENARIOS, folder)


@pytest.fixture(scope="module")
def lines_by_priority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lines]:
    folder = tmp_path_factory.mktemp("priority")
    with runs_in(folder):
        yield Lines(URGENT_FIRST, folder)


@pytest.mark.parametrize("scenario", parameters(HERE))
def test_fault(scenario: Scenario, lines: Lines) -> None:
    assert lines.of(scenario, "embedded").problems == []


@pytest.mark.soak
@pytest.mark.parametrize("scenario", parameters(REST))
def test_fault_at_length(scenario: Scenario, all_lines: Lines) -> None:
    assert all_lines.of(scenario, "embedded").problems == []


@pytest.mark.soak
@pytest.mark.parametrize("scenario", parameters(URGENT_FIRST))
def test_fault_with_priorities(scenario: Scenario, lines_by_priority: Lines) -> None:
    assert lines_by_priority.of(scenario, "embedded").problems == []


@pytest.mark.soak
@pytest.mark.bmv2
@pytest.mark.parametrize("scenario", parameters(SCENARIOS))
def test_fault_on_bmv2(scenario: Scenario, all_lines: Lines) -> None:
    assert all_lines.of(scenario, "bmv2").problems == []
