# SPDX-License-Identifier: Apache-2.0
"""Runs switches together as one node.

Two switches can run ahead of each other by little more than their link's latency, that is, some
packets. Unless single packets between them are observed, the switches of a network are therefore
one node for the engine: their programs and queues are called packet by packet in the order of time
(in C, switch/runtime/virtual_time/timed_ports.h), and all packets that hosts have queued are
forwarded at once, up to the first time at which a host could answer a departed packet. Results are
the same as without grouping.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from simulation.kernel.engine import Node
from simulation.links.fields import LinkFields
from simulation.links.link import Link
from simulation.links.trains import NEVER, Train
from simulation.nodes.switch import SwitchNode
from switch.ports.virtual_time import ECHO, PORTS, Arrivals, FirstEvent, run_together


class SwitchGroup(Node):
    """Switches, and the links between them: (sender, port, receiver, port, link).

    threads: that share their work, at most.
    """

    eager = True
    answered = True
    hears = False

    def __init__(
        self,
        switches: Sequence[SwitchNode],
        between: Sequence[tuple[SwitchNode, int, SwitchNode, int, Link]],
        control_latency: int,
        threads: int,
    ) -> None:
        super().__init__("switches")
        self._switches, self._between = switches, between
        inner = {link.number for *_, link in between}
        outer = [
            port
            for switch in switches
            for port in switch.ports.values()
            if port.out.number not in inner
        ]
        self.ports = dict(enumerate(outer))
        self._lookahead = min((link.latency + link.least for *_, link in between), default=NEVER)
        # See TimedPorts.set_echoes.
        self._echoes = np.full((len(switches), PORTS + 1, ECHO), NEVER, np.int64)
        hosts: list[tuple[Link, Link]] = []
        places: list[tuple[int, int]] = []
        for row, (echoes, switch) in enumerate(zip(self._echoes, switches, strict=True)):
            switch.lines.set_echoes(echoes)
            for port in switch.ports.values():
                if port.out.number not in inner:
                    echo = echoes[port.number]
                    echo[1:3] = port.out.spec.delay, port.out.interval
                    echo[3:5] = port.into.latency, port.into.least
                    echo[6] = control_latency
                    places.append((row, port.number))
                    hosts.append((port.into, port.out))
        self._places = np.array(places, np.intp).reshape(-1, 2).T
        self._threads = threads
        self._first = FirstEvent([switch.lines for switch in switches])
        self._heads = LinkFields([into for into, _ in hosts], "head")
        self._free = LinkFields([into for into, _ in hosts], "free")
        self._silent = LinkFields([out for _, out in hosts], "silent")
        for sender, number, receiver, to, link in between:
            sender.lines.wire(number, receiver.lines, to, link.spec.delay, link.number)
            link.passed = partial(sender.lines.carried, number)

    @staticmethod
    def possible(
        switches: Sequence[SwitchNode],
        between: Sequence[tuple[SwitchNode, int, SwitchNode, int, Link]],
    ) -> bool:
        """True if no packets are captured, and all queues are the switches'."""
        return (
            all(link.plain for *_, link in between)
            and not any(switch.captures for switch in switches)
            and not any(
                port.out.by_priority for switch in switches for port in switch.ports.values()
            )
        )

    def next(self) -> int:
        """Returns the time of the members' first event."""
        return min(self._first.next(), *(switch.next_handled() for switch in self._switches))

    def outlook(self) -> tuple[int, int]:
        """Implements Node: its members make no calls but answers."""
        return min(switch.next_call() for switch in self._switches), 0

    def run(self, until: int) -> None:
        """Processes packets up to each call, which may change tables, then the call."""
        self.moved = False
        while True:
            call = min(switch.next_call() for switch in self._switches)
            reached, moved = self._forward(min(call, until))
            if reached < call:
                until = reached
                break
            next(one for one in self._switches if one.next_call() == call).answer()
            if moved:  # answers may arrive before `until`, which the engine handles
                until = call
                break
        for switch in self._switches:
            switch.now = until
        self.now = until

    def waits(self) -> str:
        """Returns a constant, as switches only wait for packets."""
        return "for packets"

    def _forward(self, until: int) -> tuple[int, bool]:
        """Forwards packets before a time, or before the first possible answer to one of them.

        Returns that time, and whether there were any packets.
        """
        row, port = self._places
        reached = set(row[self._heads.read() < until].tolist())
        parts: list[tuple[SwitchNode, list[Arrivals]]] = []
        there = False
        for number, switch in enumerate(self._switches):
            arrivals = switch.taken(until) if number in reached or switch.holds else []
            there = there or bool(arrivals)
            parts.append((switch, arrivals))
        if not there and self._first.next() >= until:
            return until, False
        self.moved = True
        self._echoes[row, port, 0] = self._free.read()
        self._echoes[row, port, 5] = self._silent.read()
        given = [(switch.lines, arrivals) for switch, arrivals in parts]
        came = run_together(given, self._lookahead, until, self._threads)
        for (switch, arrivals), departures, taken in zip(
            parts, came.departures, came.taken, strict=True
        ):
            switch.departed(departures)
            for one, count in zip(reversed(arrivals), reversed(taken), strict=True):
                if count < len(one.times):
                    rest = Train(one.times, one.frames, one.lengths).select(slice(count, None))
                    switch.ports[one.port].into.put_back(rest)
        return came.until, True
