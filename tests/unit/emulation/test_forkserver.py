# SPDX-License-Identifier: Apache-2.0
"""Tests that forked processes equal those that the same command line starts."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from emulation.nodes.forkserver import ROOM, Forked, ForkServer
from emulation.nodes.processes import Processes, environment, python
from specs.paths import ROOT

_SUBREAPER = 36


SERVE = """\
import socket, sys
from emulation.nodes.forkserver import serve
serve(socket.socket(fileno=int(sys.argv[1])))
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ForkServer]:
    """One that a process of its own has become: pytest, with its threads, must not fork."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-c", SERVE, str(theirs.fileno()), ROOM]
    with theirs:
        process = subprocess.Popen(
            command, env=environment(), pass_fds=[theirs.fileno()], start_new_session=True
        )
    server = ForkServer(ours, process.pid)
    yield server
    server.close()
    # Orphans of other tests are no business of this process.
    assert ctypes.CDLL(None).prctl(_SUBREAPER, 0, 0, 0, 0) == 0


def start(
    server: ForkServer, folder: Path, *command: str, wants_input: bool = False, **env: str
) -> Forked:
    with (folder / "log").open("wb") as log:
        forked = server.start(
            command,
            log.fileno(),
            cwd=folder,
            env={**environment(), **env},
            wants_input=wants_input,
            wants_output=True,
        )
    assert forked is not None
    return forked


def said(forked: Forked) -> str:
    assert forked.stdout is not None
    with forked.stdout:
        return forked.stdout.readall().decode()  # type: ignore[attr-defined, no-any-return]


def test_a_process_has_its_own_arguments_environment_and_output(
    server: ForkServer, tmp_path: Path
) -> None:
    wide = start(server, tmp_path, *python("workloads.reference", "--help"), COLUMNS="200")
    narrow = start(server, tmp_path, *python("workloads.reference", "--help"), COLUMNS="40")
    texts = [said(one) for one in (wide, narrow)]
    assert [one.wait() for one in (wide, narrow)] == [0, 0]
    assert all(text.startswith("usage: python -m workloads.reference") for text in texts)
    assert len(texts[1].splitlines()) > len(texts[0].splitlines())


def test_exit_status_is_reported(server: ForkServer, tmp_path: Path) -> None:
    wrong = start(server, tmp_path, *python("workloads.reference", "--lanes", "many"))
    assert (said(wrong), wrong.wait()) == ("", 2)
    assert "argument --lanes: invalid int value: 'many'" in (tmp_path / "log").read_text()


def test_process_has_own_name_and_can_be_killed(server: ForkServer, tmp_path: Path) -> None:
    # A worker waits for its nonce on standard input.
    job = str(ROOT / "jobs" / "digits.yaml")
    options = ("--job", job, "--rank", "0", "--world", "1", "--service", "unix:none")
    command = python("testbed.worker", *options, "--address", "127.0.0.1")
    worker = start(server, tmp_path, *command, wants_input=True)
    process = Path(f"/proc/{worker.pid}")
    watch = os.pidfd_open(worker.pid)
    try:
        seen = (process / "cmdline").read_bytes()
        while seen.rstrip(b"\0").decode() != " ".join(command):
            seen = (process / "cmdline").read_bytes()
        assert (process / "cwd").resolve() == tmp_path
        assert os.getsid(worker.pid) == worker.pid
        assert (process / "status").read_text().split("PPid:")[1].split()[0] == str(os.getpid())
        assert b"OPENBLAS_NUM_THREADS=1" in (process / "environ").read_bytes().split(b"\0")
    finally:
        os.close(watch)
        os.killpg(worker.pid, signal.SIGKILL)
    assert worker.wait() == -signal.SIGKILL


@pytest.mark.parametrize(
    ("value", "forked"),
    [
        ("", {"switch", "hosts.server"}),
        ("1", set()),
        ("switch", {"hosts.server"}),
        ("switch,hosts.server", set()),
        ("swich", set()),
    ],
)
def test_the_environment_says_what_is_not_forked(
    server: ForkServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    value: str,
    forked: set[str],
) -> None:
    monkeypatch.setenv("RACKHUB_FRESH", value)
    for module in ("switch", "hosts.server"):
        with (tmp_path / "log").open("wb") as log:
            found = server.start(
                python(module, "--help"),
                log.fileno(),
                cwd=tmp_path,
                env=environment(),
                wants_input=False,
                wants_output=False,
            )
        assert (found is not None) is (module in forked)
        if found is not None:
            assert found.wait() == 0


def test_other_programs_start_normally(server: ForkServer, tmp_path: Path) -> None:
    for command in (
        ["sleep", "1"],
        python("cli.main", "--help"),
        ["mnexec", "-a", "1", "ls"],
    ):
        with (tmp_path / "log").open("wb") as log:
            assert (
                server.start(
                    command,
                    log.fileno(),
                    cwd=tmp_path,
                    env=environment(),
                    wants_input=False,
                    wants_output=False,
                )
                is None
            )


def test_processes_start_without_a_fork_server(server: ForkServer, tmp_path: Path) -> None:
    start(server, tmp_path, *python("switch", "--help")).wait()
    os.kill(server.pid, signal.SIGKILL)

    async def run() -> tuple[list[str], int]:
        processes = Processes(tmp_path, tmp_path, server)
        lines: list[str] = []
        process = processes.start(
            "one",
            python("workloads.reference", "--help"),
            on_line=lines.append,
            may_finish=True,
        )
        return lines, await process.exited

    lines, status = asyncio.run(run())
    assert status == 0
    assert lines[0].startswith("usage:")
