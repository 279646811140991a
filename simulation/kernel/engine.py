# SPDX-License-Identifier: Apache-2.0
"""Nodes with times of their own, and what they may do without knowing of each other.

A node may run ahead as far as nothing can reach it any more. How far that is follows from what the
others do next and from the latencies between them (Chandy and Misra, "Distributed Simulation",
1979; Bryant, 1977): in each round every node gets a *horizon*, and whoever has something to do
before its own does all of it at once. What the nodes do depends on neither the rounds nor their
order, only on the times of what they send each other.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from simulation.errors import CausalityError, DeadlockError, LinkError
from simulation.kernel.horizons import Horizons
from simulation.links.link import Link, LinkSpec
from simulation.links.trains import NEVER, SECOND, Train

CONTROL_LATENCY = SECOND // 1000
_SPAN = SECOND // 100


@dataclass(frozen=True, slots=True)
class Port:
    """A node's end of a link."""

    number: int
    out: Link
    into: Link

    def send(self, train: Train) -> None:
        """Packets that come to the port's queue at their times; see Link.send."""
        self.out.send(train)

    def take(self, until: int) -> list[Train]:
        """All packets that arrive before a time; see Link.take."""
        return self.into.take(until)


class Node(ABC):
    """What has a name, links and a local time `now` (ps), which only grows.

    latency: ps that pass at least between whatever happens at the node and what it sends of it.
    eager: it goes on with whatever there is, while others wait until no eager node can go on: then
    there is more for them to do at once. Switches are bound by each other more closely than by
    hosts, whose queues have decided what comes next for a while.
    answered: it may be run as if nobody answered what it sends, and stops by itself, earlier than
    it was told, where an answer could be there.
    patient: it goes on only when others could hear of that before long, for the same reason.
    """

    latency = 0
    eager = False
    answered = False
    patient = False

    def __init__(self, name: str) -> None:
        self.name = name
        self.number = -1
        self.now = 0
        self.ports: dict[int, Port] = {}
        self._calls: list[tuple[int, int, int, Callable[[], None]]] = []
        self._posted = 0

    def next(self) -> int:
        """Time of its earliest event of its own: a timer, a task that can run, a call; NEVER if
        there is none. Packets that arrive are not meant. A node with events beside calls extends
        this."""
        return self._calls[0][0] if self._calls else NEVER

    @abstractmethod
    def run(self, until: int) -> None:
        """Does, in the order of time, all that is due before `until`: calls, packets that arrive,
        timers. Then `now` is `until`, or the time of what made it stop, which is no earlier than
        the first that was due."""

    def waits(self) -> str:
        """For what, in words, for an error's text."""
        return "for nothing"

    def connected(self, port: Port) -> None:
        """One of its ports has a link."""
        self.ports[port.number] = port

    def next_call(self) -> int:
        """When the first call is due; NEVER if there is none."""
        return self._calls[0][0] if self._calls else NEVER

    def answer(self) -> None:
        """Takes the first call: its time comes, and it is done."""
        at, _, _, work = heapq.heappop(self._calls)
        self.now = max(self.now, at)
        work()

    def arrivals(self, until: int) -> list[tuple[int, int, Train]]:
        """All that arrives before a time: (link's number, port, train)."""
        return [
            (port.into.number, number, train)
            for number, port in self.ports.items()
            if port.into.head < until
            for train in port.take(until)
        ]


