# SPDX-License-Identifier: Apache-2.0
"""A socket of a host in virtual time."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from hosts.native.loader import load_native
from hosts.net.arrivals import Clock, Pending, Released, Seconds
from hosts.net.background import Background
from hosts.net.driver import Ahead, Counters, Visible
from hosts.net.pacer import urgent_bytes, wire_bytes
from hosts.net.priority_queue import PriorityQueue
from protocol.ethernet import FRAMING
from protocol.frames import OVERHEAD, Interface
from protocol.header import SERVER_PORTS, Batch, packet_bytes
from protocol.priorities import PRIORITIES, STREAM_BYTE
from simulation.kernel.engine import Port, Unfinished
from simulation.kernel.processes import Process
from simulation.kernel.tasks import Alarm, Tasks, Waiter
from simulation.links.link import Link
from simulation.links.timeline import Timeline
from simulation.links.trains import (
    NEVER,
    SECOND,
    Frames,
    Lengths,
    Times,
    Train,
    picoseconds,
    side_by_side,
)
from simulation.nodes.frames import Datagrams, Framing
from simulation.nodes.processors import Processor
from switch.ports.paced_line import address
from topologies.model.addressing import HostInterface

_RECEIVE_BUFFER = 4 << 20
MANY = 1 << 40  # packets
_LEAST_FRAME, _ = wire_bytes(0)
_QUEUE_SHARE = 4  # a blocked sender continues when 1/4 of the queue is free
# Seconds of a link that a host hands over where urgent packets are to overtake others: waking up is
# exact here, so less than in emulation.
URGENT_BACKLOG = 0.00025
_URGENT_SHARE = 2  # a blocked sender of such packets continues when 1/2 of that is free

_Sendable: TypeAlias = tuple[Frames, Lengths, int]
"""Frames, of one priority if these are told apart: (n, stored) bytes, (n,) lengths, their sum."""


def _stream_of(sendable: _Sendable) -> int:
    return int(sendable[0][0, OVERHEAD + STREAM_BYTE])


class EndpointHost(Protocol):
    """What an endpoint needs of its host (`simulation.nodes.host.HostNode` describes it)."""

    now: int
    tasks: Tasks
    ports: dict[int, Port]
    interfaces: tuple[HostInterface, ...]
    payload: bool
    slowdown: Timeline
    background: Background | None

    @property
    def immediate(self) -> bool: ...

    def queued(self, times: Times, lengths: Lengths) -> Times: ...

    def transmit(self, leaving: Sequence[tuple[int, Train]]) -> None: ...

    def processor(self, endpoint: VirtualEndpoint) -> Processor | None: ...

    def serve(self, processor: Processor, found: Datagrams) -> None: ...

    def reconsider(self, processor: Processor) -> None: ...

    def hand_over(self, frames: Frames, lengths: Lengths) -> None: ...

    def give_back(self, train: Train) -> None: ...

    def put_off_to_finish(self, work: Unfinished) -> None: ...

    def wanted(self, train: Train, count: int) -> None: ...

    def release(self, endpoint: VirtualEndpoint) -> None: ...


class VirtualEndpoint:
    """Implements hosts.net.udp.Endpoint with frames instead of a socket, without offload.

    A full queue of the host's link blocks the sender, so it drops nothing. It is closed when its
    process is killed.
    """

    # Least duration of a wait, as time has to advance.
    tick = 1e-6
    by_priority = False
    queued = 0.0

    def __init__(
        self, node: EndpointHost, interface: HostInterface, port: int, process: Process | None
    ) -> None:
        self.counters = Counters()
        self._process = process
        self._forget = process.holds(lambda _: self.close()) if process is not None else None
        self._closed = False
        self.address, self.ipv4, self.port = str(interface.ipv4), int(interface.ipv4), port
        self.lanes = 0
        self.receive_buffer = _RECEIVE_BUFFER
        self._node, self._number = node, interface.number
        mac, gateway = (
            bytes.fromhex(one.replace(":", "")) for one in (interface.mac, interface.gateway_mac)
        )
        wire = Interface(mac, gateway, self.ipv4)
        self._framing = Framing(wire, port, [int(one.ipv4) for one in node.interfaces])
        self._lib = load_native()
        self._rate = interface.outgoing.rate
        self._queue_bytes = interface.outgoing.queue_bytes
        self._most_waiting = self._queue_bytes  # that it has wait for the link
        self._share = _QUEUE_SHARE
        self._inbox: list[Datagrams] = []
        self._timed = False
        self._pending: deque[_Sendable] | PriorityQueue[_Sendable] = deque()
        self._woken = False
        self._waiters: deque[Waiter] = deque()
        self._ahead: Ahead | None = None
        self._failed: Exception | None = None  # of the last packets that were taken ahead of time
        # See HostEnvironment.expect.
        self.expected: Callable[[], tuple[float, float]] | None = None
        self.visible: Visible | None = None
        self._processor = node.processor(self) if port in SERVER_PORTS else None

    def configure(
        self, lanes: int, link_rate: int, *, by_priority: bool = False, timed: bool = False
    ) -> None:
        """Implements Endpoint."""
        self.lanes = lanes
        self._timed = timed
        self._framing.empty_lanes = 0 if self._node.payload else lanes
        if by_priority and not self.by_priority:
            self.by_priority, self._share = True, _URGENT_SHARE
            waiting, self._pending = self._pending, PriorityQueue(_stream_of)
            while waiting:
                self._pending.append(waiting.popleft())
        if self.by_priority:
            short = urgent_bytes(self._rate, OVERHEAD + packet_bytes(lanes), URGENT_BACKLOG)
            self._most_waiting = min(short, self._queue_bytes)

    def capacity(self) -> int:
        """Implements Endpoint."""
        return self.receive_buffer // (packet_bytes(self.lanes))

    def close(self) -> None:
        """Implements Endpoint."""
        self._closed = True
        self._pending.clear()
        self._node.release(self)
        if self._forget is not None:
            self._forget()

    def wake(self) -> None:
        """Implements Endpoint."""
        if self._processor is not None:
            self._node.reconsider(self._processor)
        self._wake()

    def _wake(self) -> None:
        self._woken = True
        self._node.tasks.wake(self._waiters)

    @property
    def alarm(self) -> Alarm | None:
        """The alarm of the task that waits here."""
        return self._waiters[0].alarm if self._waiters else None

    def wait(self, timeout: float, unhurried: float = 0.0) -> None:
        """Implements Endpoint; waking up costs no CPU time here, so nothing waits for more."""
        if self._pending:
            room = max(int(self._pending[0][1][0]), self._most_waiting // self._share)
            room += self._queue_bytes - self._most_waiting
            free = (self._link.room(room) - self._node.now) / SECOND
            timeout = min(timeout, max(free, self.tick))
        if not self._woken:
            self._node.tasks.pause(self._waiters, None if timeout == math.inf else timeout)
        self._woken = False
        if self._failed is not None:
            error, self._failed = self._failed, None
            raise error

    def outlook(self) -> tuple[int, int] | None:
        """Returns when its driver, and with how many packets before, may call or wake others; None
        if that is not known."""
        if self.expected is None or not self._waiters or self._inbox or self._woken:
            return None
        packets, until = self.expected()
        return picoseconds(until), max(0, int(min(packets, MANY)) - 1)

    def arrive(self, found: Datagrams) -> None:
        """Handles arriving datagrams, by the processor if there is one."""
        if self._processor is None:
            self.take(found)
        else:
            self._node.serve(self._processor, found)

    def take(self, found: Datagrams) -> None:
        """Makes datagrams receivable."""
        self._inbox.append(found)
        self._wake()

    def shows(self, found: Datagrams) -> npt.NDArray[np.bool_] | None:
        """Returns (n,), whether the driver has to get each datagram in time
        (`HostEnvironment.expect`); None: all."""
        if self.visible is None or self._inbox or not self._waiters:
            return None
        if self._process is not None and self._process.stopped:
            return None
        batch = self._framing.packets(found.frames, found.lengths, self.lanes)
        return None if batch is None else self.visible(batch)

    def look_ahead(self, ahead: Ahead) -> None:
        """Implements Attachment."""
        self._ahead = ahead

    def give_ahead(self, train: Train) -> bool:
        """Offers packets, the first of which is here, to the driver; no other event happens before
        the last. Time advances to the last packet that is taken.

        Returns whether a driver waits for such; what it refuses was given back.
        """
        ahead = self._ahead
        if ahead is None or self._inbox or self._pending or not self._waiters:
            return False
        if self._process is not None and self._process.stopped:
            return False
        if self._processor is not None:  # which delays each packet
            return False
        batch = self._framing.packets(train.frames, train.lengths, self.lanes)
        if batch is None:
            self._node.give_back(train)
            return True
        clock = Clock(SECOND, self.tick, self._room, self._waiting, self._node.background)
        try:
            found = ahead.on_train(train.times / SECOND, batch, clock)
        except Exception as error:
            self.fail(error)
            return True
        if isinstance(found, Pending):
            self._node.put_off_to_finish(_Taking(self, ahead, train, found))
        elif found is None:
            self._node.give_back(train)
        else:
            self.took(ahead, train, found)
        return True

    def fail(self, error: Exception) -> None:
        """Wakes the driver, for which `wait` raises the error of taking packets."""
        self._failed = error
        self._wake()

    def took(self, ahead: Ahead, train: Train, released: Released) -> None:
        """Sends what is released, and advances time to the last packet that was taken."""
        node, counters, taken = self._node, self.counters, released.taken
        counters.receive_calls += 1
        counters.received += taken
        node.wanted(train, taken)
        if released.batch is not None:
            written = self._framing.frames(released.batch)
            times = np.rint(released.times * SECOND).astype(np.int64)
            node.transmit([(self._number, Train(times, written.frames, written.lengths))])
            counters.send_calls += 1
            counters.sent += len(times)
        node.now = max(node.now, int(train.times[taken - 1]))
        waits = ahead.goes_on(released, node.now / SECOND, self.tick)
        if waits is None:
            self._wake()
        else:
            node.tasks.prolong(self._waiters[0], None if waits == math.inf else waits)

    def _room(self, times: Seconds, sizes: Lengths) -> bool:
        """True if frames of these bytes fit into the link's queue, with a small margin."""
        link = self._link
        if not len(times):
            return True
        # Like `flush`: packets of the same time find the queue as it is then.
        handed = np.rint(times * SECOND).astype(np.int64)
        pace = link.pace(int(handed[0]), int(handed[-1]))
        if link.spec.framing:
            pace *= int(sizes.min()) / (int(sizes.min()) + FRAMING)
        if self._node.immediate:
            waiting, queue = link.waiting(int(handed[0])), self._most_waiting
            return bool(
                self._lib.find_room(
                    address(handed), address(sizes), len(sizes), SECOND, pace, waiting, queue
                )
            )
        firsts = np.flatnonzero(np.diff(handed, prepend=-1))
        queued = self._node.queued(handed, sizes)[firsts]
        gone = np.repeat((queued - queued[0]) / SECOND * pace, np.diff(firsts, append=len(handed)))
        # The queue holds the arrivals since it was last empty, minus the departures since.
        level = np.cumsum(sizes) - gone + link.waiting(int(queued[0]))
        lowest = np.minimum(0.0, np.minimum.accumulate(level - sizes))
        return not (level - lowest > self._most_waiting - 2 * sizes).any()

    def _waiting(self) -> tuple[float, float, float]:
        """Returns how fast the link's queue drains, at least, what waits in it, and its limit."""
        link, node = self._link, self._node
        pace, reached = 0.0, node.now
        if node.immediate:
            pace = link.pace(node.now, NEVER)
        else:
            reached = int(node.queued(np.array([node.now]), np.array([_LEAST_FRAME]))[0])
        if link.spec.framing:
            pace *= _LEAST_FRAME / (_LEAST_FRAME + FRAMING)
        return pace, link.waiting(reached), self._most_waiting

    def receive(self) -> Batch | None:
        """Implements Endpoint."""
        if not self._inbox:
            return None
        inbox, self._inbox = self._inbox, []
        self.counters.receive_calls += 1
        first = inbox[0]
        if len(inbox) > 1:
            lengths = np.concatenate([one.lengths for one in inbox])
            first = Datagrams(side_by_side([one.frames for one in inbox]), lengths)
        batch, malformed = self._framing.decode(first, self.lanes)
        self.counters.malformed += malformed
        if self._timed:
            waited = [(self._node.now - one.at) * len(one.lengths) for one in inbox]
            self.queued = sum(waited) / SECOND / max(1, sum(len(one.lengths) for one in inbox))
        self.counters.received += len(batch)
        return batch

    @property
    def more(self) -> bool:
        """Implements Attachment."""
        return bool(self._inbox)

    def send(self, batch: Batch) -> None:
        """Implements Endpoint."""
        if self._closed:
            return
        self.counters.send_calls += 1
        frames, lengths, local, counts, totals = self._framing.frames(
            batch, by_priority=self.by_priority
        )
        remote = len(frames) - local
        if remote and not self._hand_over(frames[:remote], lengths[:remote], sum(totals)):
            first = 0
            for priority in range(PRIORITIES - 1, -1, -1):
                if counts[priority]:
                    rows = slice(first, first + counts[priority])
                    self._pending.append((frames[rows], lengths[rows], totals[priority]))
                    first = rows.stop
        if local:
            self.counters.sent += local
            self._node.hand_over(frames[remote:], lengths[remote:])
        self.flush()

    def _hand_over(self, frames: Frames, lengths: Lengths, total: int) -> bool:
        """Hands frames of `total` bytes over if nothing waits before them and all find room in the
        link's queue."""
        node = self._node
        if self._pending or not node.immediate:
            return False
        if total > self._most_waiting - self._link.waiting(node.now):
            return False
        self._transmit(frames, lengths)
        return True

    def _transmit(self, frames: Frames, lengths: Lengths) -> None:
        node = self._node
        times = np.full(len(lengths), node.now, np.int64)
        node.transmit([(self._number, Train(times, frames, lengths))])
        self.counters.sent += len(lengths)

    def flush(self) -> bool:
        """Implements Endpoint."""
        node, link = self._node, self._link
        while self._pending:
            at = node.now
            if not node.immediate:
                at = int(node.queued(np.array([at]), self._pending[0][1][:1])[0])
            room = self._most_waiting - link.waiting(at)
            # What an idle link gets first has not to wait, so there is more room then.
            frames, lengths, whole = self._fitting(room, exact=link.free > at)
            if frames:
                sizes = lengths[0] if len(lengths) == 1 else np.concatenate(lengths)
                self._transmit(side_by_side(frames), sizes)
            if not whole:
                self.counters.send_blocked += 1
                return False
        return True

    def _fitting(self, room: int, *, exact: bool) -> tuple[list[Frames], list[Lengths], bool]:
        """Takes the parts that wait, as far as they fit into `room` bytes; only the first if the
        host takes time to send packets.

        exact: there is no more room. Returns frames and lengths of each, and false if packets are
        left that do not fit.
        """
        pending, immediate = self._pending, self._node.immediate
        fitting: tuple[list[Frames], list[Lengths]] = ([], [])
        while pending and (immediate or not fitting[0]):
            frames, lengths, total = pending.popleft()
            whole = total <= room
            if not whole:
                if fitting[0] and not exact:
                    pending.appendleft((frames, lengths, total))
                    break
                sums = lengths.cumsum()
                count = int(sums.searchsorted(room, "right"))
                left = total - int(sums[count - 1]) if count else total
                pending.appendleft((frames[count:], lengths[count:], left))
                frames, lengths = frames[:count], lengths[:count]
            if len(frames):
                fitting[0].append(frames)
                fitting[1].append(lengths)
            if not whole:
                return *fitting, False
            room -= total
        return *fitting, True

    @property
    def _link(self) -> Link:
        return self._node.ports[self._number].out


class _Taking:
    """Implements Unfinished: packets that an endpoint's driver takes in the background."""

    def __init__(
        self, endpoint: VirtualEndpoint, ahead: Ahead, train: Train, pending: Pending
    ) -> None:
        self.ready = pending.ready
        self._endpoint, self._given, self._pending = endpoint, (ahead, train), pending

    def finish(self) -> None:
        """Implements Unfinished."""
        try:
            released = self._pending.finish()
        except Exception as error:
            self._endpoint.fail(error)
        else:
            self._endpoint.took(*self._given, released)
