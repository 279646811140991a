# SPDX-License-Identifier: Apache-2.0
"""Simulates parameter servers without in-network aggregation, packet by packet.

Where windows or slices limit the rate, it depends on the order of single packets. Results leave a
server one after another, so workers receive them one after another and send the next contributions
at different times: these arrive spread out and do not queue again. A worker near the server gets
its result earlier, and its next chunk overtakes the others' contributions to the one before. With
slices for several servers, the queues of one drain while those of another fill.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.fifo_network import FifoNetwork, Packet, passed
from planner.network import SERVER, Ends, Network
from planner.stations import server_seconds
from topologies.model.topology import Costs

_ITERATIONS = 3  # of short ones, since workers near a server begin the next one earlier
_PASSED = 200_000  # packets at a link that suffice for a rate, with two turns of all servers


class _PacketSimulation:
    """One simulation.

    turns: iterations of `chunks` chunks.
    process: seconds of a server process for a contribution.
    skew: seconds that the last worker is late.
    """

    def __init__(
        self, lines: FifoNetwork, units: Sequence[int], frame: int, chunks: int, slice_: int,
        window: int, process: float, skew: float, turns: int,
    ) -> None:  # fmt: skip
        self._lines, self._frame = lines, frame
        self._window, self._process, self._skew = window, process, skew
        self._chunks, self._all = chunks, chunks * turns
        self._workers = len(lines.sources.racks)
        # Of each chunk: its server process, and that one's link.
        turn = [number // slice_ % len(units) for number in range(chunks)]
        servers = [lines.station((14, unit)) for unit in range(len(units))]
        self._server = [servers[unit] for unit in turn] * turns
        self._link = [units[unit] for unit in turn] * turns
        self._came = [0] * self._all
        self._has = [bytearray(self._all) for _ in range(self._workers)]
        self._had = [0] * self._workers
        self._next = [0] * self._workers
        self.back = [0.0] * self._all

    def run(self) -> None:
        """Runs to the end; `back` then holds the time of each result at the last worker."""
        for worker in range(self._workers):
            self._send(worker, 0.0)
        self._lines.run(self._come)

    def _send(self, worker: int, now: float) -> None:
        """Sends what the window allows; starts the next iteration after this one has ended."""
        has, window, chunk = self._has[worker], self._window, self._next[worker]
        if worker == self._workers - 1:
            now += self._skew
        while chunk < self._all:
            number = chunk % self._chunks
            waits = number >= window and not has[chunk - window]
            if waits or self._had[worker] < chunk - number:
                break
            link = self._link[chunk]
            self._lines.leave(now, self._frame, worker, link, (0, worker, chunk), back=False)
            chunk += 1
        self._next[worker] = chunk

    def _come(self, now: float, packet: Packet) -> None:
        result, worker, chunk = packet
        if result:
            if now > self.back[chunk]:
                self.back[chunk] = now
            self._has[worker][chunk] = 1
            self._had[worker] += 1
            self._send(worker, now)
            return
        now = passed(self._server[chunk], now, self._process)
        self._came[chunk] += 1
        if self._came[chunk] < self._workers:
            return
        link = self._link[chunk]
        for one in range(self._workers):
            self._lines.leave(now, self._frame, one, link, (1, one, chunk), back=True)


def simulate_servers(
    network: Network, sources: Ends, chunks: int, slice_: int, window: int, frame: int,
    payload: int, costs: Costs, *, step: float, skew: float, colocated: bool, lossy: bool,
) -> float:  # fmt: skip
    """Returns the seconds until the last worker has the last result.

    sources: links of workers, or of one worker for each ToR that sums.
    slice_: consecutive chunks that go to the same server process.
    window: chunks of each worker in flight.
    frame, payload: bytes of a packet.
    step: seconds of a chunk at the bottleneck.
    """
    ends = network.ends(SERVER)
    turn = slice_ * len(ends.units)
    enough = max(_PASSED // (8 * len(sources.racks)), 2 * turn)
    count = min(chunks, -(-enough // turn) * turn)
    turns = max(1, min(_ITERATIONS, enough // count))
    if count < chunks:  # a larger window limits no more
        window = min(window, max(1, count // 4))
    lines = FifoNetwork(network, sources, costs, colocated=colocated, lossy=lossy)
    process = server_seconds(payload, costs)
    one = _PacketSimulation(lines, ends.units, frame, count, slice_, window, process, skew, turns)
    one.run()
    over = [max(one.back[number * count : (number + 1) * count]) for number in range(turns)]
    if turns > 1:
        return (over[-1] - over[0]) / (turns - 1)
    last = over[0]
    if count < chunks:
        # Fit the middle part only: bursts average out there, and the end has nothing behind it.
        until = count - window
        numbers = np.arange(until - max(1, until // 2 // turn) * turn, until)
        pace = float(np.polyfit(numbers, np.array(one.back)[numbers], 1)[0])
        last += max(pace, step) * (chunks - count)
    return last
