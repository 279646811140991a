# SPDX-License-Identifier: Apache-2.0
"""docs/reference/cli.md is what the commands' own help makes of it."""

from __future__ import annotations

import subprocess
import sys

from tests.conftest import ROOT


def test_the_reference_of_the_command_line_is_up_to_date() -> None:
    script = ROOT / "scripts" / "cli_reference.py"
    done = subprocess.run(
        [sys.executable, script, "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
