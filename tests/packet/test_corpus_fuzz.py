# SPDX-License-Identifier: Apache-2.0
"""No frame, whatever is in it, makes the target touch memory that is not its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from switch.compile import compiler

pytestmark = pytest.mark.packet

ROOT = Path(__file__).parents[2]


def sanitizer() -> str | None:
    """Path of the address sanitizer's library, or None if the compiler has none."""
    command = [*compiler(), "-print-file-name=libasan.so"]
    path = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return path if Path(path).is_absolute() and Path(path).exists() else None


@pytest.mark.parametrize(
    "program",
    ["tests/p4/parsing", "tests/p4/replication", "p4src/build/aggregation"],
)
def test_random_frames(program: str) -> None:
    library = sanitizer()
    if library is None:
        pytest.skip("this compiler has no address sanitizer")
    environment = {
        **os.environ,
        "LD_PRELOAD": library,
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0",
    }
    run = subprocess.run(
        [sys.executable, "-m", "tests.p4.fuzz", f"{program}.json", "1", "150"],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-3000:]
    assert "'received': 3001" in run.stdout
