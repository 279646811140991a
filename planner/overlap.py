# SPDX-License-Identifier: Apache-2.0
"""Predicts iterations whose exchange overlaps with the backward and the next forward pass.

A worker pushes a layer's gradients when its backward pass is done, last layer first, and the next
forward pass of a layer waits for its sums (``workloads.pacing``). All sums of an iteration are
there before its forward pass ends, so iterations do not overlap with each other: one of them, from
the start of its backward pass to the end of the next forward pass, stands for all.

Parcels of chunks (``planner.parcels``) pass the queues of their ways: those of
``planner.fifo_network`` where servers sum, else the slowest station of the tree. A parcel leaves a
station while it still arrives there, as its chunks do.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import NamedTuple

from planner.fifo_network import FifoNetwork
from planner.network import SERVER, Ends, Network
from planner.parcels import Exchange, Parcels
from planner.stations import host_seconds, server_seconds, wire_bits
from topologies.model.topology import Costs

_PASSES = 150_000  # of parcels through stations; so many take about a second
_PARTS = 64  # of a window: parcels are no smaller, and no larger if that is affordable


class _Station(NamedTuple):
    """A station on a way: its key, seconds of a chunk, and seconds until the next station."""

    key: tuple[int, ...]
    seconds: float
    after: float


_Way = tuple[_Station, ...]
_Transfer = tuple[bool, int, int]  # whether it is a result; worker, parcel


class _Simulation:
    """One iteration.

    there, back: ways of each worker to each server, and back; without `back` a tree sums, whose
    results come at the end of `there`.
    pace: seconds of a chunk at a worker's own queue.
    """

    def __init__(
        self, exchange: Exchange, parcels: Parcels, there: list[list[_Way]],
        back: list[list[_Way]], pace: float,
    ) -> None:  # fmt: skip
        self._layers, self._parcels = exchange.layers, parcels
        self._there, self._back, self._pace = there, back, pace
        propagation = exchange.propagation
        self._urgent_first = propagation.in_network
        self._by_slice = propagation.by_slice and bool(back)
        self._credit = propagation.credit / exchange.frame if propagation.credit else math.inf
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._free: dict[tuple[int, ...], float] = {}
        self._waiting: dict[tuple[int, ...], list[tuple[int, int, float, _Way, int, _Transfer]]]
        self._waiting = {}
        number, workers = len(parcels.chunks), range(len(there))
        self._came, self._tail = [0] * number, [0.0] * number
        self._members: dict[int, list[int]] = {}
        for parcel, piece in enumerate(parcels.piece):
            self._members.setdefault(piece, []).append(parcel)
        self._open = {piece: len(members) for piece, members in self._members.items()}
        self._pushed = [0 for _ in workers]  # parcels
        self._has = [bytearray(number) for _ in workers]
        # Of each stream: parcels of its beginning that have results, and that the window allows.
        self._left, self._opened = ([[0] * len(parcels.streams) for _ in workers] for _ in "12")
        self._ready: list[list[tuple[int, int]]] = [[] for _ in workers]  # without credit
        self._due: list[list[tuple[int, int]]] = [[] for _ in workers]
        self._flying = [0 for _ in workers]  # chunks
        self._busy = [False for _ in workers]
        self._arrivals = [[0.0] * number for _ in workers]

    def run(self, skew: float) -> float:
        """Returns when the last worker's forward pass ends. skew: seconds that it is late."""
        last = len(self._there) - 1
        for worker in range(len(self._there)):
            now = skew if worker == last else 0.0
            for layer in reversed(range(len(self._layers.forward))):
                now += self._layers.backward[layer]
                self._at(now, partial(self._push, worker, self._parcels.layers[layer][1]))
        while self._events:
            self._now, _, action = heapq.heappop(self._events)
            action()
        return max(
            self._layers.end([max(had[a:b], default=0.0) for a, b in self._parcels.layers])
            for had in self._arrivals
        )

    def _at(self, time: float, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (time, self._count, action))

    # --- workers ---

    def _push(self, worker: int, until: int) -> None:
        """Has the gradients of a layer pushed, whose last parcel is the one before `until`."""
        self._pushed[worker] = until
        for stream in range(len(self._parcels.streams)):
            self._open_window(worker, stream)
        self._send(worker)

    def _open_window(self, worker: int, stream: int) -> None:
        """Makes parcels ready that are pushed and within the window of their stream."""
        parcels, has = self._parcels, self._has[worker]
        own, left, opened = parcels.streams[stream], self._left[worker], self._opened[worker]
        while left[stream] < len(own) and has[own[left[stream]]]:
            left[stream] += 1
        while opened[stream] < len(own):
            parcel = own[opened[stream]]
            if parcel >= self._pushed[worker] or parcels.opens[parcel] > left[stream]:
                return
            opened[stream] += 1
            heapq.heappush(self._ready[worker], (parcels.rank[parcel], parcel))

    def _send(self, worker: int) -> None:
        """Gives credit to the most urgent parcels, and sends the first that has it."""
        ready, due, chunks = self._ready[worker], self._due[worker], self._parcels.chunks
        while ready and self._flying[worker] < self._credit:
            self._flying[worker] += chunks[ready[0][1]]
            heapq.heappush(due, heapq.heappop(ready))
        if self._busy[worker] or not due:
            return
        _, parcel = heapq.heappop(due)
        self._busy[worker] = True
        self._at(self._now + chunks[parcel] * self._pace, partial(self._sent, worker))
        way = self._there[worker][self._parcels.server[parcel]]
        self._hop(self._now, self._now, way, 0, (False, worker, parcel))

    def _sent(self, worker: int) -> None:
        self._busy[worker] = False
        self._send(worker)

    def _received(self, worker: int, parcel: int) -> None:
        self._arrivals[worker][parcel] = self._now
        self._has[worker][parcel] = 1
        self._flying[worker] -= self._parcels.chunks[parcel]
        self._open_window(worker, self._parcels.stream[parcel])
        self._send(worker)

    # --- stations ---

    def _hop(self, now: float, tail: float, way: _Way, at: int, one: _Transfer) -> None:
        """Has a transfer, whose last chunk comes at `tail`, reach a station or its end."""
        if at == len(way):
            self._end(tail, one)
            return
        key, seconds, _ = way[at]
        free = self._free.get(key, 0.0)
        if not self._urgent_first:
            begin = max(now, free)
            self._free[key] = begin + self._parcels.chunks[one[2]] * seconds
            self._serve(begin, tail, way, at, one)
            return
        self._count += 1
        waiting = self._waiting.setdefault(key, [])
        idle = not waiting and free <= now
        heapq.heappush(waiting, (self._parcels.rank[one[2]], self._count, tail, way, at, one))
        if idle:
            self._next(key)
        elif len(waiting) == 1:
            self._at(free, partial(self._next, key))

    def _next(self, key: tuple[int, ...]) -> None:
        """Serves the most urgent transfer that waits at a station."""
        waiting = self._waiting[key]
        _, _, tail, way, at, one = heapq.heappop(waiting)
        free = self._free[key] = self._now + self._parcels.chunks[one[2]] * way[at].seconds
        self._serve(self._now, tail, way, at, one)
        if waiting:
            self._at(free, partial(self._next, key))

    def _serve(self, begin: float, tail: float, way: _Way, at: int, one: _Transfer) -> None:
        _, seconds, after = way[at]
        end = max(begin + self._parcels.chunks[one[2]] * seconds, tail + seconds) + after
        start = begin + seconds + after
        self._at(start, partial(self._hop, start, end, way, at + 1, one))

    # --- servers ---

    def _end(self, tail: float, one: _Transfer) -> None:
        """Has a transfer arrive at a server, or a result at a worker."""
        result, worker, parcel = one
        if result or not self._back:
            self._at(tail, partial(self._received, worker, parcel))
            return
        self._tail[parcel] = max(self._tail[parcel], tail)
        self._came[parcel] += 1
        if self._came[parcel] < len(self._there):
            return
        if not self._by_slice:
            self._answer([parcel], self._tail[parcel])
            return
        piece = self._parcels.piece[parcel]
        self._open[piece] -= 1
        if not self._open[piece]:
            members = self._members[piece]
            complete = max(self._tail[member] for member in members)
            self._at(complete, partial(self._answer, members, complete))

    def _answer(self, members: Sequence[int], tail: float) -> None:
        """Sends results that are complete together: all to the first worker, then to the next."""
        server = self._parcels.server[members[0]]
        for worker, parcel in product(range(len(self._back)), members):
            self._hop(self._now, tail, self._back[worker][server], 0, (True, worker, parcel))


