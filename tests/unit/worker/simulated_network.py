# SPDX-License-Identifier: Apache-2.0
"""A simulated network for state machines that loses, duplicates, reorders and corrupts packets."""

from __future__ import annotations

from collections.abc import Callable

from protocol.header import Batch, decode, encode
from tests.impaired_links import Events, Impairments, send_all

Pair = tuple[int, int]


class Network(Events):
    """Delivers every machine's packets after `delay` seconds, impaired."""

    def __init__(self, seed: int = 0, delay: float = 0.001, impairments: Impairments | None = None):
        super().__init__(seed)
        self.packets = 0
        # Called with source, destination and datagram when one is sent, and when it arrives.
        self.on_sent: Callable[[Pair, Pair, bytes], None] = lambda *_: None
        self.on_arrived: Callable[[Pair, Pair, bytes], None] = lambda *_: None
        self._delay = delay
        self._impairments = impairments or Impairments()
        self._machines: dict[Pair, object] = {}
        self._alarms: dict[Pair, float] = {}

    def attach(self, address: Pair, machine) -> None:
        self._machines[address] = machine

    def detach(self, address: Pair) -> None:
        """Kills a machine: packets to it are lost and it sends none."""
        del self._machines[address]

    def poke(self, address: Pair) -> None:
        """Lets a machine send, as after a submission."""
        if address not in self._machines:
            return
        machine = self._machines[address]
        following = send_all(machine, self.now, lambda batch: self._send(address, batch))
        self._alarms[address] = following
        self.at_alarm(following, lambda: self._alarm(address, following))

    def _alarm(self, address: Pair, time: float) -> None:
        if self._alarms.get(address) == time:
            self.poke(address)

    def _send(self, source: Pair, batch: Batch) -> None:
        peers = batch.peers.tolist()
        impairments = self._impairments
        for datagram, destination in zip(encode(batch), peers, strict=True):
            self.packets += 1
            self.on_sent(source, destination, datagram)
            for passes in impairments.copies(self.random):
                if not passes:
                    continue
                delay = self._delay + impairments.delay(self.random)
                carried = datagram
                if impairments.corrupt is not None:
                    carried = impairments.corrupt(datagram, self.random)
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
