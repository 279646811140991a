# SPDX-License-Identifier: Apache-2.0
"""A host in virtual time whose programs use byte streams (``simulation.nodes.byte_streams``)."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np

from protocol.frames import Interface
from simulation.kernel.tasks import Waiter
from simulation.links.trains import Frames, Lengths, Times, side_by_side
from simulation.nodes.byte_streams import Content, Streams, head
from simulation.nodes.host import HostNode
from topologies.model.addressing import Addressing, HostInterface

_FIRST_PORT = 20_000  # member m's


class _End(NamedTuple):
    """A connection at one of its ends."""

    out: Content
    into: Content
    waiters: deque[Waiter]


class StreamNode(HostNode):
    """A host with stream ends, which ``connect`` creates."""

    def __init__(self, name: str, addressing: Addressing, *, payload: bool = True) -> None:
        super().__init__(name, addressing, payload=payload)
        self._ends: dict[int, _End] = {}  # by the ports of arriving frames: sender's, receiver's
        self._streams = Streams(len(self.interfaces))

    def send(self, member: int, peer: int, data: bytes) -> None:
        """Sends a message of one of its members; call from a task of this node."""
        if data:
            ports = _ports(peer, member)
            self._ends[ports].out.put(data)
            self._streams.put(ports, len(data), self.now)
            self._leave()

    def receive(self, member: int, peer: int, into: memoryview) -> None:
        """Waits for the next bytes from a peer for a member; call from a task of this node."""
        ports = _ports(peer, member)
        end = self._ends[ports]
        if not into:
            return
        if not self._streams.want(ports, end.into.taken + len(into)):
            self.tasks.pause(end.waiters, None)
        end.into.read(into)

    # See HostNode

    def outlook(self) -> tuple[int, int]:
        """Implements Node: any frame may end a wait, after which a task may call."""
        return self.next(), 0

    def take(self, until: int) -> None:
        """Implements TaskNode."""
        self._until = until
        found = [train for _, _, train in self.arrivals(until)]
        if not found:
            return
        times, lengths, frames = found[0].times, found[0].lengths, found[0].frames
        if len(found) > 1:
            # Simultaneous frames are ordered by port.
            times = np.concatenate([train.times for train in found])
            order = np.argsort(times, kind="stable")
            times = times[order]
            lengths = np.concatenate([train.lengths for train in found])[order]
            frames = side_by_side([train.frames for train in found])[order]
        self.sort(self.received(times, lengths), lengths, frames)

    def sort(self, times: Times, lengths: Lengths, frames: Frames) -> None:
        """Gives frames, received at these times, to the streams."""
        self.unwanted += self._streams.take(times, frames)

    def arrival(self) -> int:
        """Implements TaskNode."""
        return self._streams.next

    def limit(self) -> int:
        """Returns the time of the first event besides frames of streams."""
        return min(self._until, self.next_call(), self.tasks.due)

    def arrive(self) -> None:
        """Processes all frames up to the first that wakes a task, and sends the replies.

        Events at other nodes cannot matter in between.
        """
        if self._streams.next > self.now:
            return
        limit = self.now
        if not self.tasks.busy:
            limit = self.limit()
        woken, now = self._streams.arrive(max(limit, self.now + 1))
        for ports in woken:
            self.tasks.wake(self._ends[ports].waiters)
        self._leave()
        self.now = max(self.now, now)

    def _leave(self) -> None:
        if leaving := self._streams.leave():
            self.transmit(leaving)


def connect(
    a: tuple[StreamNode, int, HostInterface],
    b: tuple[StreamNode, int, HostInterface],
    windows: tuple[int, int],
    segment: int,
) -> None:
    """Connects two members, each a node, a number and the interface that it uses.

    windows: from a to b and back, in segments. segment: bytes of data in a full one.
    """
    there, back = Content(), Content()
    for (node, member, own), (_, peer, other), out, into, window in (
        (a, b, there, back, windows[0]),
        (b, a, back, there, windows[1]),
    ):
        mac, gateway = (bytes.fromhex(one.replace(":", "")) for one in (own.mac, own.gateway_mac))
        wire = Interface(mac, gateway, int(own.ipv4))
        first = head(wire, int(other.ipv4), (_FIRST_PORT + member, _FIRST_PORT + peer))
        node._streams.connect(_ports(peer, member), own.number, first, window, segment)
        node._ends[_ports(peer, member)] = _End(out, into, deque())


def _ports(source: int, target: int) -> int:
    """Returns the ports of frames from one member to another."""
    return _FIRST_PORT + source << 16 | _FIRST_PORT + target
