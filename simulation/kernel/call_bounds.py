# SPDX-License-Identifier: Apache-2.0
"""Computes when nodes can make their next calls.

Calls take a millisecond and may go from any node to any other, so they bound horizons. A node whose
packets are about to be sums of an unfinished push makes none before the last of these, however many
packets arrive until then (`Node.outlook`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simulation.kernel.horizons import LinkBank, Times
from simulation.links.link import Link
from simulation.links.trains import NEVER

_LONG = NEVER // 4


class CallBounds:
    """Bounds for a network's nodes.

    links: those at whose ends packets may lead to calls, each with its receiver's number.

    `own` has the times of calls that no packet leads to, by node. Call `update` for links whose
    sender or receiver has run.
    """

    def __init__(self, count: int, links: Sequence[tuple[Link, int]]) -> None:
        self.own = np.full(count, NEVER, np.int64)
        self._links = LinkBank([link for link, _ in links])
        self._receivers = np.array([receiver for _, receiver in links], np.intp)
        # Of each link: when a packet is noticed that is known to be able to lead to a call; and how
        # long packets that cannot take on the line, before one that can.
        self._known = np.full(len(links), NEVER, np.int64)
        self._silent = np.zeros(len(links), np.int64)
        self._least = np.array([link.line_rate.min_time for link, _ in links], np.int64)
        self._rows = {link.number: row for row, (link, _) in enumerate(links)}

    def rows(self, links: Sequence[Link]) -> tuple[list[int], list[Link]]:
        """Returns those of these links that count, with their rows for `update`."""
        found = [link for link in links if link.number in self._rows]
        return [self._rows[link.number] for link in found], found

    def update(self, rows: list[int], links: Sequence[Link]) -> None:
        """Takes the state of these links."""
        if not links:
            return
        self._links.free[rows] = [link.free for link in links]
        self._known[rows] = [link.noticed(min(link.news, link.undecided_until)) for link in links]
        least = self._least[rows]
        silent = np.array([link.silent for link in links], np.int64)
        self._silent[rows] = np.minimum(silent, _LONG // np.maximum(least, 1)) * least

    def bounds(self, due: Times) -> tuple[Times, int]:
        """Returns the time of each node's next call, at least; and that of any node's, unless a
        packet that has not been sent yet leads to one.

        due: the time of each node's own next event.
        """
        known = min(int(self.own.min()), int(self._known.min(initial=NEVER)))
        calls = self.own.copy()
        if len(self._receivers):
            # No packet is sent before the first event of any node.
            first = np.full(len(self._receivers), int(due.min()), np.int64)
            unknown = np.minimum(self._links.earliest(first), NEVER - _LONG) + self._silent
            noticed = np.minimum(self._links.noticed(unknown), self._known)
            np.minimum.at(calls, self._receivers, noticed)
        return calls, known
