# SPDX-License-Identifier: Apache-2.0
"""A worker in a trace: its computing, and the ways of each layer's gradients."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from protocol.header import FLAGGED, Array, Op, ops
from testbed.training.observer import Observer
from testbed.virtual.engine import Node
from testbed.virtual.traceevents import TraceFile
from testbed.virtual.trains import Times

Rows = npt.NDArray[np.intp]
Numbers = npt.NDArray[np.int64]


class WorkerTrace(Observer):
    """One worker of one job at a node, which is the process `pid` of a trace.

    thread: the first of its threads, for computing; those of `layers` come after it. of_chunk:
    (chunks,) the layer of each. label: put behind the names of threads.
    """

    def __init__(
        self,
        file: TraceFile,
        node: Node,
        pid: int,
        thread: int,
        layers: Sequence[str],
        of_chunk: Rows,
        label: str,
    ) -> None:
        self._file, self._node, self._pid, self._thread = file, node, pid, thread
        self._numbers = {name: number for number, name in enumerate(layers)}
        self._of_chunk = of_chunk
        self._sent = np.full(len(of_chunk), -1, np.int64)
        self._got = np.full(len(of_chunk), -1, np.int64)
        # Of each layer since it was pushed: its first bit, its last bit, its last sum (ps).
        self._times = np.full((len(layers), 3), -1, np.int64)
        self._iterations = [0] * len(layers)
        self._doing = "", "", 0, 0
        for number, name in enumerate(("computing", *layers)):
            file.thread(node.now, pid, thread + number, name + label)

    def begins(self, kind: str, what: str, iteration: int) -> None:
        """See Observer."""
        self._doing = kind, what, iteration, self._node.now

    def ends(self) -> None:
        """See Observer."""
        kind, what, iteration, began = self._doing
        self._span(self._thread, what, kind, began, self._node.now, iteration)

    def pushed(self, layers: Iterable[str], iteration: int) -> None:
        """See Observer."""
        for name in layers:
            number = self._numbers[name]
            self._times[number] = -1
            self._iterations[number] = iteration

    def came(self, layers: Iterable[str]) -> None:
        """See Observer."""
        for name in layers:
            number = self._numbers[name]
            first, last, summed = self._times[number].tolist()
            if min(first, last, summed) < 0:  # it went no further than to a server on this host
                continue
            thread, iteration = self._thread + 1 + number, self._iterations[number]
            self._span(thread, f"send {name}", "send", first, last, iteration)
            self._span(thread, f"wait {name}", "wait", last, summed, iteration)

    def _span(self, thread: int, what: str, kind: str, began: int, ended: int, number: int) -> None:
        if ended > began:
            now = self._node.now
            self._file.span(now, self._pid, thread, what, kind, began, ended, number)

    # What passes its host's link

    def leaves(self, headers: Array, begins: Times, ends: Times) -> None:
        """Packets leave, from first to last bit. What is sent again is no news."""
        rows = np.flatnonzero(ops(headers) == np.uint8(Op.CONTRIBUTE))
        for layer, of_it in self._news(headers, rows, self._sent):
            times = self._times[layer]
            if times[0] < 0:
                times[0] = begins[of_it[0]]
            times[1] = ends[of_it[-1]]

    def arrives(self, headers: Array, times: Times) -> None:
        """Packets arrive. A sum without a payload is made anew, elsewhere."""
        good = ops(headers) == np.uint8(Op.RESULT)
        good &= (headers["flags"] & np.uint8(FLAGGED)) == 0
        for layer, rows in self._news(headers, np.flatnonzero(good), self._got):
            self._times[layer, 2] = times[rows[-1]]

    def _news(self, headers: Array, rows: Rows, known: Numbers) -> Iterator[tuple[int, Rows]]:
        """By layer, those packets that have a later number than the last one of their chunk."""
        chosen = headers[rows]
        chunks = chosen["chunk"].astype(np.intp)
        # A chunk stays in its stream as long as the epoch lasts.
        numbers = chosen["epoch"].astype(np.int64) << 32 | chosen["seq"].astype(np.int64)
        new = numbers > known[chunks]
        np.maximum.at(known, chunks, numbers)
        rows, layers = rows[new], self._of_chunk[chunks[new]]
        for layer in np.unique(layers).tolist():
            yield layer, rows[layers == layer]
