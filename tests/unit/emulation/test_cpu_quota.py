# SPDX-License-Identifier: Apache-2.0
"""Tests that a control group limits a process's CPU time, where there can be one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from emulation.faults.cpu_quota import CpuQuota, QuotaError

# Prints its CPU seconds in a second of real time.
BURNER = """
import time
began, used = time.monotonic(), time.process_time()
while time.monotonic() < began + 1:
    pass
print(time.process_time() - used, flush=True)
"""


def test_a_process_gets_no_more_than_its_share() -> None:
    factor = 20
    with subprocess.Popen(
        [sys.executable, "-c", f"input()\n{BURNER}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        try:
            quota = CpuQuota([process.pid])
        except QuotaError as error:
            process.kill()
            pytest.skip(f"there is no control group here: {error}")
        try:
            quota.set(factor)
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout is not None
            used = float(process.stdout.read())
        finally:
            quota.close()
    assert 0 < used < 3 / factor  # quotas are given out by the 10 ms


def test_a_group_that_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "mount").write_text("#!/bin/sh\necho only root may mount >&2\nexit 1\n")
    (tmp_path / "mount").chmod(0o755)
    with pytest.raises(QuotaError, match="no control group can limit CPU time here: only root may"):
        CpuQuota([])
