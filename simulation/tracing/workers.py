# SPDX-License-Identifier: Apache-2.0
"""Traces a worker: its computation, and the transfer of each layer's gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from protocol.header import FLAGGED, Array, Op, ops
from simulation.kernel.engine import Node
from simulation.links.trains import Times
from simulation.tracing.events import TraceFile
from workloads.observer import Observer

Rows = npt.NDArray[np.intp]
Numbers = npt.NDArray[np.int64]

_ARROWS = 1 << 24  # of a thread; all numbers stay below 2^53, JavaScript's limit


class WorkerTrace(Observer):
    """One worker of a job; its node is the process `pid` of the trace.

    threads: numbers of the threads for computation and for each of `layers`.
    of_chunk: (chunks,) layer of each chunk.
    label: appended to the names of threads.
    catch_up: delivers all packets that have passed the host's links.

    Arrows lead from the last computation before a layer's gradients are sent to their `send`, and
    from their `wait` to the computation after it.
    """

    def __init__(
        self,
        file: TraceFile,
        node: Node,
        pid: int,
        threads: Sequence[int],
        layers: Sequence[str],
        of_chunk: Rows,
        label: str,
        catch_up: Callable[[], None],
    ) -> None:
        self._file, self._node, self._pid, self._threads = file, node, pid, threads
        self._catch_up = catch_up
        self._numbers = {name: number for number, name in enumerate(layers)}
        self._of_chunk = of_chunk
        self._sent = np.full(len(of_chunk), -1, np.int64)
        self._got = np.full(len(of_chunk), -1, np.int64)
        # Of each pushed layer: times of its first bit, last bit and last sum (ps).
        self._times = np.full((len(layers), 3), -1, np.int64)
        self._iterations = [0] * len(layers)
        self._doing = "", "", 0, 0
        self._computed = -1  # begin of the last computation
        self._sources = [-1] * len(layers)  # the same when each layer was pushed
        self._came: list[tuple[int, int, int]] = []  # thread, time, iteration of the next arrow
        for number, name in zip(threads, ("computing", *layers), strict=True):
            file.thread(node.now, pid, number, name + label)

    def begins(self, kind: str, what: str, iteration: int) -> None:
        """Implements Observer."""
        self._doing = kind, what, iteration, self._node.now

    def ends(self) -> None:
        """Implements Observer."""
        kind, what, iteration, began = self._doing
        computing = self._threads[0]
        self._span(computing, what, kind, began, self._node.now, iteration)
        if kind != "compute" or self._node.now == began:
            return
        self._computed = began
        for thread, at, number in self._came:
            self._arrow("parameters", 2 * number + 1, thread, at, computing, began)
        self._came = []

    def pushed(self, layers: Iterable[str], iteration: int) -> None:
        """Implements Observer."""
        self._catch_up()
        for name in layers:
            number = self._numbers[name]
            self._times[number] = -1
            self._iterations[number] = iteration
            self._sources[number] = self._computed

    def came(self, layers: Iterable[str]) -> None:
        """Implements Observer."""
        self._catch_up()
        for name in layers:
            number = self._numbers[name]
            first, last, summed = self._times[number].tolist()
            if min(first, last, summed) < 0:  # sent to a server on this host only
                continue
            thread, iteration = self._threads[1 + number], self._iterations[number]
            self._span(thread, "send", "send", first, last, iteration)
            self._span(thread, "wait", "wait", last, summed, iteration)
            source = self._sources[number]
            if source >= 0:
                self._arrow("gradients", 2 * iteration, self._threads[0], source, thread, first)
            if summed > last:
                self._came.append((thread, last, iteration))

    def _arrow(
        self, what: str, number: int, sender: int, left: int, receiver: int, came: int
    ) -> None:
        """Adds an arrow of a layer's thread, with a unique number."""
        layer = receiver if sender == self._threads[0] else sender
        ends = (sender, left), (receiver, came)
        self._file.arrow(self._node.now, self._pid, what, layer * _ARROWS + number, *ends)

    def _span(self, thread: int, what: str, kind: str, began: int, ended: int, number: int) -> None:
        if ended > began:
            now = self._node.now
            self._file.span(now, self._pid, thread, what, kind, began, ended, number)

    # Packets on its host's link

    def leaves(self, headers: Array, begins: Times, ends: Times) -> None:
        """Handles departing packets, from first to last bit; ignores retransmissions."""
        rows = np.flatnonzero(ops(headers) == np.uint8(Op.CONTRIBUTE))
        for layer, of_it in self._news(headers, rows, self._sent):
            times = self._times[layer]
            if times[0] < 0:
                times[0] = begins[of_it[0]]
            times[1] = ends[of_it[-1]]

    def arrives(self, headers: Array, times: Times) -> None:
        """Handles arriving packets; a sum without payload is recomputed elsewhere."""
        good = ops(headers) == np.uint8(Op.RESULT)
        good &= (headers["flags"] & np.uint8(FLAGGED)) == 0
        for layer, rows in self._news(headers, np.flatnonzero(good), self._got):
            self._times[layer, 2] = times[rows[-1]]

    def _news(self, headers: Array, rows: Rows, known: Numbers) -> Iterator[tuple[int, Rows]]:
        """Yields, by layer, the packets with a later sequence number than the chunk's last one."""
        chosen = headers[rows]
        chunks = chosen["chunk"].astype(np.intp)
        # A chunk stays in its stream for the whole plan epoch.
        numbers = chosen["epoch"].astype(np.int64) << 32 | chosen["seq"].astype(np.int64)
        order = np.lexsort((numbers, chunks))
        again = (np.diff(chunks[order]) == 0) & (np.diff(numbers[order]) == 0)
        new = numbers > known[chunks]
        new[order[1:][again]] = False
        np.maximum.at(known, chunks, numbers)
        rows, layers = rows[new], self._of_chunk[chunks[new]]
        for layer in np.unique(layers).tolist():
            yield layer, rows[layers == layer]
