# SPDX-License-Identifier: Apache-2.0
"""Processes that somebody kills come back, and `rackhub chaos` says what its faults did.

What each kind of fault does to a job is in tests/network/test_faults.py.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.network.testbeds import Rackhub, read_until

TARGETS = ["embedded", pytest.param("bmv2", marks=pytest.mark.bmv2)]
ITERATIONS = 200  # long enough to be hit in the middle
COMMANDS = {"controller": "-m controller --topology"}


@pytest.fixture
def rackhub(tmp_path: Path) -> Rackhub:
    rackhub = Rackhub(tmp_path)
    job = rackhub.job.read_text().replace("iterations: 12", f"iterations: {ITERATIONS}")
    rackhub.job.write_text(job)
    return rackhub


def process_of(rackhub: Rackhub, name: str) -> int:
    """The process of a node."""
    words = COMMANDS.get(name, f"--grpc-server-addr unix:sockets/{name} ").split()
    (found,) = [
        pid
        for pid, command in rackhub.processes().items()
        # Not what started the supervisor, nor the supervisor.
        if all(word in command.split() for word in words)
    ]
    return found


def struck(
    rackhub: Rackhub, target: str, name: str, number: signal.Signals
) -> tuple[str, dict[str, Any]]:
    """What a run said, and its summary, one of whose processes got a signal while it trained."""
    arguments = ("run", rackhub.topology, "--job", rackhub.job, "--target", target)
    with rackhub.started(*arguments) as process:
        said = read_until(process, "iteration")
        os.kill(process_of(rackhub, name), number)
        rest, _ = process.communicate(timeout=180)
    said += rest
    assert process.returncode == 0, said
    summary: dict[str, Any] = json.loads((rackhub.latest() / "summary.json").read_text())
    return said, summary


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["tor0", "controller"])
def test_a_killed_process_is_started_again_and_the_job_goes_on(
    rackhub: Rackhub, target: str, name: str
) -> None:
    said, summary = struck(rackhub, target, name, signal.SIGKILL)
    assert f"{name} was killed by SIGKILL; started again" in said
    assert summary["matches_reference"] is True
    assert len(summary["seconds_per_iteration"]) == ITERATIONS
    (fault,) = summary["faults"]
    assert (fault["node"], fault["what"], fault["job"]) == (name, "was killed by SIGKILL", "brief")
    assert fault["seconds"] > 0
    if name == "controller":
        # Running jobs do not notice.
        assert fault["epoch_after"] == fault["epoch_before"]
        assert summary["chunks"]["aggregated_in_network"] == ITERATIONS * (8 + 1 + 2 + 1)
    else:
        assert fault["epoch_after"] > fault["epoch_before"]
        assert summary["chunks"]["aggregated_in_network"] is None
        assert f"{name} lost what was counted there" in summary["chunks"]["unknown"]
        # BMv2's ports are counted by the kernel. What went to other switches those have counted.
        hosts = [r for r in summary["links"] if r["from"] == name and r["to"][0] in "ws"]
        between = [r for r in summary["links"] if r["from"] == name and r not in hosts]
        assert {row["bytes"] is None for row in hosts} == (
            {target == "embedded"} if hosts else set()
        )
        assert all(row["bytes"] > 0 for row in between)
        if hosts and target == "embedded":
            assert "unknown: tor0 has lost what it had counted." in said


FAULTS = """\
name: everything
faults:
  - {at: 0.5 s, kill: core0, gone: 1 s}
  - {after: 200 chunks, stop: w2, for: 2 s}
  - {after: 200 chunks, impair: {ends: [tor0, core0], loss: 10 %}, for: 300 chunks}
  - {after: 200 chunks, disconnect: tor0, for: 1 s}
"""


@pytest.mark.parametrize("target", TARGETS)
def test_a_schedule_is_carried_out_and_measured(rackhub: Rackhub, target: str) -> None:
    rackhub.job.write_text(rackhub.job.read_text().replace(str(ITERATIONS), "500"))
    schedule = rackhub.folder / "faults.yaml"
    schedule.write_text(FAULTS)
    result = rackhub.call(
        "chaos", rackhub.topology, "--faults", schedule, "--job", rackhub.job,
        "--target", target,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    assert "core0 was killed by SIGKILL; it stays away for 1 s" in result.stdout
    assert "went on after, s" in result.stdout
    summary = json.loads((rackhub.latest() / "summary.json").read_text())
    assert summary["matches_reference"] is True
    faults = {(row["kind"], row["node"]): row for row in summary["faults"]}
    planned_anew = ("kill", "core0")
    others = [("stop", "w2"), ("impair", "tor0-core0"), ("disconnect", "tor0")]
    # What was lost on the impaired link was sent again.
    assert faults["impair", "tor0-core0"]["resent_packets"] > 0
    assert set(faults) == {planned_anew, *others}
    for row in faults.values():
        assert row["seconds"] > 0
        assert row["resent_bytes"] == row["resent_packets"] * (74 + 1024)
    # Nothing was sent through the core while it was away, nor by w2 while it was stopped.
    assert faults["kill", "core0"]["seconds"] > 1
    assert faults["stop", "w2"]["seconds"] > 2
    assert faults[planned_anew]["epoch_after"] > faults[planned_anew]["epoch_before"]
    for where in others:
        assert faults[where]["epoch_after"] == faults[where]["epoch_before"]
    # Each came when the job had gone on after the one before.
    times = sorted((row["at"], row["at"] + row["seconds"]) for row in faults.values())
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(times))
