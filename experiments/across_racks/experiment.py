# SPDX-License-Identifier: Apache-2.0
"""The declaration of the experiment."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from experiments.across_racks.figures import claims, figures
from experiments.across_racks.jobs import IN_REAL_TIME, points
from experiments.across_racks.page import sections
from experiments.common.declaration import Experiment

__all__ = ["EXPERIMENT"]


def measure(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the columns of a run: the time of a sum (``seconds``), its lower bound by links
    (``least``), and bytes of the busiest link between switches (``core_bytes``); the last two None
    for jobs, which also agree on exponents."""
    if "closed_form_seconds" in summary:
        return {
            "seconds": summary["seconds"],
            "least": summary["closed_form_seconds"],
            "core_bytes": summary["core_bytes"],
        }
    seconds = statistics.fmean(summary["seconds_per_iteration"][1:])
    return {"seconds": seconds, "least": None, "core_bytes": None}


EXPERIMENT = Experiment(
    "Across racks: one level or two",
    "Sums across racks: flat, by a box in each rack, by ToRs, by two levels of switches.",
    points,
    measure,
    figures,
    sections,
    claims,
    IN_REAL_TIME,
)
