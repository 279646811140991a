# SPDX-License-Identifier: Apache-2.0
"""A switch in virtual time: the embedded target, in process, between links.

It has the same compiled program, tables and P4Runtime as in emulation. The ports' queues and rates
are in C (switch/runtime/virtual_time/timed_ports.h), so that egress sees a packet's queue depth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from observability.pcap import Writer
from protocol.priorities import PRIORITIES
from simulation.kernel.engine import Node, Port
from simulation.links.trains import Train
from switch.p4runtime.device import Device
from switch.pipeline import Pipeline
from switch.ports.paced_line import Line
from switch.ports.virtual_time import Arrivals, Departures, TimedPorts

_NANOSECOND = 1000  # ps


class SwitchNode(Node):
    """A device and its ports.

    latency: ps from a packet's arrival until it reaches its port's queue.
    cpu_port: the port of packet-in and packet-out.
    up: it has not been killed, or was started again.
    held_until: it is stopped until then (ps); 0: it is not.
    overflowed: packets for which its receive buffers had no room while it was stopped.
    unplugged: numbers of faults that keep P4Runtime clients from it.
    wiped: how often it has lost what its program counts.

    Packets that arrive without a program are counted (`lines.no_program`).
    """

    eager = True
    hears = False

    def __init__(
        self, name: str, *, device_id: int = 1, cpu_port: int | None = None, latency: int = 0
    ) -> None:
        super().__init__(name)
        self.latency = latency
        self.lines = TimedPorts(latency)
        self._made = partial(
            Device,
            device_id,
            cpu_port,
            on_commit=self._commit,
            on_packet_out=self._packet_out,
            priority_queues=PRIORITIES,
        )
        self.device = self._made()
        self.up, self.wiped = True, 0
        self.unplugged: set[int] = set()
        self.held_until, self._overflowed = 0, 0
        self._stops: set[int] = set()
        self._held: list[tuple[int, int, Train]] = []
        self._put_off: list[Callable[[], None]] = []
        if cpu_port is not None:
            self.lines.add(cpu_port, Line(parts=0), "outside")
        self._packet_outs: list[Arrivals] = []
        # Captures of arriving and departing packets, by port.
        self.captures: dict[int, tuple[Writer, Writer]] = {}

    def close(self) -> None:
        """Frees the device and the program."""
        self.lines.close()
        self.device.close()
        for pair in self.captures.values():
            for one in pair:
                one.close()

    @property
    def reachable(self) -> bool:
        """True if P4Runtime clients reach it."""
        return self.up and not self.unplugged

    def kill(self) -> None:
        """Ends it as SIGKILL does: program, entries, registers and what waits in queues are lost.

        Queues have to be by priority (`Network(fragile=True)`): departures from others are known
        before they happen.
        """
        self.up, self.wiped = False, self.wiped + 1
        self.lines.attach(None)
        self.lines.lose()
        self._packet_outs.clear()
        self.device.close()
        if self._stops:
            self.held_until = self.now
            self.lines.hold(self.now, self.now)
            self._stops.clear()
            self._answer_put_off()

    def stop(self, number: int, until: int) -> None:
        """Stops it as SIGSTOP does until a time (ps), by a fault of this number: `resume` has to be
        called then.

        It forwards and answers nothing. Packets wait where it receives them, as many as have room.
        Queues have to be by priority, as for `kill`.
        """
        self._stops.add(number)
        self.held_until = max(self.held_until, until)
        self.lines.hold(self.now, self.held_until)
        for port in self.ports.values():
            port.out.hold(self.now, self.held_until)

    def resume(self, number: int) -> None:
        """Has it go on, and answer the calls that came meanwhile, unless other faults stop it."""
        if number in self._stops:
            self._stops.discard(number)
            if not self._stops:
                self._answer_put_off()

    def put_off(self, work: Callable[[], None]) -> bool:
        """Implements Node: it answers nothing while it is stopped."""
        if self._stops:
            self._put_off.append(work)
        return bool(self._stops)

    def _answer_put_off(self) -> None:
        waiting, self._put_off = self._put_off, []
        for work in waiting:
            work()

    @property
    def overflowed(self) -> int:
        """Packets that its receive buffers had no room for while it was stopped."""
        return self._overflowed + self.lines.overflowed

    def start(self) -> None:
        """Starts it again, without a program."""
        self.device, self.up = self._made(), True
        self.unplugged.clear()

    def capture(self, port: int, interface: str, folder: Path) -> None:
        """Captures a port's packets from now on, at the times of their last bits.

        Raises OSError.
        """
        came, left = (Writer(folder / f"{interface}_{way}.pcap") for way in ("in", "out"))
        self.captures[port] = came, left

    def connected(self, port: Port) -> None:
        """Configures the port's queue by its outgoing link."""
        super().connected(port)
        link = port.out
        if link.marks_by_priority:
            self.lines.add(port.number, link.line, "outside")
            return
        self.lines.add(port.number, link.line, "strict" if link.spec.priorities else "fifo")
        link.leave_queueing(
            partial(self.lines.counters, port.number), partial(self.lines.change, port.number)
        )

    def next(self) -> int:
        """Returns the time of the first call, recirculated packet, or packet that waited while it
        was stopped."""
        return min(self.next_handled(), self.lines.next())

    def next_handled(self) -> int:
        """Returns the time of the first event that is no packet's in its program or queues."""
        return min(self.next_call(), self.held_until) if self._held else self.next_call()

    def outlook(self) -> tuple[int, int]:
        """Implements Node: it makes no calls but answers."""
        return self.next_call(), 0

    def run(self, until: int) -> None:
        """Processes packets up to each call, which may change tables, then the call."""
        while True:
            call = self.next_call()
            self._forward(min(call, until))
            if call >= until:
                break
            self.answer()
        self.now = until

    def waits(self) -> str:
        """Returns a constant, as switches only wait for packets."""
        return "for packets"

    def _forward(self, until: int) -> None:
        """Forwards all packets before a time."""
        arrivals = self.taken(until)
        if arrivals or self.lines.next() < until:
            self.departed(self.lines.run(arrivals, until))

    @property
    def holds(self) -> bool:
        """True if it may have packets that arrive by no link: from the CPU, or while it was
        stopped."""
        return bool(self._packet_outs or self.held_until)

    def taken(self, until: int) -> list[Arrivals]:
        """Takes all packets that arrive before a time.

        Simultaneous ones are ordered: those from the CPU first, then by the number of the link.
        """
        found = self.arrivals(until)
        if self.held_until:
            found = self._hold(found, until)
        found.sort(key=_link_number)
        arrivals = [
            Arrivals(port, train.times, train.frames, train.lengths, 1 + number)
            for number, port, train in found
        ]
        for one in arrivals if self.captures else ():
            if one.port in self.captures:
                self.captures[one.port][0].write(one.times // _NANOSECOND, one.frames, one.lengths)
        if self._packet_outs:
            arrivals, self._packet_outs = [*self._packet_outs, *arrivals], []
        return arrivals

    def _hold(
        self, found: list[tuple[int, int, Train]], until: int
    ) -> list[tuple[int, int, Train]]:
        """Keeps packets that arrive while it is stopped; returns those that it takes before a
        time."""
        held, later = self._held, []
        for number, port, train in found:
            early = int(np.searchsorted(train.times, self.held_until, "left"))
            if early < len(train):
                later.append((number, port, train.select(slice(early, None))))
            room = self.lines.slots(port) - sum(len(t) for _, p, t in held if p == port)
            if taken := min(early, room):
                held.append((number, port, train.select(slice(taken))))
            self._overflowed += early - taken
        if until <= self.held_until:
            return later
        at, self._held = self.held_until, []
        then = [(n, port, train.at(np.full(len(train), at, np.int64))) for n, port, train in held]
        if not self._stops:
            self.held_until = 0
        return [*then, *later]

    def departed(self, departures: Sequence[Departures]) -> None:
        """Sends the packets that have left the ports."""
        for one in departures:
            if one.port == self.device.cpu_port:
                self._packet_in(one)
            else:
                self._send(one)

    def _send(self, one: Departures) -> None:
        link = self.ports[one.port].out
        if one.port in self.captures:
            self.captures[one.port][1].write(one.times // _NANOSECOND, one.frames, one.lengths)
        priorities = one.priorities if link.spec.priorities else None
        train = Train(one.times, one.frames, one.lengths, priorities)
        if link.by_priority:
            link.send(train)
        elif link.passed is not None:
            link.seen(train, one.came)
        else:
            link.carry(train, one.length_bytes, one.wire_bytes, one.free, one.came)

    def _commit(self, pipeline: Pipeline) -> None:
        self.lines.attach(pipeline)

    def _packet_out(self, port: int, frame: bytes) -> None:
        frames = np.frombuffer(frame, np.uint8)[None]
        times, lengths = np.array([self.now], np.int64), np.array([len(frame)], np.int64)
        self._packet_outs.append(Arrivals(port, times, frames, lengths))

    def _packet_in(self, departures: Departures) -> None:
        lengths = departures.lengths.tolist()
        for at, frame, length in zip(
            departures.times.tolist(), departures.frames, lengths, strict=True
        ):
            self.now = max(self.now, at)
            self.device.packet_in(frame[:length].tobytes())


def _link_number(arrival: tuple[int, int, Train]) -> int:
    return arrival[0]
