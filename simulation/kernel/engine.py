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
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from hosts.net.background import Background
from simulation.errors import CausalityError, DeadlockError, LinkError
from simulation.kernel.rounds import NodeState, Rounds
from simulation.kernel.signals import deferred_signals
from simulation.links.link import Link, LinkSpec
from simulation.links.trains import NEVER, SECOND, Train

CONTROL_LATENCY = SECOND // 1000
_SPAN = SECOND // 10
_MOST_THREADS = 16  # more would mostly wait for Python, and for each other
_MANY = 256  # nodes: with fewer, threads wait for longer than they work


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


class Unfinished(Protocol):
    """A node's run, of which a part is done in the background."""

    def ready(self) -> bool:
        """Returns true if `finish` would not wait."""

    def finish(self) -> None:
        """Ends the run; called once."""


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
    background: threads that may do a part of its work; None: none.
    """

    latency = 0
    interval = 1
    eager = False
    answered = False
    patient = False
    hears = True
    moved = True
    background: Background | None = None

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

    def start_run(self, until: int) -> Unfinished | None:
        """Runs as `run` does; returns what has to be finished if a part of the work is done in the
        background. Nodes with such work extend this."""
        self.run(until)
        return None

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

    def put_off(self, work: Callable[[], None]) -> bool:
        """Keeps a call that cannot be answered now, and executes it when it can; returns whether it
        does. Nodes that may be stopped extend this."""
        return False

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
    threads: that may work at a time; None: one, or in a network of many nodes as many as this
        process may use CPUs, up to 16. Results do not depend on it.
    running: the node that runs now; None between rounds.
    """

    def __init__(
        self,
        control_latency: int = CONTROL_LATENCY,
        span: int = _SPAN,
        order: Callable[[Sequence[Node]], Sequence[Node]] | None = None,
        threads: int | None = None,
    ) -> None:
        if control_latency <= 0 or span <= 0:
            raise LinkError("the latency of calls and the span of a round must be above 0 ps")
        self.control_latency = control_latency
        self._threads = threads
        self.nodes: list[Node] = []
        self.links: list[Link] = []
        self.rounds = 0
        self.running: Node | None = None
        self._span = span
        self._order = order
        self._ends: list[tuple[int, int]] = []  # sender and receiver of each link
        # Links that need `settle`, and their senders.
        self._settling: list[tuple[Link, NodeState]] = []
        self._rounds: Rounds | None = None  # from the first round on
        self._within: dict[int, int] = {}  # nodes that run within another
        # Called once at the first `run`.
        self.on_begin: Callable[[], None] | None = None

    @property
    def threads(self) -> int:
        """Threads that may work at a time, this one included; call when all nodes are there."""
        if self._threads is not None:
            return self._threads
        return min(len(os.sched_getaffinity(0)), _MOST_THREADS) if len(self.nodes) >= _MANY else 1

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
        if self._rounds is not None:
            state = self._rounds.nodes[self._within.get(target.number, target.number)]
            state.next, state.calls = min(state.next, at), min(state.calls, at)

    def run(self, until: Callable[[], bool]) -> None:
        """Runs rounds until the condition, checked after each, holds.

        Raises DeadlockError if no event is left before, and the errors of nodes. Handlers of
        signals that end the process run after a round.
        """
        if self.on_begin is not None:
            self.on_begin()
            self.on_begin = None
        self._rounds = rounds = self._begin()
        with deferred_signals() as handle_signals, self._background():
            while not until():
                if not self._round(rounds):
                    raise DeadlockError(self._why())
                handle_signals()

    @contextmanager
    def _background(self) -> Iterator[None]:
        """Lets nodes use threads beside this one."""
        others = min(self.threads - 1, Background.most)
        background = Background(others) if others > 0 else None
        for node in self.nodes:
            node.background = background
        try:
            yield
        finally:
            for node in self.nodes:
                node.background = None
            if background is not None:
                background.close()

    def _begin(self) -> Rounds:
        """Takes the state of all nodes and links."""
        within, links = self._within, []
        for link, ends in zip(self.links, self._ends, strict=True):
            sender, receiver = (within.get(number, number) for number in ends)
            if sender != receiver:
                links.append((link, sender, receiver))
        least = min((link.latency + link.least for link, _, _ in links), default=0)
        # The shortest round trip to a neighbour, or the longest time until one notices a packet.
        patience = max([2 * least, *(node.interval for node in self.nodes)])
        rounds = Rounds(len(self.nodes), links, self.control_latency, self._span, patience)
        self._settling = [
            (link, rounds.nodes[sender]) for link, sender, _ in links if link.by_priority
        ]
        for node, state in zip(self.nodes, rounds.nodes, strict=True):
            state.eager, state.answered = node.eager, node.answered
            state.patient, state.hears = node.patient, node.hears
            if node.number not in within:
                self._follow(node, state)
                self._listen(node, state)
        return rounds

    def settled(self) -> int:
        """Returns the time (ps) before which all events have been processed; between rounds."""
        return NEVER if self._rounds is None else self._rounds.due()

    def _round(self, rounds: Rounds) -> bool:
        """Runs all nodes with events before their horizons; False if there are no events."""
        self.rounds += 1
        late = rounds.begin()
        if late is not None:
            raise CausalityError(
                f"{late.name}: a packet arrives at {late.head} ps, in its receiver's past"
            )
        moved = False
        for link, sender in self._settling:
            moved = link.settle(sender.earliest) or moved
        turns, nodes = rounds.choose(), self.nodes
        if self._order is not None:
            of = {nodes[turn[0]]: turn for turn in turns}
            turns = [of[node] for node in self._order(list(of))]
        under_way: list[tuple[Node, Unfinished]] = []
        for number, _, horizon in turns:
            self.running = node = nodes[number]
            unfinished = node.start_run(horizon)
            if unfinished is not None:
                under_way.append((node, unfinished))
            if len(under_way) == Background.most:
                self._finish_one(under_way)
        while under_way:
            self._finish_one(under_way)
        self.running = None
        for number, due, horizon in turns:
            node = nodes[number]
            if not node.now >= due:
                raise CausalityError(
                    f"{node.name} is at {node.now} ps after it ran to {horizon} ps"
                )
        for number, _, _ in turns:
            node, state = nodes[number], rounds.nodes[number]
            self._follow(node, state)
            if node.moved:
                self._listen(node, state)
            else:
                state.calls = node.outlook()[0]
        return moved or bool(turns)

    def _finish_one(self, under_way: list[tuple[Node, Unfinished]]) -> None:
        """Finishes the first run that is ready, so that one whose thread got no CPU keeps none of
        the others waiting."""
        ready = (place for place, (_, one) in enumerate(under_way) if one.ready())
        self.running, unfinished = under_way.pop(next(ready, 0))
        unfinished.finish()

    def _follow(self, node: Node, state: NodeState) -> None:
        """Takes the time of a node that has run, and its next event."""
        state.now = node.now
        state.next = max(node.next(), node.now)

    def _listen(self, node: Node, state: NodeState) -> None:
        """Takes when a node that has run may make calls."""
        state.calls, silent = node.outlook()
        if node.hears:
            for port in node.ports.values():
                port.into.listen(silent if len(node.ports) == 1 else 0)

    def _why(self) -> str:
        waiting = "; ".join(
            f"{node.name} at {node.now} ps waits {node.waits()}" for node in self.nodes
        )
        return f"nothing is under way and no timer runs, but the run is not done: {waiting}"
