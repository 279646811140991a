# SPDX-License-Identifier: Apache-2.0
"""Tests that servers of an emulated job come and go by command and by call."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

import rackhub
from cli.main import main

STAR = rackhub.Topology.build("star", racks=1, workers=2, servers=2)
JOB = {
    "name": "digits",
    "hidden": [32],
    "batch": 32,
    "iterations": 200,
    "slice_bytes": "1 KiB",
    "placement": {"kind": "ncs", "servers": ["s0"], "spares": ["s1"]},
}


def test_servers_come_and_go_by_command(runs: Path) -> None:
    """Twelve slices: six go to the spare server, then it gets all of them. Weights are right."""
    with rackhub.up(STAR, target="embedded") as testbed:
        job = testbed.submit(JOB)
        job.wait_for(2)
        assert job.scale("+s1") == {
            "job": "digits",
            "from_round": pytest.approx(100, abs=98),
            "slices": 6,
            "bytes": 6 * 1024,
            "servers": ["s0", "s1"],
            "spares": [],
        }
        with pytest.raises(rackhub.LaunchError, match="s1 has slices already"):
            job.scale("+s1")
        with pytest.raises(ValueError, match="'s1' should be"):
            testbed.scale("digits", "s1")
        words = ShellComplete(main, {}, "rackhub", "_RACKHUB_COMPLETE")
        asked = ["scale", "digits", "--servers"]
        for begun, whole in (("+s", "+s0"), ("+s1,-s", "+s1,-s0")):
            assert whole in [one.value for one in words.get_completions(asked, begun)]
        told = CliRunner().invoke(main, ["scale", "digits", "--servers", "-s0"])
        assert told.exit_code == 0, told.output
        assert told.stdout.startswith("digits moved 6 slices (6.14 kB), which holds from round ")
        assert told.stdout.endswith("servers: s1; spare: s0\n")
        result = job.wait()
    assert result.matches_reference
    (found,) = json.loads(result.path.joinpath("summary.json").read_text())["jobs"]
    assert len(found["plans"]) == 1
    refused = CliRunner().invoke(main, ["scale", "digits", "--servers", "s1"])
    assert refused.exit_code == 2
