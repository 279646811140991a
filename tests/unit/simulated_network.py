# SPDX-License-Identifier: Apache-2.0
"""A simulated network for state machines that loses, duplicates, reorders and corrupts packets."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from protocol.header import Batch, decode, encode

Pair = tuple[int, int]


@dataclass
class Impairments:
    """Probabilities per packet; `jitter` is the most extra delay in seconds (it reorders)."""

    loss: float = 0.0
    duplicate: float = 0.0
    jitter: float = 0.0
    # Given a datagram and the generator, the datagram to deliver instead.
    corrupt: Callable[[bytes, random.Random], bytes] | None = None


class Network:
    """Delivers every machine's packets after `delay` seconds, impaired, deterministically."""

    def __init__(self, seed: int = 0, delay: float = 0.001, impairments: Impairments | None = None):
        self.now = 0.0
        self.packets = 0
        # Called with source, destination and datagram when one is sent, and when it arrives.
        self.on_sent: Callable[[Pair, Pair, bytes], None] = lambda *_: None
        self.on_arrived: Callable[[Pair, Pair, bytes], None] = lambda *_: None
        self._random = random.Random(seed)
        self._delay = delay
        self._impairments = impairments or Impairments()
        self._machines: dict[Pair, object] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._alarms: dict[Pair, float] = {}

    def attach(self, address: Pair, machine) -> None:
        self._machines[address] = machine

    def detach(self, address: Pair) -> None:
        """Kills a machine: packets to it are lost and it sends none."""
        del self._machines[address]

    def at(self, time: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._count), action))

    def poke(self, address: Pair) -> None:
        """Lets a machine send, as after a submission."""
        if address not in self._machines:
            return
        for _ in range(10_000):
            batch, following = self._machines[address].poll(self.now)
            if batch is not None:
                self._send(address, batch)
            if batch is None or following > self.now:
                break
        else:
            raise AssertionError("a machine never stops sending")
        self._alarms[address] = following
        if math.isfinite(following):
            self.at(max(following, self.now), lambda: self._alarm(address, following))

    def run(self, until: Callable[[], bool], limit: float) -> bool:
        """Runs until the condition holds; False if `limit` (virtual seconds) comes first."""
        while not until():
            if not self._events or self._events[0][0] > limit:
                return False
            self.now, _, action = heapq.heappop(self._events)
            action()
        return True

    def _alarm(self, address: Pair, time: float) -> None:
        if self._alarms.get(address) == time:
            self.poke(address)

    def _send(self, source: Pair, batch: Batch) -> None:
        peers = batch.peers.tolist()
        for datagram, destination in zip(encode(batch), peers, strict=True):
            self.packets += 1
            self.on_sent(source, destination, datagram)
            copies = 1 + (self._random.random() < self._impairments.duplicate)
            for _ in range(copies):
                if self._random.random() < self._impairments.loss:
                    continue
                delay = self._delay + self._random.random() * self._impairments.jitter
                carried = datagram
                if self._impairments.corrupt is not None:
                    carried = self._impairments.corrupt(datagram, self._random)
                self._deliver(self.now + delay, source, destination, carried)

    def _deliver(self, time: float, source: Pair, destination: Pair, datagram: bytes) -> None:
        def arrive() -> None:
            machine = self._machines.get(destination)
            if machine is None:
                return
            batch, malformed = decode([datagram], [source], machine.lanes)
            assert malformed == 0
            self.on_arrived(source, destination, datagram)
            machine.on_packets(self.now, batch)
            self.poke(destination)

        self.at(time, arrive)
