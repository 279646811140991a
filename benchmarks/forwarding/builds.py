# SPDX-License-Identifier: Apache-2.0
"""P4 programs of ``rackhub bench switch`` outside of the data plane.

Kept as the data plane is (``specs.p4program``), with a MANIFEST of their own, but compiled
only by ``make p4``: a program with a register for each lane takes p4c most of a minute.
"""

from __future__ import annotations

import sys
from pathlib import Path

from specs.p4program import Build, main

DIRECTORY = Path(__file__).parent / "p4"
_PLANE = "../../../p4src"

BUILDS = (
    Build("tables", 0, "tables.p4"),
    Build("bare", 4, "bare.p4", include=_PLANE),
    Build("bare_lanes", 4, "bare.p4", lane_by_lane=True, include=_PLANE),
    Build("aggregation_lanes", 4, f"{_PLANE}/aggregation.p4", lane_by_lane=True, include=_PLANE),
)

if __name__ == "__main__":
    sys.exit(main(DIRECTORY, BUILDS))
