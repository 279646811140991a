# SPDX-License-Identifier: Apache-2.0
"""Benchmark of virtual time's network and switch, with minimal hosts.

Four workers around one aggregating switch. A worker sends prepared frames with the next sequence
numbers whenever results arrive; results are checked once, at the end.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from typing_extensions import TypedDict

from benchmarks.common import BenchError, Spread, pinned, spread_of, two_cores
from benchmarks.forwarding import contenders, traffic
from benchmarks.sampling import MainSampler
from controller.p4rt.connection import DeviceConnection
from controller.p4rt.entries import P4Info, insertion
from protocol.frames import OVERHEAD
from protocol.header import HEADER_BYTES
from simulation.kernel.engine import Engine, Node
from simulation.links.link import Link, LinkSpec
from simulation.links.trains import NEVER, Times, Train
from simulation.nodes.switch import SwitchNode
from switch.ports.virtual_time import TimedPorts

_RATE = 10**10  # bit/s
_DELAY = 1_000_000  # ps
_LATENCY = 500_000
_HEADERS = OVERHEAD + HEADER_BYTES
_AHEAD = 4  # windows of prepared frames: frames in flight must not be overwritten

BUILDS = {"payload": "aggregation", "headers": "aggregation_headers"}
"""Builds of the data plane by kind of chunk."""

_STAGES = {
    TimedPorts.run.__code__: "program and ports' queues (C)",
    TimedPorts._collected.__code__: "what leaves the switch, as trains",
    SwitchNode.run.__code__: "switch, the rest",
    Link.send.__code__: "links: send",
    Link.carry.__code__: "links: what the switch sent",
    Link.take.__code__: "links: take",
    Engine._round.__code__: "engine",
}


class _Worker(Node):
    """A worker that sends prepared frames until all chunks are sent."""

    def __init__(self, number: int, chunks: int, window: int, stored: int | None) -> None:
        super().__init__(f"w{number}")
        frame = np.frombuffer(traffic.packet(number), np.uint8)
        self._frames = np.repeat(frame[None, :stored], _AHEAD * window, 0)
        self._lengths = np.full(_AHEAD * window, len(frame), np.int64)
        self._numbers = [
            self._frames[:, at : at + 4].view(">u4")[:, 0]
            for at in (traffic.NUMBER_AT, traffic.NUMBER_AT + 4)  # sequence and chunk number
        ]
        self._chunks, self._window = chunks, window
        self._sent = 0
        self._begun = False
        self.received = 0
        self.last: Train | None = None

    def next(self) -> int:
        """Returns its start time; later it only reacts."""
        return NEVER if self._begun else 0

    def run(self, until: int) -> None:
        """Sends one chunk per result."""
        if not self._begun:
            self._begun = True
            self._send(np.zeros(self._window, np.int64))
        for _, _, train in self.arrivals(until):
            self.received += len(train)
            self.last = train
            self._send(train.times)
        self.now = until

    def _send(self, times: Times) -> None:
        first, ready = 0, len(self._frames)
        last = min(len(times), self._chunks - self._sent)
        while first < last:
            start = self._sent % ready
            count = min(last - first, ready - start)
            rows = slice(start, start + count)
            for field in self._numbers:
                field[rows] = np.arange(self._sent, self._sent + count)
            self.ports[0].send(
                Train(times[first : first + count], self._frames[rows], self._lengths[rows])
            )
            self._sent += count
            first += count


@dataclass(frozen=True)
class Turn:
    """A measurement.

    hops: packets times links, each including the node at its end.
    seconds: CPU time of the thread.
    rounds: of the engine.
    """

    hops: int
    seconds: float
    rounds: int


class _Network:
    """The simulated network of one turn. Raises BenchError if sums were wrong."""

    def __init__(self, kind: str, chunks: int, window: int) -> None:
        build = contenders.build(BUILDS[kind])
        self._kind, self._chunks = kind, chunks
        self._switch = SwitchNode("tor0", latency=_LATENCY)
        p4info = P4Info.load(build.with_suffix(".p4info.txtpb"))
        self._connection = DeviceConnection("tor0", self._switch.device)
        self._connection.open()
        self._connection.push(p4info.message, build.with_suffix(".json").read_bytes())
        self._connection.write([insertion(one) for one in contenders.tree(p4info, window)])
        stored = _HEADERS if kind == "headers" else None
        self._workers = [_Worker(n, chunks, window, stored) for n in range(traffic.PORTS)]
        self._engine = Engine()
        for node in (*self._workers, self._switch):
            self._engine.add(node)
        room = 2 * window * len(traffic.packet(0))
        spec = LinkSpec(_RATE, delay=_DELAY, queue_bytes=max(room, 1 << 17))
        for number, worker in enumerate(self._workers):
            self._engine.connect(worker, 0, self._switch, number + 1, spec)

    def run(self) -> Turn:
        """Sends all chunks."""
        began = time.thread_time()
        self._engine.run(lambda: all(one.received >= self._chunks for one in self._workers))
        seconds = time.thread_time() - began
        hops = sum(link.counters.arrived for link in self._engine.links)
        if hops != 2 * traffic.PORTS * self._chunks:
            raise BenchError(f"{hops} packets arrived, not {2 * traffic.PORTS * self._chunks}")
        for worker in self._workers:
            assert worker.last is not None
            result = worker.last.frames[-1].tobytes()
            wrong = traffic.wrong_sum(result) if self._kind == "payload" else None
            if wrong is not None:
                raise BenchError(f"{worker.name}: {wrong}")
        return Turn(hops, seconds, self._engine.rounds)

    def close(self) -> None:
        """Frees the switch."""
        self._connection.close()
        self._switch.close()


@contextmanager
def _network(kind: str, chunks: int, window: int) -> Iterator[_Network]:
    made = _Network(kind, chunks, window)
    try:
        yield made
    finally:
        made.close()


class NetworkCost(TypedDict):
    """CPU time of the network alone."""

    chunks: str
    """Kind of chunk, a key of `BUILDS`."""
    window: int
    """Chunks of a worker in flight."""
    packet_hops: int
    """Packets times links in a round."""
    engine_rounds: int
    """Rounds of the simulation's engine."""
    packet_hops_per_second: Spread
    """Packet-hops per second of CPU time."""
    microseconds: Spread
    """CPU time of a packet-hop, in microseconds."""
    profile: dict[str, float]
    """Share of CPU time by stage, 0 to 1."""


def measure(kind: str, chunks: int, window: int, rounds: int) -> NetworkCost:
    """Measures packet-hops per second of CPU time: the median of rounds after a warm-up.

    The profile is of one more round.

    Args:
        kind: A key of `BUILDS`.

    Raises:
        BenchError
    """
    core, other = two_cores()
    turns: list[Turn] = []
    with pinned(core):
        for _ in range(rounds + 1):
            with _network(kind, chunks, window) as network:
                turns.append(network.run())
        with _network(kind, chunks, window) as network:
            sampler = MainSampler(_STAGES, other)
            sampler.start()
            try:
                network.run()
            finally:
                profile = sampler.stop()
    turns = turns[1:]
    whole = sum(profile.values())
    return {
        "chunks": kind,
        "window": window,
        "packet_hops": turns[0].hops,
        "engine_rounds": turns[0].rounds,
        "packet_hops_per_second": spread_of([one.hops / one.seconds for one in turns]),
        "microseconds": spread_of([1e6 * one.seconds / one.hops for one in turns]),
        "profile": {stage: seconds / whole for stage, seconds in profile.items()},
    }
