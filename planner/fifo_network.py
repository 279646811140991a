# SPDX-License-Identifier: Apache-2.0
"""Simulates packets through FIFO queues: those of links, hosts and servers.

Closed forms over classes of links cannot express the order of single packets. This event simulation
does, for as many packets as a steady rate takes to show.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import NamedTuple

from planner.network import SERVER, WORKER, Ends, Network, uplink
from planner.stations import host_seconds, wire_bits
from topologies.model.topology import Costs

Key = tuple[int, ...]
Packet = tuple[int, ...]  # an identifier of the caller's choice


class _Link(NamedTuple):
    """A direction of a link.

    pace: seconds a bit.
    after: seconds from the last bit until the next queue has the packet.
    queue: its capacity in bytes.
    """

    key: Key
    pace: float
    after: float
    queue: float


class FifoNetwork:
    """FIFO queues between workers and servers.

    sources: links of workers, or of one worker for each ToR that sums.
    colocated: servers run on the workers' hosts and share their links.
    lossy: rates are reduced by retransmissions.
    """

    def __init__(
        self, network: Network, sources: Ends, costs: Costs, *, colocated: bool, lossy: bool = False
    ) -> None:
        self.network, self.costs, self.colocated = network, costs, colocated
        self.sources, self.servers = sources, network.ends(SERVER)
        self._lines = {
            name: (1 / line.rate / (1 - line.loss if lossy else 1.0), line.delay, line.queue_bytes)
            for name, line in network.lines.items()
        }
        self._cores = [1, *(one.cores for one in network.levels)]
        self._free: dict[Key, float] = {}
        self._count = 0
        self._events: list[tuple[float, int, int, tuple[_Link, ...], Packet]] = []
        self._ways: dict[tuple[bool, int, int], tuple[_Link, ...]] = {}

    def way(self, source: int, server: int, *, back: bool) -> tuple[_Link, ...]:
        """Lists the links from a worker to a server, or back; none within one host."""
        known = self._ways.get((back, source, server))
        if known is None:
            known = self._ways[back, source, server] = tuple(self._found(source, server, back=back))
        return known

    def _found(self, source: int, server: int, *, back: bool) -> list[_Link]:
        if self.colocated and source == server:
            return []
        hosts = [(WORKER, 0, source), (WORKER, 0, server)]
        racks = [self.sources.racks[source], self.servers.racks[server]]
        numbers = [self.sources.numbers[source], self.servers.numbers[server]]
        if not self.colocated:
            hosts[1] = (SERVER, 1, server)
        if back:
            hosts, racks, numbers = hosts[::-1], racks[::-1], numbers[::-1]
        (first, *own), (last, *other) = hosts
        latency = self.costs.switch_latency
        pace, delay, queue = self._lines[first]
        up = [_Link((10, *own), pace, delay + latency, queue)]
        pace, delay, queue = self._lines[last]
        down = [_Link((11, *other), pace, delay, queue)]
        level, net = 0, self.network
        while net.pod(level, racks[0]) != net.pod(level, racks[1]):
            below, above = self._cores[level : level + 2]
            link = numbers[1] % below * above + numbers[1] % above
            pace, delay, queue = self._lines[uplink(level)]
            for way, end, rack in ((up, 0, racks[0]), (down, 1, racks[1])):
                key = (level, end, net.pod(level, rack), link)
                way.append(_Link(key, pace, delay + latency, queue))
            level += 1
        return [*up, *reversed(down)]

    def passed(self, key: Key, now: float, seconds: float) -> float:
        """Queues work of `seconds` at a station and returns the time when it is done."""
        self._free[key] = done = max(now, self._free.get(key, 0.0)) + seconds
        return done

    def leave(
        self, now: float, frame: int, source: int, server: int, packet: Packet, *, back: bool
    ) -> None:
        """Sends a packet of `frame` bytes from a worker to a server's link, or back.

        The host's own link has no other sender, so it is passed at once.
        """
        way = self.way(source, server, back=back)
        if way and (self.colocated or not back):
            host = server if back else source
            now = self.passed((12, host), now, host_seconds(frame, self.costs))
        if way:
            bits = wire_bits(frame, self.costs)
            now = self.passed(way[0].key, now, bits * way[0].pace) + way[0].after
        self._push(now, frame, way[1:], packet)

    def _push(self, now: float, frame: int, way: tuple[_Link, ...], packet: Packet) -> None:
        self._count += 1
        heapq.heappush(self._events, (now, self._count, frame, way, packet))

    def run(self, come: Callable[[float, Packet], None]) -> None:
        """Runs until no packet is in flight; calls `come` for each arrival in order of time."""
        events = self._events
        bits: dict[int, float] = {}
        while events:
            now, _, frame, way, packet = heapq.heappop(events)
            if way:
                link = way[0]
                if frame not in bits:
                    bits[frame] = wire_bits(frame, self.costs)
                now = self.passed(link.key, now, bits[frame] * link.pace) + link.after
                if len(way) > 1:
                    self._push(now, frame, way[1:], packet)
                    continue
                if link.key[1] == 0:
                    now = self.passed((13, link.key[2]), now, host_seconds(frame, self.costs))
            come(now, packet)
