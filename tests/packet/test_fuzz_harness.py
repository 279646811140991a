# SPDX-License-Identifier: GPL-2.0-only
"""Runs the fuzzer of `make fuzz` for ten seconds: no invalid memory access; of switches no
uncounted loss, no packet that egress did not return; of workers no wrong state, sum or packet."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.fuzz.build import REGRESSIONS, build, compiler, write_seeds
from tests.fuzz.subjects import SUBJECTS

pytestmark = pytest.mark.skipif(compiler() is None, reason="clang is not on PATH")

SECONDS = int(os.environ.get("RACKHUB_FUZZ_SECONDS", "10"))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with an executable per subject, and seeds/SUBJECT."""
    directory = tmp_path_factory.mktemp("fuzz")
    subjects = {name: make() for name, make in SUBJECTS.items()}
    build(subjects, directory, ["-O0"])  # which compiles in less than half the time
    for name, subject in subjects.items():
        write_seeds(subject, directory / "seeds" / name)
    return directory


@pytest.mark.parametrize("name", SUBJECTS)
def test_fuzzer_finds_nothing(built: Path, name: str) -> None:
    """Replays regressions and seeds, then fuzzes for this subject's share of the time."""
    found = REGRESSIONS / name
    before = [str(built / "seeds" / name), *([str(found)] if found.is_dir() else [])]
    share = max(1, SECONDS // len(SUBJECTS))
    options = [f"-max_total_time={share}", "-max_len=16384", "-timeout=60", "-rss_limit_mb=2048"]
    new = built / "new" / name
    new.mkdir(parents=True)
    run = subprocess.run(
        [str(built / name), *options, f"-artifact_prefix={built}/", str(new), *before],
        capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    # The input itself is among the last lines, in base64.
    assert run.returncode == 0, run.stderr[-6000:]
