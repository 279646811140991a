# SPDX-License-Identifier: Apache-2.0
"""The declaration of the experiment."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from experiments.aggregation.figures import claims, figures
from experiments.aggregation.jobs import points
from experiments.aggregation.page import sections
from experiments.common.declaration import Experiment

__all__ = ["EXPERIMENT"]


def measure(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the columns of a run: the median time of its iterations but the first, which also
    agrees on exponents, the longest, and the packets that were retransmitted in all."""
    if "closed_form_seconds" in summary:  # a baseline, whose first iteration is left out already
        times = summary["seconds_per_iteration"]
        return {"seconds": summary["seconds"], "longest_s": max(times), "retransmitted": 0}
    times = summary["seconds_per_iteration"][1:]
    return {
        "seconds": statistics.median(times),
        "longest_s": max(times),
        "retransmitted": summary["chunks"]["retransmitted"],
    }


EXPERIMENT = Experiment(
    "Aggregation in the network",
    "Time against workers, goodput against windows, losses over levels, and stragglers.",
    points,
    measure,
    figures,
    sections,
    claims,
)