class Engine:
    """Nodes, links, calls and the time.

    control_latency: ps that a call takes at least from node to node. span: ps that a node does at
    once at most, so that one that has endless timers comes to an end. order: the order in which
    the nodes of a round run, for tests: it makes no difference. running: the node that does
    something now; None between rounds.
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
        self._settling: list[tuple[Link, int]] = []  # with priorities: somebody has to decide
        self._ways: list[list[tuple[Link, int]]] = []  # of each node: its links, and who is there
        self._due: list[int] = []  # see `_next`
        self._horizons = Horizons(0, [], control_latency)
        self._there_and_back = 0  # ps: the shortest way to a neighbour and back
        self._within: dict[int, int] = {}  # nodes that run within another
        # Done when it runs first: whoever is asked looks at what is there by then.
        self.on_begin: Callable[[], None] | None = None

    def add(self, node: Node) -> None:
        """A node, before `run`."""
        node.number = len(self.nodes)
        self.nodes.append(node)

    def unite(self, group: Node, members: Sequence[Node]) -> None:
        """Nodes that run within another one, whose ports are those of theirs that lead elsewhere;
        before the first round."""
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
        """A link between two nodes, from a to b as `spec`; back, too, unless `back` says else.

        Raises LinkError if one of the ports has a link, or both ends are one node.
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
        link.latency = a.latency
        self.links.append(link)
        self._ends.append((a.number, b.number))
        if spec.priorities:
            self._settling.append((link, a.number))
        return link

    def post(self, source: Node, target: Node, at: int, work: Callable[[], None]) -> None:
        """Has `work` done at another node, at a time, in its turn.

        Of calls for one time those of the node that was added first come first, in the order in
        which it posted them. Raises CausalityError if that is sooner than a call takes.
        """
        if at < source.now + self.control_latency:
            raise CausalityError(
                f"{source.name} calls {target.name} at {source.now} ps for {at} ps, but that takes"
                f" {self.control_latency} ps"
            )
        source._posted += 1
        heapq.heappush(target._calls, (at, source.number, source._posted, work))
        if self._due:
            number = self._within.get(target.number, target.number)
            self._due[number] = min(self._due[number], at)

    def run(self, until: Callable[[], bool]) -> None:
        """Goes on until the condition holds, which is asked after each round.

        Raises DeadlockError if nothing is left to do before, and what the nodes raise.
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
        least = min((link.latency + link.least for link, _, _ in links), default=0)
        self._there_and_back = 2 * least
        answered = [node.number for node in self.nodes if node.answered]
        self._horizons = Horizons(len(self.nodes), links, self.control_latency, answered)
        self._due = [NEVER if node.number in within else self._next(node) for node in self.nodes]
        while not until():
            if not self._round():
                raise DeadlockError(self._why())

    def settled(self) -> int:
        """Nothing happens before this any more (ps); between rounds."""
        return min(self._due, default=NEVER)

    def _next(self, node: Node) -> int:
        """When a node does something next, as far as is known."""
        due = max(node.next(), node.now)
        for port in node.ports.values():
            if (head := port.into.head) < due:
                due = head
                self._check(port.into, node)
        return due

    def _check(self, link: Link, receiver: Node) -> None:
        if link.head < receiver.now:
            raise CausalityError(
                f"{link.name}: a packet arrives at {link.head} ps, when {receiver.name} is at"
                f" {receiver.now} ps already"
            )

    def _round(self) -> bool:
        """Has everyone do what is due before its horizon; False if there is nothing."""
        self.rounds += 1
        due, nodes = self._due, self.nodes
        times = np.array(due, np.int64)
        earliest, horizons = self._horizons.bounds(times)
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
        """Those of eager nodes that get furthest, and no two of them linked: by turns neighbours
        get twice as far as when both go on at once, each not knowing what the other does."""
        due = self._due
        chosen: dict[int, Node] = {}
        for node in sorted(nodes, key=lambda one: due[one.number] - limits[one.number]):
            if not any(there in chosen for _, there in self._ways[node.number]):
                chosen[node.number] = node
        return sorted(chosen.values(), key=lambda one: one.number)

    def _urgent(self, nodes: Sequence[Node]) -> list[Node]:
        """Those of which others could hear first, and all that they could hear of before what comes
        of these is there, and those that are not patient. The others have a line that is busy for
        longer: what they do meanwhile nobody can notice yet, and later there is more to do."""
        if not any(node.patient for node in nodes):
            return list(nodes)
        due = self._due
        heard = [
            min((link.earliest(due[node.number]) for link, _ in self._ways[node.number]), default=0)
            for node in nodes
        ]
        until = min(heard, default=0) + self._there_and_back
        return [
            node for node, at in zip(nodes, heard, strict=True) if at <= until or not node.patient
        ]

    def _follow(self, ran: Collection[int]) -> None:
        """What is due next: at these nodes, and where what they sent arrives."""
        due, nodes = self._due, self.nodes
        for number in ran:
            due[number] = self._next(nodes[number])
            self._horizons.left(number)
        for number in ran:
            for link, receiver in self._ways[number]:
                if link.head < due[receiver]:
                    self._check(link, nodes[receiver])
                    due[receiver] = link.head

    def _why(self) -> str:
        waiting = "; ".join(
            f"{node.name} at {node.now} ps waits {node.waits()}" for node in self.nodes
        )
        return f"nothing is under way and no timer runs, but the run is not done: {waiting}"
