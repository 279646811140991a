# SPDX-License-Identifier: Apache-2.0
"""Tests the experiment on many jobs at one hub: the shapes of its coarse points."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from cli.main import main
from experiments.tenants.jobs import HUBS, SWITCH


@pytest.mark.timeout(300)
def test_jobs_share_what_is_narrow_and_nothing_else(tmp_path: Path) -> None:
    found = CliRunner().invoke(
        main, ["experiment", "tenants", "--quick", "--jobs", "1", "--json", "--to", str(tmp_path)]
    )
    assert found.exit_code == 0, found.stderr  # claims: no slow-down with wide links, fairness
    figures = {one["id"]: one for one in json.loads(found.stdout)["figures"]}
    for name in ("slowdown.pbox-10x56.8", "slowdown.switch.8"):
        assert figures[name]["ours"] == pytest.approx(1, abs=0.05)
    assert 1.2 < figures["slowdown.pbox-10x10.8"]["ours"] < 1.7  # 1.6 once all are under way
    assert figures["recalled.pbox-10x56.8"]["kind"] == "recall"
    picture = ElementTree.parse(tmp_path / "tenants" / "slowdown.svg").getroot()
    assert picture.tag.endswith("svg")


def test_what_links_need_is_all_jobs_gradients_over_the_links_rate() -> None:
    wide, narrow = HUBS[:2]
    assert [wide.slowdown(jobs) for jobs in (1, 8)] == [1, 1]
    assert [narrow.slowdown(jobs) for jobs in (1, 5, 8)] == [1, 1, pytest.approx(1.6)]
    assert SWITCH.slowdown(8) == 1
