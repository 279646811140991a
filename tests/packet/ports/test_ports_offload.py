# SPDX-License-Identifier: Apache-2.0
"""Tests splitting and joining of frames in memory, under the sanitizers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from switch.compiler import RUNTIME, compiler

SOURCE = Path(__file__).parent / "ports_checks.c"


@pytest.fixture(scope="module")
def checks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("ports") / "checks"
    subprocess.run(
        [
            *compiler(), "-std=gnu11", "-O1", "-g", "-fsanitize=address,undefined",
            "-fno-sanitize-recover=all", "-Wall", "-Wextra", "-Werror",
            f"-I{RUNTIME}", f"-I{RUNTIME / 'interfaces'}", "-o", str(program), str(SOURCE),
            str(RUNTIME / "interfaces" / "offload.c"), str(RUNTIME / "interfaces" / "transmit.c"),
        ],
        check=True,
    )  # fmt: skip
    return program


@pytest.mark.parametrize(
    ("check", "seed"),
    [("lies", 1), ("lies", 2), ("split", 3), ("fallback", 4), ("reunion", 5), ("reunion", 6)],
)
def test_offload(checks: Path, check: str, seed: int) -> None:
    """lies: headers that disagree with their frame never lead outside it. split: what a joined
    frame is split into is what was joined. fallback: after EINVAL for a joined frame all packets
    leave one by one. reunion: the segments of a frame leave as the frame that they were, at once or
    (odd) when the frame's memory has been used again."""
    done = subprocess.run(
        [str(checks), check, str(seed)], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
