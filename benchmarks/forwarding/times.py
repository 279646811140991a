# SPDX-License-Identifier: Apache-2.0
"""CPU times of threads and cores as the kernel counts them (proc(5))."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from benchmarks.common import BenchError

Times = dict[str, tuple[float, float]]
"""By thread: seconds on a core, kernel included, and seconds waiting for one."""

_STEAL = 8  # columns of a core in /proc/stat up to "steal"; guests' time is in others
_IDLE, _IOWAIT, _SOFTIRQ = 3, 4, 6


def of_process(process: int) -> Times:
    """Returns the times of each thread. Raises BenchError if the process has ended."""
    found = {}
    with contextlib.suppress(FileNotFoundError):
        for thread in Path("/proc", str(process), "task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
                ran, waited, _ = map(int, (thread / "schedstat").read_text().split())
                found[thread.name] = ran / 1e9, waited / 1e9
    if not found:
        raise BenchError(f"process {process} has ended")
    return found


def of_softirqs(core: int) -> Times:
    """Returns a core's software interrupts as one thread, which waits while anything else runs.

    The kernel samples this at each tick (1 to 10 ms).
    """
    columns = _columns(core)
    idle, softirq = columns[_IDLE] + columns[_IOWAIT], columns[_SOFTIRQ]
    return {"softirq": (softirq, sum(columns) - idle - softirq)}


def idle(core: int) -> float:
    """Returns the seconds a core was idle."""
    columns = _columns(core)
    return columns[_IDLE] + columns[_IOWAIT]


def siblings(core: int) -> set[int]:
    """Returns the hyperthreads of a core, itself included; empty if the kernel does not report
    them."""
    path = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
    try:
        text = path.read_text()
    except OSError:
        return set()
    found: set[int] = set()
    for part in text.strip().split(","):
        low, _, high = part.partition("-")
        found.update(range(int(low), int(high or low) + 1))
    return found


def _columns(core: int) -> list[float]:
    for line in Path("/proc/stat").read_text().splitlines():
        name, *values = line.split()
        if name == f"cpu{core}":
            return [int(value) / os.sysconf("SC_CLK_TCK") for value in values[:_STEAL]]
    raise BenchError(f"/proc/stat does not know core {core}")
