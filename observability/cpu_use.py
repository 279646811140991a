# SPDX-License-Identifier: Apache-2.0
"""Judges whether times of an emulated run are the machine's instead of its network's.

The same iterations in virtual time are what links and protocol explain (``simulation.replay``): an
iteration that differs is the machine's. Shares of CPUs cannot tell alone: waiting for one makes
timers and windows wait as well, or nothing at all. They say which process it was, and judge where
virtual time does not know: how long the processes that packets pass were runnable without running
(``/proc/PID/task/TID/schedstat``, of kernels with CONFIG_SCHED_INFO;
Documentation/scheduler/sched-stats.rst), whether one of them never slept, and whether packets met a
full queue of a process. Shares are fractions of wall time, 0 to 1.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

# pydantic needs this TypedDict before Python 3.12.
from typing_extensions import NotRequired, TypedDict

from topologies.model.units import time_text

Threads: TypeAlias = dict[int, tuple[int, int]]
"""Nanoseconds that each thread ran, and waited for a CPU."""

OFF = 0.10  # difference from virtual time beyond which times are the machine's
# Beyond these, times depend more on the machine than on the network. A chunk waits for several
# processes in a row, of which a window hides a part: the run is longer by about such a share.
MOST_WAITED = 0.15
MOST_WORKED = 0.90
MOST_BUSY = 0.95  # of all CPUs, for kernels without schedstat
_RECEIVE_ERRORS = re.compile(r"^Udp: (?=.*RcvbufErrors)(.*)\nUdp: (.*)$", re.M)


class CpuUse(TypedDict):
    """CPU use while workers trained. Shares are of wall time, 0 to 1. In virtual time, which no CPU
    bounds, there is only ``cpu_bound``."""

    cpu_busy: NotRequired[float]
    """Share of all CPUs that was busy."""
    cpu_bound: bool
    """Whether times of an emulated run are the machine's: its typical iteration, the mean without
    the quarter of the shortest and of the longest, differs by more than 10 % from
    `iteration_in_virtual_time`. Where that is absent: a process that packets pass was
    ready to run and did not for more than 15 % of the time, or one worked for more than 90 % of it,
    or packets found a process's queue full."""
    cpu_bound_by: NotRequired[list[str]]
    """Why it is true."""
    iteration_in_virtual_time: NotRequired[float]
    """The typical one of the same iterations in virtual time, but for the first, in seconds. Absent
    with other jobs or faults meanwhile, and if there is only one iteration."""
    cpu_waited: NotRequired[dict[str, float]]
    """Threads of each process that waited for a CPU, on average (the kernel's count)."""
    queues_full: NotRequired[int]
    """Packets that found a process's queue full."""


@dataclass(frozen=True)
class Share:
    """CPU use of a process over some time.

    worked: share that its busiest thread ran.
    waited: threads that waited for a CPU, on average; mostly at most one, as they wait for each
    other.
    """

    worked: float
    waited: float


def threads(pid: int | str = "self") -> Threads:
    """Returns the CPU times of a process's threads so far; empty if they cannot be read."""
    found: Threads = {}
    with suppress(OSError):
        for entry in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError, ValueError):
                ran, waited, *_ = (entry / "schedstat").read_text().split()
                found[int(entry.name)] = int(ran), int(waited)
    return found


def share(before: Threads, now: Threads, seconds: float) -> Share | None:
    """Returns the CPU use between two readings, ``seconds`` apart; None without readings.

    Threads that ended in between are not included.
    """
    if not now:
        return None
    grown = [
        (ran - before.get(thread, (0, 0))[0], waited - before.get(thread, (0, 0))[1])
        for thread, (ran, waited) in now.items()
    ]
    whole = max(seconds, 1e-9) * 1e9
    return Share(max(ran for ran, _ in grown) / whole, sum(one for _, one in grown) / whole)


def dropped(pid: int | str = "self") -> int:
    """Returns the UDP datagrams dropped at full receive buffers in a network namespace."""
    with suppress(OSError):
        match = _RECEIVE_ERRORS.search(Path(f"/proc/{pid}/net/snmp").read_text())
        if match is not None:
            names, values = match[1].split(), match[2].split()
            return int(values[names.index("RcvbufErrors")])
    return 0


class CpuWatch:
    """Measures the CPU use of a process from its construction on."""

    def __init__(self, pid: int | str = "self") -> None:
        self._pid = pid
        self._began, self._threads, self._dropped = time.monotonic(), threads(pid), dropped(pid)

    def share(self) -> Share | None:
        """Returns the CPU use since then; None if the process is gone."""
        return share(self._threads, threads(self._pid), time.monotonic() - self._began)

    def dropped(self) -> int:
        """Returns the datagrams dropped since then in its network namespace."""
        return max(0, dropped(self._pid) - self._dropped)


def reasons(busy: float, shares: Mapping[str, Share | None], lost: int) -> list[str]:
    """Returns why times depend on the machine; empty if they do not.

    busy: share of all CPUs.
    shares: CPU use of the processes that packets pass, by name.
    lost: packets dropped at full queues of processes.
    """
    known = {name: one for name, one in shares.items() if one is not None}
    found = []
    if known:
        name = max(known, key=lambda one: known[one].waited)
        if known[name].waited > MOST_WAITED:
            found.append(f"{name} {waiting(known[name].waited)}")
        name = max(known, key=lambda one: known[one].worked)
        if known[name].worked > MOST_WORKED:
            found.append(f"{name} worked for {known[name].worked:.0%} of the time")
    elif busy > MOST_BUSY:
        found.append(f"all CPUs were busy for {busy:.0%} of the time")
    if lost:
        found.append(f"{lost:,} packets found the queue of a process full")
    return found


def waiting(waited: float) -> str:
    """Describes ``Share.waited`` in words."""
    if waited > 1:  # more than there is time: several threads at once
        return f"had {waited:.1f} threads waiting for a CPU at a time, on average"
    return f"waited for a CPU for {waited:.0%} of the time"


def typical(seconds: Sequence[float]) -> float:
    """Returns the mean duration without the quarter of the shortest and of the longest, at least
    two of each: of up to six durations, the median.

    Iterations may alternate between two durations, of which a median is either one.
    """
    without = max(len(seconds) // 4, min(2, (len(seconds) - 1) // 2))
    return statistics.fmean(sorted(seconds)[without : len(seconds) - without])


def is_off(measured: float, explained: float) -> bool:
    """Returns whether a time is the machine's, given the one in virtual time."""
    return abs(measured / explained - 1) > OFF


def machine(
    busy: float,
    shares: Mapping[str, Share | None],
    lost: int,
    took: Sequence[float] = (),
    virtual: Sequence[float] = (),
) -> CpuUse:
    """Returns the entries for ``machine`` in the summary.

    busy, shares, lost: as of ``reasons``.
    took: seconds of iterations, of which the first waits for all workers to begin.
    virtual: those in virtual time, without the first; empty if they are not known.
    """
    why = reasons(busy, shares, lost)
    use: CpuUse = {
        "cpu_busy": busy,
        "cpu_bound": bool(why),
        "cpu_bound_by": why,
        "cpu_waited": {name: one.waited for name, one in shares.items() if one is not None},
        "queues_full": lost,
    }
    if len(took) > 1 and virtual:
        measured, explained = typical(took[1:]), typical(virtual)
        off = is_off(measured, explained)
        text = (
            f"an iteration took {time_text(measured, 3)}, {time_text(explained, 3)} in virtual time"
        )
        use |= {
            "cpu_bound": off,
            "cpu_bound_by": [text, *why] if off else [],
            "iteration_in_virtual_time": explained,
        }
    return use
