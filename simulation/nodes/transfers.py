# SPDX-License-Identifier: Apache-2.0
"""Reliable transfers between simulated hosts: what calls between servers are carried by.

A message is cut into segments, UDP datagrams to a port of their own, which switches forward like
any packet without a priority. Frames hold headers only: the message is in memory. A host's kernel,
not a program, sends and acknowledges them, so nothing of it ends with a process.

Each segment on the wire has another number. Every second one, and each that ends a message or comes
out of order, is acknowledged on arrival, by number; those before the last three acknowledged are
lost, and so are all after a timeout. The window of segments in flight grows like TCP's until a loss
halves it, or until as many segments are in queues as a quarter of the own link's queue has (the
round-trip time tells, as in TCP Vegas). Segments wait at their host while the job's packets, or
more than a fraction of a millisecond of others, wait for the link.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import grpc
import numpy as np
import numpy.typing as npt

from protocol.ethernet import HEADER as ETHERNET_HEADER
from protocol.frames import OVERHEAD, Interface, envelope
from simulation.kernel.calls import CallError
from simulation.kernel.engine import Port
from simulation.kernel.tasks import Alarm, Tasks
from simulation.links.trains import NEVER, SECOND, Frames, Lengths, Times, Train
from topologies.model.addressing import HostInterface

__all__ = ["LinkCarrier", "Transfers", "is_transfer"]

_PORT = 47120  # the first behind those of aggregation
# Kind; index of the segment in its message; its number; the message's number; that of the first
# message which its sender still has. An acknowledgement has two segments' numbers.
_HEADER = struct.Struct(">BxxxIQQQ")
_STORED = OVERHEAD + _HEADER.size
_DATA, _ACK = 1, 2
_SOURCE, _TARGET, _TARGET_PORT = slice(26, 30), slice(30, 34), slice(36, 38)  # in a frame
_PORT_BYTES = np.frombuffer(_PORT.to_bytes(2, "big"), np.uint8)

_REORDERED = 3  # segments that may overtake one that is not lost
_FIRST_WINDOW, _LEAST_WINDOW = 10.0, 2.0  # segments
_BACKLOG = 0.00025  # seconds of the own link
_SHARE = 4  # of a queue that one path takes
_FIRST_TIMEOUT = SECOND // 5
_LEAST_TIMEOUT, _MOST_TIMEOUT = SECOND // 200, SECOND
# As gRPC's keepalive here (hosts.net.environment): a peer is asked, then given up.
_QUIET, _DEAD = 2 * SECOND, 4 * SECOND


class TransferHost(Protocol):
    """The part of a host that transfers use (`simulation.nodes.host.HostNode` describes it)."""

    name: str
    now: int
    tasks: Tasks
    ports: dict[int, Port]
    interfaces: tuple[HostInterface, ...]

    @property
    def immediate(self) -> bool: ...

    def queued(self, times: Times, lengths: Lengths) -> Times: ...

    def transmit(self, leaving: Sequence[tuple[int, Train]]) -> None: ...


class _Message:
    """A message on its way; `work` runs at the receiver once it is there.

    number: among those of its path.
    segments: how many; `begun` of them have been sent, `owed` are not acknowledged.
    over: it is acknowledged, or was given up: nothing of it is sent any more.
    got, lacking: the receiver's: which segments are there, and how many are not.
    """

    __slots__ = ("begun", "got", "lacking", "last", "number", "over", "owed", "segments", "work")

    def __init__(
        self, number: int, segments: int, last: int, work: Callable[[], None] | None
    ) -> None:
        self.number, self.segments, self.last, self.work = number, segments, last, work
        self.begun, self.owed, self.over = 0, segments, False
        self.got, self.lacking = bytearray(segments), segments


class _Path:
    """The sender's end of what goes from an interface of a host to an address."""

    def __init__(self, host: Transfers, own: HostInterface, target: int, peer: Transfers) -> None:
        self._host, self._node, self._own = host, host.node, own
        self._target, self._peer = target, peer
        self._link = self._node.ports[own.number].out
        limit, rate = own.outgoing.queue_bytes, own.outgoing.rate
        self._frame = host.mtu + ETHERNET_HEADER
        self._room = self._frame - _STORED
        share = max(2 * self._frame, min(limit // _SHARE, int(rate * _BACKLOG / 8)))
        self._backlog = min(limit, share)
        self._most_queued = max(2.0, limit / _SHARE / self._frame)
        self._messages = itertools.count()
        self._keys = itertools.count()  # of calls
        self._sent = 0  # the number of the next segment
        self._live: dict[int, _Message] = {}
        self._waiting: deque[_Message] = deque()
        self._again: deque[tuple[_Message, int]] = deque()
        self._flying: dict[int, tuple[_Message, int, int]] = {}  # and when it was sent
        self._window, self._threshold = _FIRST_WINDOW, math.inf
        self._recovered = 0  # segments up to this number halve the window no more
        self._shortest = NEVER  # round trip, ps
        self._smoothed = self._variation = 0
        self._backed_off = 0
        self._timeout_at = NEVER
        self._alarm: tuple[int, Alarm] | None = None
        self._fails: dict[int, Callable[[CallError], None]] = {}  # of open calls
        self.heard = 0

    @property
    def open(self) -> bool:
        """True if a call is under way from this end."""
        return bool(self._fails)

    def watch(self, fail: Callable[[CallError], None]) -> Callable[[], None]:
        """Has a call fail once the peer is given up, until the result is called."""
        self._begin()
        key = next(self._keys)
        self._fails[key] = fail
        self._set_alarm()

        def unwatch() -> None:
            self._fails.pop(key, None)

        return unwatch

    def send(self, size: int, work: Callable[[], None] | None) -> Callable[[], None]:
        """Sends a message of `size` bytes; `work` runs at the peer when it is there. Returns a
        function that gives it up."""
        self._begin()
        segments = max(1, -(-size // self._room))
        last = max(0, size - (segments - 1) * self._room)
        one = _Message(next(self._messages), segments, _STORED + last, work)
        self._live[one.number] = one
        self._waiting.append(one)
        self._peer.expect(int(self._own.ipv4), self._target, one)
        self.pump()
        return lambda: self._give_up(one)

    def _begin(self) -> None:
        self._host.used = True
        if not self._live and not self._fails:
            self.heard = self._node.now

    def _give_up(self, one: _Message) -> None:
        one.over = True
        self._live.pop(one.number, None)

    def acknowledged(self, numbers: tuple[int, int]) -> None:
        """Takes an acknowledgement."""
        now, newest, found = self._node.now, -1, 0
        for number in numbers:
            entry = self._flying.pop(number, None)
            if entry is None:
                continue
            one, _, at = entry
            newest, found = max(newest, number), found + 1
            trip = now - at
            one.owed -= 1
            if not one.owed:
                self._give_up(one)
        if not found:
            return
        self._backed_off = 0
        self._measure(trip)
        full = len(self._flying) + found + 1 >= self._window
        queued = self._window * (1 - self._shortest / trip)
        if queued > self._most_queued:
            self._window = max(_LEAST_WINDOW, self._window - found / self._window)
            self._threshold = self._window
        elif full:
            slow = self._window < self._threshold
            self._window += found if slow else found / self._window
        before = newest - _REORDERED
        lost = list(itertools.takewhile(lambda number: number < before, self._flying))
        if lost:
            if lost[-1] >= self._recovered:
                self._recovered = self._sent
                self._window = self._threshold = max(_LEAST_WINDOW, self._window / 2)
            self._lose(lost)
        self._timeout_at = now + self._timeout if self._flying else NEVER
        self.pump()

    def _measure(self, trip: int) -> None:
        self._shortest = min(self._shortest, trip)
        if not self._smoothed:
            self._smoothed, self._variation = trip, trip // 2
            return
        self._variation += (abs(trip - self._smoothed) - self._variation) // 4
        self._smoothed += (trip - self._smoothed) // 8

    @property
    def _timeout(self) -> int:
        usual = self._smoothed + 4 * self._variation if self._smoothed else _FIRST_TIMEOUT
        return min(max(_LEAST_TIMEOUT, usual) << self._backed_off, _MOST_TIMEOUT)

    def _lose(self, numbers: list[int]) -> None:
        for number in numbers:
            one, index, _ = self._flying.pop(number)
            if not one.over:
                self._again.append((one, index))

    def _next(self) -> tuple[_Message, int] | None:
        """Returns the next segment to send, without taking it."""
        while self._again and self._again[0][0].over:
            self._again.popleft()
        if self._again:
            return self._again[0]
        while self._waiting and (
            self._waiting[0].over or self._waiting[0].begun == self._waiting[0].segments
        ):
            self._waiting.popleft()
        return (self._waiting[0], self._waiting[0].begun) if self._waiting else None

    def pump(self) -> None:
        """Sends what the window and the host's link have room for."""
        node, frames, lengths = self._node, [], []
        at = node.now
        if not node.immediate:
            at = int(node.queued(np.array([at]), np.array([self._frame]))[0])
        free, blocked = self._backlog - self._link.waiting(at), False
        oldest = next(iter(self._live), 0)
        while len(self._flying) < self._window and (found := self._next()) is not None:
            one, index = found
            length = one.last if index == one.segments - 1 else self._frame
            if free < length:
                blocked = True
                break
            free -= length
            if self._again:
                self._again.popleft()
            else:
                one.begun += 1
            if not self._flying and not self._backed_off:
                self.heard = node.now
            header = _HEADER.pack(_DATA, index, self._sent, one.number, oldest)
            frames.append(self._host.envelope(self._own, self._target, length) + header)
            lengths.append(length)
            self._flying[self._sent] = one, index, node.now
            self._sent += 1
        if frames:
            self._host.transmit(self._own, frames, lengths)
            if self._timeout_at == NEVER:
                self._timeout_at = node.now + self._timeout
        room = self._link.spec.queue_bytes - self._backlog + self._frame
        self._host.blocked(self, self._link.room(room) if blocked else None)
        self._set_alarm()

    def _set_alarm(self) -> None:
        """Has `_tick` called at the next time that matters, or earlier."""
        if not self._live and not self._fails:
            return
        at = min(self._timeout_at, self.heard + (_DEAD if self._live else _QUIET))
        at = max(at, self._node.now + 1)
        if self._alarm is not None and self._alarm[0] <= at:
            return
        if self._alarm is not None:
            self._node.tasks.give_up(self._alarm[1])
        self._alarm = at, self._node.tasks.alarm(at, self._tick)

    def _tick(self) -> None:
        self._alarm = None
        now = self._node.now
        if not self._live and not self._fails:
            return
        if now - self.heard >= _DEAD:
            self._break_off()
            return
        if now >= self._timeout_at:
            self._timeout_at = NEVER
            if self._flying:
                self._backed_off = min(self._backed_off + 1, 10)
                self._window, self._recovered = _LEAST_WINDOW, self._sent
                self._threshold = max(_LEAST_WINDOW, self._threshold / 2)
                self._lose(list(self._flying))
            self.pump()
        elif not self._live and now - self.heard >= _QUIET:
            self.send(0, None)
        self._set_alarm()

    def _break_off(self) -> None:
        """Gives up the peer: its calls fail, as when a connection breaks off."""
        for one in list(self._live.values()):
            self._give_up(one)
        self._waiting.clear()
        self._again.clear()
        self._flying.clear()
        self._timeout_at = NEVER
        fails, self._fails = list(self._fails.values()), {}
        error = CallError(grpc.StatusCode.UNAVAILABLE, "the peer does not answer")
        for fail in fails:
            fail(error)


class _Arriving:
    """The receiver's end of a path.

    messages: those that are not whole yet, by number.
    """

    def __init__(self) -> None:
        self.messages: dict[int, _Message] = {}
        self.next = 0  # number of the segment that comes next if all goes well
        self.owed: int | None = None  # number of a segment that is not acknowledged yet


class Transfers:
    """A host's kernel, as far as calls to other hosts go.

    mtu: bytes of an IP packet that all links of the topology carry.
    used: something was sent from or to here.
    """

    def __init__(self, node: TransferHost, mtu: int) -> None:
        self.node, self.mtu, self.used = node, mtu, False
        self._paths: dict[tuple[int, int], _Path] = {}  # by own address and the peer's
        self._arriving: dict[tuple[int, int], _Arriving] = {}  # by the peer's and own
        self._envelopes: dict[tuple[int, int, int], bytes] = {}
        self._blocked: dict[_Path, None] = {}
        self._alarm: Alarm | None = None

    @property
    def active(self) -> bool:
        """True if a call is under way from here."""
        return self.used and any(path.open for path in self._paths.values())

    def path(self, own: int, target: int, peer: Transfers) -> _Path:
        """Returns the path from one of the host's addresses to a peer's."""
        if (own, target) not in self._paths:
            interface = next(one for one in self.node.interfaces if int(one.ipv4) == own)
            self._paths[own, target] = _Path(self, interface, target, peer)
        return self._paths[own, target]

    def expect(self, source: int, own: int, message: _Message) -> None:
        """Learns of a message before its segments arrive."""
        self.used = True
        self._arriving.setdefault((source, own), _Arriving()).messages[message.number] = message

    def take(self, frames: Frames) -> None:
        """Takes the segments and acknowledgements that arrive now."""
        now = self.node.now
        for frame in frames[:, :_STORED]:
            row = frame.tobytes()
            source, own = (int.from_bytes(row[part], "big") for part in (_SOURCE, _TARGET))
            kind, index, number, message, oldest = _HEADER.unpack_from(row, OVERHEAD)
            path = self._paths.get((own, source))
            if path is not None:
                path.heard = now
            if kind == _ACK:
                if path is not None:
                    path.acknowledged((number, message))
            elif (source, own) in self._arriving:
                self._segment(source, own, index, number, message, oldest)

    def _segment(
        self, source: int, own: int, index: int, number: int, message: int, oldest: int
    ) -> None:
        end = self._arriving[source, own]
        while end.messages and (first := next(iter(end.messages))) < oldest:
            del end.messages[first]
        one = end.messages.get(message)
        ends = one is None or index == one.segments - 1
        owed, expected = end.owed, end.next
        end.next = max(expected, number + 1)
        if owed is None and not ends and number == expected:
            end.owed = number
        else:
            end.owed = None
            self._acknowledge(source, own, number if owed is None else owed, number)
        if one is None or one.got[index]:
            return
        one.got[index] = 1
        one.lacking -= 1
        if not one.lacking:
            del end.messages[message]
            work, one.work = one.work, None
            if work is not None:
                work()

    def _acknowledge(self, source: int, own: int, first: int, second: int) -> None:
        interface = next(one for one in self.node.interfaces if int(one.ipv4) == own)
        header = _HEADER.pack(_ACK, 0, first, second, 0)
        self.transmit(interface, [self.envelope(interface, source, _STORED) + header], [_STORED])

    def envelope(self, own: HostInterface, target: int, length: int) -> bytes:
        """Returns the headers of a frame of `length` bytes, down to UDP's."""
        key = int(own.ipv4), target, length
        if key not in self._envelopes:
            mac, gateway = (
                bytes.fromhex(one.replace(":", "")) for one in (own.mac, own.gateway_mac)
            )
            wire = Interface(mac, gateway, int(own.ipv4))
            self._envelopes[key] = envelope(wire, _PORT, (target, _PORT), length - OVERHEAD)
        return self._envelopes[key]

    def transmit(self, own: HostInterface, frames: list[bytes], lengths: list[int]) -> None:
        """Sends frames, of which these bytes are stored."""
        n = len(frames)
        stored = np.frombuffer(b"".join(frames), np.uint8).reshape(n, _STORED)
        times = np.full(n, self.node.now, np.int64)
        self.node.transmit([(own.number, Train(times, stored, np.array(lengths, np.int64)))])

    def blocked(self, path: _Path, until: int | None) -> None:
        """Has a path go on when its link, which has no room for it, is idle at this time; None: it
        needs none."""
        if until is None:
            self._blocked.pop(path, None)
            return
        self._blocked[path] = None
        if self._alarm is None:
            at = max(until, self.node.now + 1)
            self._alarm = self.node.tasks.alarm(at, self._go_on)

    def _go_on(self) -> None:
        self._alarm = None
        for path in list(self._blocked):
            path.pump()


class LinkCarrier:
    """Carries the calls of a host to an address of another one over the links between them."""

    def __init__(self, source: Transfers, own: int, target: Transfers, address: int) -> None:
        self._there = source.path(own, address, target)
        self._ends = target, address, own, source

    def there(self, size: int, work: Callable[[], None]) -> Callable[[], None]:
        """Implements Carrier."""
        return self._there.send(size, work)

    def back(self, size: int, work: Callable[[], None]) -> Callable[[], None]:
        """Implements Carrier."""
        target, address, own, source = self._ends
        return target.path(address, own, source).send(size, work)

    def watch(self, fail: Callable[[CallError], None]) -> Callable[[], None]:
        """Implements Carrier."""
        return self._there.watch(fail)


def is_transfer(frames: Frames) -> npt.NDArray[np.bool_]:
    """Returns which frames (n, stored) are segments or acknowledgements."""
    if frames.shape[1] < _STORED:
        return np.zeros(len(frames), np.bool_)
    found: npt.NDArray[np.bool_] = (frames[:, _TARGET_PORT] == _PORT_BYTES).all(axis=1)
    return found
