# SPDX-License-Identifier: Apache-2.0
"""Drives sans-IO state machines over a host's network attachment.

`drive` feeds a state machine from an `Attachment`, such as `hosts.net.udp.Endpoint`, until a
condition holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from hosts.net.arrivals import Clock, Pending, Released, Seconds
from protocol.header import Batch
from protocol.runtime import REAL


class Machine(Protocol):
    """A state machine without socket, clock or thread, run by `drive`."""

    def on_packets(self, now: float, batch: Batch) -> None:
        """Takes packets that arrived by `now` (seconds, monotonic)."""

    def poll(self, now: float) -> tuple[Batch | None, float]:
        """Returns packets to send now, and the time of the next poll (seconds, monotonic; inf: on
        the next arrival)."""


@dataclass
class Counters:
    """Packets and system calls of an endpoint."""

    sent: int = 0
    send_calls: int = 0
    send_blocked: int = 0  # times the socket's buffer was full and the sender waited
    send_dropped: int = 0  # datagrams that the kernel had no memory for
    received: int = 0
    receive_calls: int = 0
    malformed: int = 0


class Turn(NamedTuple):
    """When a machine that took a turn at its endpoint needs the next one.

    following: time of the next poll.
    unhurried: seconds for which what arrives may wait.
    summed: when the last sum arrived, 0 if none did.
    """

    following: float
    unhurried: float
    summed: float = 0.0


OnTrain = Callable[[Seconds, Batch, Clock], Released | Pending | None]
Visible = Callable[[Batch], npt.NDArray[np.bool_]]  # see HostEnvironment.expect


class Ahead(NamedTuple):
    """Takes packets whose arrival times are certain, of which some have not arrived yet, while the
    driver waits.

    on_train: takes them, or returns None if the first must be received singly.
    deadline: of the driver.
    """

    on_train: OnTrain
    deadline: float

    def goes_on(self, released: Released, now: float, tick: float) -> float | None:
        """Returns for how many seconds the driver waits from now on, the time of the last packet
        taken; None: it has something to do.

        tick: see Attachment.
        """
        if released.ends or released.following is None:
            return None
        idle = max(0.0 if released.sent else tick, released.following - now)
        return _span(idle, self.deadline - now, tick)


class Attachment(Protocol):
    """A host's attachment to the network; see Endpoint.

    tick: resolution of `wait` in seconds.
    more: true if there may be more to read after the last `receive`.
    receive_buffer: bytes.
    by_priority: packets that wait to be sent are in order of priority.
    queued: seconds for which what the last `receive` returned had waited, in the mean; measured
        once `configure` has asked for it (`timed`).
    """

    tick: float
    by_priority: bool
    queued: float
    ipv4: int
    port: int
    receive_buffer: int
    counters: Counters

    @property
    def more(self) -> bool: ...

    def configure(
        self, lanes: int, link_rate: int, *, by_priority: bool = False, timed: bool = False
    ) -> None: ...

    def capacity(self) -> int: ...

    def wake(self) -> None: ...

    def wait(self, timeout: float, unhurried: float = 0.0) -> None: ...

    def send(self, batch: Batch) -> None: ...

    def flush(self) -> bool: ...

    def receive(self) -> Batch | None: ...

    def look_ahead(self, ahead: Ahead) -> None:
        """Lets `ahead` take packets from now on, while `wait` waits, where that is possible."""

    def close(self) -> None: ...


def drive(
    machine: Machine,
    endpoint: Attachment,
    until: Callable[[], bool],
    *,
    deadline: float = math.inf,
    clock: Callable[[], float] = REAL.now,
    on_train: OnTrain | None = None,
    on_turn: Callable[[], Turn | None] | None = None,
) -> bool:
    """Runs `machine` over `endpoint` until `until()` is true; returns False if `deadline` passed
    first.

    `until` is evaluated after every arrival, timer and `Endpoint.wake`. `deadline` is a time of
    `clock`. While the socket's send buffer is full the machine is not polled, so urgent packets do
    not queue behind others, unless they overtake them in the endpoint. on_train: see Ahead; `until`
    may be true only after what `ends`. on_turn: receives, polls and sends in one call; returns None
    if the machine has to be driven step by step. Raises what `machine`, `until` and sending raise.
    """
    if on_train is not None:
        endpoint.look_ahead(Ahead(on_train, deadline))
    while not until():
        turn = None if on_turn is None else on_turn()
        if turn is not None:
            if until():
                return True
            now = clock()
            if now >= deadline:
                return False
            idle = max(endpoint.tick, turn.following - now)
            endpoint.wait(_span(idle, deadline - now, endpoint.tick), turn.unhurried)
            continue
        batch = endpoint.receive()
        now = clock()
        arrived = batch is not None
        if batch is not None:
            machine.on_packets(now, batch)
            batch = None
            if until():
                return True
        if now >= deadline:
            return False
        next_poll = math.inf
        sent = False
        if endpoint.flush() or endpoint.by_priority:
            output, next_poll = machine.poll(now)
            if output is not None:
                endpoint.send(output)
                sent = True
            output = None
        if arrived and endpoint.more:
            continue
        # Polling a machine again at once after it sent nothing would keep a core busy.
        idle = max(0.0 if sent else endpoint.tick, next_poll - now)
        endpoint.wait(_span(idle, deadline - now, endpoint.tick))
    return True


def _span(idle: float, left: float, tick: float) -> float:
    """Returns the seconds to wait: at most `left`, but at least a tick where `left` allows it, as a
    shorter wait may take no time at all."""
    return max(0.0, min(idle, max(left, tick)))
