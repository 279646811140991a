# SPDX-License-Identifier: Apache-2.0
"""Conservative discrete-event engine: nodes with local times that run ahead as far as is safe.

A node may run ahead until the first time at which an event of another node could reach it. This
bound follows from the other nodes' next events and the latencies between them (Chandy and Misra,
"Distributed Simulation", 1979; Bryant, 1977). In each round every node gets its bound as a
*horizon*, and nodes with events before their horizons process all of these. Results depend on the
times of messages alone, not on rounds or their order.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from simulation.errors import CausalityError, DeadlockError, LinkError
from simulation.kernel.call_bounds import CallBounds
from simulation.kernel.horizons import Horizons
from simulation.kernel.signals import deferred_signals
from simulation.links.link import Link, LinkSpec
from simulation.links.trains import NEVER, SECOND, Train

CONTROL_LATENCY = SECOND // 1000
_SPAN = SECOND // 10


@dataclass(frozen=True, slots=True)
class Port:
    """A node's end of a link."""

    number: int
    out: Link
    into: Link

    def send(self, train: Train) -> None:
        """Sends packets that reach the port's queue at their times (Link.send)."""
        self.out.send(train)

    def take(self, until: int) -> list[Train]:
        """Takes all packets that arrive before a time (Link.take)."""
        return self.into.take(until)


class Node(ABC):
    """A simulated node with a name, links and a local time `now` (ps), which never decreases.

    latency: lower bound in ps between an event at the node and a packet that it sends because of
        it.
    interval: it notices packets at multiples of this many ps.
    eager: it runs whenever it has events, while others wait until no eager node can run and then
        process more events at once. Switches bound each other more tightly than hosts, whose queues
        determine their packets for a while.
    answered: it may run as if its packets had no answers, and stops by itself before its horizon
        where an answer could arrive.
    patient: it runs only if others could soon be affected, to process more events at once.
    hears: packets may lead it to call other nodes.
    moved: it may have sent or taken packets when it ran last.
    """

    latency = 0
    interval = 1
    eager = False
    answered = False
    patient = False
    hears = True
    moved = True

    def __init__(self, name: str) -> None:
        self.name = name
        self.number = -1
        self.now = 0
        self.ports: dict[int, Port] = {}
        self._calls: list[tuple[int, int, int, Callable[[], None]]] = []
        self._posted = 0

    def next(self) -> int:
        """Returns the time of the node's first own event (a timer, a runnable task, a call), or
        NEVER.

        Arriving packets do not count. Nodes with other events than calls extend this.
        """
        return self._calls[0][0] if self._calls else NEVER

    def outlook(self) -> tuple[int, int]:
        """Returns the time before which it calls no other node, unless a packet leads it to; and
        how many packets, those in flight included, may arrive before one does.

        Called after it has run. Nodes that know better extend this.
        """
        return self.next(), 0

    @abstractmethod
    def run(self, until: int) -> None:
        """Processes all calls, arriving packets and timers before `until` in the order of time.

        Afterwards `now` is `until`, or the time at which it stopped, no earlier than the first
        event.
        """

    def waits(self) -> str:
        """Describes what the node waits for, for error messages."""
        return "for nothing"

    def connected(self, port: Port) -> None:
        """Called when one of its ports gets a link."""
        self.ports[port.number] = port

    def next_call(self) -> int:
        """Returns the time of the first call; NEVER if there is none."""
        return self._calls[0][0] if self._calls else NEVER

    def answer(self) -> None:
        """Advances to the first call and executes it."""
        at, _, _, work = heapq.heappop(self._calls)
        self.now = max(self.now, at)
        work()

    def arrivals(self, until: int) -> list[tuple[int, int, Train]]:
        """Takes all trains that arrive before a time: (link's number, port, train)."""
        return [
            (port.into.number, number, train)
            for number, port in self.ports.items()
            if port.into.head < until
            for train in port.take(until)
        ]


