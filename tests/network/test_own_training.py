# SPDX-License-Identifier: Apache-2.0
"""Tests a user's training program on a running testbed (docs/howto/use-the-api.md)."""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from tests.network.testbeds import Rackhub, wait_for

PROGRAM = Path(__file__).parents[2] / "examples" / "regression.py"
CREATE = """
import sys
from hosts.client import Client
how = {"tree": "two-level-server"}
print(Client.create_service(None, "regression", sys.argv[1:], ["s0", "s1"], **how).nonce)
"""
WORKERS = ["w0", "w1", "w2", "w3"]
STEPS = 60


def create(rackhub: Rackhub) -> str:
    """The job's nonce, which a program at a host prints that makes it."""
    started = rackhub.call("exec", "w0", "python", "-c", CREATE, *WORKERS)
    assert started.returncode == 0, started.stderr
    return started.stdout.strip()


def plain() -> np.ndarray:
    """The same training in one process."""
    names = runpy.run_path(str(PROGRAM))
    parts = [names["data"](rank) for rank in range(len(WORKERS))]
    inputs, targets = (np.concatenate(each).astype(np.float64) for each in zip(*parts, strict=True))
    weights = np.zeros(inputs.shape[1])
    for _ in range(STEPS):
        weights -= names["RATE"] * inputs.T @ (inputs @ weights - targets) / len(inputs)
    return weights


def test_user_program_trains_on_running_testbed(tmp_path: Path) -> None:
    folder = tmp_path / "a-run-directory-so-far-down-that-no-unix-socket-in-it-could-be-named"
    folder.mkdir()
    rackhub = Rackhub(folder)
    try:
        rackhub.json("up", rackhub.topology, "--target", "embedded")
        nonce = create(rackhub)
        assert rackhub.call("why", "regression").returncode == 3  # it waits, for its workers
        # It shares switches with a job that was submitted, and is distinguished from it.
        summary = rackhub.json("submit", rackhub.job)
        assert summary["matches_reference"] is True
        assert summary["shared_with"] == summary["alongside"] == ["regression"]
        # A server that has joined it dies; the next process joins it again.
        log = rackhub.latest() / "logs" / "s0.log"
        assert log.read_text().count("joined 1\n") == 1
        os.kill(rackhub.pid("hosts.server --address 10.0.1.1 "), signal.SIGKILL)
        wait_for(lambda: log.read_text().count("joined 1\n") == 2, "s0 to join again")
        with ExitStack() as stack:
            workers = []
            for rank, host in enumerate(WORKERS):
                how = ("--steps", str(STEPS), "--save", tmp_path / host)
                place = {"RACKHUB_NONCE": nonce, "RACKHUB_RANK": str(rank)}
                worker = subprocess.Popen(
                    rackhub.command("exec", host, "python", PROGRAM, *how),
                    env=rackhub.environment | place,
                )
                stack.callback(worker.kill)
                workers.append(worker)
            assert [worker.wait(60) for worker in workers] == [0] * len(WORKERS)
        found = [np.load(tmp_path / f"{host}.npy") for host in WORKERS]
        assert {weights.tobytes() for weights in found} == {found[0].tobytes()}
        np.testing.assert_allclose(found[0], plain(), atol=1e-5)

        create(rackhub)  # the name is free again
        assert rackhub.call("stop", "regression").returncode == 0
        create(rackhub)
        snapshot = rackhub.json("status", "--live")
        rows = [row for row in snapshot["jobs"] if row["job"] == "regression"]
        assert [row["state"] for row in rows] == ["done", "stopped", "starting"]
        assert {row["iteration"] for row in rows} == {None}
        (*over, alive) = [row["slots"] for row in rows]
        assert over == [{}, {}]
        held = {one["name"]: one["slots"]["held"] for one in snapshot["switches"]}
        assert held == {"tor0": 0, "tor1": 0, "core0": 0} | alive
        told_now = rackhub.json("status")
        numbers = [row["number"] for row in rows]
        assert [row["number"] for row in told_now["others"]] == numbers
        for file in (rackhub.latest() / "logs").iterdir():
            assert nonce not in file.read_text()
    finally:
        down = rackhub.call("down")
    assert "stopped regression\n" in down.stdout
    assert not rackhub.processes()
    others = json.loads((rackhub.latest() / "summary.json").read_text())["others"]
    assert [one["state"] for one in others] == ["done", "stopped", "stopped"]
    assert [one["number"] for one in others] == numbers
    for one in others:
        assert 0 < one["began"] < one["ended"]
        assert not one["alive"]
