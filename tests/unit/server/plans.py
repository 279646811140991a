# SPDX-License-Identifier: Apache-2.0
"""Plans of servers, of a job with one worker, for tests of servers without a network."""

from __future__ import annotations

from protocol.optimizer_plan import OptimizerPlan
from protocol.plan import Address, ServerPlan


def server_plan(optimizer: OptimizerPlan, servers: int, chunks: int, lanes: int) -> ServerPlan:
    """Returns the plan of the first of some servers that run an optimizer."""
    return ServerPlan(
        job=1,
        epoch=1,
        world=1,
        lanes=lanes,
        rank=0,
        servers=tuple(Address(1000 + rank, 1) for rank in range(servers)),
        workers=(Address(10, 1),),
        windows={0: 32},
        counts=(1,) * chunks,
        optimizer=optimizer,
    )
