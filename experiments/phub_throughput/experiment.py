# SPDX-License-Identifier: Apache-2.0
"""The declaration of the experiment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.common.declaration import Experiment, InRealTime
from experiments.phub_throughput.figures import claims, figures
from experiments.phub_throughput.jobs import points
from experiments.phub_throughput.page import sections

__all__ = ["EXPERIMENT"]


def measure(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the columns of a point: the time of an iteration, of a run its last but one, from the
    end of a forward pass to the end of the next."""
    if "seconds" in summary:  # planned
        return {"seconds": summary["seconds"], "retransmitted": 0}
    return {
        "seconds": summary["seconds_per_iteration"][-2],
        "retransmitted": summary["chunks"]["retransmitted"],
    }


EXPERIMENT = Experiment(
    "PHub: training throughput of nine models",
    "PHub against sharded MXNet with nine models, 8 workers at 10 and 56 Gbit/s: how much of the"
    " gain is traffic, how much software.",
    points,
    measure,
    figures,
    sections,
    claims,
    InRealTime(
        "Not run in real time: models have 38 to 550 MB, and the software of MXNet is a model of"
        " costs of hosts. The same placements without computing are measured in"
        " [exchanges](zero-compute.md)."
    ),
)
