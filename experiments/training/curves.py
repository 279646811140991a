# SPDX-License-Identifier: Apache-2.0
"""Trains in virtual time, and returns what was learned until when."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from observability import series
from observability.record import RunDirectory
from sweeps.execution import Order, run_virtually

__all__ = ["virtual", "with_curve"]


def virtual(directory: RunDirectory, order: Order) -> dict[str, Any]:
    """Trains in virtual time; returns the summary and ``curve`` (see ``with_curve``)."""
    return with_curve(directory, run_virtually(directory, order))


def with_curve(directory: RunDirectory, summary: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a summary with ``curve``: of each iteration the seconds until its end, without those
    before the first, its loss, and the accuracy where that was measured."""
    (curve,) = series.read(directory.path / series.FILE).jobs.values()
    known = {one.number: one for one in curve.iterations}
    rows = []
    for number, end in enumerate(accumulate(summary["seconds_per_iteration"]), 1):
        one = known.get(number)
        rows.append([end, one.loss if one else None, one.accuracy if one else None])
    return {**summary, "curve": rows}
