# SPDX-License-Identifier: Apache-2.0
"""Tests that a control group limits a process's CPU time, where there can be one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest

from emulation.faults.cpu_quota import CpuQuota, QuotaError, processing_threads
from emulation.faults.slowdowns import Slowdowns
from emulation.network.emulated import Network

# Prints its CPU seconds in a second of real time.
BURNER = """
import time
began, used = time.monotonic(), time.process_time()
while time.monotonic() < began + 1:
    pass
print(time.process_time() - used, flush=True)
"""


@pytest.fixture
def control_groups() -> None:
    """Skips a test where the kernel or its rights allow no control group."""
    try:
        CpuQuota([]).close()
    except QuotaError as error:
        pytest.skip(f"there is no control group here: {error}")


@pytest.mark.usefixtures("control_groups")
def test_a_process_gets_no_more_than_its_share() -> None:
    factor = 20
    with subprocess.Popen(
        [sys.executable, "-c", f"input()\n{BURNER}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        quota = CpuQuota([process.pid])
        try:
            quota.set(factor)
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout is not None
            used = float(process.stdout.read())
        finally:
            quota.close()
    assert 0 < used < 3 / factor  # quotas are given out by the 10 ms


# Computes in three threads without the interpreter's lock; prints the CPU seconds of the main one,
# of a worker's that sends and receives, and of another, in a second of real time.
THREADS = """
import hashlib, time
from protocol.runtime import REAL, WORKER_THREAD
data, used = bytes(1 << 20), {}
def burn(name):
    began, before = time.monotonic(), time.thread_time()
    while time.monotonic() < began + 1:
        hashlib.sha256(data)
    used[name] = time.thread_time() - before
begin = REAL.event()
def wait_and_burn(name):
    begin.wait()
    burn(name)
names = [f"{WORKER_THREAD}3", "heartbeat"]
threads = [REAL.thread(wait_and_burn, name=name, args=(name,)) for name in names]
for one in threads:
    one.start()
print(flush=True)
input()
begin.set()
burn("main")
for one in threads:
    one.join()
print(*(used[name] for name in ("main", *names)), flush=True)
"""


@pytest.mark.usefixtures("control_groups")
def test_threads_that_only_report_are_not_limited() -> None:
    factor = 40
    with subprocess.Popen(
        [sys.executable, "-c", THREADS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        quota = CpuQuota(processing_threads(process.pid))
        try:
            quota.set(factor)
            process.stdin.write("\n")
            process.stdin.flush()
            main, worker, other = map(float, process.stdout.read().split())
        finally:
            quota.close()
    assert 0 < main + worker < 3 / factor < other


@pytest.mark.usefixtures("control_groups")
def test_several_slowdowns_of_a_process_multiply_and_the_rest_goes_on() -> None:
    slowdowns = Slowdowns(cast(Network, None))  # which processes do not need
    forever = f"while True:\n input()\n exec({BURNER!r})"
    with subprocess.Popen(
        [sys.executable, "-c", forever],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:

        def used() -> float:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("\n")
            process.stdin.flush()
            return float(process.stdout.readline())

        try:
            with slowdowns.of_processes("s0", [process.pid]) as first:
                first(10)
                with slowdowns.of_processes("s0", [process.pid]) as second:
                    second(4)
                    assert 0 < used() < 3 / 40
                second(4)  # by a thread that was late
                assert 0 < used() < 2 / 10
        finally:
            process.kill()


def test_a_group_that_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "mount").write_text("#!/bin/sh\necho only root may mount >&2\nexit 1\n")
    (tmp_path / "mount").chmod(0o755)
    with pytest.raises(QuotaError, match="no control group can limit CPU time here: only root may"):
        CpuQuota([])
