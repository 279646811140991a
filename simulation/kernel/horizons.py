# SPDX-License-Identifier: Apache-2.0
"""Computes horizons: the time until which no unknown event can reach a node.

The first unknown event reaches a node after the shortest path, over links and calls, from any node
with a pending event. Nodes with a single link, as nearly all hosts, are on no path between others:
they are computed all at once, and the search covers the remaining nodes.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from simulation.links.link import Link
from simulation.links.trains import NEVER

Times: TypeAlias = npt.NDArray[np.int64]


class Horizons:
    """The horizons of a network's nodes.

    links: each with the numbers of its sender and receiver.
    latency: ps of a call between any two nodes.
    answered: nodes that stop by themselves before answers to their packets (`Node.answered`).

    Call `left` for every node that may have sent packets.
    """

    def __init__(
        self,
        count: int,
        links: Sequence[tuple[Link, int, int]],
        latency: int,
        answered: Sequence[int] = (),
    ) -> None:
        self._latency = latency
        out: list[list[tuple[Link, int]]] = [[] for _ in range(count)]
        into: list[list[Link]] = [[] for _ in range(count)]
        for link, sender, receiver in links:
            out[sender].append((link, receiver))
            into[receiver].append(link)

        def single(number: int) -> bool:
            mine = [*(link for link, _ in out[number]), *into[number]]
            return len(out[number]) == len(into[number]) == 1 and not any(
                link.by_priority for link in mine
            )

        hubs = {n: out[n][0][1] for n in range(count) if single(n)}
        leaves = [
            n for n, hub in sorted(hubs.items(), key=lambda one: one[::-1]) if hub not in hubs
        ]
        self._leaves = np.array(leaves, np.intp)
        self._hubs = np.array([hubs[n] for n in leaves], np.intp)
        self._inner = np.setdiff1d(np.arange(count), self._leaves)
        self._up = LinkBank([out[n][0][0] for n in leaves])
        self._down = LinkBank([into[n][0] for n in leaves])
        found, firsts = np.unique(self._hubs, return_index=True)
        self._with_leaves: list[int] = found.tolist()
        self._firsts = firsts
        outer = set(leaves)
        self._ways = [
            [] if n in outer else [(link, to) for link, to in out[n] if to not in outer]
            for n in range(count)
        ]
        self._places = [
            [place for lines in (self._up, self._down) if (place := lines.place(out[n]))]
            for n in range(count)
        ]

        self._answered = {
            number: [(link, n) for link, n, to in links if to == number and n not in outer]
            for number in answered
        }

    def left(self, number: int) -> None:
        """Records that a node has run, so its links may be busy for longer."""
        for lines, rows, links in self._places[number]:
            lines.free[rows] = [link.free for link in links]

    def bounds(self, due: Times, calls: Times, known: int) -> tuple[Times, Times]:
        """Computes for each node the earliest possible event, and its horizon.

        due: the time of each node's own next event.
        calls: the time of each node's next call, at least.
        known: the time of the next call of any node, at least, unless a packet that has not been
            sent yet leads to one.
        """
        latency, leaves = self._latency, self._leaves
        called = min(int(calls.min()) + latency, NEVER)
        surely = min(known + latency, NEVER)
        earliest = np.minimum(due, called)
        horizons = np.full(len(earliest), NEVER, np.int64)
        own = earliest[leaves]
        reached = self._first(self._up.noticed(self._up.earliest(own)))
        first = dict(zip(self._with_leaves, reached, strict=True))
        unanswered = self._unanswered(due, surely)
        for hub, at in first.items():
            earliest[hub] = min(int(earliest[hub]), at)
        self._search(earliest, horizons)
        horizons[leaves] = down = self._down.earliest(earliest[self._hubs])
        earliest[leaves] = own = np.minimum(own, self._down.noticed(down))
        back = self._first(self._up.earliest(own))
        for hub, at in zip(self._with_leaves, back, strict=True):
            horizons[hub] = min(int(horizons[hub]), at)
        # A node's own calls are no news to it.
        calls = np.minimum(calls, called)
        lowest, second = np.partition(np.append(calls, [NEVER, NEVER]), 1)[:2].tolist()
        others = np.where(
            calls == lowest, min(second + latency, NEVER), min(lowest + latency, NEVER)
        )
        horizons = np.minimum(horizons, others)
        for number, at in unanswered.items():
            horizons[number] = min(at, surely)
        return earliest, horizons

    def _unanswered(self, due: Times, called: int) -> dict[int, int]:
        """Computes when a packet can reach each answered node that no packet of its own led to.

        called: the earliest such call of any node.
        """
        if not self._answered:
            return {}
        times = np.minimum(due, called)
        reached = self._first(self._up.earliest(times[self._leaves]))
        first = dict(zip(self._with_leaves, reached, strict=True))
        return {
            number: min(
                [first.get(number, NEVER), *(link.earliest(int(times[n])) for link, n in into)]
            )
            for number, into in self._answered.items()
        }

    def _first(self, times: Times) -> list[int]:
        """Returns the minimum over each hub's leaves."""
        found: list[int] = np.minimum.reduceat(times, self._firsts).tolist() if len(times) else []
        return found

    def _search(self, earliest: Times, horizons: Times) -> None:
        """Runs Dijkstra's algorithm between all nodes but the leaves; updates both arrays."""
        inner = self._inner.tolist()
        times = earliest.tolist()
        limits: dict[int, int] = {}
        queue = [(times[number], number) for number in inner]
        heapq.heapify(queue)
        while queue:
            time, number = heapq.heappop(queue)
            if time > times[number]:
                continue
            for link, receiver in self._ways[number]:
                reached = link.earliest(time)
                if reached < limits.get(receiver, NEVER):
                    limits[receiver] = reached
                    reached = link.noticed(reached)
                    if reached < times[receiver]:
                        times[receiver] = reached
                        heapq.heappush(queue, (reached, receiver))
        for number in inner:
            earliest[number] = times[number]
        for number, limit in limits.items():
            horizons[number] = limit


class LinkBank:
    """Vectorized `Link.earliest` for links that do not queue by priority."""

    def __init__(self, links: Sequence[Link]) -> None:
        self.links = links
        self.free = np.array([link.free for link in links], np.int64)
        self._latency = np.array([link.latency for link in links], np.int64)
        self._least = np.array([link.least for link in links], np.int64)
        self._most = NEVER - self._latency - self._least
        self._interval = np.array([link.interval for link in links], np.int64)
        self._rows = {link.number: row for row, link in enumerate(links)}

    def place(
        self, out: Sequence[tuple[Link, int]]
    ) -> tuple[LinkBank, list[int], list[Link]] | None:
        """Returns itself, and the rows of those of a node's links that it has; None without any."""
        links = [link for link, _ in out if link.number in self._rows]
        return (self, [self._rows[link.number] for link in links], links) if links else None

    def noticed(self, times: Times) -> Times:
        """Computes when receivers notice packets that arrive at these times."""
        times = np.minimum(times, NEVER - self._interval)
        noticed: Times = -(-times // self._interval) * self._interval
        return noticed

    def earliest(self, senders: Times) -> Times:
        """Computes the earliest arrivals of unknown packets if senders are idle until then."""
        there: Times = np.maximum(np.minimum(senders, self._most) + self._latency, self.free)
        there += self._least
        return there
