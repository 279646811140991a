# SPDX-License-Identifier: Apache-2.0
"""Whether the CPUs were what an emulated run waited for, so that its times are this machine's.

Busy CPUs alone do not say so: others' work may give way. What does is how long the processes that
packets pass were ready to run and did not (``/proc/PID/task/TID/schedstat``, which the kernel has
with CONFIG_SCHED_INFO; Documentation/scheduler/sched-stats.rst), whether one of them never rested,
and whether packets found a process's queue full. Shares are of the time that went by, 0 to 1.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

__all__ = ["CpuWatch", "Share", "Threads", "dropped", "machine", "reasons", "share", "threads"]

Threads: TypeAlias = dict[int, tuple[int, int]]
"""Nanoseconds that each thread ran, and waited for a CPU."""

# Beyond these, times say more of the machine than of the network. A chunk waits for several
# processes in a row, and a window hides some of it, so what a run is longer by is of that size.
MOST_WAITED = 0.30
MOST_WORKED = 0.90
MOST_BUSY = 0.95  # of all CPUs, where the kernel does not tell what processes wait
_RECEIVE_ERRORS = re.compile(r"^Udp: (?=.*RcvbufErrors)(.*)\nUdp: (.*)$", re.M)


@dataclass(frozen=True)
class Share:
    """Of a process. waited: how many of its threads waited for a CPU on average, mostly no more
    than one, as they wait for each other; worked: by the thread that did most."""

    worked: float
    waited: float


def threads(pid: int | str = "self") -> Threads:
    """Of a process, until now; empty if it is gone or the kernel does not tell."""
    found: Threads = {}
    with suppress(OSError):
        for entry in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError, ValueError):
                ran, waited, *_ = (entry / "schedstat").read_text().split()
                found[int(entry.name)] = int(ran), int(waited)
    return found


def share(before: Threads, now: Threads, seconds: float) -> Share | None:
    """Of what went by between; None if the kernel does not tell. What threads did that have ended
    meanwhile is not in it."""
    if not now:
        return None
    grown = [
        (ran - before.get(thread, (0, 0))[0], waited - before.get(thread, (0, 0))[1])
        for thread, (ran, waited) in now.items()
    ]
    whole = max(seconds, 1e-9) * 1e9
    return Share(max(ran for ran, _ in grown) / whole, sum(one for _, one in grown) / whole)


def dropped(pid: int | str = "self") -> int:
    """UDP datagrams that found a full receive buffer in a process's network namespace."""
    with suppress(OSError):
        match = _RECEIVE_ERRORS.search(Path(f"/proc/{pid}/net/snmp").read_text())
        if match is not None:
            names, values = match[1].split(), match[2].split()
            return int(values[names.index("RcvbufErrors")])
    return 0


class CpuWatch:
    """Of a process, from now on."""

    def __init__(self, pid: int | str = "self") -> None:
        self._pid = pid
        self._began, self._threads, self._dropped = time.monotonic(), threads(pid), dropped(pid)

    def share(self) -> Share | None:
        """Since then; None if it is gone."""
        return share(self._threads, threads(self._pid), time.monotonic() - self._began)

    def dropped(self) -> int:
        """Since then, in its network namespace."""
        return max(0, dropped(self._pid) - self._dropped)


def reasons(busy: float, shares: Mapping[str, Share | None], lost: int) -> list[str]:
    """Why times are not the network's; empty if they are.

    busy: share of all CPUs. shares: of the processes that packets pass, by name. lost: packets that
    found the queue of a process full.
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
    """In words, of a process; see ``Share``."""
    if waited > 1:  # more than there is time: several threads at once
        return f"had {waited:.1f} threads waiting for a CPU at a time, on average"
    return f"waited for a CPU for {waited:.0%} of the time"


def machine(busy: float, shares: Mapping[str, Share | None], lost: int) -> dict[str, Any]:
    """What the summary says of it, under ``machine``."""
    why = reasons(busy, shares, lost)
    return {
        "cpu_busy": busy,
        "cpu_bound": bool(why),
        "cpu_bound_by": why,
        "cpu_waited": {name: one.waited for name, one in shares.items() if one is not None},
        "queues_full": lost,
    }
