# SPDX-License-Identifier: Apache-2.0
"""The command line, where it needs no testbed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from testbed.cli import main
from tests.conftest import ROOT

TWO_RACKS = str(ROOT / "topologies" / "two-racks.yaml")


def rackhub(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def test_validate_describes_a_topology() -> None:
    result = rackhub("validate", TWO_RACKS, "--json", "--job", str(ROOT / "jobs" / "digits.yaml"))
    assert result.exit_code == 0
    facts = json.loads(result.stdout)
    assert (facts["racks"], facts["workers"], facts["switches"]) == (2, 8, 3)


def test_a_wrong_topology_is_refused_with_file_line_and_field(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("name: bad\nracks:\n  - {workers: four}\n")
    result = rackhub("run", str(path))
    assert result.exit_code == 1
    assert f"{path}:3: racks[0].workers:" in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("change", "reason"),
    [("defaults: {delay: 5 ms}", "has a delay"), ("tls: true", "tls: true")],
)
def test_what_emulation_cannot_do_is_refused_with_the_reason(
    tmp_path: Path, change: str, reason: str
) -> None:
    path = tmp_path / "topology.yaml"
    path.write_text(f"name: t\nracks:\n  - {{workers: 1, servers: 1}}\n{change}\n")
    result = rackhub("up", str(path))
    assert result.exit_code == 1
    assert reason in result.output


def test_the_virtual_clock_is_refused_with_the_reason(runs: Path) -> None:
    result = rackhub("run", TWO_RACKS, "--clock", "virtual")
    assert result.exit_code == 1
    assert "--clock virtual" in result.output
    assert not runs.exists()


def test_commands_for_a_testbed_say_when_none_is_up(runs: Path) -> None:
    for command in (["status"], ["jobs"], ["down"], ["stop", "x"], ["exec", "w0", "true"]):
        result = rackhub(*command)
        assert result.exit_code == 1
        assert "no testbed is up; start one with `rackhub up TOPOLOGY`" in result.output
    assert "no testbed 'x' is up" in rackhub("status", "--on", "x").output
    assert not runs.exists()


def test_graph_draws_every_node() -> None:
    drawing = rackhub("graph", TWO_RACKS).stdout
    assert drawing.lstrip().startswith("<")
    for name in ("w0", "w7", "s1", "tor1", "core0"):
        assert name in drawing


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_printed(shell: str) -> None:
    assert "_RACKHUB_COMPLETE" in rackhub("completion", shell).stdout
