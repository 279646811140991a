# SPDX-License-Identifier: Apache-2.0
"""What benchmarks have in common: cores, how busy one was, memory bandwidth, medians."""

from __future__ import annotations

import contextlib
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from hosts.native.library import library
from topologies.model.units import time_text

Message = dict[str, Any]

LEAST_BUSY = 0.95
"""Below this share of time a core was not what a figure was limited by."""

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_LEAST_CACHE = 32 << 20  # where the kernel does not say
_BANDWIDTH_ROUNDS = 5


class BenchError(Exception):
    """A benchmark that cannot run here; the text says why and what would help."""


def two_cores() -> tuple[int, int]:
    """Numbers of two cores that this process may use: one to be measured, one for its load.

    Raises BenchError if there is but one.
    """
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise BenchError(
            f"only core {cores[0]} may be used; the load needs a core other than that of what is"
            " measured: allow a second one (taskset, the container's cpuset)"
        )
    return cores[-1], cores[0]


def pin(core: int) -> None:
    """Keeps the calling thread, and those that it starts from now on, on one core."""
    os.sched_setaffinity(0, {core})


@contextlib.contextmanager
def pinned(core: int) -> Iterator[None]:
    """``pin``, for as long as the context lasts."""
    before = os.sched_getaffinity(0)
    pin(core)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class Seconds(click.FloatRange):
    """A measurement's length on the command line; nan, which no range excludes, is none."""

    def __init__(self) -> None:
        super().__init__(0.01, 3600)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """As a number; fails with what is allowed."""
        seconds: float = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"{value} is not in the range {self._describe_range()}.", param, ctx)
        return seconds


class Schedule:
    """Turns of several measurements, told one by one with the time that is left, and ended early
    rather than late: a machine that others use, too, takes its time to start processes.

    turns: of all rounds. within: seconds of all together, as far as another round is begun only if
    it should be over by then.
    """

    def __init__(self, turns: int, within: float, say: Callable[[str], None]) -> None:
        self._turns, self._within, self._say = turns, within, say
        self._began = time.monotonic()
        self._begun = 0

    def turn(self, what: str) -> None:
        """One begins."""
        past = time.monotonic() - self._began
        left = "" if not self._begun else self._left(past)
        self._begun += 1
        self._say(f"{self._begun}/{self._turns}: measuring {what}{left}")

    def rounds(self, number: int, turns: int, share: float) -> Iterator[int]:
        """Rounds, at least one, of so many turns each, which may last until a share of the whole
        time is over; those that would take longer are left out."""
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
    """How long something took, and which share of that the calling thread was computing."""

    def __init__(self) -> None:
        self._wall, self._computed = time.perf_counter(), time.thread_time()

    def read(self) -> tuple[float, float]:
        """Seconds since it was made, and the share (0..1) of them that its thread was on a core."""
        wall = time.perf_counter() - self._wall
        return wall, (time.thread_time() - self._computed) / wall


@dataclass(frozen=True)
class Spread:
    """Median, lowest and highest of several rounds."""

    median: float
    low: float
    high: float

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        """Of at least one value."""
        return Spread(statistics.median(values), min(values), max(values))

    def message(self) -> Message:
        """As JSON takes it."""
        return {"median": self.median, "low": self.low, "high": self.high}


@dataclass(frozen=True)
class Bandwidth:
    """GB/s (10^9 bytes, read and written together) that one core moves in arrays larger than any
    cache: copying one, adding one to another in place."""

    copy: float
    add: float

    def message(self) -> Message:
        """As JSON takes it."""
        return {"copy": self.copy, "add": self.add}


def memory_bandwidth() -> Bandwidth:
    """The best of a few rounds, for nothing makes memory faster than it is."""
    n = 4 * _largest_cache() // 4
    source, target = np.ones(n, np.int32), np.ones(n, np.int32)
    copy = _best(lambda: np.copyto(target, source))
    add = _best(lambda: np.add(target, source, out=target))
    return Bandwidth(2 * source.nbytes / copy / 1e9, 3 * source.nbytes / add / 1e9)


def machine() -> Message:
    """What figures were taken on."""
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
        "native": library() is not None,
    }


def _best(work: Callable[[], object]) -> float:
    """Seconds of the fastest of some rounds, after one that is not counted."""
    work()
    times = []
    for _ in range(_BANDWIDTH_ROUNDS):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)


def _largest_cache() -> int:
    """Bytes, as the kernel tells of the first core."""
    sizes = [
        int(path.read_text().strip().removesuffix("K")) << 10 for path in _CACHES.glob("*/size")
    ]
    return max(sizes, default=_LEAST_CACHE)
