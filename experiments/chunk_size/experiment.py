# SPDX-License-Identifier: Apache-2.0
"""The declaration of the experiment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.chunk_size.figures import claims, figures
from experiments.chunk_size.jobs import IN_REAL_TIME, points
from experiments.chunk_size.page import sections
from experiments.common.declaration import Experiment

__all__ = ["EXPERIMENT"]


def measure(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the columns of a run: the time of its last exchange."""
    return {
        "seconds": summary["seconds_per_iteration"][-1],
        "retransmitted": summary["chunks"]["retransmitted"],
    }


EXPERIMENT = Experiment(
    "PHub's chunk size and ablations",
    "Exchanges a second of a PBox with chunks of 4 KiB to 4 MiB, and without parts of its design.",
    points,
    measure,
    figures,
    sections,
    claims,
    IN_REAL_TIME,
)
