# SPDX-License-Identifier: Apache-2.0
"""Limits the CPU time of threads by a control group (cgroups(7), versions 1 and 2).

Of a process those threads are limited that process packets and compute (`processing_threads`), not
those of gRPC. These wake up often, which would take most of a small share; and whenever a thread
lets go of the interpreter's lock, one of them might get it, use up the share and keep the lock
until the next turn, so that the host would be late by seconds at times.

A sandbox has a sysfs of its own, so the hierarchy is mounted again, in the sandbox only.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

from protocol.runtime import WORKER_THREAD

_PERIOD_US = 10_000  # of the quota; longer where that is less than the least quota, if it may be
_MOST_PERIOD_US = 1_000_000
_LEAST_US = 5_000  # so that a turn is long enough for what waits: less is spent on cold caches
_MOUNTS: tuple[tuple[str, list[str]], ...] = (("cgroup", ["-o", "cpu"]), ("cgroup2", []))


class QuotaError(Exception):
    """CPU time cannot be limited here; the text says why."""


def processing_threads(pid: int) -> list[int]:
    """Returns the threads of a server or worker that process packets and compute: the main one, and
    those that send and receive for workers."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            if (task / "comm").read_text().startswith(WORKER_THREAD):
                found.append(int(task.name))
    return found


class CpuQuota:
    """A control group of threads, given by their IDs; that of a process is its main thread's.

    Raises ``QuotaError`` if there cannot be one.
    """

    def __init__(self, threads: Iterable[int]) -> None:
        self._root = Path(tempfile.mkdtemp(prefix="rackhub-cpu-"))
        self._mounted = False
        try:
            self._version_1 = self._mount()
            self._home = self._own()
            self._group = self._home / f"rackhub-{os.getpid()}-{id(self)}"
            self._group.mkdir()
            if not self._version_1:
                (self._group / "cgroup.type").write_text("threaded")
            if not self._limit.exists():
                (self._home / "cgroup.subtree_control").write_text("+cpu")
            for thread in threads:
                (self._group / self._members).write_text(str(thread))
        except OSError as error:
            self.close()
            raise QuotaError(f"a control group cannot limit CPU time here: {error}") from error
        except BaseException:
            self.close()
            raise

    def set(self, factor: float) -> None:
        """Limits the group to 1 / factor of a core; 1: no limit. Raises ``QuotaError``."""
        period = min(max(_PERIOD_US, round(_LEAST_US * factor)), _MOST_PERIOD_US)
        quota = round(period / factor)
        try:
            if not self._version_1:
                self._limit.write_text("max" if factor == 1 else f"{quota} {period}")
            elif factor == 1:
                self._limit.write_text("-1")
            else:
                (self._group / "cpu.cfs_period_us").write_text(str(period))
                self._limit.write_text(str(quota))
        except OSError as error:
            raise QuotaError(f"{self._limit}: {error}") from error

    def close(self) -> None:
        """Moves the threads back, and removes the group. Idempotent."""
        group = getattr(self, "_group", None)
        if group is not None and group.exists():
            for thread in (group / self._members).read_text().split():
                with contextlib.suppress(OSError):  # it has ended
                    (self._home / self._members).write_text(thread)
            with contextlib.suppress(OSError):
                group.rmdir()
        if self._mounted:
            subprocess.run(["umount", self._root], capture_output=True)
            self._mounted = False
        with contextlib.suppress(OSError):
            self._root.rmdir()

    @property
    def _members(self) -> str:
        return "tasks" if self._version_1 else "cgroup.threads"

    @property
    def _limit(self) -> Path:
        return self._group / ("cpu.cfs_quota_us" if self._version_1 else "cpu.max")

    def _own(self) -> Path:
        """Returns the group of this process, in which the new one is made."""
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "" if not self._version_1 else "cpu" in controllers.split(","):
                own = self._root / path.lstrip("/")
                return own if own.is_dir() else self._root
        return self._root

    def _mount(self) -> bool:
        """Mounts the hierarchy; returns whether it is of version 1."""
        said = ""
        for kind, options in _MOUNTS:
            command = ["mount", "-t", kind, *options, "rackhub", str(self._root)]
            result = subprocess.run(command, capture_output=True, text=True)
            if result.returncode == 0:
                self._mounted = True
                return kind == "cgroup"
            said = " ".join(result.stderr.split())
        raise QuotaError(f"no control group can limit CPU time here: {said}")
