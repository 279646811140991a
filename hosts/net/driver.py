# SPDX-License-Identifier: Apache-2.0
"""The driver between the sans-IO state machines and where a host is attached to the network.

`drive` feeds a state machine from an `Attachment`, such as `hosts.net.udp.Endpoint`, until a
condition holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from hosts.net.arrivals import Clock, Released, Seconds
from protocol.header import Batch
from protocol.runtime import REAL


class Machine(Protocol):
    """What `drive` drives: a state machine without socket, clock or thread."""

    def on_packets(self, now: float, batch: Batch) -> None:
        """Takes packets that arrived by `now` (seconds, monotonic)."""

    def poll(self, now: float) -> tuple[Batch | None, float]:
        """Packets to send now, and when to ask again (seconds, monotonic; inf: on arrival)."""


@dataclass
class Counters:
    """What went through an endpoint."""

    sent: int = 0
    send_calls: int = 0
    send_blocked: int = 0  # times the socket's buffer was full and the sender waited
    send_dropped: int = 0  # datagrams that the kernel had no memory for
    received: int = 0
    receive_calls: int = 0
    malformed: int = 0


class Ahead(NamedTuple):
    """Packets of which some will only arrive, at times that are certain (n,), and nothing else
    before the last.

    done: some were taken, and what is released is to be sent; time passes until the last of these
    is there, and the others are given again. refuse: the first at least is to be
    received by itself.
    """

    times: Seconds
    batch: Batch
    clock: Clock
    done: Callable[[Released], None]
    refuse: Callable[[], None]


OnTrain = Callable[[Seconds, Batch, Clock], Released | None]


class Attachment(Protocol):
    """Where a host is attached to the network; see Endpoint.

    tick: seconds, the resolution of `wait`. more: whether there may be more to read after what
    `receive` gave last. receive_buffer: bytes.
    """

    tick: float
    ipv4: int
    port: int
    receive_buffer: int
    counters: Counters

    @property
    def more(self) -> bool: ...

    def configure(self, lanes: int, link_rate: int) -> None: ...

    def capacity(self) -> int: ...

    def wake(self) -> None: ...

    def wait(self, timeout: float) -> None: ...

    def send(self, batch: Batch) -> None: ...

    def flush(self) -> bool: ...

    def receive(self) -> Batch | None: ...

    def ahead(self) -> Ahead | None: ...

    def close(self) -> None: ...


def drive(
    machine: Machine,
    endpoint: Attachment,
    until: Callable[[], bool],
    *,
    deadline: float = math.inf,
    clock: Callable[[], float] = REAL.now,
    on_train: OnTrain | None = None,
) -> bool:
    """Runs `machine` over `endpoint` until `until()` is true; returns whether it became so.

    False means that `deadline` (a time of `clock`) passed first. `until` is looked at after every
    arrival, timer and `Endpoint.wake`. While the socket's send buffer is full the machine is not
    asked for more, so what is urgent does not queue behind what is not. on_train: takes what an
    endpoint gives ahead of time, see Ahead. Raises what `machine`, `until` and sending raise.
    """
    while not until():
        ahead = None if on_train is None else endpoint.ahead()
        if ahead is not None and on_train is not None:
            released = on_train(ahead.times, ahead.batch, ahead.clock)
            if released is not None:
                ahead.done(released)
                if until():
                    return True
                now = clock()
                idle = max(0.0 if released.sent else endpoint.tick, released.following - now)
                endpoint.wait(_span(idle, deadline - now, endpoint.tick))
                continue
            ahead.refuse()
        batch = endpoint.receive()
        now = clock()
        if batch is not None:
            machine.on_packets(now, batch)
            if until():
                return True
        if now >= deadline:
            return False
        next_poll = math.inf
        sent = False
        if endpoint.flush():
            output, next_poll = machine.poll(now)
            if output is not None:
                endpoint.send(output)
                sent = True
        if batch is not None and endpoint.more:
            continue
        # A machine that sent nothing and wants to be asked at once would keep a core busy.
        idle = max(0.0 if sent else endpoint.tick, next_poll - now)
        endpoint.wait(_span(idle, deadline - now, endpoint.tick))
    return True


def _span(idle: float, left: float, tick: float) -> float:
    """Seconds to wait: no longer than is left, but a tick at least of what is, as less may be no
    time at all."""
    return max(0.0, min(idle, max(left, tick)))
