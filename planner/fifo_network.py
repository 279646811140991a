# SPDX-License-Identifier: Apache-2.0
"""Simulates packets through FIFO queues: those of links, hosts and servers.

Closed forms over classes of links cannot express the order of single packets. This event simulation
does, for as many packets as a steady rate takes to show.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from typing import NamedTuple

from planner.network import SERVER, WORKER, Ends, Network, uplink
from planner.stations import host_seconds, wire_bits
from topologies.model.topology import Costs

Key = tuple[int, ...]
Packet = tuple[int, ...]  # an identifier of the caller's choice
Station = list[float]  # its only item: the time when it is free
# What a packet passes in turn, in plain tuples, as this is the inner loop: a link's station, its
# seconds a bit, the seconds after its last bit, the hop behind it, and the last one's host, if any.
_Hop = tuple[Station, float, float, "_Hop | None", Station | None]
_Frame = tuple[float, float]  # bits on a link, seconds of a host


def passed(station: Station, now: float, seconds: float) -> float:
    """Queues work of `seconds` at a station and returns the time when it is done."""
    free = station[0]
    station[0] = done = (now if now > free else free) + seconds
    return done


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
        self._stations: dict[Key, Station] = {}
        self._numbers = count()
        self._events: list[tuple[float, int, _Hop | None, _Frame, Packet]] = []
        self._frames: dict[int, _Frame] = {}
        self._starts: dict[tuple[bool, int, int], tuple[Station | None, _Hop | None]] = {}

    def way(self, source: int, server: int, *, back: bool) -> list[_Link]:
        """Lists the links from a worker to a server, or back; none within one host."""
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

    def station(self, key: Key) -> Station:
        """Returns the station with a key, which all ways share that pass it."""
        return self._stations.setdefault(key, [0.0])

    def _start(self, source: int, server: int, *, back: bool) -> tuple[Station | None, _Hop | None]:
        """Returns the host that sends on a way, if its time counts, and the way's first hop."""
        hop: _Hop | None = None
        for link in reversed(self.way(source, server, back=back)):
            receives = hop is None and link.key[1] == 0  # a worker's link
            host = self.station((13, link.key[2])) if receives else None
            hop = self.station(link.key), link.pace, link.after, hop, host
        sends = hop is not None and (self.colocated or not back)
        return self.station((12, server if back else source)) if sends else None, hop

    def leave(
        self, now: float, frame: int, source: int, server: int, packet: Packet, *, back: bool
    ) -> None:
        """Sends a packet of `frame` bytes from a worker to a server's link, or back.

        The host's own link has no other sender, so it is passed at once.
        """
        start = self._starts.get((back, source, server))
        if start is None:
            start = self._start(source, server, back=back)
            self._starts[back, source, server] = start
        known = self._frames.get(frame)
        if known is None:
            known = wire_bits(frame, self.costs), host_seconds(frame, self.costs)
            self._frames[frame] = known
        host, hop = start
        if host is not None:
            now = passed(host, now, known[1])
        if hop is not None:
            station, pace, after, hop, _ = hop
            now = passed(station, now, known[0] * pace) + after
        heapq.heappush(self._events, (now, next(self._numbers), hop, known, packet))

    def run(self, come: Callable[[float, Packet], None]) -> None:
        """Runs until no packet is in flight; calls `come` for each arrival in order of time."""
        events, numbers, replace = self._events, self._numbers, heapq.heapreplace
        while events:
            now, _, hop, frame, packet = events[0]
            if hop is not None:
                station, pace, after, following, host = hop
                free = station[0]
                station[0] = now = (now if now > free else free) + frame[0] * pace
                now += after
                if following is not None:
                    replace(events, (now, next(numbers), following, frame, packet))
                    continue
                if host is not None:
                    now = passed(host, now, frame[1])
            heapq.heappop(events)
            come(now, packet)
