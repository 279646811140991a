# SPDX-License-Identifier: Apache-2.0
"""A host in virtual time whose programs talk over streams; see ``testbed.virtual.streams``."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from protocol.frames import Interface
from testbed.virtual.hostnode import HostNode
from testbed.virtual.streams import Inbound, Integers, Outbound, Segments, decode, encode, head
from testbed.virtual.tasks import Waiter
from testbed.virtual.trains import NEVER, Times
from testbed.virtual.trains import train as train_of
from topologies.addressing import Addressing, HostInterface

_FIRST_PORT = 20_000  # member m's


class _End(NamedTuple):
    """A connection at one of its ends."""

    out: Outbound
    into: Inbound
    interface: int
    head: npt.NDArray[np.uint8]
    waiters: deque[Waiter]


class _Leaving(NamedTuple):
    """Frames to be sent on one interface, by the rows of what caused them."""

    rows: Integers
    end: _End
    data: Integers
    number: Integers
    push: npt.NDArray[np.bool_]


class StreamNode(HostNode):
    """Its programs' ends of connections are made by ``connect``."""

    patient = True

    def __init__(self, name: str, addressing: Addressing, *, payload: bool = True) -> None:
        super().__init__(name, addressing, payload=payload)
        self._ends: dict[int, _End] = {}  # by the ports of what comes: sender's, receiver's
        self._known = np.array([-1], np.int64)  # their ports in order, and one that nobody has
        self._found: tuple[Times, Segments] | None = None
        self._next_row = 0

    def send(self, member: int, peer: int, data: bytes) -> None:
        """A message of one of its members to a peer; for a task of this node."""
        end = self._ends[_ports(peer, member)]
        end.out.put(data)
        sizes, begins, push, rows = end.out.release(np.zeros(0, np.int64))
        if len(sizes):
            now = np.full(1, self.now, np.int64)
            self._emit(now, [_Leaving(rows, end, sizes, begins, push)])

    def receive(self, member: int, peer: int, into: memoryview) -> None:
        """The next bytes from a peer for one of its members; a task of this node waits for them."""
        end = self._ends[_ports(peer, member)]
        if not into:
            return
        wanted = end.into.taken + len(into)
        if end.into.arrived < wanted:
            end.into.wanted = wanted
            self.tasks.pause(end.waiters, None)
        end.into.read(into)

    # See HostNode

    def take(self, until: int) -> None:
        """See TaskNode."""
        self._until = until
        found = [train for _, _, train in self.arrivals(until)]
        if not found:
            return
        # All have frames of one length; at one time those of the first port come first.
        times = np.concatenate([train.times for train in found])
        lengths = np.concatenate([train.lengths for train in found])
        segments, good = decode(np.concatenate([train.frames for train in found]))
        known = self._known
        good &= known[np.searchsorted(known[:-1], segments.ports)] == segments.ports
        self.unwanted += int(len(good) - np.count_nonzero(good))
        order = np.arange(len(times))
        if len(found) > 1:
            order = np.argsort(times, kind="stable")
        times = self.received(times[order], lengths[order])
        kept = good[order]
        times, segments = times[kept], segments.select(order[kept])
        if self._found is not None and self._next_row < len(self._found[0]):  # being worked on
            left = slice(self._next_row, None)
            before = self._found[1].select(left)
            pairs = zip(before, segments, strict=True)
            times = np.concatenate((self._found[0][left], times))
            segments = Segments(*(np.concatenate(pair) for pair in pairs))
        self._found = times, segments
        self._next_row = 0

    def arrival(self) -> int:
        """See TaskNode."""
        if self._found is None or self._next_row == len(self._found[0]):
            return NEVER
        return int(self._found[0][self._next_row])

    def arrive(self) -> None:
        """Everything that comes before anybody here goes on because of it, and what goes out for
        it: what happens at other nodes meanwhile cannot matter."""
        if self.arrival() > self.now:
            return
        assert self._found is not None
        times, segments = self._found
        first = self._next_row
        limit = min(self._until, self.next_call(), self.tasks.due)
        if self.tasks.busy:
            limit = self.now
        last = int(np.searchsorted(times, max(limit, self.now + 1), "left"))
        now = segments.select(slice(first, last))
        groups = [(ports, np.flatnonzero(now.ports == ports)) for ports in np.unique(now.ports)]
        woken = [last - 1]
        for ports, rows in groups:
            end = self._ends[int(ports)]
            if end.into.wanted:
                rows = rows[now.data[rows] > 0]
                row = end.into.completes(now.data[rows])
                if row is not None:
                    woken.append(first + int(rows[row]))
        # What comes at that time comes with it.
        last = int(np.searchsorted(times, times[min(woken)], "right"))
        self._next_row = last
        leaving: list[_Leaving] = []
        for ports, rows in groups:
            leaving += self._handle(self._ends[int(ports)], now, rows[rows < last - first])
        self._emit(times[first:last], leaving)
        self.now = max(self.now, int(times[last - 1]))

    def _handle(self, end: _End, now: Segments, rows: Integers) -> list[_Leaving]:
        """What goes out for what comes from one peer."""
        found = []
        data = rows[now.data[rows] > 0]
        if len(data):
            acked, upto = end.into.accept(now.data[data], now.number[data], now.push[data])
            none = np.zeros(len(acked), np.int64)
            found.append(_Leaving(data[acked], end, none, upto, none > 0))
            if end.into.wanted and end.into.arrived >= end.into.wanted:
                end.into.wanted = 0
                self.tasks.wake(end.waiters)
        acks = rows[now.data[rows] == 0]
        if len(acks):
            sizes, begins, push, which = end.out.release(now.number[acks])
            found.append(_Leaving(acks[which], end, sizes, begins, push))
        return found

    def _emit(self, times: Times, leaving: list[_Leaving]) -> None:
        trains = []
        for number in sorted({one.end.interface for one in leaving}):
            chosen = [one for one in leaving if one.end.interface == number and len(one.rows)]
            if not chosen:
                continue
            rows = np.concatenate([one.rows for one in chosen])
            order = np.argsort(rows, kind="stable")
            heads = np.repeat(
                np.stack([one.end.head for one in chosen]), [len(one.rows) for one in chosen], 0
            )
            data, number_, push = (
                np.concatenate([part[i] for part in chosen])[order] for i in (2, 3, 4)
            )
            frames = encode(heads[order], Segments(data, data, number_, push))
            train = train_of(times[rows[order]], frames, data + frames.shape[1])
            trains.append((number, train))
        if trains:
            self.transmit(trains)


def connect(
    a: tuple[StreamNode, int, HostInterface],
    b: tuple[StreamNode, int, HostInterface],
    windows: tuple[int, int],
    segment: int,
) -> None:
    """Connects two members, each a node, a number and the interface that it uses.

    windows: from a to b and back, in segments. segment: bytes of data in a full one.
    """
    there, back = (Outbound(window, segment) for window in windows)
    for (node, member, own), (_, peer, other), out, into in (
        (a, b, there, back),
        (b, a, back, there),
    ):
        mac, gateway = (bytes.fromhex(one.replace(":", "")) for one in (own.mac, own.gateway_mac))
        wire = Interface(mac, gateway, int(own.ipv4))
        ports = _FIRST_PORT + member, _FIRST_PORT + peer
        node._ends[_ports(peer, member)] = _End(
            out, Inbound(into), own.number, head(wire, int(other.ipv4), ports), deque()
        )
        node._known = np.array([*sorted(node._ends), -1], np.int64)


def _ports(source: int, target: int) -> int:
    """Of frames from a member to another."""
    return _FIRST_PORT + source << 16 | _FIRST_PORT + target
