# SPDX-License-Identifier: Apache-2.0
"""Helpers of benchmarks: core pinning, CPU load, memory bandwidth, medians."""

from __future__ import annotations

import contextlib
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from typing_extensions import TypedDict

from protocol.errors import Error
from topologies.model.units import time_text

LEAST_BUSY = 0.95
"""The share of time a core must be busy to count as the bottleneck."""

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_LEAST_CACHE = 32 << 20  # assumed if the kernel does not report it
_BANDWIDTH_ROUNDS = 5


class BenchError(Error):
    """A benchmark cannot run here; the text says why and how to fix it."""


def two_cores() -> tuple[int, int]:
    """Returns two cores this process may use: one to measure, one for the load.

    Raises:
        BenchError: Only one core is allowed.
    """
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise BenchError(
            f"only core {cores[0]} may be used, but the load needs a second one: allow another"
            " (taskset, the container's cpuset)"
        )
    return cores[-1], cores[0]


def pin(core: int) -> None:
    """Pins the calling thread, and threads it starts later, to one core."""
    os.sched_setaffinity(0, {core})


@contextlib.contextmanager
def pinned(core: int) -> Iterator[None]:
    """Pins the calling thread to a core within the context."""
    before = os.sched_getaffinity(0)
    pin(core)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class Seconds(click.FloatRange):
    """A duration on the command line; rejects nan, which ranges let pass."""

    def __init__(self) -> None:
        super().__init__(0.01, 3600)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Parses the number."""
        seconds: float = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"{value} is not in the range {self._describe_range()}.", param, ctx)
        return seconds


class Schedule:
    """Announces the turns of measurements with the time left, and limits rounds by time: a busy
    machine takes long to start processes.

    turns: Of all rounds.
    within: Limit in seconds; a round starts only if it should end within it.
    """

    def __init__(self, turns: int, within: float, say: Callable[[str], None]) -> None:
        self._turns, self._within, self._say = turns, within, say
        self._began = time.monotonic()
        self._begun = 0

    def turn(self, what: str) -> None:
        """Announces a turn."""
        past = time.monotonic() - self._began
        left = "" if not self._begun else self._left(past)
        self._begun += 1
        self._say(f"{self._begun}/{self._turns}: measuring {what}{left}")

    def rounds(self, number: int, turns: int, share: float) -> Iterator[int]:
        """Yields round numbers, at least one, while rounds of so many turns fit in a share of the
        total time."""
        began = time.monotonic()
        for done in range(number):
            now = time.monotonic()
            if done and now + (now - began) / done > self._began + share * self._within:
                dropped = f"{number - done} of {number} rounds"
                self._say(f"{dropped} left out: there is no time for more")
                self._turns -= (number - done) * turns
                return
            yield done

    def _left(self, past: float) -> str:
        mean = past / self._begun
        left = min(mean * (self._turns - self._begun), max(mean, self._within - past))
        return f", about {time_text(left, 2)} left"


class Stopwatch:
    """Measures wall time and the calling thread's share of CPU time."""

    def __init__(self) -> None:
        self._wall, self._computed = time.perf_counter(), time.thread_time()

    def read(self) -> tuple[float, float]:
        """Returns seconds since construction, and the share (0..1) its thread was on a core."""
        wall = time.perf_counter() - self._wall
        return wall, (time.thread_time() - self._computed) / wall


class Spread(TypedDict):
    """Median, lowest and highest of several rounds, in the unit of the figure."""

    median: float
    low: float
    high: float


def spread_of(values: Sequence[float]) -> Spread:
    """Returns the spread of at least one value."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


class Bandwidth(TypedDict):
    """Memory bandwidth of one core in GB/s (10^9 bytes, read plus written) on arrays larger than
    any cache."""

    copy: float
    """Of copying one array."""
    add: float
    """Of adding one to another in place."""


class MachineFacts(TypedDict):
    """The machine of a measurement."""

    cpu: str
    """Model of the processor; its architecture if the kernel names none."""
    cores: int | None
    """Logical cores; null if unknown."""
    kernel: str
    """Version of the kernel."""
    python: str
    """Version of Python."""
    numpy: str
    """Version of NumPy."""


def memory_bandwidth() -> Bandwidth:
    """Measures bandwidth: the best of a few rounds, as disturbances only slow memory down."""
    n = 4 * _largest_cache() // 4
    source, target = np.ones(n, np.int32), np.ones(n, np.int32)
    copy = _best(lambda: np.copyto(target, source))
    add = _best(lambda: np.add(target, source, out=target))
    return {"copy": 2 * source.nbytes / copy / 1e9, "add": 3 * source.nbytes / add / 1e9}


def machine() -> MachineFacts:
    """Describes the machine."""
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "cpu": names[0] if names else platform.machine(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def _best(work: Callable[[], object]) -> float:
    """Returns the seconds of the fastest round, after a warm-up."""
    work()
    times = []
    for _ in range(_BANDWIDTH_ROUNDS):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)


def _largest_cache() -> int:
    """Returns the size in bytes of the first core's largest cache."""
    sizes = [
        int(path.read_text().strip().removesuffix("K")) << 10 for path in _CACHES.glob("*/size")
    ]
    return max(sizes, default=_LEAST_CACHE)
