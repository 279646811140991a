# SPDX-License-Identifier: Apache-2.0
"""Tests `rackhub exec` without a network: what a command inherits from caller and testbed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from emulation.lifecycle.execution import ExecutionServer
from tests.conftest import ROOT

CALLER = """
import pathlib, sys, types
from emulation.lifecycle.execution import execute
run = types.SimpleNamespace(name="test", sockets=pathlib.Path(sys.argv[1]))
sys.exit(execute(run, "w0", sys.argv[2:]))
"""
SHOWN = """
import os, sys
os.close(os.open("made", os.O_CREAT | os.O_WRONLY, 0o666))
print(os.getcwd(), oct(os.stat("made").st_mode & 0o777), sys.executable)
print(*(os.environ.get(name) for name in ("STEPS", "OF_THE_TESTBED", "RACKHUB_HOST")))
sys.exit(7)
"""


def test_a_command_has_its_callers_environment_umask_and_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = ExecutionServer(
        tmp_path / "exec", lambda _, program: program, None, lambda node: {"RACKHUB_HOST": node}
    )
    folder = tmp_path / "folder"
    folder.mkdir()
    try:
        monkeypatch.setenv("OF_THE_TESTBED", "1")
        caller = {**os.environ, "STEPS": "200", "RACKHUB_HOST": "x", "PYTHONPATH": str(ROOT)}
        del caller["OF_THE_TESTBED"]
        caller["PATH"] = "/nowhere"
        done = subprocess.run(
            [sys.executable, "-c", CALLER, str(tmp_path), "python", "-c", SHOWN],
            cwd=folder,
            env=caller,
            umask=0o027,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    finally:
        server.close()
    assert done.returncode == 7, done.stderr
    first, second = done.stdout.splitlines()
    assert first.split()[:2] == [str(folder), "0o640"]
    assert Path(first.split()[2]).parent == Path(sys.executable).parent
    assert second == "200 None w0"
