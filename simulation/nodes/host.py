# SPDX-License-Identifier: Apache-2.0
"""A host in virtual time: runs the real clients and servers on simulated links."""

from __future__ import annotations

import copy
import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from hosts.native.loader import load_native
from hosts.net.arrivals import Clock, Released, Seconds
from hosts.net.driver import Ahead, Counters
from hosts.net.pacer import urgent_bytes, wire_bytes
from hosts.net.priority_queue import PriorityQueue, split_by_priority
from protocol.ethernet import FRAMING
from protocol.frames import OVERHEAD, Interface
from protocol.header import (
    HEADER_BYTES,
    SERVER_PORTS,
    Batch,
    packet_bytes,
    peer_keys,
)
from protocol.priorities import STREAM_BYTE
from simulation.kernel.engine import Port
from simulation.kernel.task_node import TaskNode
from simulation.kernel.tasks import Alarm, Waiter
from simulation.links.link import Link
from simulation.links.timeline import Step, Timeline
from simulation.links.trains import (
    NEVER,
    SECOND,
    Frames,
    Lengths,
    Times,
    Train,
    joined,
    picoseconds,
)
from simulation.nodes.costs import Core, UrgentFirstCore, of_hosts, of_servers
from simulation.nodes.frames import Arrived, Framing, arrived, decode
from switch.ports.paced_line import address
from topologies.model.addressing import Addressing, HostInterface

_FIRST_PORT = 49152  # the first ephemeral port (RFC 6335)
_RECEIVE_BUFFER = 4 << 20
_MANY = 1 << 40  # packets
_FEW = 8  # the least packets that are not offered after a refusal
_LEAST_FRAME, _ = wire_bytes(0)
_QUEUE_SHARE = 4  # a blocked sender continues when 1/4 of the queue is free
# Seconds of a link that a host hands over where urgent packets are to overtake others: waking up is
# exact here, so less than in emulation.
URGENT_BACKLOG = 0.00025
_URGENT_SHARE = 2  # a blocked sender of such packets continues when 1/2 of that is free


