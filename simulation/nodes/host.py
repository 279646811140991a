# SPDX-License-Identifier: Apache-2.0
"""A host in virtual time: the same clients and servers, attached to simulated links."""

from __future__ import annotations

import copy
import heapq
import math
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from hosts.native.library import library
from hosts.net.arrivals import Clock, Released, Seconds
from hosts.net.driver import Ahead, Counters
from protocol.ethernet import FRAMING
from protocol.frames import Interface
from protocol.header import (
    HEADER_BYTES,
    SERVER_PORTS,
    Batch,
    decode_rows,
    peer_keys,
)
from simulation.kernel.task_node import TaskNode
from simulation.kernel.tasks import Alarm, Waiter
from simulation.links.link import Link
from simulation.links.trains import NEVER, SECOND, Frames, Lengths, Times, Train, joined
from simulation.links.trains import train as train_of
from simulation.nodes.costs import Core, of_hosts, of_servers
from simulation.nodes.frames import Arrived, Framing, arrived
from switch.lines import address
from topologies.model.addressing import Addressing, HostInterface

_FIRST_PORT = 49152  # of those that nobody has asked for (RFC 6335)
_RECEIVE_BUFFER = 4 << 20
_FEW = 8  # packets that are not offered after some refusals, however few were
_QUEUE_SHARE = 4  # who has waited for room goes on when that part of the queue is free


class HostNode(TaskNode):
    """A host of the topology, its interfaces at ports of their numbers.

    payload: whether chunks have one; else they only occupy the wire.
    unwanted: packets that no socket here was to get. trains: whether endpoints get packets ahead of
    time where that makes no difference, which is faster.
    """

    patient = True

    def __init__(self, name: str, addressing: Addressing, *, payload: bool = True) -> None:
        super().__init__(name)
        self.payload = payload
        self.interfaces = addressing.host_interfaces(name)
        self.unwanted = 0
        self.trains = True
        self._endpoints: dict[tuple[int, int], VirtualEndpoint] = {}
        self._addresses = {int(one.ipv4) for one in self.interfaces}
        self._incoming: deque[Train] = deque()
        self._next_port = _FIRST_PORT
        costs = addressing.topology.costs
        works = addressing.topology.by_name[name].kind == "worker"
        sends = receives = of_hosts(costs) if works else None
        self._sending = Core(sends) if sends is not None else None
        self._receiving = Core(receives) if receives is not None else None
        self.server_cost = of_servers(costs)
        # What servers' processors work on: when they are done, in which order, and with what.
        self._served: list[tuple[int, int, VirtualEndpoint, Arrived]] = []
        self._served_count = 0
        if sends is not None:
            self.latency = sends.per_packet
        self._until = 0
        self._unoffered = 0  # so many packets are not offered ahead of time
        self._refusals = 0  # one after the other

    def endpoint(self, address: str, port: int = 0) -> VirtualEndpoint:
        """A socket at one of its addresses; port 0: any. Raises OSError if that cannot be."""
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
        """Nobody listens there any more."""
        self._endpoints.pop((endpoint.ipv4, endpoint.port), None)

    def local(self, address: int) -> bool:
        """Whether it is one of this host's."""
        return address in self._addresses

    # See TaskNode

    def take(self, until: int) -> None:
        """See TaskNode."""
        self._until = until
        found = self.arrivals(until)
        if len({port for _, port, _ in found}) < 2:
            self._incoming.extend(
                train.at(self.received(train.times, train.lengths)) for _, _, train in found
            )
            return
        single = [
            (int(train.times[row]), number, train.select(slice(row, row + 1)))
            for number, _, train in found
            for row in range(len(train))
        ]
        single.sort(key=lambda one: one[:2])
        self._incoming.extend(
            train.at(self.received(train.times, train.lengths)) for _, _, train in single
        )

    def _coming(self, trains: Iterable[Train]) -> None:
        for train in trains:
            self._incoming.append(train.at(self.received(train.times, train.lengths)))

    def received(self, times: Times, lengths: Lengths) -> Times:
        """When programs here have what arrives at these times."""
        return times if self._receiving is None else self._receiving.ends(times, lengths)

    def next(self) -> int:
        """See Node: packets that were taken may still be worked on."""
        return min(super().next(), self.arrival())

    def run(self, until: int) -> None:
        """See Node."""
        super().run(until)
        if self._receiving is not None:  # what has arrived may not be all that there was to do
            self.now = max(self.now, until)

    def arrival(self) -> int:
        """See TaskNode."""
        return min(self._head, self._served[0][0] if self._served else NEVER)

    @property
    def _head(self) -> int:
        return int(self._incoming[0].times[0]) if self._incoming else NEVER

    def arrive(self) -> None:
        """See TaskNode."""
        if not (self._incoming and self._give_ahead()):
            self._arrive_singly()
        while self._served and self._served[0][0] <= self.now:
            _, _, endpoint, found = heapq.heappop(self._served)
            endpoint.take(found)

    def serve(self, core: Core, endpoint: VirtualEndpoint, found: Arrived) -> None:
        """Datagrams are there, and a server's processor gets to work on them."""
        sizes = np.maximum(found.lengths - HEADER_BYTES, 0)
        ends = core.ends(np.full(len(sizes), self.now, np.int64), sizes)
        for row, end in enumerate(ends.tolist()):
            self._served_count += 1
            entry = (end, self._served_count, endpoint, found.select(slice(row, row + 1)))
            heapq.heappush(self._served, entry)

    def transmit(self, leaving: Sequence[tuple[int, Train]]) -> None:
        """Packets that are handed over at these times, for its links of these numbers."""
        core = self._sending
        for number, train in leaving if core is None else _after_processing(core, leaving):
            self.ports[number].send(train)

    @property
    def immediate(self) -> bool:
        """Whether what is handed over comes to a link's queue at once."""
        return self._sending is None

    def queued(self, times: Times, lengths: Lengths) -> Times:
        """When frames of these bytes, handed over at these times, would come to a link's queue."""
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
        """Offers the one endpoint there is all that arrives before anything else can happen
        here."""
        if self._unoffered or not self.trains or len(self._endpoints) != 1:
            return False
        (endpoint,) = self._endpoints.values()
        limit = min(self._until, self.next_call(), self.tasks.due_beside(endpoint.alarm))
        found = []
        while self._incoming and int(self._incoming[0].times[0]) < limit:
            train = self._incoming.popleft()
            count = int(np.searchsorted(train.times, limit, "left"))
            found.append(train.select(slice(count)))
            if count < len(train):
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
        """Packets that were offered and are not wanted: the first is here, the others will be.

        Each refusal after another doubles how many packets come before the next offer: what a
        single packet is the cause of is soon over, and what goes on for long is not asked for each.
        """
        self._incoming.appendleft(train)
        self._unoffered = min(max(len(train), _FEW), 1 << min(self._refusals, 30))
        self._refusals += 1
        self._arrive_singly()

    def wanted(self, train: Train, count: int) -> None:
        """So many packets of those that were offered were taken; the others will be here."""
        self._refusals = 0
        if count < len(train):
            self._incoming.appendleft(train.select(slice(count, None)))

    def hand_over(self, frames: Frames, lengths: Lengths) -> None:
        """Frames that are here go to those who listen."""
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
    """The same when a processor is done with them, in the order of their times, then of links."""
    times = np.concatenate([train.times for _, train in leaving])
    lengths = np.concatenate([train.lengths for _, train in leaving])
    order = np.argsort(times, kind="stable")
    times[order] = core.ends(times[order], lengths[order])
    bounds = np.cumsum([len(train) for _, train in leaving])[:-1]
    parts = np.split(times, bounds)
    return [(n, train.at(at)) for (n, train), at in zip(leaving, parts, strict=True)]


