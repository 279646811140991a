# SPDX-License-Identifier: Apache-2.0
"""Describes this machine, on which a run's speed depends, but not its results; and its CPU time."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
from contextlib import suppress
from pathlib import Path

from observability.messages.summary import Machine

_PACKAGES = ("numpy", "grpcio", "protobuf", "scikit-learn")


def machine_facts(target: str) -> Machine:
    """Returns facts of the machine that a run's speed depends on, but not its results."""
    return {
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "processor": _processor(),
        "cpus": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "target_version": _target_version(target),
        "user": "root" if os.geteuid() == 0 and "SUDO_UID" not in os.environ else "user",
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    with suppress(OSError):
        match = re.search(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.M)
        if match:
            return match[1]
    return platform.processor()


def _target_version(target: str) -> str | None:
    command = ["simple_switch_grpc", "--version"] if target == "bmv2" else ["cc", "--version"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = (result.stdout or result.stderr).strip().splitlines()
    return lines[-1 if target == "bmv2" else 0] if lines else None


def cpu_seconds() -> dict[str, float]:
    """Returns the CPU seconds of this machine since it started: ``busy``, and ``all`` of them."""
    with Path("/proc/stat").open() as file:
        values = [int(word) for word in file.readline().split()[1:]]
    ticks = os.sysconf("SC_CLK_TCK")
    idle = values[3] + values[4]
    # User time includes guest time.
    return {"busy": (sum(values[:8]) - idle) / ticks, "all": sum(values[:8]) / ticks}
