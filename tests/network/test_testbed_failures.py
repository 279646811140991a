# SPDX-License-Identifier: Apache-2.0
"""What goes wrong: everything comes down, the culprit is named, and nothing stays behind."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.network.testbeds import Rackhub, interfaces, read_until, wait_for

EMBEDDED = ("--target", "embedded")


@pytest.fixture
def rackhub(tmp_path: Path) -> Rackhub:
    return Rackhub(tmp_path)


def inject(rackhub: Rackhub, script: str) -> None:
    """Makes every Python process of the testbed run a script first."""
    folder = rackhub.folder / "injected"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(script)
    rackhub.environment["PYTHONPATH"] = f"{folder}:{ROOT}"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_comes_down_in_order(rackhub: Rackhub, number: int) -> None:
    with rackhub.started("run", rackhub.topology, "--job", rackhub.endless, *EMBEDDED) as process:
        read_until(process, "iteration")
        process.send_signal(number)
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 128 + number
        assert "Traceback" not in said
        assert not rackhub.processes()
    assert "down" in (rackhub.latest() / "logs" / "supervisor.log").read_text().splitlines()[-1]


def test_a_dying_switch_ends_the_run_and_is_named(rackhub: Rackhub) -> None:
    with rackhub.started("run", rackhub.topology, "--job", rackhub.endless, *EMBEDDED) as process:
        read_until(process, "iteration")
        nodes = rackhub.json("status")["nodes"]
        pid = next(node["pid"] for node in nodes if node["name"] == "tor1")
        assert rackhub.call("exec", "tor1", "kill", "-SEGV", str(pid)).returncode == 0
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "tor1 was killed by SIGSEGV" in said
    assert "logs/tor1.log" in said
    assert "ready" in said  # the log's tail itself


def test_a_workers_exception_ends_the_run_and_is_shown(rackhub: Rackhub) -> None:
    inject(
        rackhub,
        "import sys\n"
        "words = sys.orig_argv\n"
        "if 'testbed.worker' in words and words[words.index('--rank') + 1] == '2':\n"
        "    import testbed.training\n"
        "    def fail(self, sums):\n"
        "        raise RuntimeError('out of coffee')\n"
        "    testbed.training.Replica.apply = fail\n",
    )
    result = rackhub.call("run", rackhub.topology, "--job", rackhub.endless, *EMBEDDED)
    assert result.returncode == 1
    assert "w2 ended with exit status 1" in result.stderr
    assert "RuntimeError: out of coffee" in result.stderr
    assert not rackhub.processes()


def test_a_port_that_is_taken_is_named(rackhub: Rackhub) -> None:
    inject(
        rackhub,
        "import sys\n"
        "if 'hosts.server_main' in sys.orig_argv and '10.0.1.1' in sys.orig_argv:\n"
        "    import socket\n"
        "    squatter = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "    squatter.bind(('0.0.0.0', 47110))\n",
    )
    result = rackhub.call("run", rackhub.topology, "--job", rackhub.job, *EMBEDDED)
    assert result.returncode == 1
    assert "s0 ended with exit status 1" in result.stderr
    assert "10.0.1.1:47110: Address already in use" in result.stderr
    assert not rackhub.processes()


def test_sigkill_of_the_launcher_leaves_nothing_and_the_next_run_works(rackhub: Rackhub) -> None:
    before = interfaces()
    with rackhub.started("run", rackhub.topology, "--job", rackhub.endless, *EMBEDDED) as process:
        read_until(process, "iteration")
        assert len(rackhub.processes()) > 10
        process.kill()
        wait_for(lambda: not rackhub.processes(), "all processes to go with the launcher")
    assert interfaces() == before
    assert not list(rackhub.temporary.iterdir())
    crashed = rackhub.latest()
    result = rackhub.call("run", rackhub.topology, "--job", rackhub.job, *EMBEDDED)
    assert result.returncode == 0, result.stderr
    assert rackhub.latest() != crashed
    assert not (crashed / "sockets").exists()
