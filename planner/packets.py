# SPDX-License-Identifier: Apache-2.0
"""Servers without help of the network, packet by packet: where windows or slices limit, order does.

Results leave a server one after another, so workers get them one after another, and send what their
windows allow at once. Contributions to a chunk so come spread over as long as results to the one a
window before took to leave, and do not wait in line once more; who is near the server has its
result sooner, and its next chunk is ahead of what others still have to send to the one before. With
slices for several servers, lines of one end while those of another begin. All of that is the order
of single packets, so they are followed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.fifo_network import FifoNetwork, Packet
from planner.network import SERVER, Ends, Network
from planner.stations import server_seconds
from topologies.model.topology import Costs

__all__ = ["simulate_servers"]

_ITERATIONS = 3  # where they are short: who is near a server begins the next one sooner
_PASSED = 200_000  # packets at a link, after which, and two turns of all servers, a pace is taken


class _PacketSimulation:
    """turns: iterations of so many chunks. process: s that a server's process takes for each. skew:
    s that the last worker is late."""

    def __init__(
        self, lines: FifoNetwork, units: Sequence[int], frame: int, chunks: int, slice_: int,
        window: int, process: float, skew: float, turns: int,
    ) -> None:  # fmt: skip
        self._lines, self._units, self._frame, self._slice = lines, units, frame, slice_
        self._window, self._process, self._skew = window, process, skew
        self._chunks, self._all = chunks, chunks * turns
        self._workers = len(lines.sources.racks)
        self._came = [0] * self._all
        self._has = [bytearray(self._all) for _ in range(self._workers)]
        self._had = [0] * self._workers
        self._next = [0] * self._workers
        self.back = [0.0] * self._all

    def run(self) -> None:
        """All of them; then `back` tells when each was back at the last worker."""
        for worker in range(self._workers):
            self._send(worker, 0.0)
        self._lines.run(self._come)

    def _unit(self, chunk: int) -> int:
        return chunk % self._chunks // self._slice % len(self._units)

    def _send(self, worker: int, now: float) -> None:
        """What the window allows; the next iteration when this one is over."""
        has, window = self._has[worker], self._window
        if worker == self._workers - 1:
            now += self._skew
        while (chunk := self._next[worker]) < self._all:
            number = chunk % self._chunks
            waits = number >= window and not has[chunk - window]
            if waits or self._had[worker] < chunk - number:
                return
            self._next[worker] += 1
            link = self._units[self._unit(chunk)]
            self._lines.leave(now, self._frame, worker, link, (0, worker, chunk), back=False)

    def _come(self, now: float, packet: Packet) -> None:
        result, worker, chunk = packet
        if result:
            self.back[chunk] = max(self.back[chunk], now)
            self._has[worker][chunk] = 1
            self._had[worker] += 1
            self._send(worker, now)
            return
        unit = self._unit(chunk)
        now = self._lines.passed((14, unit), now, self._process)
        self._came[chunk] += 1
        if self._came[chunk] < self._workers:
            return
        for one in range(self._workers):
            link = self._units[unit]
            self._lines.leave(now, self._frame, one, link, (1, one, chunk), back=True)


def simulate_servers(
    network: Network, sources: Ends, chunks: int, slice_: int, window: int, frame: int,
    payload: int, costs: Costs, *, step: float, skew: float, colocated: bool, lossy: bool,
) -> float:  # fmt: skip
    """Seconds until the last of so many chunks is back at the last worker.

    sources: links of workers, or of one for each ToR that sums. slice_: chunks in a row that go to
    a server process. window: of each worker. frame, payload: bytes of a packet.
    step: s of a chunk where that takes longest.
    """
    ends = network.ends(SERVER)
    turn = slice_ * len(ends.units)
    enough = max(_PASSED // (8 * len(sources.racks)), 2 * turn)
    count = min(chunks, -(-enough // turn) * turn)
    turns = max(1, min(_ITERATIONS, enough // count))
    if count < chunks:  # a larger one than that limits no more
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
        # A line through the middle: bursts come and go, and nothing follows the end.
        until = count - window
        numbers = np.arange(until - max(1, until // 2 // turn) * turn, until)
        pace = float(np.polyfit(numbers, np.array(one.back)[numbers], 1)[0])
        last += max(pace, step) * (chunks - count)
    return last
