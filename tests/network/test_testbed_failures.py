# SPDX-License-Identifier: Apache-2.0
"""Tests failures of a testbed: everything shuts down, the cause is named, and nothing is left."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from testbed.restarts import MOST_RESTARTS
from tests.conftest import ROOT
from tests.network.testbeds import Rackhub, interfaces, read_until, wait_for

EMBEDDED = ("--target", "embedded")
# Long enough for progress lines to tell of a wait first.
PATIENCE = "patience: 8\n"


@pytest.fixture
def rackhub(tmp_path: Path) -> Rackhub:
    return Rackhub(tmp_path)


def inject(rackhub: Rackhub, script: str, *modules: str) -> None:
    """Makes each Python process that is started run a script first; modules: those whose processes
    are started, not forked; "1": all."""
    folder = rackhub.folder / "injected"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(script)
    rackhub.environment["PYTHONPATH"] = f"{folder}:{ROOT}"
    if modules:
        rackhub.environment["RACKHUB_FRESH"] = ",".join(modules)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_run_shuts_down_in_order(rackhub: Rackhub, number: int) -> None:
    with rackhub.started("run", rackhub.topology, "--job", rackhub.endless, *EMBEDDED) as process:
        read_until(process, "iteration")
        process.send_signal(number)
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 128 + number
        assert "Traceback" not in said
        assert not rackhub.processes()
    ended = f"ended by {signal.Signals(number).name}"
    assert f"{ended}: taking the testbed down; its record is {rackhub.latest()}" in said
    summary = json.loads((rackhub.latest() / "summary.json").read_text())
    assert summary["failure"] == {"message": ended, "process": None}
    (job,) = summary["jobs"]
    assert (job["job"], job["state"]) == ("endless", "stopped")
    assert 0 < job["iterations_done"] < job["iterations"]
    assert "down" in (rackhub.latest() / "logs" / "supervisor.log").read_text().splitlines()[-1]


def test_crash_looping_switch_ends_run(rackhub: Rackhub) -> None:
    with rackhub.started("run", rackhub.topology, "--job", rackhub.endless, *EMBEDDED) as process:
        read_until(process, "iteration")
        nodes = rackhub.json("status")["nodes"]
        (pid,) = next(node["pids"] for node in nodes if node["name"] == "tor1")
        assert pid == rackhub.pid("--grpc-server-addr unix:sockets/tor1 ")
        for _ in range(MOST_RESTARTS):
            os.kill(pid, signal.SIGSEGV)
            read_until(process, "tor1 was killed by SIGSEGV; started again")
            pid = rackhub.pid("--grpc-server-addr unix:sockets/tor1 ")
        os.kill(pid, signal.SIGSEGV)
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "tor1 was killed by SIGSEGV" in said
    assert "logs/tor1.log" in said
    assert "tor1.log" in said.split("--- ", 1)[1]  # the log's tail itself
    failure = rackhub.failure()
    assert (failure["message"], failure["process"]) == ("tor1 was killed by SIGSEGV", "tor1")


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("tor1", "--grpc-server-addr unix:sockets/tor1 "),
        ("w2", "--rank 2 "),
        # It is given a minute: nothing needs it until a heartbeat has no answer for so long.
        pytest.param("controller", "-m controller", marks=pytest.mark.soak),
    ],
)
def test_hanging_process_ends_run(rackhub: Rackhub, name: str, command: str) -> None:
    """Stopped, a process neither works nor ends; what others say of it is not the cause."""
    rackhub.endless.write_text(rackhub.endless.read_text() + PATIENCE)
    with rackhub.started("run", rackhub.topology, "--job", rackhub.endless, *EMBEDDED) as process:
        read_until(process, "iteration")
        os.kill(rackhub.pid(command), signal.SIGSTOP)
        said, _ = process.communicate(timeout=120)
        assert process.returncode == 1
        assert f"error: job endless: {name} is stopped" in said
        assert f"logs/{name}.log" in said
        assert "Traceback" not in said
        assert not rackhub.processes()
    if name != "controller":
        assert f"endless: waiting for 5 s: {name} is stopped" in said
    failure = rackhub.failure()
    assert failure["process"] == name
    assert failure["message"].startswith(f"job endless: {name} is stopped")


def test_near_total_loss_ends_job_with_missing_chunks(
    rackhub: Rackhub,
) -> None:
    topology = rackhub.topology.read_text().replace("Mbit/s}", "Mbit/s, loss: 99 %}")
    rackhub.topology.write_text(topology)
    rackhub.job.write_text(rackhub.job.read_text() + PATIENCE)
    result = rackhub.call("run", rackhub.topology, "--job", rackhub.job, *EMBEDDED)
    assert result.returncode == 1
    assert "brief: waiting for 5 s: no sum for 5.0 s, 12 chunks wait" in result.stdout
    assert (
        "ended with exit status 1: no sum for 8.0 s, 12 chunks wait; the first, sent to node"
        in (result.stderr)
    )
    assert "chunk 0 (stream 0, seq 0, exponent round)" in result.stderr
    assert "no node has reported its phase" in result.stderr
    assert "Traceback" not in result.stderr
    assert not rackhub.processes()


def test_corrupted_sums_end_job_with_message(rackhub: Rackhub) -> None:
    topology = rackhub.topology.read_text().replace("Mbit/s}", "Mbit/s, corrupt: 90 %}")
    rackhub.topology.write_text(topology)
    result = rackhub.call("run", rackhub.topology, "--job", rackhub.job, *EMBEDDED)
    assert result.returncode == 1
    assert "failed the check twice" in result.stderr
    assert "Traceback" not in result.stderr
    assert rackhub.failure()["process"] in ("w0", "w1", "w2", "w3")
    assert not rackhub.processes()


def test_diverging_worker_is_detected(rackhub: Rackhub) -> None:
    """Every worker gets the same sums, so only the reference can tell that they are wrong."""
    inject(
        rackhub,
        "import sys\n"
        "words = sys.orig_argv\n"
        "if 'testbed.worker' in words and words[words.index('--rank') + 1] == '1':\n"
        "    from workloads.trainer import Replica\n"
        "    computed = Replica.gradients\n"
        "    def gradients(self):\n"
        "        loss, values = computed(self)\n"
        "        list(values.values())[-1].reshape(-1)[0] += 1e-3\n"
        "        return loss, values\n"
        "    Replica.gradients = gradients\n",
        "testbed.worker",
    )
    result = rackhub.call("run", rackhub.topology, "--job", rackhub.job, *EMBEDDED)
    assert result.returncode == 1
    (row,) = [line for line in result.stdout.splitlines() if "matches reference" in line]
    assert row.split()[-1] == "NO"
    assert "the weights differ from the reference's" in result.stderr
    summary = json.loads((rackhub.latest() / "summary.json").read_text())
    assert summary["matches_reference"] is False
    assert summary["workers_agree"] is True
    assert summary["weights_sha256"] != summary["reference_sha256"]


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (signal.SIGKILL, "supervisor was killed or crashed"),
        (signal.SIGTERM, "supervisor was ended by SIGTERM"),
        (signal.SIGSTOP, "supervisor of testbed small does not answer for 8 s: it is stopped"),
    ],
)
def test_supervisor_failure_is_reported(
    rackhub: Rackhub, number: signal.Signals, text: str
) -> None:
    if number == signal.SIGSTOP:  # the others are noticed at once
        silence = "import observability.control\nobservability.control.SILENCE_SECONDS = 8\n"
        inject(rackhub, silence)
    with rackhub.started("run", rackhub.topology, "--job", rackhub.endless, *EMBEDDED) as process:
        read_until(process, "iteration")
        os.kill(rackhub.pid("-m emulation.lifecycle.supervisor"), number)
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 1
        assert f"error: {text}" in said
        assert "logs/supervisor.log" in said
        assert "INFO supervisor: up after" in said  # the log's tail itself
        assert "on request" not in said
        assert not rackhub.processes()
    failure = rackhub.failure()
    assert failure["process"] == "supervisor"
    assert failure["message"].startswith(text)


def test_worker_exception_ends_run(rackhub: Rackhub) -> None:
    inject(
        rackhub,
        "import sys\n"
        "words = sys.orig_argv\n"
        "if 'testbed.worker' in words and words[words.index('--rank') + 1] == '2':\n"
        "    import workloads.trainer\n"
        "    def fail(self, sums):\n"
        "        raise RuntimeError('out of coffee')\n"
        "    workloads.trainer.Replica.apply = fail\n",
        "1",
    )
    result = rackhub.call("run", rackhub.topology, "--job", rackhub.endless, *EMBEDDED)
    assert result.returncode == 1
    assert "w2 ended with exit status 1" in result.stderr
    assert "RuntimeError: out of coffee" in result.stderr
    assert not rackhub.processes()


def test_port_in_use_is_reported(rackhub: Rackhub) -> None:
    inject(
        rackhub,
        "import sys\n"
        "if 'hosts.server' in sys.orig_argv and '10.0.1.1' in sys.orig_argv:\n"
        "    import socket\n"
        "    squatter = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "    squatter.bind(('0.0.0.0', 47110))\n",
        "hosts.server",
    )
    result = rackhub.call("run", rackhub.topology, "--job", rackhub.job, *EMBEDDED)
    assert result.returncode == 1
    assert "s0 ended with exit status 1" in result.stderr
    assert "10.0.1.1:47110: Address already in use" in result.stderr
    assert not rackhub.processes()


def test_sigkill_of_launcher_leaves_no_residue(rackhub: Rackhub) -> None:
    before = interfaces()
    with rackhub.started("run", rackhub.topology, "--job", rackhub.endless, *EMBEDDED) as process:
        read_until(process, "iteration")
        assert len(rackhub.processes()) > 10
        process.kill()
        wait_for(lambda: not rackhub.processes(), "all processes to go with the launcher")
    assert interfaces() == before
    assert not list(rackhub.temporary.iterdir())
    crashed = rackhub.latest()
    assert "no testbed is up" in rackhub.call("status").stderr
    assert not (crashed / "sockets").exists()
    result = rackhub.call("run", rackhub.topology, "--job", rackhub.job, *EMBEDDED)
    assert result.returncode == 0, result.stderr
    assert rackhub.latest() != crashed


def test_down_all_ends_also_killed_and_stuck_testbeds(rackhub: Rackhub) -> None:
    assert rackhub.json("down", "--all") == []
    rackhub.json("up", rackhub.topology, *EMBEDDED)
    second = rackhub.call("up", rackhub.topology, "--json", *EMBEDDED)
    assert "a testbed named small is up already, so this one is small-2: " in second.stderr
    idle = rackhub.call("status", "--on", "small-2").stdout
    assert "No job yet: `rackhub submit --on small-2 JOB` runs one" in idle
    assert [line.split()[3:] for line in idle.splitlines() if line.startswith("w3 ")] == [
        ["none:", "in", "no", "job"]
    ]
    stuck = json.loads(second.stdout)["run"]
    gone = rackhub.json("up", rackhub.topology, "--name", "gone", *EMBEDDED)["run"]
    os.kill(rackhub.pid(f"-m emulation.lifecycle.supervisor {stuck}"), signal.SIGSTOP)
    os.kill(rackhub.pid(f"-m emulation.lifecycle.supervisor {gone}"), signal.SIGKILL)
    wait_for(lambda: not any(gone in one for one in rackhub.processes().values()), "its end")
    ended = rackhub.json("down", "--all")
    assert sorted((one["name"], one["end"]) for one in ended) == [
        *(("gone", "found killed"), ("small", "down"), ("small-2", "killed"))
    ]
    assert not rackhub.processes()
    assert rackhub.call("down", "--all").stdout == "no testbed is up\n"
    for one in ended:
        assert sorted(path.name for path in Path(one["run"]).glob("*s")) == ["logs"]
    killed = rackhub.call("status", "--on", "gone").stderr
    assert "no testbed 'gone' is up; up: none\nthe last one, gone, failed: its supervisor" in killed
