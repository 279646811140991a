# SPDX-License-Identifier: Apache-2.0
"""Tests that servers and workers of an emulated job come and go by command and by call."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

import rackhub
from cli.main import main

# Slow links, so that there is time for all that happens, however fast the machine is.
STAR = rackhub.Topology.build("star", racks=1, workers=3, servers=2, link="4 Mbit/s")
JOB = {
    "name": "digits",
    "hidden": [32],
    "batch": 32,
    "iterations": 90,
    "slice_bytes": "1 KiB",
    "placement": {"kind": "ncs", "workers": ["w0", "w1"], "servers": ["s0"], "spares": ["s1"]},
}


def test_servers_and_workers_come_and_go_by_command(runs: Path) -> None:
    """Of twelve slices six go to the spare server, then it gets all of them. Means are those of the
    workers present, as the reference computes them."""
    with rackhub.up(STAR, target="embedded") as testbed:
        job = testbed.submit(JOB)
        job.wait_for(2)
        assert job.scale(["+s1"]) == {
            "job": "digits",
            "workers": None,
            "killed": [],
            "servers": {
                "from_round": pytest.approx(45, abs=43),
                "slices": 6,
                "bytes": 6 * 1024,
                "servers": ["s0", "s1"],
                "spares": [],
            },
        }
        with pytest.raises(rackhub.LaunchError, match="s1 has slices already"):
            job.scale(["+s1"])
        with pytest.raises(ValueError, match="'s1' should be"):
            testbed.scale("digits", ["s1"])
        with pytest.raises(ValueError, match="'\\+s1' should be a list"):
            testbed.scale("digits", "+s1")
        with pytest.raises(ValueError, match="no server or worker is named"):
            job.scale()
        words = ShellComplete(main, {}, "rackhub", "_RACKHUB_COMPLETE")
        asked = ["scale", "digits", "--servers"]
        for begun, whole in (("+s", "+s0"), ("+s1,-s", "+s1,-s0")):
            assert whole in [one.value for one in words.get_completions(asked, begun)]
        told = CliRunner().invoke(main, ["scale", "digits", "--servers", "-s0"])
        assert told.exit_code == 0, told.output
        assert told.stdout.startswith("digits moved 6 slices (6.14 kB), which holds from round ")
        assert told.stdout.endswith("servers: s1; spare: s0\n")
        assert job.scale(workers=["+w2"])["workers"] == ["w0", "w1", "w2"]
        # It joins within two iterations, and takes part in two at least.
        job.wait_for(testbed.jobs()[0]["iteration"] + 4)
        for words, text in (
            (["-w3"], "no worker at w3; workers: w0..w2"),
            (["-w0", "-w1", "-w2"], "none of the workers that it has would be left"),
            (["+w2"], "w2 is in the job, or on its way"),
            (["+w7"], "'w7' is no host of star"),
        ):
            with pytest.raises(rackhub.LaunchError, match=text):
                job.scale(workers=words)
        with pytest.raises(rackhub.LaunchError, match="no worker at w3; workers"):
            job.scale(["+s0"], ["-w3"])  # neither has happened
        both = ["scale", "digits", "--workers", "-w0", "--servers", "+s0"]
        told = CliRunner().invoke(main, both)
        assert told.exit_code == 0, told.output
        assert told.stdout.startswith("workers of digits: w1, w2\ndigits moved 6 slices")
        result = job.wait()
    assert result.matches_reference
    (found,) = json.loads(result.path.joinpath("summary.json").read_text())["jobs"]
    counts = found["workers_per_iteration"]
    assert (counts[0], max(counts), counts[-1]) == (2, 3, 2)
    assert found["rejoined_workers"] == {}
    assert found["lost_workers"] == {}
    assert found["left_workers"] == {"w0": counts.index(2, 2 + counts.index(3))}
    assert all(len(span["sums"]) == 1 for span in found["attendance"])
    log = result.path.joinpath("logs", "w0.log").read_text()
    assert "Traceback" not in log
    rows = json.loads(result.path.joinpath("summary.json").read_text())["faults"]
    assert [row["node"] for row in rows if row["kind"] == "scale"] == [
        "servers +s1",
        "servers -s0",
        "workers +w2",
        "servers +s0, workers -w0",
    ]
    refused = CliRunner().invoke(main, ["scale", "digits", "--servers", "s1"])
    assert refused.exit_code == 2


def test_parameters_follow_the_slices_of_servers_that_optimize(runs: Path) -> None:
    """Weights, and so the momentum that moved, are right, or the run would fail."""
    optimizer = {"name": "momentum", "rate": 0.05, "momentum": 0.9, "at": "servers"}
    with rackhub.up(STAR, target="embedded") as testbed:
        job = testbed.submit({**JOB, "optimizer": optimizer})
        job.wait_for(2)
        job.scale(["+s1"])
        job.scale(["-s0"])
        job.scale(["+s0", "-s1"])
        result = job.wait()
    assert result.matches_reference
    (found,) = json.loads(result.path.joinpath("summary.json").read_text())["jobs"]
    assert len(found["plans"]) == 1
    logs = {name: result.path.joinpath("logs", f"{name}.log").read_text() for name in ("s0", "s1")}
    assert all("chunks, " in text and "have moved here from" in text for text in logs.values())


def test_slices_move_where_workers_are_in_rounds_of_their_own(runs: Path) -> None:
    """Servers take a step with each gradient, once, and staleness stays within its bound; also
    when a worker leaves."""
    optimizer = {"name": "momentum", "rate": 0.02, "momentum": 0.5, "at": "servers"}
    with rackhub.up(STAR, target="embedded") as testbed:
        job = testbed.submit({**JOB, "optimizer": optimizer, "consistency": {"staleness": 2}})
        for order in (["+s1"], ["-s0"], ["+s0", "-s1"]):
            # Chunks move with their next contributions, so all have moved before.
            job.wait_for(testbed.jobs()[0]["iteration"] + 2)
            job.scale(order)
        assert job.scale(workers=["-w0"])["workers"] == ["w1"]
        result = job.wait()
    (found,) = json.loads(result.path.joinpath("summary.json").read_text())["jobs"]
    assert len(found["plans"]) == 2
    # Of twelve chunks half, then the other half, then all; with their momentum.
    assert [one["slices"] for one in found["moves"]] == [6, 6, 12]
    assert [one["bytes"] for one in found["moves"]] == [2 * 1024 * n for n in (6, 6, 12)]
    assert found["staleness_seen"]["max"] <= 2
    logs = [result.path.joinpath("logs", f"{name}.log").read_text() for name in ("s0", "s1")]
    stepped = [int(n) for text in logs for n in re.findall(r"'stepped': (\d+)", text)]
    assert sum(stepped) == 12 * (JOB["iterations"] + found["left_workers"]["w0"])


def test_a_worker_in_a_tree_of_switches_leaves_and_comes_back_or_is_killed(runs: Path) -> None:
    """A stopped one cannot leave."""
    topology = rackhub.Topology.build("pair", racks=2, workers=2, cores=1, link="4 Mbit/s")
    with rackhub.up(topology, target="embedded") as testbed:
        job = testbed.submit(
            {"name": "digits", "hidden": [32], "batch": 32, "iterations": 90, "patience": "10 s"}
        )
        job.wait_for(2)
        done = CliRunner().invoke(main, ["scale", "digits", "--workers", "-w3"])
        assert (done.exit_code, done.stdout) == (0, "workers of digits: w0..w2\n")
        assert job.scale(workers=["+w3"])["workers"] == ["w0", "w1", "w2", "w3"]
        testbed.pause("w1")
        done = CliRunner().invoke(main, ["scale", "digits", "--workers", "-w1"])
        assert done.exit_code == 0
        assert "did not leave in time, killed: w1" in done.stderr
        result = job.wait()
    assert result.matches_reference
    (found,) = json.loads(result.path.joinpath("summary.json").read_text())["jobs"]
    assert (found["left_workers"], found["rejoined_workers"]) == ({}, {"w3": 1})
    assert found["lost_workers"] == {"w1": "did not leave within 5 s and was killed"}
