# SPDX-License-Identifier: Apache-2.0
"""Tests CPU figures of emulated runs with processes that wait for a core."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from observability.cpu_use import CpuWatch, Share, machine, reasons, threads, typical

CPU = min(os.sched_getaffinity(0))
WORK = "import sys; print(flush=True)\nwhile True: pass"
REST = "import sys; print(flush=True); sys.stdin.read()"
SECONDS = 0.4


@contextmanager
def process(program: str) -> Iterator[int]:
    """A process on one CPU that has begun; its pid."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe) as started:
        try:
            os.sched_setaffinity(started.pid, {CPU})
            assert started.stdout is not None
            started.stdout.readline()
            yield started.pid
        finally:
            started.kill()


def shares(*programs: str) -> list[Share]:
    """Of processes that share a CPU."""
    with ExitStack() as stack:
        watches = [CpuWatch(stack.enter_context(process(one))) for one in programs]
        time.sleep(SECONDS)
        found = [one.share() for one in watches]
    return [one for one in found if one is not None]


pytestmark = pytest.mark.skipif(not threads(), reason="this kernel has no schedstat")


def test_cpu_waiting_time_is_measured():
    found = shares(WORK, WORK, WORK, REST)
    waited = [one.waited for one in found[:3]]
    # Of three two wait at any time; what else runs here makes it more.
    assert sum(waited) > 1.9
    assert all(one.worked + one.waited > 0.9 for one in found[:3])
    # Who has nothing to do waits for nothing, however busy the CPU.
    assert found[3].waited < 0.5 < min(waited)
    result = machine(0.5, dict(zip(("w0", "w1", "w2", "w3"), found, strict=True)), 0)
    assert result["cpu_bound"] is True
    assert result["cpu_bound_by"][0].startswith(f"w{waited.index(max(waited))} ")
    assert reasons(1.0, {"w3": Share(0.0, 0.05)}, 0) == []


def test_other_bottlenecks_are_reported():
    rested = Share(worked=0.2, waited=0.1)
    assert reasons(0.99, {"tor0": rested}, 0) == []  # others' work gave way
    assert reasons(0.99, {"tor0": None}, 0) == ["all CPUs were busy for 99% of the time"]
    (text,) = reasons(0.5, {"tor0": Share(0.97, 0.0), "w0": rested}, 0)
    assert text == "tor0 worked for 97% of the time"
    (text,) = reasons(0.5, {"w0": Share(0.4, 0.41), "w1": rested}, 0)
    assert text == "w0 waited for a CPU for 41% of the time"
    (text,) = reasons(0.5, {"w0": Share(0.4, 1.48)}, 0)  # several threads of one process
    assert text == "w0 had 1.5 threads waiting for a CPU at a time, on average"
    assert reasons(0.5, {"w0": rested}, 1200) == ["1,200 packets found the queue of a process full"]


@pytest.mark.parametrize(
    ("took", "bound"),
    [([9.0, 0.46, 0.4, 7.0], True), ([9.0, 0.44, 0.3, 0.5], False), ([9.0, 0.35, 0.35], True)],
)
def test_times_are_judged_by_virtual_time(took: list[float], bound: bool):
    """By typical ones without the first iteration, and whatever processes waited for."""
    virtual = [0.41, 0.41, 0.1]
    for shares in ({"w0": Share(0.2, 0.0)}, {"w0": Share(0.3, 0.6)}):
        use = machine(0.9, shares, 0, took, virtual)
        assert use["cpu_bound"] is bool(use["cpu_bound_by"]) is bound
        assert use["iteration_in_virtual_time"] == 0.41
    if bound:
        both, waited = use["cpu_bound_by"]
        assert both.endswith("0 ms, 410 ms in virtual time")
        assert waited == "w0 waited for a CPU for 60% of the time"


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ([3.0], 3.0),
        ([5.0, 1.0, 900.0], 5.0),
        ([1.0, 2.0, 3.0, 900.0], 2.5),
        ([1.0, 2.0] * 4, 1.5),  # 1, 1, 2, 2 are left
        ([1.0, 2.0] * 4 + [900.0], 1.6),  # 1, 1, 2, 2, 2
    ],
)
def test_typical_iterations_are_without_outliers(seconds: list[float], expected: float):
    assert typical(seconds) == pytest.approx(expected)
    assert typical(seconds[::-1]) == pytest.approx(expected)


def test_a_single_iteration_is_judged_by_what_processes_waited_for():
    use = machine(0.9, {"w0": Share(0.3, 0.6)}, 0, [9.0], [0.1])
    assert use["cpu_bound"]
    assert "iteration_in_virtual_time" not in use


def test_ended_process_is_not_reported():
    with process(REST) as pid:
        watch = CpuWatch(pid)
    assert watch.share() is None
    assert watch.dropped() == 0
