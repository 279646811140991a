# SPDX-License-Identifier: Apache-2.0
"""The load balancers by name. A new one is a file beside `static.py` and a line here."""

from __future__ import annotations

from controller.planning.balancing.balancer import Balancer
from controller.planning.balancing.least_loaded import LeastLoaded
from controller.planning.balancing.psld import Psld
from controller.planning.balancing.static import Static
from protocol.balance import STATIC

BALANCERS: dict[str, type[Balancer]] = {
    STATIC: Static,
    "least-loaded": LeastLoaded,
    "psld": Psld,
}
