# SPDX-License-Identifier: Apache-2.0
"""Sums a job's gradients by a collective that its point names."""

from __future__ import annotations

import json
from typing import Any

from experiments.common import collectives
from observability.record import RunDirectory
from sweeps.execution import Order

__all__ = ["SUMS", "run"]

SUMS = "sums.json"
"""The order's file with the name of the collective, and seconds in which workers compute."""


def run(directory: RunDirectory, order: Order) -> dict[str, Any]:
    """Runs the collective; returns its row of `rackhub compare`."""
    how = json.loads(order.files[SUMS])
    return collectives.run(how["contender"], directory, order, compute=how["compute"])