class HostNode(TaskNode):
    """A host of the topology; its interface numbers are its port numbers.

    payload: chunks have content; otherwise they only occupy the wire.
    unwanted: number of packets without a receiving socket.
    by_priority: processors of servers handle urgent packets first.
    trains: offer endpoints packets ahead of time where results do not change, which is faster.
    slowdown: how many times as long its processors take.
    discards: tells which packets it takes in and no program gets; None: none.
    """

    patient = True

    def __init__(self, name: str, addressing: Addressing, *, payload: bool = True) -> None:
        super().__init__(name)
        self.payload = payload
        self.interfaces = addressing.host_interfaces(name)
        self.unwanted = 0
        self.by_priority = False
        self.trains = True
        self.discards: Callable[[Train], npt.NDArray[np.bool_]] | None = None
        self._endpoints: dict[tuple[int, int], VirtualEndpoint] = {}
        self._addresses = {int(one.ipv4) for one in self.interfaces}
        self._incoming: deque[Train] = deque()
        self._next_port = _FIRST_PORT
        costs = addressing.topology.costs
        works = addressing.topology.by_name[name].kind == "worker"
        sends = receives = of_hosts(costs) if works else None
        self.slowdown = Timeline()
        self._computing: deque[Waiter] = deque()
        self._sending = Core(sends, self.slowdown) if sends is not None else None
        self._receiving = Core(receives, self.slowdown) if receives is not None else None
        self.server_cost = of_servers(costs)
        self._interval = picoseconds(costs.interrupt_interval)
        # Work of servers' processors: time of completion, order, and datagrams.
        self._served: list[tuple[int, int, VirtualEndpoint, Arrived]] = []
        self._served_count = 0
        if sends is not None:
            self.latency = sends.per_packet
        self._until = 0
        self._unoffered = 0  # packets until the next offer ahead of time
        self._refusals = 0  # consecutive ones

    def endpoint(self, address: str, port: int = 0) -> VirtualEndpoint:
        """Opens a socket at one of its addresses; port 0: any. Raises OSError."""
        found = [one for one in self.interfaces if str(one.ipv4) == address]
        if not found:
            raise OSError(0, f"{self.name} has no address {address}")
        if port == 0:
            port, self._next_port = self._next_port, self._next_port + 1
        place = int(found[0].ipv4), port
        if place in self._endpoints:
            raise OSError(0, f"cannot bind UDP {address}:{port}: it is taken")
        self._endpoints[place] = made = VirtualEndpoint(self, found[0], port)
        return made

    def release(self, endpoint: VirtualEndpoint) -> None:
        """Closes a socket."""
        self._endpoints.pop((endpoint.ipv4, endpoint.port), None)

    def slow(self, steps: Sequence[Step]) -> None:
        """Has processors take so many times as long for what begins from these times on, in place
        of all steps from now on. What a program computes slows down at once."""
        self.slowdown.replace(self.now, steps)
        self.tasks.wake(self._computing)

    def compute(self, seconds: float) -> None:
        """Takes the time of a computation, which would be `seconds` if the host was not slow; call
        from a task of the host."""
        if self.slowdown.plain:
            began, left = self.now, Fraction(picoseconds(seconds))
            if not self.tasks.pause(self._computing, seconds):
                return
            left -= self.slowdown.work(began, self.now)
        else:
            left = Fraction(picoseconds(seconds))
        while True:
            began = self.now
            ends = self.slowdown.finish(began, left)
            if not self.tasks.pause(self._computing, (ends - began) / SECOND):
                return
            left -= self.slowdown.work(began, self.now)

    def local(self, address: int) -> bool:
        """True if an address is one of this host's."""
        return address in self._addresses

    # See TaskNode

    def connected(self, port: Port) -> None:
        """Implements Node: hosts give no priorities."""
        super().connected(port)
        port.out.give_no_priorities()

    def take(self, until: int) -> None:
        """Implements TaskNode."""
        self._until = until
        found = self.arrivals(until)
        if len(self.ports) == 1 or len({port for _, port, _ in found}) < 2:
            self._coming(train for _, _, train in found)
            return
        single = [
            (int(train.times[row]), number, train.select(slice(row, row + 1)))
            for number, _, train in found
            for row in range(len(train))
        ]
        single.sort(key=lambda one: one[:2])
        self._coming(train for _, _, train in single)

    def _coming(self, trains: Iterable[Train]) -> None:
        if self._receiving is not None or self._interval:
            trains = [one.at(self.received(one.times, one.lengths)) for one in trains]
        if self.discards is not None:
            kept = [one.select(~self.discards(one)) for one in trains]
            trains = [one for one in kept if len(one)]
        self._incoming.extend(trains)

    def received(self, times: Times, lengths: Lengths) -> Times:
        """Computes when programs receive packets that arrive at these times."""
        if self._receiving is not None:
            times = self._receiving.ends(times, lengths)
        return -(-times // self._interval) * self._interval if self._interval else times

    def next(self) -> int:
        """Returns the time of the first event, including work of processors on earlier packets."""
        return min(super().next(), self.arrival())

    def run(self, until: int) -> None:
        """Implements Node."""
        super().run(until)
        # Events may be left after the arrivals, or there are none.
        if self._receiving is not None or self._interval or self.discards is not None:
            self.now = max(self.now, until)

    def outlook(self) -> tuple[int, int]:
        """Implements Node; programs say what they await (`VirtualEndpoint.outlook`)."""
        if self.tasks.busy or self.arrival() != NEVER or len(self._endpoints) != 1:
            return self.next(), 0
        (endpoint,) = self._endpoints.values()
        found = endpoint.outlook()
        if found is None:
            return self.next(), 0
        until, silent = found
        other = min(self.next_call(), self.tasks.due_beside(endpoint.alarm))
        return max(self.next(), min(until, other)), silent

    def arrival(self) -> int:
        """Implements TaskNode."""
        return min(self._head, self._served[0][0] if self._served else NEVER)

    @property
    def _head(self) -> int:
        return int(self._incoming[0].times[0]) if self._incoming else NEVER

    def arrive(self) -> None:
        """Implements TaskNode."""
        if not (self._incoming and self._give_ahead()):
            self._arrive_singly()
        while self._served and self._served[0][0] <= self.now:
            end, _, endpoint, found = heapq.heappop(self._served)
            endpoint.take(found)
            if endpoint.urgent_first is not None:
                endpoint.urgent_first.end()
                self._begin(endpoint.urgent_first, endpoint, end)

    def serve(self, core: Core, endpoint: VirtualEndpoint, found: Arrived) -> None:
        """Queues datagrams at a server's processor."""
        sizes = np.maximum(found.lengths - HEADER_BYTES, 0)
        if self.by_priority:
            if endpoint.urgent_first is None:
                endpoint.urgent_first = UrgentFirstCore(core.cost, _stream_of, self.slowdown)
            endpoint.urgent_first.add(
                sizes, [found.select(slice(row, row + 1)) for row in range(len(sizes))]
            )
            self._begin(endpoint.urgent_first, endpoint, self.now)
            return
        ends = core.ends(np.full(len(sizes), self.now, np.int64), sizes)
        for row, end in enumerate(ends.tolist()):
            self._handled_at(end, endpoint, found.select(slice(row, row + 1)))

    def _begin(self, core: UrgentFirstCore[Arrived], endpoint: VirtualEndpoint, at: int) -> None:
        """Has an idle processor begin with the next datagram, if one waits."""
        begun = core.begin(at)
        if begun is not None:
            took, found = begun
            self._handled_at(at + took, endpoint, found)

    def _handled_at(self, end: int, endpoint: VirtualEndpoint, found: Arrived) -> None:
        self._served_count += 1
        heapq.heappush(self._served, (end, self._served_count, endpoint, found))

    def transmit(self, leaving: Sequence[tuple[int, Train]]) -> None:
        """Sends packets, handed over at these times, by the links of these numbers."""
        core = self._sending
        for number, train in leaving if core is None else _after_processing(core, leaving):
            self.ports[number].send(train)

    @property
    def immediate(self) -> bool:
        """True if packets reach a link's queue without processing time."""
        return self._sending is None

    def queued(self, times: Times, lengths: Lengths) -> Times:
        """Computes when frames, handed over at these times, would reach a link's queue."""
        if self._sending is None:
            return times
        core = copy.copy(self._sending)
        return core.ends(times, lengths)

    def _arrive_singly(self) -> None:
        while self._head <= self.now:
            train = self._incoming.popleft()
            count = int(np.searchsorted(train.times, self.now, "right"))
            if count < len(train):
                self._incoming.appendleft(train.select(slice(count, None)))
                train = train.select(slice(count))
            self._unoffered = max(0, self._unoffered - len(train))
            self.hand_over(train.frames, train.lengths)

    def _give_ahead(self) -> bool:
        """Offers the only endpoint all packets that arrive before any other event here."""
        if self._unoffered or not self.trains or len(self._endpoints) != 1:
            return False
        (endpoint,) = self._endpoints.values()
        limit = min(self._until, self.next_call(), self.tasks.due_beside(endpoint.alarm))
        found = []
        while self._incoming and int(self._incoming[0].times[0]) < limit:
            train = self._incoming.popleft()
            if int(train.times[-1]) < limit:
                found.append(train)
                continue
            count = int(np.searchsorted(train.times, limit, "left"))
            found.append(train.select(slice(count)))
            self._incoming.appendleft(train.select(slice(count, None)))
            break
        if not found:
            return False
        first = joined(found)
        if int(first.times[0]) <= self.now and endpoint.give_ahead(first):
            return True
        self._incoming.appendleft(first)
        return False

    def give_back(self, train: Train) -> None:
        """Takes back refused packets: delivers the first now and the others at their times.

        Each consecutive refusal doubles the number of packets until the next offer, so that a short
        cause of refusals ends soon and a long one costs few offers.
        """
        self._incoming.appendleft(train)
        self._unoffered = min(max(len(train), _FEW), 1 << min(self._refusals, 30))
        self._refusals += 1
        self._arrive_singly()

    def wanted(self, train: Train, count: int) -> None:
        """Records that the first `count` offered packets were taken; the others arrive later."""
        self._refusals = 0
        if count < len(train):
            self._incoming.appendleft(train.select(slice(count, None)))

    def hand_over(self, frames: Frames, lengths: Lengths) -> None:
        """Delivers arrived frames to the sockets."""
        found, others = arrived(frames, lengths)
        self.unwanted += others
        if not len(found.sources):
            return
        keys = peer_keys(found.targets)
        bounds = [0, *(np.flatnonzero(keys[1:] != keys[:-1]) + 1).tolist(), len(keys)]
        for first, last in pairwise(bounds):
            target = found.targets[first]
            endpoint = self._endpoints.get((int(target["ipv4"]), int(target["port"])))
            if endpoint is None:
                self.unwanted += last - first
            else:
                endpoint.arrive(found.select(slice(first, last)))


def _after_processing(core: Core, leaving: Sequence[tuple[int, Train]]) -> list[tuple[int, Train]]:
    """Delays packets by a processor; orders them by time, then by link."""
    times = np.concatenate([train.times for _, train in leaving])
    lengths = np.concatenate([train.lengths for _, train in leaving])
    order = np.argsort(times, kind="stable")
    times[order] = core.ends(times[order], lengths[order])
    bounds = np.cumsum([len(train) for _, train in leaving])[:-1]
    parts = np.split(times, bounds)
    return [(n, train.at(at)) for (n, train), at in zip(leaving, parts, strict=True)]


_Sendable: TypeAlias = tuple[Frames, Lengths]


def _stream_of(found: Arrived) -> int:
    """Returns the stream of a datagram; 0 if it has none."""
    row = found.datagrams[0]
    return int(row[STREAM_BYTE]) if len(row) > STREAM_BYTE else 0


def _stream_of_frames(sendable: _Sendable) -> int:
    return int(sendable[0][0, OVERHEAD + STREAM_BYTE])


class VirtualEndpoint:
    """Implements hosts.net.udp.Endpoint with frames instead of a socket, without offload.

    A full queue of the host's link blocks the sender, so it drops nothing.
    """

    # Least duration of a wait, as time has to advance.
    tick = 1e-6
    by_priority = False

    def __init__(self, node: HostNode, interface: HostInterface, port: int) -> None:
        self.counters = Counters()
        self.address, self.ipv4, self.port = str(interface.ipv4), int(interface.ipv4), port
        self.lanes = 0
        self.receive_buffer = _RECEIVE_BUFFER
        self._node, self._number = node, interface.number
        self._addresses = [int(one.ipv4) for one in node.interfaces]
        mac, gateway = (
            bytes.fromhex(one.replace(":", "")) for one in (interface.mac, interface.gateway_mac)
        )
        wire = Interface(mac, gateway, self.ipv4)
        self._framing = Framing(wire, port)
        self._lib = load_native()
        self._rate = interface.outgoing.rate
        self._queue_bytes = interface.outgoing.queue_bytes
        self._most_waiting = self._queue_bytes  # that it has wait for the link
        self._share = _QUEUE_SHARE
        self._inbox: list[Arrived] = []
        self._pending: deque[_Sendable] | PriorityQueue[_Sendable] = deque()
        self._woken = False
        self._waiters: deque[Waiter] = deque()
        self._ahead: Train | None = None
        self._asked = False  # the driver accepts packets ahead of time
        # See HostEnvironment.expect.
        self.expected: Callable[[], tuple[float, float]] | None = None
        cost = node.server_cost if port in SERVER_PORTS else None
        self._core = Core(cost, node.slowdown) if cost is not None else None
        self.urgent_first: UrgentFirstCore[Arrived] | None = None  # in its place, once in use

    def configure(self, lanes: int, link_rate: int, *, by_priority: bool = False) -> None:
        """Implements Endpoint."""
        self.lanes = lanes
        self._framing.empty_lanes = 0 if self._node.payload else lanes
        if by_priority and not self.by_priority:
            self.by_priority, self._share = True, _URGENT_SHARE
            waiting, self._pending = self._pending, PriorityQueue(_stream_of_frames)
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
        self._pending.clear()
        self._node.release(self)

    def wake(self) -> None:
        """Implements Endpoint."""
        self._woken = True
        self._node.tasks.wake(self._waiters)

    @property
    def alarm(self) -> Alarm | None:
        """The alarm of the task that waits here."""
        return self._waiters[0].alarm if self._waiters else None

    def wait(self, timeout: float) -> None:
        """Implements Endpoint."""
        if self._pending:
            room = max(int(self._pending[0][1][0]), self._most_waiting // self._share)
            room += self._queue_bytes - self._most_waiting
            free = (self._link.room(room) - self._node.now) / SECOND
            timeout = min(timeout, max(free, self.tick))
        if not self._woken:
            self._node.tasks.pause(self._waiters, None if timeout == math.inf else timeout)
        self._woken = False

    def outlook(self) -> tuple[int, int] | None:
        """Returns when its driver, and with how many packets before, may call or wake others; None
        if that is not known."""
        if self.expected is None or not self._waiters or self._inbox or self._woken:
            return None
        packets, until = self.expected()
        return picoseconds(until), max(0, int(min(packets, _MANY)) - 1)

    def arrive(self, found: Arrived) -> None:
        """Handles arriving datagrams, by the processor if there is one."""
        if self._core is None:
            self.take(found)
        else:
            self._node.serve(self._core, self, found)

    def take(self, found: Arrived) -> None:
        """Makes datagrams receivable."""
        self._inbox.append(found)
        self.wake()

    def give_ahead(self, train: Train) -> bool:
        """Offers packets, the first of which is here; no other event happens before the last.

        Returns whether a task waits here and all packets are for this endpoint.
        """
        if not self._asked or self._inbox or self._pending or not self._waiters:
            return False
        if self._core is not None:  # processing delays each packet
            return False
        self._ahead = train
        self.wake()
        return True

    def ahead(self) -> Ahead | None:
        """Implements Attachment."""
        self._asked = True
        train = self._ahead
        if train is None:
            return None
        self._ahead = None
        node = self._node
        batch = self._only_mine(train)
        if batch is None:
            node.give_back(train)
            self._woken = False
            return None

        def done(released: Released) -> None:
            self.counters.receive_calls += 1
            self.counters.received += released.taken
            node.wanted(train, released.taken)
            times = np.rint(released.times * SECOND).astype(np.int64)
            if released.batch is not None:
                frames, lengths = self._framing.frames(released.batch)
                node.transmit([(self._number, Train(times, frames, lengths))])
                self.counters.send_calls += 1
                self.counters.sent += len(times)
            last = int(train.times[released.taken - 1])
            if len(times):
                last = max(last, int(times[-1]))
            if last > node.now:
                node.tasks.pause(deque(), (last - node.now) / SECOND)

        def refuse() -> None:
            node.give_back(train)
            self._woken = False  # the caller is awake

        clock = Clock(SECOND, self.tick, self._room, self._waiting)
        return Ahead(train.times / SECOND, batch, clock, done, refuse)

    def _only_mine(self, train: Train) -> Batch | None:
        """Converts packets if all are well-formed and for this endpoint; else returns None."""
        batch = self._framing.packets(train.frames, train.lengths, self.lanes)
        if batch is not None:
            return batch
        found, others = arrived(train.frames, train.lengths)
        mine = (found.targets["ipv4"] == self.ipv4) & (found.targets["port"] == self.port)
        batch, malformed = self._decode(found)
        return None if others or malformed or not mine.all() else batch

    def _room(self, times: Seconds, sizes: Lengths) -> bool:
        """True if frames of these bytes fit into the link's queue, with a small margin."""
        link = self._link
        if not len(times):
            return True
        # Like `flush`: packets of the same time find the queue as it is then.
        handed = np.rint(times * SECOND).astype(np.int64)
        pace = link.spec.rate / 8 / float(link.slowest(int(handed[0]), int(handed[-1])))
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
        pace = link.spec.rate / 8 if node.immediate else 0.0
        pace /= float(link.slowest(node.now, NEVER))
        if link.spec.framing:
            pace *= _LEAST_FRAME / (_LEAST_FRAME + FRAMING)
        reached = node.queued(np.array([node.now]), np.array([_LEAST_FRAME]))
        return pace, link.waiting(int(reached[0])), self._most_waiting

    def receive(self) -> Batch | None:
        """Implements Endpoint."""
        if not self._inbox:
            return None
        inbox, self._inbox = self._inbox, []
        self.counters.receive_calls += 1
        batches = []
        for found in inbox:
            batch, malformed = self._decode(found)
            self.counters.malformed += malformed
            batches.append(batch)
        whole = Batch.concatenate(batches)
        self.counters.received += len(whole)
        return whole

    def _decode(self, found: Arrived) -> tuple[Batch, int]:
        return decode(found, self.lanes, payload=self._node.payload)

    @property
    def more(self) -> bool:
        """Implements Attachment."""
        return bool(self._inbox)

    def send(self, batch: Batch) -> None:
        """Implements Endpoint."""
        for part in split_by_priority(batch) if self.by_priority else (batch,):
            local = self._local(part.peers["ipv4"])
            if local is None:
                self._pending.append(self._framing.frames(part))
            else:
                remote = ~local
                if remote.any():
                    self._pending.append(self._framing.frames(part.select(remote)))
                frames, lengths = self._framing.frames(part.select(~remote))
                self.counters.sent += len(frames)
                self._node.hand_over(frames, lengths)
        self.counters.send_calls += 1
        self.flush()

    def _local(self, targets: npt.NDArray[np.uint32]) -> npt.NDArray[np.bool_] | None:
        """Returns which of these addresses are the host's own; None if none is."""
        local: npt.NDArray[np.bool_] = targets == self._addresses[0]
        for one in self._addresses[1:]:
            local |= targets == one
        return local if local.any() else None

    def flush(self) -> bool:
        """Implements Endpoint."""
        node = self._node
        while self._pending:
            frames, lengths = self._pending.popleft()
            now = np.full(len(frames), node.now, np.int64)
            queued = node.now if node.immediate else int(node.queued(now[:1], lengths[:1])[0])
            free, count = self._most_waiting - self._link.waiting(queued), len(frames)
            if int(lengths.sum()) > free:
                count = int(np.searchsorted(np.cumsum(lengths), free, "right"))
            if count:
                train = Train(now[:count], frames[:count], lengths[:count])
                node.transmit([(self._number, train)])
                self.counters.sent += count
            if count < len(frames):
                self._pending.appendleft((frames[count:], lengths[count:]))
                self.counters.send_blocked += 1
                return False
        return True

    @property
    def _link(self) -> Link:
        return self._node.ports[self._number].out
