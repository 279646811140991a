# SPDX-License-Identifier: Apache-2.0
"""Tests the experiment on PSLD: the shapes of its coarse points."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from cli.main import main
from experiments.psld.jobs import CASES


@pytest.mark.timeout(300)
def test_balancing_helps_with_a_straggler_and_costs_nothing_without(tmp_path: Path) -> None:
    found = CliRunner().invoke(
        main, ["experiment", "psld", "--quick", "--jobs", "1", "--json", "--to", str(tmp_path)]
    )
    assert found.exit_code == 0, found.stderr  # claims hold: nothing moved where nothing is wrong
    figures = {one["id"]: one for one in json.loads(found.stdout)["figures"]}
    assert list(figures) == ["speedup.bandwidth.k3.5", "blocked.iterations", "cost.nothing-wrong"]
    fast = figures["speedup.bandwidth.k3.5"]
    assert fast["kind"] == "abstract"
    assert 2 < fast["ours"] <= 2.875
    assert figures["cost.nothing-wrong"]["ours"] < 1
    page = (tmp_path / "psld.md").read_text()
    assert "server 0 straggles" in page
    course = ElementTree.parse(tmp_path / "psld" / "course.svg").getroot()
    assert course.tag.endswith("svg")


def test_the_bound_is_the_notes() -> None:
    """(k (P - S) + S) / P with S slow servers of P."""
    cases = {case.name: case for case in CASES}
    assert cases["bandwidth"].bound(1) == 1
    assert cases["bandwidth"].bound(3.5) == 2.875
    assert cases["two"].bound(3.5) == 2.25
