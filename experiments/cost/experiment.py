# SPDX-License-Identifier: Apache-2.0
"""The declaration of the experiment."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from experiments.common.declaration import Experiment, InRealTime
from experiments.cost.figures import claims, figures
from experiments.cost.jobs import points
from experiments.cost.page import sections

__all__ = ["EXPERIMENT"]


def measure(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the columns of a run: the median time of its iterations but the first, which also
    agrees on exponents, and the last, after which no forward pass follows."""
    return {
        "seconds": statistics.median(summary["seconds_per_iteration"][1:-1]),
        "retransmitted": summary["chunks"]["retransmitted"],
    }


EXPERIMENT = Experiment(
    "Throughput per dollar",
    "What a rack with a PBox, or with a switch that sums, brings for its price; prices in a file.",
    points,
    measure,
    figures,
    sections,
    claims,
    InRealTime(
        "Not run in real time: prices are of machines with links of 10 to 100 Gbit/s, and divide"
        " throughputs at these rates. Slower"
        " links would scale all of them alike."
    ),
)
