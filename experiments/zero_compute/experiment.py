# SPDX-License-Identifier: Apache-2.0
"""The declaration of the experiment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.common.declaration import Experiment
from experiments.zero_compute.figures import claims, figures
from experiments.zero_compute.jobs import IN_REAL_TIME, points
from experiments.zero_compute.page import sections

__all__ = ["EXPERIMENT"]


def measure(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the columns of a point: the time of an exchange, and whether it was right (of a job:
    nothing was retransmitted)."""
    if "seconds" in summary:
        return {"seconds": summary["seconds"], "right": bool(summary["right"])}
    return {
        "seconds": summary["seconds_per_iteration"][-1],
        "right": summary["chunks"]["retransmitted"] == 0,
    }


EXPERIMENT = Experiment(
    "Exchanges without computing",
    "Exchanges a second of PBox, sharded servers, ring, halving-doubling and switches, 1 to 120"
    " workers that compute nothing.",
    points,
    measure,
    figures,
    sections,
    claims,
    IN_REAL_TIME,
)
