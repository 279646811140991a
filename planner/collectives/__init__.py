# SPDX-License-Identifier: Apache-2.0
"""Collectives: all-reduce algorithms over byte streams, without in-network aggregation of workers.

Each is one file, listed here. From this list `rackhub compare` and `rackhub plan` have their names,
and tests hold every one to numpy's sums and to its closed forms.
"""

from __future__ import annotations

from planner.collectives.boxes import Boxes
from planner.collectives.collective import Collective, Team, TeamError
from planner.collectives.halving_doubling import HalvingDoubling
from planner.collectives.parameter_servers import ParameterServers
from planner.collectives.ring import Ring
from planner.collectives.schedule import HALVING_DOUBLING, RING
from planner.collectives.switched_boxes import SwitchedBoxes

__all__ = ["COLLECTIVES", "Collective", "Team", "TeamError"]

COLLECTIVES: dict[str, Collective] = {
    one.name: one
    for one in (
        Ring(),
        HalvingDoubling(),
        ParameterServers("ps", central=True),
        ParameterServers("sharded-ps", least_servers=2),
        Boxes("box-ring", exchange=RING),
        Boxes("box-halving-doubling", exchange=HALVING_DOUBLING),
        SwitchedBoxes("box-switch"),
    )
}
"""By name, in the order in which they are compared."""
