# SPDX-License-Identifier: Apache-2.0
"""Traces one direction of a link: utilization and queue length."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from protocol.ethernet import HEADER as ETHERNET_HEADER
from protocol.frames import OVERHEAD
from protocol.header import HEADER, HEADER_BYTES, SERVER_PORTS, Array
from simulation.links.link import Link
from simulation.links.trains import Times, Train
from simulation.tracing.sampling import Sampled, Tell

_SPAN_BYTES = 16 * (1500 + ETHERNET_HEADER)
_SEEN = OVERHEAD + HEADER_BYTES  # leading bytes of a frame
_MANY = 4096  # packets that are buffered, as batches cost less
_PORTS = np.array(SERVER_PORTS)

Look = Callable[[Array, Times, Times, Times], None]


class LinkTrace:
    """Traces a link.

    busy: receives the ps in each span in which the link sent bits.
    queued: receives the most bytes queued in each span, without the frame in transmission, as
        `LinkSpec.queue_bytes` counts them.
    look: receives the headers of the protocol's packets and the times of their first and last bits
        and arrivals; `catch_up` calls it for all known packets.
    last: time of the last departure (ps).
    packets: number of departures since it was reset.
    """

    def __init__(self, link: Link, busy: Tell, queued: Tell, look: Look) -> None:
        self.last = self.packets = 0
        self._link, self._look = link, look
        self._step = span(link)
        self._busy, self._queued = Sampled(self._step, busy), Sampled(self._step, queued)
        self._forget()
        # Times and amounts of changes of the queue length.
        self._changes: list[tuple[Times, npt.NDArray[np.int64]]] = []
        link.on_departure = self._departs

    def settle(self, until: int) -> None:
        """Reports all spans before a time; no earlier packet may follow."""
        self.catch_up()
        due, later = [], []
        for times, changes in self._changes:
            before = times < until  # in no order where packets leave by priority
            if before.any():
                due.append((times[before], changes[before]))
            if not before.all():
                later.append((times[~before], changes[~before]))
        self._changes = later
        if due:
            self._wait(*map(np.concatenate, zip(*due, strict=True)))
        self._busy.advance(until // self._step)
        self._queued.advance(until // self._step)

    def _departs(self, train: Train, came: Times) -> None:
        """Records departures; times are those of last bits."""
        self.last = int(train.times[-1])
        self.packets += len(train)
        self._waiting += len(train)
        heads = train.frames[:, :_SEEN].copy()  # without payload
        self._times.append(train.times)
        self._came.append(came)
        self._lengths.append(train.lengths)
        self._heads.append(
            heads if train.stored >= _SEEN else np.zeros((len(train), _SEEN), np.uint8)
        )
        if self._waiting >= _MANY:
            self.catch_up()

    def catch_up(self) -> None:
        """Passes all buffered packets to `look`."""
        if not self._waiting:
            return
        ends, came, lengths = map(np.concatenate, (self._times, self._came, self._lengths))
        heads = np.concatenate(self._heads)
        self._forget()
        line_rate = self._link.line_rate
        sizes, kinds = np.unique(lengths, return_inverse=True)
        took = np.array([line_rate.time(line_rate.wire_bytes(size)) for size in sizes.tolist()])[
            kinds
        ]
        begins = ends - took
        if not self._link.slowdown.plain:
            begins = self._slow_begins(ends, took)
        self._share(begins, ends)
        waited = begins > came
        if waited.any():
            sizes = lengths[waited]
            self._changes += [(came[waited], sizes), (begins[waited], -sizes)]
        ports = heads[:, OVERHEAD - 8 : OVERHEAD - 4].copy().view(">u2")
        rows = np.isin(ports, _PORTS).any(axis=1)
        if rows.any():
            headers = heads[rows, OVERHEAD:].copy().view(HEADER)[:, 0]
            ends = ends[rows]
            self._look(headers, begins[rows], ends, ends + self._link.spec.delay)

    def _slow_begins(self, ends: Times, took: Times) -> Times:
        """Returns when packets began to leave that took a slow link's time."""
        slowdown, begins = self._link.slowdown, []
        for end, least in zip(ends.tolist(), took.tolist(), strict=True):
            factor, _ = slowdown.span(end - least)
            factor, _ = slowdown.span(max(0, end - int(least * factor)))
            begins.append(end - int(least * factor))
        return np.array(begins, np.int64)

    def _forget(self) -> None:
        self._waiting = 0
        self._times: list[Times] = []
        self._came: list[Times] = []
        self._lengths: list[Times] = []
        self._heads: list[npt.NDArray[np.uint8]] = []

    def _share(self, begins: Times, ends: Times) -> None:
        """Adds transmission times to spans; a frame is in one span, or in two adjacent ones."""
        busy, step = self._busy, self._step
        first, last = begins // step, (ends - 1) // step
        spans = np.concatenate((first, last))
        edge = np.where(first == last, ends, last * step)
        took = np.concatenate((edge - begins, ends - edge))
        which, where = np.unique(spans, return_inverse=True)
        sums = np.zeros(len(which), np.int64)
        np.add.at(sums, where, took)
        for number, added in zip(which.tolist(), sums.tolist(), strict=True):
            if added:
                busy.advance(number)
                busy.value += added

    def _wait(self, times: Times, changes: npt.NDArray[np.int64]) -> None:
        """Updates the queue length; departures precede simultaneous arrivals."""
        queued = self._queued
        order = np.lexsort((changes, times))
        levels = queued.level + np.cumsum(changes[order])
        spans, begins = np.unique(times[order] // self._step, return_index=True)
        mosts = np.maximum.reduceat(levels, begins)
        lasts = levels[np.append(begins[1:], len(levels)) - 1]
        rows = zip(spans.tolist(), mosts.tolist(), lasts.tolist(), strict=True)
        for number, most, last in rows:
            queued.advance(number)
            queued.value, queued.level = max(queued.value, most), last


def span(link: Link) -> int:
    """Returns the span of a link's counters in ps: 16 frames of 1,500 bytes, at least one frame."""
    line_rate = link.line_rate
    longest = line_rate.wire_bytes(link.spec.mtu + ETHERNET_HEADER)
    return line_rate.time(max(_SPAN_BYTES, longest))
