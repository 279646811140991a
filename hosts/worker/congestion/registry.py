# SPDX-License-Identifier: Apache-2.0
"""The congestion windows by name. A new one is a file beside `fixed.py` and a line here."""

from __future__ import annotations

from hosts.worker.congestion.fixed import Fixed
from hosts.worker.congestion.window import CongestionWindow
from hosts.worker.policies import naming
from protocol.plan import FIXED, PlanError, WorkerPlan

WINDOWS: dict[str, type[CongestionWindow]] = {FIXED: Fixed}


def windows_for(plan: WorkerPlan) -> list[CongestionWindow]:
    """Returns the window of each stream, of the kind that a plan names. Raises PlanError if there
    is none of that name."""
    kind = WINDOWS.get(plan.congestion)
    if kind is None:
        raise PlanError(f"congestion window {plan.congestion!r} is none of {', '.join(WINDOWS)}")
    with naming("congestion window", kind):
        return [kind(stream.window) for stream in plan.streams]
