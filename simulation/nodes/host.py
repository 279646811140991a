# SPDX-License-Identifier: Apache-2.0
"""A host in virtual time: runs the real clients and servers on simulated links."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from simulation.kernel.engine import CONTROL_LATENCY, Port
from simulation.kernel.processes import Process
from simulation.kernel.task_node import TaskNode
from simulation.kernel.tasks import Waiter
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
from simulation.nodes.costs import Core, of_hosts, of_servers
from simulation.nodes.endpoint import MANY, VirtualEndpoint
from simulation.nodes.frames import Datagrams, Demultiplexer
from simulation.nodes.processors import FifoProcessor, Processor, UrgentFirstProcessor
from simulation.nodes.transfers import Transfers, is_transfer
from topologies.model.addressing import Addressing

_FIRST_PORT = 49152  # the first ephemeral port (RFC 6335)
_FEW = 8  # the least packets that are not offered after a refusal


class HostNode(TaskNode):
    """A host of the topology; its interface numbers are its port numbers.

    payload: chunks have content; otherwise they only occupy the wire.
    unwanted: number of packets without a receiving socket.
    by_priority: processors of servers handle urgent packets first.
    trains: offer endpoints packets ahead of time where results do not change, which is faster.
    slowdown: how many times as long its processors take.
    discards: tells which packets it takes in and no program gets; None: none.
    transfers: carries calls to other hosts.
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
        self.transfers = Transfers(self, addressing.topology.least_mtu)
        self._endpoints: dict[tuple[int, int], VirtualEndpoint] = {}
        self._listening: list[VirtualEndpoint] = []
        self._demultiplexer = Demultiplexer()
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
        self._server_cost = of_servers(costs)
        self.interval = picoseconds(costs.interrupt_interval) or 1
        self._processors: dict[Processor, VirtualEndpoint] = {}
        self._undecided: dict[Processor, None] = {}  # of which the next work is to be chosen
        # Those that, if idle, may begin with what has just come.
        self._supplied: dict[Processor, None] = {}
        self._handled = NEVER  # when one of them has handled something
        if sends is not None:
            self.latency = sends.per_packet
        self._unoffered = 0  # packets until the next offer ahead of time
        self._refusals = 0  # consecutive ones

    def endpoint(
        self, address: str, port: int = 0, process: Process | None = None
    ) -> VirtualEndpoint:
        """Opens a socket at one of its addresses; port 0: any. Raises OSError.

        process: that it belongs to; None: that of the running task.
        """
        found = [one for one in self.interfaces if str(one.ipv4) == address]
        if not found:
            raise OSError(0, f"{self.name} has no address {address}")
        if port == 0:
            port, self._next_port = self._next_port, self._next_port + 1
        place = int(found[0].ipv4), port
        if place in self._endpoints:
            raise OSError(0, f"cannot bind UDP {address}:{port}: it is taken")
        owner = process or self.tasks.process
        self._endpoints[place] = made = VirtualEndpoint(self, found[0], port, owner)
        self._listen()
        return made

    def _listen(self) -> None:
        self._listening = list(self._endpoints.values())
        self._demultiplexer.listen(list(self._endpoints))

    def release(self, endpoint: VirtualEndpoint) -> None:
        """Closes a socket: what it has not received is lost."""
        self._endpoints.pop((endpoint.ipv4, endpoint.port), None)
        self._listen()
        for processor in [one for one, of in self._processors.items() if of is endpoint]:
            del self._processors[processor]
            self._undecided.pop(processor, None)
            self._supplied.pop(processor, None)
        self._handled = min((one.at for one in self._processors), default=NEVER)

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
        for processor in self._processors:
            if processor.open:
                self._undecided[processor] = None
        found = self.arrivals(until)
        if len(self.ports) == 1 or len({port for _, port, _ in found}) < 2:
            self._coming(train for _, _, train in found)
            return
        # One train of all, in the order of times, then of links.
        train = joined([train for _, _, train in found])
        links = np.repeat([number for number, _, _ in found], [len(one) for _, _, one in found])
        self._coming([train.select(np.lexsort((links, train.times)))])

    def _coming(self, trains: Iterable[Train]) -> None:
        if self._receiving is not None or self.interval > 1:
            trains = [one.at(self.received(one.times, one.lengths)) for one in trains]
        if self.discards is not None:
            kept = [one.select(~self.discards(one)) for one in trains]
            trains = [one for one in kept if len(one)]
        self._incoming.extend(trains)

    def received(self, times: Times, lengths: Lengths) -> Times:
        """Computes when programs receive packets that arrive at these times."""
        if self._receiving is not None:
            times = self._receiving.ends(times, lengths)
        return -(-times // self.interval) * self.interval if self.interval > 1 else times

    def next(self) -> int:
        """Returns the time of the first event, including work of processors on earlier packets."""
        return min(super().next(), self.arrival())

    def ran(self, until: int) -> None:
        """Implements TaskNode."""
        # Events may be left after the arrivals, or there are none.
        delays = self._receiving is not None or self.interval > 1 or self._processors
        if delays or self.discards is not None:
            self.now = max(self.now, until)

    def outlook(self) -> tuple[int, int]:
        """Implements Node; programs say what they await (`VirtualEndpoint.outlook`), and a host
        without sockets awaits nothing."""
        if self.transfers.active:
            return self.next(), 0
        if not self._endpoints:
            return self.next(), MANY
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
        if self._undecided:
            self._decide()
        return min(self._head, self._handled)

    @property
    def _head(self) -> int:
        return int(self._incoming[0].times[0]) if self._incoming else NEVER

    def arrive(self) -> None:
        """Implements TaskNode."""
        if not (self._incoming and self._give_ahead()):
            self._arrive_singly()
        if self._handled <= self.now:
            for processor in [one for one in self._processors if one.at <= self.now]:
                self._processors[processor].take(processor.take())
                self._undecided[processor] = None
            self._handled = min(one.at for one in self._processors)

    def processor(self, endpoint: VirtualEndpoint) -> Processor | None:
        """Returns the processor of a server's endpoint; None if processing takes no time."""
        cost = self._server_cost
        if cost is None:
            return None
        shows = endpoint.shows if self.trains else None
        made: Processor
        if self.by_priority:
            made = UrgentFirstProcessor(cost, self.slowdown, shows)
        else:
            made = FifoProcessor(Core(cost, self.slowdown), shows)
        self._processors[made] = endpoint
        return made

    def serve(self, processor: Processor, found: Datagrams) -> None:
        """Queues datagrams at a server's processor."""
        processor.add(self.now, found)
        self._supplied[processor] = None

    def reconsider(self, processor: Processor) -> None:
        """Chooses again what a program gets, which has changed otherwise than by datagrams."""
        processor.forget()
        self._undecided[processor] = None

    def _begin_idle(self) -> None:
        """Has idle processors begin with what has come."""
        for processor in self._supplied:
            processor.begin(self.now)
            if processor.at <= self.now:
                self._handled = self.now
            elif processor.at == NEVER or processor.open:
                self._undecided[processor] = None
        self._supplied.clear()

    def _decide(self) -> None:
        """Chooses what programs get of what processors have, when no task is ready."""
        # Calls from here take a while, and the tasks that they wake have no other events before.
        limit = min(self._until, self.next_call(), self.tasks.due, self.now + CONTROL_LATENCY)
        if self.by_priority:  # what arrives may be more urgent than what waits
            limit = min(limit, self._head)
        for processor in self._undecided:
            processor.decide(limit)
        self._undecided.clear()
        self._handled = min(one.at for one in self._processors)

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
            self._deliver(train.frames, train.lengths)
        self._begin_idle()

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
        """Delivers frames that a program here sent to the sockets."""
        self._deliver(frames, lengths)
        self._begin_idle()

    def _deliver(self, frames: Frames, lengths: Lengths) -> None:
        if self.transfers.used:
            mine = is_transfer(frames)
            if mine.any():
                self.transfers.take(frames[mine])
                frames, lengths = frames[~mine], lengths[~mine]
                if not len(frames):
                    return
        served = self._server_cost is not None
        parts, others = self._demultiplexer.sort(frames, lengths, self.now, runs=served)
        self.unwanted += others
        for place, found in parts:
            self._listening[place].arrive(found)


def _after_processing(core: Core, leaving: Sequence[tuple[int, Train]]) -> list[tuple[int, Train]]:
    """Delays packets by a processor; orders them by time, then by link."""
    times = np.concatenate([train.times for _, train in leaving])
    lengths = np.concatenate([train.lengths for _, train in leaving])
    order = np.argsort(times, kind="stable")
    times[order] = core.ends(times[order], lengths[order])
    bounds = np.cumsum([len(train) for _, train in leaving])[:-1]
    parts = np.split(times, bounds)
    return [(n, train.at(at)) for (n, train), at in zip(leaving, parts, strict=True)]
