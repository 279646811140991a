# SPDX-License-Identifier: Apache-2.0
"""The balancer that leaves load where it is until the network changes."""

from __future__ import annotations

from collections.abc import Iterable

from controller.planning.balancing.balancer import Balancer, Measurements, Move


class Static(Balancer):
    """Plans a job again only if a change of the network gives it a plan, or other trees."""

    def observe(self, measurements: Measurements) -> Iterable[Move]:
        """Implements Balancer."""
        changed = measurements.changed
        if changed and (measurements.waiting or measurements.outdated()):
            yield Move(changed)
