# SPDX-License-Identifier: Apache-2.0
"""The declaration of the experiment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.common.declaration import Experiment
from experiments.p3.figures import claims, figures
from experiments.p3.jobs import points
from experiments.p3.page import sections
from observability.cpu_use import typical

__all__ = ["EXPERIMENT"]


def measure(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the columns of a run: the time of its last iteration but one, from the end of a
    forward pass to the end of the next, the typical one of those but the first, and whether these
    are times of the machine (``cpu_bound``)."""
    times = summary["seconds_per_iteration"]
    return {
        "seconds": times[-2],
        "typical_s": typical(times[1:]),
        "cpu_bound": summary.get("machine", {}).get("cpu_bound"),
        "retransmitted": summary["chunks"]["retransmitted"],
        "link_use": summary.get("link_use"),
    }


EXPERIMENT = Experiment(
    "P3: priority-based parameter propagation",
    "P3 against the baseline that it was published with, in virtual time, and with switches that"
    " sum.",
    points,
    measure,
    figures,
    sections,
    claims,
)
