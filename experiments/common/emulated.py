# SPDX-License-Identifier: Apache-2.0
"""Runs a point in real time, on the embedded target."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from emulation.lifecycle.running import run as run_emulated
from observability.progress_view import View
from observability.record import RunDirectory
from sweeps.execution import JOB, Order, write_files

__all__ = ["launched", "run"]


def launched(directory: RunDirectory, order: Order) -> RunDirectory:
    """Runs an order's job on a testbed of its own; returns that run's directory. Raises
    LaunchError."""
    write_files(directory, order)
    with View(Console(stderr=True, highlight=False)) as view:
        found, _ = run_emulated(directory.topology, [directory.path / JOB], view, target="embedded")
    return found.run


def run(directory: RunDirectory, order: Order) -> dict[str, Any]:
    """Runs an order's job likewise; returns its summary."""
    return dict(launched(directory, order).read_summary())
