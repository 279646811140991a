# SPDX-License-Identifier: Apache-2.0
"""The declaration of the experiment."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from experiments.common.declaration import Experiment
from experiments.tenants.figures import claims, figures
from experiments.tenants.jobs import IN_REAL_TIME, points
from experiments.tenants.page import sections

__all__ = ["EXPERIMENT"]


def measure(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the columns of a run: the median time of an iteration of each job, in their order.

    The first also agrees on exponents, and after the last no forward pass follows.
    """
    jobs = summary["jobs"]
    return {
        "seconds": [statistics.median(one["seconds_per_iteration"][1:-1]) for one in jobs],
        "retransmitted": sum(one["chunks"]["retransmitted"] for one in jobs),
    }


EXPERIMENT = Experiment(
    "Many jobs on one hub",
    "One to eight AlexNet jobs on a PBox, and on a switch that sums: slow-down and fairness.",
    points,
    measure,
    figures,
    sections,
    claims,
    IN_REAL_TIME,
)