class VirtualEndpoint:
    """See hosts.net.udp.Endpoint; frames instead of a socket, and nothing is cut into trains.

    A queue of the host's link that is full blocks the sender instead of losing.
    """

    # What wants to be asked again at once is, a little later: as with any clock, time has to pass.
    tick = 1e-6

    def __init__(self, node: HostNode, interface: HostInterface, port: int) -> None:
        self.counters = Counters()
        self.address, self.ipv4, self.port = str(interface.ipv4), int(interface.ipv4), port
        self.lanes = 0
        self.receive_buffer = _RECEIVE_BUFFER
        self._node, self._number = node, interface.number
        mac, gateway = (
            bytes.fromhex(one.replace(":", "")) for one in (interface.mac, interface.gateway_mac)
        )
        wire = Interface(mac, gateway, self.ipv4)
        self._framing = Framing(wire, port)
        self._lib = library()
        self._queue_bytes = interface.outgoing.queue_bytes
        self._inbox: list[Arrived] = []
        self._pending: deque[tuple[Frames, Lengths]] = deque()
        self._woken = False
        self._waiters: deque[Waiter] = deque()
        self._ahead: Train | None = None
        self._asked = False  # for packets ahead of time: not every driver can take them
        cost = node.server_cost if port in SERVER_PORTS else None
        self._core = Core(cost) if cost is not None else None

    def configure(self, lanes: int, link_rate: int) -> None:
        """See Endpoint."""
        self.lanes = lanes
        self._framing.empty_lanes = 0 if self._node.payload else lanes

    def capacity(self) -> int:
        """See Endpoint."""
        return self.receive_buffer // (HEADER_BYTES + 4 * self.lanes)

    def close(self) -> None:
        """See Endpoint."""
        self._pending.clear()
        self._node.release(self)

    def wake(self) -> None:
        """See Endpoint."""
        self._woken = True
        self._node.tasks.wake(self._waiters)

    @property
    def alarm(self) -> Alarm | None:
        """That of whoever waits here."""
        return self._waiters[0].alarm if self._waiters else None

    def wait(self, timeout: float) -> None:
        """See Endpoint."""
        if self._pending:
            room = max(int(self._pending[0][1][0]), self._queue_bytes // _QUEUE_SHARE)
            free = (self._link.room(room) - self._node.now) / SECOND
            timeout = min(timeout, max(free, self.tick))
        if not self._woken:
            self._node.tasks.pause(self._waiters, None if timeout == math.inf else timeout)
        self._woken = False

    def arrive(self, found: Arrived) -> None:
        """Datagrams for this endpoint are here."""
        if self._core is None:
            self.take(found)
        else:
            self._node.serve(self._core, self, found)

    def take(self, found: Arrived) -> None:
        """They may be received."""
        self._inbox.append(found)
        self.wake()

    def give_ahead(self, train: Train) -> bool:
        """Packets of which the first is here, and before the last of which nothing else happens at
        this host. Whether they are all for this endpoint, where somebody waits."""
        if not self._asked or self._inbox or self._pending or not self._waiters:
            return False
        if self._core is not None:  # it takes one after the other, and so has its own times
            return False
        self._ahead = train
        self.wake()
        return True

    def ahead(self) -> Ahead | None:
        """See Attachment."""
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
            if released.batch is not None:
                frames, lengths = self._framing.frames(released.batch)
                times = np.rint(released.times * SECOND).astype(np.int64)
                node.transmit([(self._number, Train(times, frames, lengths))])
                self.counters.send_calls += 1
                self.counters.sent += len(times)
            last = int(train.times[released.taken - 1])
            if last > node.now:
                node.tasks.pause(deque(), (last - node.now) / SECOND)

        def refuse() -> None:
            node.give_back(train)
            self._woken = False  # whoever is told so is awake

        clock = Clock(SECOND, self.tick, self._room)
        return Ahead(train.times / SECOND, batch, clock, done, refuse)

    def _only_mine(self, train: Train) -> Batch | None:
        """Packets that are all well-formed, and for this endpoint; None if not."""
        batch = self._framing.packets(train.frames, train.lengths, self.lanes)
        if batch is not None:
            return batch
        found, others = arrived(train.frames, train.lengths)
        mine = (found.targets["ipv4"] == self.ipv4) & (found.targets["port"] == self.port)
        batch, malformed = self._decode(found)
        return None if others or malformed or not mine.all() else batch

    def _room(self, times: Seconds, sizes: Lengths) -> bool:
        """Whether frames of these bytes find room in the link's queue, with a little to spare."""
        link = self._link
        if not len(times):
            return True
        pace = link.spec.rate / 8
        if link.spec.framing:
            pace *= int(sizes.min()) / (int(sizes.min()) + FRAMING)
        # As `flush` has it: what is handed over at one time finds what waits then.
        handed = np.rint(times * SECOND).astype(np.int64)
        lib = self._lib
        if lib is not None and self._node.immediate:
            waiting, queue = link.waiting(int(handed[0])), self._queue_bytes
            return bool(
                lib.find_room(
                    address(handed), address(sizes), len(sizes), SECOND, pace, waiting, queue
                )
            )
        firsts = np.flatnonzero(np.diff(handed, prepend=-1))
        queued = self._node.queued(handed, sizes)[firsts]
        gone = np.repeat((queued - queued[0]) / SECOND * pace, np.diff(firsts, append=len(handed)))
        # What waits is what came since the queue was empty last, less what has gone since.
        level = np.cumsum(sizes) - gone + link.waiting(int(queued[0]))
        lowest = np.minimum(0.0, np.minimum.accumulate(level - sizes))
        return not (level - lowest > self._queue_bytes - 2 * sizes).any()

    def receive(self) -> Batch | None:
        """See Endpoint."""
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
        datagrams, lengths, sources, _ = found
        return decode_rows(datagrams, lengths, sources, self.lanes, payload=self._node.payload)

    @property
    def more(self) -> bool:
        """See Attachment."""
        return bool(self._inbox)

    def send(self, batch: Batch) -> None:
        """See Endpoint."""
        remote = ~np.isin(batch.peers["ipv4"], [int(one.ipv4) for one in self._node.interfaces])
        if remote.all():
            self._pending.append(self._framing.frames(batch))
        else:
            if remote.any():
                self._pending.append(self._framing.frames(batch.select(remote)))
            frames, lengths = self._framing.frames(batch.select(~remote))
            self.counters.sent += len(frames)
            self._node.hand_over(frames, lengths)
        self.counters.send_calls += 1
        self.flush()

    def flush(self) -> bool:
        """See Endpoint."""
        while self._pending:
            frames, lengths = self._pending.popleft()
            now = np.full(len(frames), self._node.now, np.int64)
            queued = int(self._node.queued(now[:1], lengths[:1])[0])
            free = self._queue_bytes - self._link.waiting(queued)
            count = int(np.searchsorted(np.cumsum(lengths), free, "right"))
            if count:
                train = train_of(now[:count], frames[:count], lengths[:count])
                self._node.transmit([(self._number, train)])
                self.counters.sent += count
            if count < len(frames):
                self._pending.appendleft((frames[count:], lengths[count:]))
                self.counters.send_blocked += 1
                return False
        return True

    @property
    def _link(self) -> Link:
        return self._node.ports[self._number].out
