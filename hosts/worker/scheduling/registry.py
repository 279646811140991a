# SPDX-License-Identifier: Apache-2.0
"""The chunk schedulers by name. A new one is a file beside `fifo.py` and a line here."""

from __future__ import annotations

from hosts.worker.scheduling.checked import CheckedScheduler
from hosts.worker.scheduling.fifo import Fifo
from hosts.worker.scheduling.scheduler import ChunkScheduler
from hosts.worker.scheduling.urgent import MostUrgentByCredit, MostUrgentFirst
from protocol.plan import PlanError, WorkerPlan
from protocol.propagation import FIFO

PRIORITY = "priority"
CREDIT = "credit"

SCHEDULERS: dict[str, type[ChunkScheduler]] = {
    FIFO: Fifo,
    PRIORITY: MostUrgentFirst,
    CREDIT: MostUrgentByCredit,
}


def scheduler_for(plan: WorkerPlan) -> ChunkScheduler:
    """Returns the scheduler that a plan names. Raises PlanError if there is none of that name."""
    order = plan.propagation.order
    kind = SCHEDULERS.get(order)
    if kind is None:
        raise PlanError(f"order {order!r} is none of {', '.join(SCHEDULERS)}")
    return CheckedScheduler(kind, plan)
