# SPDX-License-Identifier: Apache-2.0
"""Small topologies and jobs, and a runner of ``rackhub`` that checks for leftovers."""

from __future__ import annotations

import atexit
import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.conftest import ROOT
from tests.network.command_line import CommandLine
from tests.summaries import check_summary

TOPOLOGY = """\
name: small
defaults: {rate: 50 Mbit/s}
racks:
  - {workers: 2, servers: 1}
  - {workers: 2, servers: 1}
cores: 1
"""
JOB = """\
name: brief
workload: digits
hidden: [32]
iterations: 12
batch: 256
optimizer: {name: momentum, rate: 0.05}
"""
# Longer than any test waits.
ENDLESS = JOB.replace("brief", "endless").replace("12", "1000000")

WAIT_SECONDS = 60.0
CALL_SECONDS = 120.0


@functools.cache
def command_line() -> CommandLine:
    """The interpreter that runs the commands of all tests of this process."""
    found = CommandLine()
    atexit.register(found.close)
    return found


class Rackhub:
    """The command line in a folder of its own, with a small topology and two jobs in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs = folder / "runs"
        self.topology = folder / "small.yaml"
        self.job = folder / "brief.yaml"
        self.endless = folder / "endless.yaml"
        self.topology.write_text(TOPOLOGY)
        self.job.write_text(JOB)
        self.endless.write_text(ENDLESS)
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.environment = {
            **os.environ,
            "RACKHUB_RUNS": str(self.runs),
            "TMPDIR": str(self.temporary),
            # In other folders, too, and for users' programs: this checkout, whatever is installed.
            "PYTHONPATH": str(ROOT),
            "COLUMNS": "200",
        }

    def command(self, *arguments: str | Path) -> list[str]:
        return [sys.executable, "-m", "cli", *map(str, arguments)]

    def call(
        self, *arguments: str | Path, keyboard: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command to its end; keyboard: what it reads from standard input.

        It is forked, unless what the interpreter imports was changed. ``started`` starts it.
        """
        if self.environment["PYTHONPATH"] == str(ROOT):
            words = [*map(str, arguments)]
            return command_line().run(words, self.environment, keyboard, CALL_SECONDS)
        return subprocess.run(
            self.command(*arguments),
            input=keyboard,
            capture_output=True,
            text=True,
            env=self.environment,
            timeout=CALL_SECONDS,
        )

    def json(self, *arguments: str | Path) -> Any:
        """Runs a command that must succeed; returns its JSON output."""
        result = self.call(*arguments, "--json")
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    @contextmanager
    def started(self, *arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
        """Starts a command; kills it at the end of the context if it is still running."""
        process = subprocess.Popen(
            self.command(*arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self.environment,
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()
            wait_for(lambda: not self.processes(), "processes of the testbed to end")

    def processes(self) -> dict[int, str]:
        """Returns command lines of all processes started from this folder, by pid."""
        mark = f"RACKHUB_RUNS={self.runs}".encode()
        found = {}
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdecimal() and mark in (entry / "environ").read_bytes().split(b"\0"):
                    words = (entry / "cmdline").read_bytes().split(b"\0")
                    found[int(entry.name)] = b" ".join(words).decode(errors="replace")
        return found

    def pid(self, text: str) -> int:
        """The process of the testbed whose command line, started by the interpreter, has a text."""
        interpreter = sys.executable
        (found,) = [
            pid
            for pid, command in self.processes().items()
            if command.startswith(interpreter) and text in command
        ]
        return found

    def failure(self) -> dict[str, Any]:
        """Returns the failure in the newest run's summary."""
        failure: dict[str, Any] = json.loads((self.latest() / "summary.json").read_text())[
            "failure"
        ]
        return failure

    def latest(self) -> Path:
        """The newest run directory, whose summary, if there is one, keeps to its model."""
        found = (self.runs / "latest").resolve()
        if (found / "summary.json").exists():
            check_summary(found / "summary.json")
        return found


def wait_for(condition: Callable[[], object], what: str) -> None:
    """Polls until a condition of other processes holds."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"still waiting for {what}"
        time.sleep(0.05)


def read_until(process: subprocess.Popen[str], text: str) -> str:
    """Reads a process's output up to a line that contains a text; fails if it ends before."""
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if text in line:
            return said
    raise AssertionError(f"{text!r} never came:\n{said}")


def interfaces() -> set[str]:
    """Network interfaces of the machine itself."""
    return {entry.name for entry in Path("/sys/class/net").iterdir()}
