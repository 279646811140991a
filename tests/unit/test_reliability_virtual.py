# SPDX-License-Identifier: Apache-2.0
"""Tests that the experiment on reliability finds in virtual time what it finds in emulation."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from cli.main import main

QUICK = (
    *("core killed", "worker stopped", "worker killed", "worker restarted", "server killed"),
    *("no core to plan with", "values", "several at once", "optimizer killed"),
    *("ToR stopped", "core stopped"),
)


def test_quick_scenarios_hold_in_virtual_time(runs: Path) -> None:
    only = [word for name in QUICK for word in ("--only", name)]
    words = ["experiment", "reliability", "--clock", "virtual", "--topology", "two-racks"]
    done = CliRunner().invoke(main, [*words, *only, "--json"])
    assert done.exit_code == 0, done.output
    lines = {line["scenario"]: line for line in json.loads(done.stdout)}
    assert lines.keys() == set(QUICK)
    for line in lines.values():
        assert line["problems"] == []
        assert line["matches"] is True
        assert line["target"] == "virtual time"
        assert line["scenario"] == "values" or line["seconds"] > 0


def test_a_killed_core_loses_nothing_of_a_job_with_priorities(runs: Path) -> None:
    words = ["experiment", "reliability", "--clock", "virtual", "--topology", "two-racks"]
    done = CliRunner().invoke(
        main, [*words, "--order", "priority", "--only", "core killed", "--json"]
    )
    assert done.exit_code == 0, done.output
    (line,) = json.loads(done.stdout)
    assert line["problems"] == []
    assert line["matches"] is True
    assert line["again"] > 0
    summary = json.loads((runs / line["run"] / "summary.json").read_text())
    assert summary["schedule"] == "priority, 8 classes"


def test_targets_are_of_emulation() -> None:
    refused = CliRunner().invoke(
        main, ["experiment", "reliability", "--clock", "virtual", "--target", "embedded"]
    )
    assert refused.exit_code == 2
    assert "--target is for --clock emulated; leave it out" in refused.stderr
