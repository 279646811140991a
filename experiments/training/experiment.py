# SPDX-License-Identifier: Apache-2.0
"""The declaration of the experiment."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from experiments.common.declaration import Experiment
from experiments.training.figures import claims, figures
from experiments.training.jobs import points
from experiments.training.page import sections

__all__ = ["EXPERIMENT"]


def measure(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the columns of a run: the median time of its iterations, what the model then says of
    held-out examples, a digest of its weights, and its curve (``curves``)."""
    return {
        "seconds": statistics.median(summary["seconds_per_iteration"][1:-1]),
        "total_s": sum(summary["seconds_per_iteration"]),
        "test_accuracy": summary["test_accuracy"],
        "test_loss": summary["test_loss"],
        "weights": summary["weights_sha256"],
        "matches_reference": summary["matches_reference"],
        "cpu_bound": summary.get("machine", {}).get("cpu_bound"),
        "curve": summary["curve"],
    }


EXPERIMENT = Experiment(
    "Training",
    "Loss and accuracy against time: switches, servers and P3 with equal links and equal weights.",
    points,
    measure,
    figures,
    sections,
    claims,
)
