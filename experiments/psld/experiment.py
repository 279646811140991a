# SPDX-License-Identifier: Apache-2.0
"""The declaration of the experiment."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from experiments.common.declaration import Experiment
from experiments.psld.figures import claims, figures
from experiments.psld.jobs import IN_REAL_TIME, points
from experiments.psld.page import sections

__all__ = ["EXPERIMENT"]

_LAST = 4  # iterations that make the settled time


def measure(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the columns of a run: the median time of its last iterations but the very last one,
    after which nothing is waited for (``settled_s``), the mean of all but the first
    (``mean_s``), the time of each, the moves (first round, slices that went elsewhere, and why),
    and for how long they held rounds back (``blocked_s``)."""
    times = summary["seconds_per_iteration"]
    inner = times[1:-1]
    moves = summary["moves"] or ()
    return {
        "settled_s": statistics.median(inner[-_LAST:]),
        "mean_s": statistics.mean(inner),
        "times": times,
        "moves": [
            {"round": one["from_round"], "slices": one["slices"], "why": one["reason"]}
            for one in moves
        ],
        "blocked_s": summary["blocked_seconds"],
        "retransmitted": summary["chunks"]["retransmitted"],
    }


EXPERIMENT = Experiment(
    "PSLD: load moved away from stragglers",
    "PSLD's balancer with a slow server, by bandwidth and by processing, in virtual time.",
    points,
    measure,
    figures,
    sections,
    claims,
    IN_REAL_TIME,
)
