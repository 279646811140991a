# SPDX-License-Identifier: Apache-2.0
"""Tests `rackhub why` and `rackhub trace` on a testbed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.network.testbeds import Rackhub, read_until, wait_for

TARGETS = ["embedded", pytest.param("bmv2", marks=pytest.mark.bmv2)]
WAITS = 3


@pytest.fixture
def rackhub(tmp_path: Path) -> Rackhub:
    return Rackhub(tmp_path)


def why(rackhub: Rackhub) -> tuple[int, dict[str, Any]]:
    """Exit status and answer of `rackhub why endless --json`."""
    result = rackhub.call("why", "endless", "--json")
    assert result.returncode in (0, WAITS), result.stderr
    return result.returncode, json.loads(result.stdout)


def after_a_while(
    rackhub: Rackhub, status: int, settled: Callable[[dict[str, Any]], bool] = lambda found: True
) -> dict[str, Any]:
    """The first settled answer with an exit status: on a busy machine jobs wait now and then."""
    found: list[dict[str, Any]] = []

    def asked() -> bool:
        got, answer = why(rackhub)
        found.append(answer)
        return got == status and settled(answer)

    wait_for(asked, f"`rackhub why` to exit with status {status}")
    return found[-1]


def all_asked(found: dict[str, Any]) -> bool:
    """True if queries have reached every node of the oldest chunk."""
    return all(row["phase"] for row in found["chunks"][0]["nodes"])


@pytest.mark.parametrize("target", TARGETS)
def test_why_names_stopped_worker_and_waiting_nodes(rackhub: Rackhub, target: str) -> None:
    options = ("--job", rackhub.endless, "--target", target, "--pcap")
    with rackhub.started("run", rackhub.topology, *options) as process:
        read_until(process, "iteration")
        running = after_a_while(rackhub, 0)
        assert running["waits"] is False
        worker = rackhub.pid("--rank 2 ")
        log = rackhub.latest() / "logs" / "supervisor.log"
        os.kill(worker, signal.SIGSTOP)
        # Soon the job would go on without it.
        said = "core0 waits for tor1; tor1 waits for w2; w2 is stopped (SIGSTOP, or a debugger)"
        wait_for(lambda: said in log.read_text(), "the log's line")
        result = after_a_while(rackhub, WAITS, all_asked)
        os.kill(worker, signal.SIGCONT)
        assert result["reason"] == said
        chunk = result["chunks"][0]
        nodes = {row["node"]: (row["phase"], row["missing"]) for row in chunk["nodes"]}
        assert nodes == {
            "core0": ("AGGREGATING", ["tor1"]),
            "tor0": ("PARTIAL", []),
            "tor1": ("AGGREGATING", ["w2"]),
        }
        doing = {row["worker"]: row["doing"] for row in result["workers"]}
        assert doing == {"w0": "waits", "w1": "waits", "w2": "stopped", "w3": "waits"}

        after_a_while(rackhub, 0)
        iteration = str(result["workers"][0]["iteration"])
        which = ("--chunk", str(chunk["chunk"]), "--iteration", iteration)
        one = rackhub.json("trace", "endless", *which)["rounds"][-1]  # while the testbed lives
        assert (one["epoch"], one["seq"]) == (chunk["epoch"], chunk["seq"])
        again = {hop["what"] for hop in one["hops"] if hop["again"]}
        assert {"QUERY of w3 to tor1", "STATE for w3: tor1 AGGREGATING, lacks w2"} <= again
        # Nothing was lost, so nothing that others had sent was retransmitted.
        assert all(what.startswith(("QUERY", "STATE")) for what in again)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


def test_why_shows_computing_worker(rackhub: Rackhub) -> None:
    """It is no fault: it goes on when it has done."""
    folder = rackhub.folder / "injected"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(
        "import os, sys\n"
        "words = sys.orig_argv\n"
        "if 'testbed.worker' in words and words[words.index('--rank') + 1] == '1':\n"
        "    import hashlib\n"
        "    from workloads.trainer import Replica\n"
        "    computed = Replica.gradients\n"
        "    def gradients(self):\n"
        "        while os.path.exists(os.environ['SLOW']):\n"
        "            hashlib.sha256(b'x' * 100_000).digest()\n"
        "        return computed(self)\n"
        "    Replica.gradients = gradients\n"
    )
    slow = rackhub.folder / "slow"
    slow.touch()
    rackhub.environment["PYTHONPATH"] = f"{folder}:{Path(__file__).parents[2]}"
    rackhub.environment["SLOW"] = str(slow)
    rackhub.environment["RACKHUB_FRESH"] = "testbed.worker"
    options = ("--job", rackhub.endless, "--target", "embedded")
    with rackhub.started("run", rackhub.topology, *options) as process:
        wait_for(lambda: "running" in rackhub.call("jobs").stdout, "the job to run")
        result = after_a_while(rackhub, WAITS)
        assert "tor0 waits for w1; w1 computes" in result["reason"]
        shown = rackhub.call("why", "endless")
        assert shown.returncode == WAITS
        assert "tor0 waits for w1; w1 computes" in shown.stdout
        assert "waits for sums" in shown.stdout
        assert {row["worker"]: row["doing"] for row in result["workers"]} == {
            "w0": "waits", "w1": "computes", "w2": "waits", "w3": "waits",
        }  # fmt: skip
        slow.unlink()
        after_a_while(rackhub, 0)
        unknown = rackhub.call("why", "nosuch")
        assert (unknown.returncode, unknown.stdout) == (1, "")
        assert "no job 'nosuch'; there are: endless" in unknown.stderr
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


def test_why_names_members_a_replan_waits_for(rackhub: Rackhub) -> None:
    """No chunk is late: workers that have reported send nothing."""
    options = ("--job", rackhub.endless, "--target", "embedded")
    with rackhub.started("run", rackhub.topology, *options) as process:
        read_until(process, "iteration")
        stopped = rackhub.pid("--rank 1 ")
        os.kill(stopped, signal.SIGSTOP)
        os.kill(rackhub.pid("--rank 2 "), signal.SIGKILL)
        waits = "waits for worker 1 (w1) to report"
        found = after_a_while(rackhub, WAITS, lambda found: waits in found["change"])
        assert found["change"].startswith("changes to plan epoch 2 (worker 2 (w2)")
        log = rackhub.latest() / "logs" / "supervisor.log"
        wait_for(lambda: waits in log.read_text(), "the log's line")
        os.kill(stopped, signal.SIGCONT)
        after_a_while(rackhub, 0, lambda found: found["epoch"] > 1)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


def test_stopped_job_does_not_wait(rackhub: Rackhub) -> None:
    options = ("--target", "embedded")
    assert rackhub.call("up", rackhub.topology, *options).returncode == 0
    early = rackhub.call("why", "endless")
    assert (early.returncode, early.stdout) == (1, "")
    assert "no job 'endless'; none has been submitted yet" in early.stderr
    servers = [
        pid
        for pid, command in rackhub.processes().items()
        if command.startswith(f"{sys.executable} -m hosts.server ")
    ]
    assert len(servers) == 2
    for pid in servers:
        os.kill(pid, signal.SIGSTOP)
    # Its workers start when both servers have joined it.
    submit = rackhub.command("submit", rackhub.endless)
    with subprocess.Popen(
        submit, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=rackhub.environment
    ) as submitted:
        wait_for(lambda: any(row["number"] for row in rackhub.json("jobs")), "it to be admitted")
        _, result = why(rackhub)
        assert (result["state"], result["chunks"], result["workers"]) == ("starting", [], [])
        assert rackhub.call("stop", "endless").returncode == 0
        said, _ = submitted.communicate(timeout=60)
    assert "job endless: stopped on request" in said
    # Nobody waits for its members from now on, and its slots are free.
    log = rackhub.latest() / "logs" / "controller.log"
    assert "failed: stopped on request" in log.read_text()
    found = rackhub.call("why", "endless")
    assert (found.returncode, found.stdout) == (0, "endless is stopped: stopped on request\n")
    assert rackhub.call("down").returncode == 0


@pytest.mark.parametrize("target", TARGETS)
def test_trace_shows_each_packet_once(rackhub: Rackhub, target: str) -> None:
    done = rackhub.call("run", rackhub.topology, "--job", rackhub.job, "--target", target, "--pcap")
    assert done.returncode == 0, done.stderr
    report = rackhub.json("trace", "brief", "--chunk", "3", "--iteration", "1")
    assert report["iterations"] == 12
    assert [one["exponents"] for one in report["rounds"]] == [True, False]
    for one in report["rounds"]:
        # A query or two, where the machine was slow, is no disturbance.
        hops = [hop for hop in one["hops"] if hop["op"] in ("CONTRIBUTE", "RESULT")]
        assert Counter((hop["from"], hop["to"], hop["what"]) for hop in hops) == Counter(
            [
                *((w, t, f"CONTRIBUTE of {w} to {t}") for w, t in TORS.items()),
                ("tor0", "core0", "partial sum of tor0 (2 workers) to core0"),
                ("tor1", "core0", "partial sum of tor1 (2 workers) to core0"),
                ("core0", "tor0", "RESULT for tor0"),
                ("core0", "tor1", "RESULT for tor1"),
                *((t, w, f"RESULT for {w}") for w, t in TORS.items()),
            ]
        )
        assert [hop["ms"] for hop in hops] == sorted(hop["ms"] for hop in hops)
        assert all(hop["op"] == "RESULT" for hop in hops[6:])
        assert all(hop["arrived"] for hop in hops[4:8] if "core0" in (hop["from"], hop["to"]))
    last = rackhub.call("trace", "brief", "--chunk", "11")
    assert last.returncode == 0
    assert "chunk 11 of brief, iteration 12 of 12 captured: sum, " in last.stdout
    for arguments, text in (
        (("--chunk", "12"), "no packet of chunk 12 of job brief is in "),
        (("--chunk", "3", "--iteration", "13"), "iteration 13 is not in the captures"),
    ):
        refused = rackhub.call("trace", "brief", *arguments)
        assert refused.returncode == 1
        assert text in refused.stderr


TORS = {"w0": "tor0", "w1": "tor0", "w2": "tor1", "w3": "tor1"}


def test_a_run_without_captures_says_how_to_get_them(rackhub: Rackhub) -> None:
    done = rackhub.call("run", rackhub.topology, "--job", rackhub.job, "--clock", "virtual")
    assert done.returncode == 0, done.stderr
    refused = rackhub.call("trace", "brief", "--chunk", "0", "--run", rackhub.latest())
    assert (refused.returncode, refused.stdout) == (1, "")
    assert f"{rackhub.latest()} has no captures: `run --pcap` and `up --pcap`" in refused.stderr
