# SPDX-License-Identifier: Apache-2.0
"""A window of constant size."""

from __future__ import annotations

from hosts.worker.congestion.window import CongestionWindow, RoundTrip


class Fixed(CongestionWindow):
    """Uses all slots at any time. The planner sizes them by the links and their queues; a result
    makes room for one contribution, so all slots in flight are what switches are prepared for."""

    adapts = False

    def first(self) -> int:
        return self.slots

    def following(self, trip: RoundTrip) -> int:
        return self.slots
