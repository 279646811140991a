# SPDX-License-Identifier: Apache-2.0
"""Simulates parameter servers over TCP streams, segment by segment, as ``baselines`` runs them.

Streams share a queue in proportion to their segments in it, and each has one window in flight over
all queues on its path. Streams that wait in one queue only, as those from the server's rack, get
more than a fair share; streams that also wait behind results and other servers' streams get less.
A piece is returned when the slowest worker's has arrived, so queues that hold only the windows of
slow streams run empty.
"""

from __future__ import annotations

from collections import deque
from itertools import product

from planner.fifo_network import FifoNetwork, Packet
from planner.flows import share_queues
from planner.network import SERVER, WORKER, Network
from protocol.ethernet import TCP_HEADERS
from topologies.model.topology import Costs

Stream = tuple[int, int, int]  # direction (1: of results), worker, process
_MOST = 40_000  # segments; beyond, the rate of the second half of so many is extrapolated
_ENOUGH = 4  # windows of each stream that suffice for a rate


class _StreamSimulation:
    """One simulation: each worker sends each server process `segments` segments in pieces."""

    def __init__(
        self, lines: FifoNetwork, units: tuple[int, ...], windows: dict[tuple[int, int], int],
        segments: int, piece: int, frame: int, last: int,
    ) -> None:  # fmt: skip
        self._lines, self._units, self._windows = lines, units, windows
        self._segments, self._piece, self._frame, self._last = segments, piece, frame, last
        self._workers = len(lines.sources.racks)
        streams = list(product((0, 1), range(self._workers), range(len(units))))
        # Frames to send, each with whether it ends a piece; counts in flight, arrived, and not yet
        # acknowledged.
        self._waiting: dict[Stream, deque[tuple[int, bool]]] = {one: deque() for one in streams}
        self._flying = dict.fromkeys(streams, 0)
        self._arrived = dict.fromkeys(streams, 0)
        self._untold = dict.fromkeys(streams, 0)
        self._sent = [0] * len(units)  # pieces of results
        self.ended = 0.0

    def run(self) -> None:
        """Runs to the end; `ended` then holds the time when the last worker had all results."""
        for worker, unit in product(range(self._workers), range(len(self._units))):
            for first in range(0, self._segments, self._piece):
                self._put((0, worker, unit), first, 0.0)
        self._lines.run(self._come)

    def _put(self, stream: Stream, first: int, now: float) -> None:
        """Queues a piece; its last segment is acknowledged at once."""
        count = min(self._piece, self._segments - first)
        end = self._last if first + count == self._segments else self._frame
        self._waiting[stream].extend([*[(self._frame, False)] * (count - 1), (end, True)])
        self._send(stream, now)

    def _send(self, stream: Stream, now: float) -> None:
        waiting, window = self._waiting[stream], self._windows[stream[1], stream[2]]
        while waiting and self._flying[stream] < window:
            self._flying[stream] += 1
            frame, last = waiting.popleft()
            self._leave(now, frame, stream, (0, last), back=stream[0] == 1)

    def _leave(
        self, now: float, frame: int, stream: Stream, what: tuple[int, int], *, back: bool
    ) -> None:
        _, worker, unit = stream
        self._lines.leave(now, frame, worker, self._units[unit], (*stream, *what), back=back)

    def _come(self, now: float, packet: Packet) -> None:
        result, worker, unit, acknowledges, number = packet
        stream = result, worker, unit
        if acknowledges:
            self._flying[stream] -= number
            self._send(stream, now)
            return
        self._arrived[stream] += 1
        self._untold[stream] += 1
        if number or self._untold[stream] == 2:
            told, self._untold[stream] = self._untold[stream], 0
            self._leave(now, TCP_HEADERS, stream, (1, told), back=stream[0] == 0)
        if result:
            self.ended = max(self.ended, now)
        elif number:
            self._go_on(unit, now)

    def _go_on(self, unit: int, now: float) -> None:
        """Returns the pieces that have arrived from all workers."""
        least = min(self._arrived[0, worker, unit] for worker in range(self._workers))
        while (first := self._sent[unit]) < self._segments and least >= min(
            first + self._piece, self._segments
        ):
            self._sent[unit] += self._piece
            for worker in range(self._workers):
                self._put((1, worker, unit), first, now)


def simulate_streams(
    network: Network, costs: Costs, segments: int, piece: int, frame: int, last: int
) -> float | None:
    """Returns the seconds until all workers have all sums; None with too many streams to simulate.

    segments: segments of a worker's part for each server process.
    piece: segments that are returned together.
    frame, last: bytes of a full segment and of the last one, with headers.
    """
    workers, servers = network.ends(WORKER), network.ends(SERVER)
    pairs = len(workers.racks) * len(servers.units)
    most = _MOST // (2 * pairs)
    if most < 1:
        return None
    windows = _windows(network, costs, frame, segments)
    count = min(segments, most)
    if count < segments:
        count -= count % (2 * piece)
        if count < _ENOUGH * max(piece, *windows.values()):
            return None
        last = frame
    took = []
    for one in (count, count // 2):
        lines = FifoNetwork(network, workers, costs, colocated=False, lossy=True)
        streams = _StreamSimulation(lines, servers.units, windows, one, piece, frame, last)
        streams.run()
        took.append(streams.ended)
        if count == segments:
            return took[0]
    return took[0] + (took[0] - took[1]) / (count - count // 2) * (segments - count)


def _windows(network: Network, costs: Costs, frame: int, most: int) -> dict[tuple[int, int], int]:
    """Computes the window of each worker and server process."""
    workers, servers = network.ends(WORKER), network.ends(SERVER)
    lines = FifoNetwork(network, workers, costs, colocated=False)
    ways: dict[tuple[int, int], list[tuple[tuple[int, ...], int]]] = {}
    queues: dict[tuple[int, ...], float] = {}
    for worker, (unit, link) in product(range(len(workers.racks)), enumerate(servers.units)):
        passed = [*lines.way(worker, link, back=False), *lines.way(worker, link, back=True)]
        ways[worker, unit] = [(one.key, frame + TCP_HEADERS) for one in passed]
        queues |= {one.key: one.queue for one in passed}
    shares = share_queues(ways, queues)
    return {pair: max(2, int(min(most, share))) for pair, share in shares.items()}
