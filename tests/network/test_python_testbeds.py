# SPDX-License-Identifier: Apache-2.0
"""Tests emulated testbeds from Python: runs, jobs, commands, faults, and that nothing is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import rackhub
from observability.messages.events import Event
from rackhub.results import Result
from tests.conftest import ROOT
from tests.network.testbeds import interfaces, wait_for

SMALL = rackhub.Topology.build("small", racks=2, workers=2, link="50 Mbit/s")
BRIEF = {"name": "brief", "hidden": [32], "iterations": 12, "batch": 256}
ENDLESS = {**BRIEF, "name": "endless", "iterations": 1_000_000}


def sandboxed(runs: Path) -> list[int]:
    """Processes that know this folder of runs, other than this one."""
    mark = f"RACKHUB_RUNS={runs}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdecimal() and mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return [pid for pid in found if pid != os.getpid()]


@pytest.fixture(autouse=True)
def nothing_left(runs: Path) -> Iterator[None]:
    before = interfaces()
    yield
    wait_for(lambda: not sandboxed(runs), "processes of the testbed to end")
    assert interfaces() == before


def test_a_run_is_emulated_and_matches_virtual_time(runs: Path) -> None:
    """Weights are the same under both clocks."""
    real = rackhub.run(SMALL, BRIEF, target="embedded")
    virtual = rackhub.run(SMALL, BRIEF, clock="virtual")
    assert (real.clock, real.matches_reference, len(real.iterations)) == ("emulated", True, 12)
    assert {one.workers for one in real.iterations} == {4}
    found = [one.job_summary["weights_sha256"] for one in (real, virtual)]
    assert found[0] == found[1]
    assert [one.loss for one in real.iterations] == [one.loss for one in virtual.iterations]
    # On a busy machine packets are sent again, beyond what is expected.
    ends = [{(row["from"], row["to"]): row for row in one.links} for one in (real, virtual)]
    expected = {way: row["expected_bytes"] for way, row in ends[0].items()}
    assert expected == {way: row["bytes"] for way, row in ends[1].items()}


def test_an_interrupt_takes_the_testbed_down(runs: Path) -> None:
    def interrupt(event: Event) -> None:
        if event["event"] == "progress":
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        rackhub.run(SMALL, ENDLESS, target="embedded", progress=interrupt)
    assert not sandboxed(runs)
    assert "ended by SIGINT" in (runs / "latest" / "summary.json").read_text()


def test_a_killed_program_leaves_no_testbed(runs: Path) -> None:
    code = (
        "import rackhub, signal; up = rackhub.up('two-racks', target='embedded');"
        " print('up', flush=True); signal.pause()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, env=os.environ, cwd=ROOT
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"up\n"
        assert sandboxed(runs)
        program.kill()


def test_jobs_commands_and_measurements_on_a_testbed(runs: Path) -> None:
    with rackhub.up(SMALL, name="mine", target="embedded") as testbed:
        assert (testbed.name, testbed.description["workers"]) == ("mine", 4)
        ping = testbed.exec("w0", ["ping", "-c", "1", "-q", "10.0.1.1"], check=True)
        assert "1 packets transmitted, 1 received" in ping.stdout
        code = "import os, sys; print(os.environ['RACKHUB_HOST'], sys.stdin.read()); sys.exit(3)"
        told = testbed.exec("w3", ["python", "-c", code], input="given")
        assert (told.returncode, told.stdout, told.stderr) == (3, "w3 given\n", "")
        with pytest.raises(subprocess.CalledProcessError):
            testbed.exec("w0", ["false"], check=True)
        with pytest.raises(subprocess.TimeoutExpired):
            testbed.exec("w0", ["sleep", "1000"], timeout=0.1)
        with pytest.raises(rackhub.ControlError, match="no node 'w9' in mine: w0, "):
            testbed.exec("w9", ["true"])
        with pytest.raises(rackhub.ControlError, match="nothing-like-it: command not found"):
            testbed.exec("w0", ["nothing-like-it"])

        with pytest.raises(rackhub.JobFileError, match="brief: batch: 5 cannot be split"):
            testbed.submit(BRIEF, batch=5)
        first, second = testbed.submit(BRIEF), testbed.submit(BRIEF, seed=2)
        assert (first.name, second.name) == ("brief", "brief-2")
        results = testbed.wait()
        assert [one.job for one in results] == ["brief", "brief-2"]
        assert [one.matches_reference for one in results] == [True, True]
        assert [len(one.iterations) for one in results] == [12, 12]
        assert all(one.loss is not None for one in results[0].iterations)
        assert Result.load(testbed.path, "brief-2").iterations == results[1].iterations
        assert first.done
        with pytest.raises(rackhub.LaunchError, match="no job 'brief' runs"):
            first.stop()

        families = {one.name: one for one in testbed.metrics()}
        (up,) = families["rackhub_up"].samples
        assert (up.labels, up.value) == ({"testbed": "mine"}, 1)
        assert {one["name"] for one in testbed.status()["nodes"]} >= {"w0", "s1", "core0"}
        with pytest.raises(rackhub.RunError, match="a testbed named 'mine' is up"):
            rackhub.up(SMALL, name="mine", target="embedded")
    assert [job["job"] for job in results[0].summary["jobs"]] == ["brief", "brief-2"]
    testbed.down()  # once more is harmless


def test_faults_begin_and_end_on_request(runs: Path) -> None:
    with rackhub.up(SMALL, target="embedded") as testbed:
        progressed = threading.Event()
        job = testbed.submit(ENDLESS, progress=lambda _: progressed.set())

        def goes_on() -> None:
            wait_for(lambda: job.latest is not None and job.latest["event"] == "progress", "a sum")
            progressed.clear()
            assert progressed.wait(60)

        goes_on()
        testbed.pause("w2")
        wait_for(lambda: job.why()["waits"], "the job to wait for w2")
        assert "w2" in job.why()["reason"]
        with pytest.raises(rackhub.ControlError, match="w2 is stopped already"):
            testbed.pause("w2")
        with pytest.raises(TimeoutError, match="job endless is not over after"):
            job.wait(0.01)
        with pytest.raises(TimeoutError, match=r"job endless: [0-9]+ of 1000000 iterations"):
            job.wait_for(1_000_000, 0.01)
        testbed.resume("w2")
        goes_on()
        with pytest.raises(rackhub.ControlError, match="w2 is not stopped"):
            testbed.resume("w2")

        testbed.impair("core0", "tor0", loss="20 %")
        goes_on()
        testbed.restore("tor0", "core0")
        with pytest.raises(rackhub.ControlError, match="tor0-core0 is not impaired"):
            testbed.restore("tor0", "core0")
        testbed.impair(duplicate=0.5)
        testbed.restore()

        testbed.kill("tor1", gone="1 s")
        wait_for(
            lambda: not {s["name"]: s["up"] for s in testbed.snapshot()["switches"]}["tor1"],
            "tor1 to be gone",
        )
        testbed.kill("w0")
        goes_on()
        for wrong, expected in (
            (lambda: testbed.kill("w9"), "Testbed.kill: node: there is no 'w9' here"),
            (lambda: testbed.kill("tor0", gone="soon"), "Testbed.kill: gone: 'soon' is not"),
            (lambda: testbed.impair("w0", "w1", loss=1), "Testbed.impair: ends: no link joins"),
            (lambda: testbed.impair("w0", "tor0"), "Testbed.impair: impair: needs one of loss"),
            (lambda: testbed.impair("w0", "tor0", loss="x"), "Testbed.impair: loss: 'x' is not"),
        ):
            with pytest.raises(rackhub.FaultsError, match=f"^{expected}"):
                wrong()
        job.stop()
        for wait in (job.wait, lambda: job.wait_for(1_000_000)):
            with pytest.raises(rackhub.LaunchError, match="job endless: stopped"):
                wait()
        with pytest.raises(rackhub.ControlError, match="w0 is not running: kill has no effect"):
            testbed.kill("w0")
        with pytest.raises(rackhub.ControlError, match="w0 is not running: stop has no effect"):
            testbed.pause("w0")
    rows = json.loads((testbed.path / "summary.json").read_text())["faults"]
    assert [(row["kind"], row["node"]) for row in rows] == [
        ("stop", "w2"),
        ("impair", "tor0-core0"),
        ("impair", "every link"),
        ("kill", "tor1"),
        ("kill", "w0"),
    ]
    assert all(row["lasted"] is not None for row in rows)


def test_the_example_kills_a_switch_and_ends_right(runs: Path) -> None:
    """As docs/howto/experiment-in-python.md runs it."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "examples/kill_a_switch.py"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "tor1 was killed by SIGKILL" in done.stdout
    (*_, last) = done.stdout.splitlines()
    assert last.endswith("weights right: True")
    faults = json.loads((runs / "latest" / "summary.json").read_text())["faults"]
    assert {row["kind"] for row in faults} == {"kill", "impair"}


def test_nothing_stays_up_in_virtual_time(runs: Path) -> None:
    with pytest.raises(rackhub.LaunchError, match=r"rackhub\.run\(.*clock='virtual'\)"):
        rackhub.up(SMALL, clock="virtual")
    with pytest.raises(rackhub.TopologyError, match=r"^Topology.build: link.delay: .* a delay"):
        rackhub.up(rackhub.Topology.build(link={"delay": "5 us"}))
    assert not runs.exists()
