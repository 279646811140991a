# SPDX-License-Identifier: Apache-2.0
"""Tests what the command line imports, and Ctrl-C meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

# Interrupts this process when a part of the command line is about to be imported.
INTERRUPTED = """
import os, signal, sys

class Interrupting:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == os.environ["INTERRUPTED_BY"]:
            os.kill(os.getpid(), signal.SIGINT)

if "cli" in sys.orig_argv:
    sys.meta_path.insert(0, Interrupting)
"""


@pytest.mark.parametrize(
    ("imported", "ignored", "status"),
    [
        ("cli.main", False, -signal.SIGINT),
        ("cli.main", True, 0),
        ("cli.commands.inspect", False, -signal.SIGINT),
    ],
)
def test_ctrl_c_during_import_leaves_no_traceback(
    tmp_path: Path, imported: str, ignored: bool, status: int
) -> None:
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTED)
    command = [sys.executable, "-m", "cli", "graph", "--help"]
    if ignored:  # as a shell does for what it starts in the background
        command = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *command]
    result = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "INTERRUPTED_BY": imported},
        timeout=60,
    )
    assert result.returncode == status
    assert result.stderr == ""


def test_commands_about_running_testbeds_import_no_numerics() -> None:
    # Each takes longer to import than such a command takes otherwise.
    slow = "{'google.protobuf', 'grpc', 'matplotlib', 'mininet', 'numpy'}"
    code = f"import sys, cli.main, cli.commands.control; print({slow} & sys.modules.keys())"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60
    )
    assert (result.stdout, result.stderr) == ("set()\n", "")