def overlapped_at_servers(
    network: Network, sources: Ends, exchange: Exchange, costs: Costs, *, skew: float,
    colocated: bool,
) -> float:  # fmt: skip
    """Returns the seconds of an iteration whose sums servers add up.

    sources: links of workers, or of one worker for each ToR that sums.
    skew: seconds that the last worker is late.
    """
    lines = FifoNetwork(network, sources, costs, colocated=colocated, lossy=True)
    units = network.ends(SERVER).units
    bits = wire_bits(exchange.frame, costs)
    host, process = host_seconds(exchange.frame, costs), server_seconds(exchange.payload, costs)

    def way(worker: int, unit: int, *, back: bool) -> _Way:
        links = lines.way(worker, units[unit], back=back)
        found = [_Station(one.key, bits * one.pace, one.after) for one in links]
        if found and host:
            here = units[unit] if back else worker
            if colocated or not back:
                found.insert(0, _Station((12, here), host, 0.0))
            if colocated or back:
                found.append(_Station((13, worker if back else units[unit]), host, 0.0))
        if found and colocated and back and exchange.propagation.in_network:
            # Urgent packets overtake others above a short queue of the link, which the worker fills
            # as well.
            found.insert(0, _Station((15, unit), found[0].seconds, 0.0))
        if process and not back:
            found.append(_Station((14, unit), process, 0.0))
        return tuple(found)

    workers = range(len(sources.racks))
    there, back = (
        [[way(worker, unit, back=end) for unit in range(len(units))] for worker in workers]
        for end in (False, True)
    )
    hops = max(len(one) for ways in (*there, *back) for one in ways)
    most = _most(exchange, 2 * len(workers) * max(1, hops))
    parcels = Parcels(exchange, len(units), most)
    pace = max((one.seconds for ways in there for one in ways[0][:1]), default=0.0)
    return _Simulation(exchange, parcels, there, back, pace).run(skew)


def overlapped_in_tree(exchange: Exchange, step: float, fill: float) -> float:
    """Returns the seconds of an iteration whose sums a tree adds up.

    step: seconds of a chunk at the slowest station. fill: seconds of a chunk alone, there and back.
    """
    most = _most(exchange, 2)
    step = max(step, fill / exchange.window)  # where the window limits, in the mean
    way = (_Station((0,), step, fill - step),)
    parcels = Parcels(exchange, 1, most)
    return _Simulation(exchange, parcels, [[way]], [], step).run(0.0)


def _most(exchange: Exchange, passes: int) -> int:
    """Chooses the chunks of a parcel. passes: of each parcel through stations."""
    total = sum(exchange.counts)
    affordable = -(-total * passes // _PASSES)
    return max(affordable, min(exchange.window // _PARTS, exchange.slice), 1)
