# SPDX-License-Identifier: Apache-2.0
"""Tests `rackhub launch`: users' programs at several hosts, their failures, and interruptions."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.network.testbeds import Rackhub, read_until

SUM = """
import os, sys
import numpy as np
from hosts.client import Client

assert open("beside").read() == "its folder"
with Client() as client:
    client.connect_service()
    client.init_service({"x": 1000})
    assert os.environ["RACKHUB_WORLD_SIZE"] == str(client.world)
    sums = client.push_pull({"x": np.full(1000, client.rank + 1, np.float32)})
    print(os.environ["RACKHUB_HOST"], *sys.argv[1:], sums["x"][0], sums.workers["x"].max())
print("done", file=sys.stderr)
"""
# Rank 2 ends with status 3 in the midst of a training; the others notice.
FAIL = """
import sys
import numpy as np
from hosts.client import Client

with Client() as client:
    client.connect_service()
    client.init_service({"x": 1000})
    for step in range(1_000_000):
        client.push_pull({"x": np.ones(1000, np.float32)})
        if step == 5:
            print("trains")
        if step == 20 and client.rank == int(sys.argv[1]):
            sys.exit(3)
"""


@pytest.fixture
def rackhub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rackhub]:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "beside").write_text("its folder")
    (folder / "sum.py").write_text(SUM)
    (folder / "fail.py").write_text(FAIL)
    monkeypatch.chdir(folder)
    rackhub = Rackhub(tmp_path)
    yield rackhub
    rackhub.call("down")
    assert not rackhub.processes()


def test_ranks_sum_on_a_testbed_of_their_own(rackhub: Rackhub) -> None:
    given = ("--target", "embedded", "--hosts", "w3,w0,w1", "sum.py", "-n", "7")
    done = rackhub.call("launch", rackhub.topology, *given)
    assert done.returncode == 0, done.stderr
    lines = [f"[{rank}] {host} -n 7 6.0 3" for rank, host in enumerate(("w3", "w0", "w1"))]
    assert sorted(done.stdout.splitlines()) == lines
    first, *others = done.stderr.splitlines()
    assert first == f"sum: w3, w0, w1 of small; {rackhub.latest()}"
    assert sorted(others) == [f"[{rank}] done" for rank in range(3)]
    assert not rackhub.processes()
    summary = json.loads((rackhub.latest() / "summary.json").read_text())
    (job,) = summary["others"]
    assert (job["job"], job["state"], job["tree"], job["alive"]) == (
        "sum", "done", "two-level", False,
    )  # fmt: skip


def test_tutorial_program_prints_what_its_page_shows(rackhub: Rackhub) -> None:
    page = (ROOT / "docs" / "tutorial" / "own-model.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    Path("train.py").write_text(program)
    done = rackhub.call("launch", rackhub.topology, "--target", "embedded", "train.py")
    assert done.returncode == 0, done.stderr
    shown = [line.strip() for line in page.splitlines() if line.startswith("    [")]
    assert sorted(done.stdout.splitlines()) == shown


def test_first_failure_is_named_and_its_code_returned(rackhub: Rackhub) -> None:
    given = ("--target", "embedded", "-n", "4", "--placement", "ncs", "fail.py", "2")
    done = rackhub.call("launch", rackhub.topology, *given)
    assert done.returncode == 3, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last == "error: rank 2 (w2) ended with exit status 3; the others were ended"
    assert sorted(done.stdout.splitlines()) == [f"[{rank}] trains" for rank in range(4)]
    assert not rackhub.processes()


def test_interruption_ends_ranks_and_testbed(rackhub: Rackhub) -> None:
    given = ("launch", rackhub.topology, "--target", "embedded", "fail.py", "-1")
    with rackhub.started(*given) as launched:
        read_until(launched, "trains")
        launched.send_signal(signal.SIGINT)
        said, _ = launched.communicate(timeout=60)
        assert launched.returncode == 130, said
        assert not rackhub.processes()
    *_, ended, last = said.splitlines()
    assert ended.startswith("ended by SIGINT: taking the testbed down; its record is ")
    assert last == "interrupted"
    assert "Traceback" not in said


def test_testbed_that_is_up_stays_up_and_free_of_the_job(rackhub: Rackhub) -> None:
    rackhub.json("up", rackhub.topology, "--target", "embedded")
    for end, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        with subprocess.Popen(
            rackhub.command("launch", "--on", "small", "-n", "2", "fail.py", "-1"),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=rackhub.environment,
        ) as launched:  # fmt: skip
            read_until(launched, "trains")
            launched.send_signal(end)
            _, said = launched.communicate(timeout=60)
            assert launched.returncode == status, said
        assert not any("fail.py" in command for command in rackhub.processes().values())
    # A program that takes no part holds nothing either; others may be commands, too.
    done = rackhub.call("launch", "--on", "small", "-n", "2", "sh", "-c", "echo $RACKHUB_RANK")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0] 0", "[1] 1"]
    rows = rackhub.json("jobs")
    assert [(row["job"], row["state"]) for row in rows] == [
        ("fail", "stopped"), ("fail", "stopped"), ("sh", "stopped"),
    ]  # fmt: skip
    switches = rackhub.json("status", "--live")["switches"]
    assert [one["slots"]["held"] for one in switches] == [0, 0, 0]
    # The job itself is ended by another command.
    with subprocess.Popen(
        rackhub.command("launch", "--on", "small", "-n", "2", "fail.py", "-1"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=rackhub.environment,
    ) as launched:  # fmt: skip
        read_until(launched, "trains")
        assert rackhub.call("stop", "fail").returncode == 0
        _, said = launched.communicate(timeout=60)
        assert launched.returncode == 1
    assert said.splitlines()[-1].endswith("; the job had ended: stopped on request")
    assert {row["state"] for row in rackhub.json("jobs")} == {"stopped"}


def test_a_job_may_have_classes_of_urgency(rackhub: Rackhub) -> None:
    program = SUM.replace("np.float32)})", "np.float32)}, priority=3)")
    assert program != SUM
    (rackhub.folder / "mine" / "sum.py").write_text(program)
    rackhub.json("up", rackhub.topology, "--target", "embedded")
    given = ("--on", "small", "-n", "2", "--order")
    done = rackhub.call("launch", *given, "priority", "sum.py")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{rank}] w{rank} 3.0 2" for rank in range(2)]
    refused = rackhub.call("launch", *given, "fifo", "sum.py")
    assert refused.returncode == 1
    assert "the job has one class of urgency" in refused.stderr
