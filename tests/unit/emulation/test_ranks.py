# SPDX-License-Identifier: Apache-2.0
"""Tests processes of ranks without a network: their output, ends, and the first failure."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cli.display.ranks import RankLines
from emulation.lifecycle import ranks as module
from emulation.lifecycle.execution import ExecutionServer
from emulation.lifecycle.ranks import Failure, Ranks

WAITS = "import signal; signal.pause()"
STUBBORN = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
print("up", flush=True)
while True:
    signal.sigwait([signal.SIGTERM])
    print("no", flush=True)
"""


class Shown:
    """Keeps what ranks write, as (rank, output) -> bytes."""

    def __init__(self) -> None:
        self.all: dict[tuple[int, int], bytes] = {}

    def __call__(self, rank: int, number: int, data: bytes) -> None:
        self.all[rank, number] = self.all.get((rank, number), b"") + data


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Any]:
    server = ExecutionServer(
        tmp_path / "exec", lambda node, program: program, None, lambda node: {"NODE": node}
    )
    yield SimpleNamespace(name="test", sockets=tmp_path)
    server.close()


def start(ranks: Ranks, *programs: str) -> None:
    for rank, text in enumerate(programs):
        program = [sys.executable, "-c", text]
        ranks.start(rank, f"w{rank}", program, {**os.environ, "RANK": str(rank)})


def test_outputs_are_apart_and_environments_a_ranks_own(run: Any) -> None:
    shown = Shown()
    text = (
        "import os, sys; print(os.environ['NODE'], os.environ['RANK'], end='');"
        "print(sys.stdin.read(), end='e', file=sys.stderr)"
    )
    with Ranks(run, shown) as ranks:
        start(ranks, text, text)
        assert ranks.wait(lambda: 0) is None
    assert shown.all == {(0, 1): b"w0 0", (1, 1): b"w1 1", (0, 2): b"e", (1, 2): b"e"}


@pytest.mark.parametrize(
    ("end", "status"),
    [("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", 128 + signal.SIGKILL)],
)
def test_first_failure_ends_the_others(run: Any, end: str, status: int) -> None:
    with Ranks(run, Shown()) as ranks:
        start(ranks, WAITS, end, WAITS)
        assert ranks.wait(lambda: None) == Failure(1, status)
        assert not {0, 2} & ranks.statuses.keys()
    ended = 128 + signal.SIGTERM
    assert ranks.statuses == {0: ended, 1: status, 2: ended}


def test_the_rank_that_ended_the_job_has_failed_first_though_it_ends_later(
    run: Any, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    with Ranks(run, Shown()) as ranks:
        start(ranks, f"open({str(gate)!r}).read(); raise SystemExit(3)", "raise SystemExit(1)")

        def culprit() -> int:
            gate.write_text("")  # only now can it end
            return 0

        assert ranks.wait(culprit) == Failure(0, 3)
    with Ranks(run, Shown()) as ranks:
        start(ranks, "pass", "raise SystemExit(1)")
        assert ranks.wait(lambda: 0) == Failure(1, 1)  # the other one has not failed


def test_a_process_that_ignores_its_end_is_killed(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GRACE_SECONDS", 0.5)
    shown = Shown()

    class EnoughError(Exception):
        pass

    def show(rank: int, number: int, data: bytes) -> None:
        shown(rank, number, data)
        if shown.all[rank, number] == b"up\n":
            raise EnoughError

    ranks = Ranks(run, show)

    def wait() -> None:
        with ranks:
            start(ranks, STUBBORN)
            ranks.wait(lambda: None)

    with pytest.raises(EnoughError):
        wait()
    assert shown.all[0, 1] == b"up\nno\n"
    assert ranks.statuses == {0: 128 + signal.SIGKILL}


def test_interruption_does_not_wait_for_a_process_that_ignores_its_end(run: Any) -> None:
    """The grace is longer than this test may take."""
    shown = Shown()

    def show(rank: int, number: int, data: bytes) -> None:
        shown(rank, number, data)
        if data and shown.all[rank, number] in (b"up\n", b"up\nno\n"):  # Ctrl-C, and once more
            raise KeyboardInterrupt

    ranks = Ranks(run, show)

    def wait() -> None:
        with ranks:
            start(ranks, STUBBORN)
            ranks.wait(lambda: None)

    before = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        wait()
    assert ranks.statuses == {0: 128 + signal.SIGKILL}
    assert time.monotonic() - before < module.GRACE_SECONDS


def test_lines_of_ranks_that_write_at_once_stay_whole(
    run: Any, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    count = 20_000
    text = f"for i in range({count}): print(i, 'x' * (i % 300))"
    with Ranks(run, RankLines().show) as ranks:
        start(ranks, text, text, text)
        assert ranks.wait(lambda: None) is None
    written = capfdbinary.readouterr().out.splitlines()
    assert len(written) == 3 * count
    for rank in range(3):
        prefix = b"[%d] " % rank
        mine = [line.removeprefix(prefix) for line in written if line.startswith(prefix)]
        assert mine == [b"%d %s" % (i, b"x" * (i % 300)) for i in range(count)]


def test_processes_left_behind_hold_nothing_up(run: Any, tmp_path: Path) -> None:
    shown = Shown()
    text = f"""
import subprocess, sys
left = subprocess.Popen([sys.executable, "-c", {WAITS!r}])
print(left.pid)
"""
    with Ranks(run, shown) as ranks:
        start(ranks, text)
        assert ranks.wait(lambda: None) is None
    os.kill(int(shown.all[0, 1]), signal.SIGKILL)  # it is still there
