# SPDX-License-Identifier: Apache-2.0
"""Trains in real time, and returns what was learned until when."""

from __future__ import annotations

from typing import Any

from experiments.common.emulated import launched
from experiments.training.curves import with_curve
from observability.record import RunDirectory
from sweeps.execution import Order

__all__ = ["run"]


def run(directory: RunDirectory, order: Order) -> dict[str, Any]:
    """Trains; returns the summary and ``curve`` (``curves.with_curve``). Raises LaunchError."""
    found = launched(directory, order)
    return with_curve(found, found.read_summary())