class Engine:
    """Runs nodes, links and calls.

    control_latency: lower bound in ps of a call between nodes.
    span: the most ps that a node runs at once, so that a node with endless timers yields.
    order: the order in which the nodes of a round run; for tests, as results do not depend on it.
    running: the node that runs now; None between rounds.
    """

    def __init__(
        self,
        control_latency: int = CONTROL_LATENCY,
        span: int = _SPAN,
        order: Callable[[Sequence[Node]], Sequence[Node]] | None = None,
    ) -> None:
        if control_latency <= 0 or span <= 0:
            raise LinkError("the latency of calls and the span of a round must be above 0 ps")
        self.control_latency = control_latency
        self.nodes: list[Node] = []
        self.links: list[Link] = []
        self.rounds = 0
        self.running: Node | None = None
        self._span = span
        self._order = order
        self._ends: list[tuple[int, int]] = []  # sender and receiver of each link
        self._settling: list[tuple[Link, int]] = []  # links that need `settle`, and their senders
        self._ways: list[list[tuple[Link, int]]] = []  # of each node: its links and their receivers
        self._due: list[int] = []  # see `_next`
        self._horizons = Horizons(0, [], control_latency)
        self._calls = CallBounds(0, [])
        # Of each node: the links of which it is an end, as far as calls depend on them.
        self._heard: list[tuple[list[int], list[Link]]] = []
        self._patience = 0  # see `_urgent`
        self._within: dict[int, int] = {}  # nodes that run within another
        # Called once at the first `run`.
        self.on_begin: Callable[[], None] | None = None

    def add(self, node: Node) -> None:
        """Adds a node, before `run`."""
        node.number = len(self.nodes)
        self.nodes.append(node)

    def unite(self, group: Node, members: Sequence[Node]) -> None:
        """Lets a group run its members; its ports are the members' ports to other nodes.

        Call before the first round.
        """
        self.add(group)
        for node in members:
            self._within[node.number] = group.number

    def connect(
        self,
        a: Node,
        port_a: int,
        b: Node,
        port_b: int,
        spec: LinkSpec,
        back: LinkSpec | None = None,
    ) -> tuple[Link, Link]:
        """Links two nodes, from a to b by `spec`, and from b to a by `back` (default: `spec`).

        Raises LinkError if one of the ports has a link, or both ends are the same node.
        """
        if a is b:
            raise LinkError(f"{a.name}: a link from a node to itself")
        for node, port in ((a, port_a), (b, port_b)):
            if port in node.ports:
                raise LinkError(
                    f"port {port} of {node.name} has a link: {node.ports[port].out.name}"
                )
        there = self._link(a, port_a, b, port_b, spec)
        again = self._link(b, port_b, a, port_a, back or spec)
        a.connected(Port(port_a, there, again))
        b.connected(Port(port_b, again, there))
        return there, again

    def _link(self, a: Node, port_a: int, b: Node, port_b: int, spec: LinkSpec) -> Link:
        link = Link(spec, f"{a.name}:{port_a}->{b.name}:{port_b}", len(self.links))
        link.latency, link.interval = a.latency, b.interval
        self.links.append(link)
        self._ends.append((a.number, b.number))
        return link

    def post(self, source: Node, target: Node, at: int, work: Callable[[], None]) -> None:
        """Schedules `work` at another node.

        Calls for the same time are ordered by the position of their source node, then by the order
        of posting. Raises CausalityError if `at` is sooner than a call takes.
        """
        if at < source.now + self.control_latency:
            raise CausalityError(
                f"{source.name} calls {target.name} at {source.now} ps for {at} ps, but that takes"
                f" {self.control_latency} ps"
            )
        source._posted += 1
        heapq.heappush(target._calls, (at, source.number, source._posted, work))
        if at < target.now:
            raise CausalityError(
                f"{source.name} calls {target.name} for {at} ps, which is at {target.now} ps"
                " already"
            )
        if self._due:
            number = self._within.get(target.number, target.number)
            self._due[number] = min(self._due[number], at)
            self._calls.own[number] = min(self._calls.own[number], at)

    def run(self, until: Callable[[], bool]) -> None:
        """Runs rounds until the condition, checked after each, holds.

        Raises DeadlockError if no event is left before, and the errors of nodes. Handlers of
        signals that end the process run after a round.
        """
        if self.on_begin is not None:
            self.on_begin()
            self.on_begin = None
        within = self._within
        links = []
        self._ways = [[] for _ in self.nodes]
        for link, ends in zip(self.links, self._ends, strict=True):
            sender, receiver = (within.get(number, number) for number in ends)
            if sender != receiver:
                links.append((link, sender, receiver))
                self._ways[sender].append((link, receiver))
        self._settling = [(link, sender) for link, sender, _ in links if link.by_priority]
        least = min((link.latency + link.least for link, _, _ in links), default=0)
        # The shortest round trip to a neighbour, or the longest time until one notices a packet.
        self._patience = max(2 * least, *(node.interval for node in self.nodes))
        answered = [node.number for node in self.nodes if node.answered]
        self._horizons = Horizons(len(self.nodes), links, self.control_latency, answered)
        self._due = [NEVER if node.number in within else self._next(node) for node in self.nodes]
        nodes = self.nodes
        heard = [(link, to) for link, _, to in links if nodes[to].hears]
        self._calls = CallBounds(len(nodes), heard)
        near: list[list[Link]] = [[] for _ in nodes]  # links by either end
        for link, sender, receiver in links:
            near[sender].append(link)
            near[receiver].append(link)
        self._heard = [self._calls.rows(one) for one in near]
        for node in nodes:
            if node.number not in within:
                self._listen(node)
        with deferred_signals() as handle_signals:
            while not until():
                if not self._round():
                    raise DeadlockError(self._why())
                handle_signals()

    def settled(self) -> int:
        """Returns the time (ps) before which all events have been processed; between rounds."""
        return min(self._due, default=NEVER)

    def _next(self, node: Node) -> int:
        """Returns the time of a node's next known event."""
        due = max(node.next(), node.now)
        for port in node.ports.values():
            link = port.into
            if link.head < due:
                self._check(link, node)
                due = min(due, link.noticed(link.head))
        return due

    def _check(self, link: Link, receiver: Node) -> None:
        if link.head < receiver.now:
            raise CausalityError(
                f"{link.name}: a packet arrives at {link.head} ps, when {receiver.name} is at"
                f" {receiver.now} ps already"
            )

    def _round(self) -> bool:
        """Runs all nodes with events before their horizons; False if there are no events."""
        self.rounds += 1
        due, nodes = self._due, self.nodes
        times = np.array(due, np.int64)
        earliest, horizons = self._horizons.bounds(times, *self._calls.bounds(times))
        ran = {sender for link, sender in self._settling if link.settle(int(earliest[sender]))}
        moved = bool(ran)
        ready = [nodes[number] for number in np.flatnonzero(times < horizons).tolist()]
        limits = horizons.tolist()
        eager = self._apart([node for node in ready if node.eager], limits)
        ready = eager or self._urgent(ready)
        for node in self._order(ready) if self._order else ready:
            horizon = min(limits[node.number], due[node.number] + self._span)
            self.running = node
            node.run(horizon)
            if not node.now >= due[node.number]:
                raise CausalityError(
                    f"{node.name} is at {node.now} ps after it ran to {horizon} ps"
                )
            ran.add(node.number)
        self.running = None
        self._follow(ran)
        return moved or bool(ready)

    def _apart(self, nodes: Sequence[Node], limits: Sequence[int]) -> list[Node]:
        """Selects eager nodes with the most distant horizons, no two of them neighbours.

        Neighbours that alternate advance twice as far as those that run in the same round without
        each other's events.
        """
        due = self._due
        chosen: dict[int, Node] = {}
        for node in sorted(nodes, key=lambda one: due[one.number] - limits[one.number]):
            if not any(there in chosen for _, there in self._ways[node.number]):
                chosen[node.number] = node
        return sorted(chosen.values(), key=lambda one: one.number)

    def _urgent(self, nodes: Sequence[Node]) -> list[Node]:
        """Selects the nodes that could affect others first, and all that are not patient.

        The links of the others stay busy for longer, so no node can notice their events yet, and
        later they can process more at once.
        """
        if not any(node.patient for node in nodes):
            return list(nodes)
        due = self._due
        heard = [
            min((link.earliest(due[node.number]) for link, _ in self._ways[node.number]), default=0)
            for node in nodes
        ]
        until = min(heard, default=0) + self._patience
        return [
            node for node, at in zip(nodes, heard, strict=True) if at <= until or not node.patient
        ]

    def _follow(self, ran: Collection[int]) -> None:
        """Updates the next events of the nodes that ran and of the receivers of their packets."""
        due, nodes = self._due, self.nodes
        for number in ran:
            node = nodes[number]
            due[number] = self._next(node)
            if node.moved:
                self._horizons.left(number)
                self._listen(node)
            else:
                self._calls.own[number] = node.outlook()[0]
        for number in ran:
            for link, receiver in self._ways[number] if nodes[number].moved else ():
                if link.head < due[receiver]:
                    self._check(link, nodes[receiver])
                    due[receiver] = min(due[receiver], link.noticed(link.head))

    def _listen(self, node: Node) -> None:
        """Updates when a node that has run, or the receivers of its packets, may make calls."""
        self._calls.own[node.number], silent = node.outlook()
        if node.hears:
            for port in node.ports.values():
                port.into.listen(silent if len(node.ports) == 1 else 0)
        self._calls.update(*self._heard[node.number])

    def _why(self) -> str:
        waiting = "; ".join(
            f"{node.name} at {node.now} ps waits {node.waits()}" for node in self.nodes
        )
        return f"nothing is under way and no timer runs, but the run is not done: {waiting}"
