# SPDX-License-Identifier: Apache-2.0
"""Switches that run together.

Two switches can run ahead of each other by little more than what their link takes, some packets. So
those of a network are one node to the engine, as far as nothing asks to see each packet between
them: their program and ports' queues are called packet by packet in the order of time (in C,
switch/runtime/io/timed.h), and all that hosts have queued is forwarded at once. What comes of it is
what each would have come to by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from switch.timed import Arrivals, run_together
from testbed.virtual.engine import Node
from testbed.virtual.links import Link
from testbed.virtual.switchnode import SwitchNode


class SwitchGroup(Node):
    """Of all these switches, and the links between them: (sender, port, receiver, port, link)."""

    eager = True

    def __init__(
        self,
        switches: Sequence[SwitchNode],
        between: Sequence[tuple[SwitchNode, int, SwitchNode, int, Link]],
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
        self._lookahead = min(link.latency + link.least for *_, link in between)
        for sender, port, receiver, to_port, link in between:
            sender.lines.wire(port, receiver.lines, to_port, link.spec.delay, link.number)
            link.passed = partial(sender.lines.carried, port)

    @staticmethod
    def possible(
        switches: Sequence[SwitchNode],
        between: Sequence[tuple[SwitchNode, int, SwitchNode, int, Link]],
    ) -> bool:
        """Whether there is anything to run together, and nobody looks at what is between."""
        return (
            bool(between)
            and all(link.plain for *_, link in between)
            and not any(switch.captures for switch in switches)
            and not any(
                port.out.spec.priorities for switch in switches for port in switch.ports.values()
            )
        )

    def next(self) -> int:
        """The first of theirs."""
        return min(switch.next() for switch in self._switches)

    def run(self, until: int) -> None:
        """Packets up to each call, which may change tables, then the call."""
        while True:
            call = min(switch.next_call() for switch in self._switches)
            self._forward(min(call, until))
            if call >= until:
                break
            next(one for one in self._switches if one.next_call() == call).answer()
        for switch in self._switches:
            switch.now = until
        self.now = until

    def waits(self) -> str:
        """For packets."""
        return "for packets"

    def _forward(self, until: int) -> None:
        parts: list[tuple[SwitchNode, list[Arrivals]]] = []
        there = False
        for switch in self._switches:
            arrivals = switch.taken(until)
            there = there or bool(arrivals) or switch.lines.next() < until
            parts.append((switch, arrivals))
        if not there:
            return
        left = run_together(
            [(switch.lines, arrivals) for switch, arrivals in parts], self._lookahead, until
        )
        for (switch, _), departures in zip(parts, left, strict=True):
            switch.departed(departures)
