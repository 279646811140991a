# SPDX-License-Identifier: Apache-2.0
"""Benchmark of virtual time with hosts: clients and transports of eight workers in two racks, the
controller and the switches; everything but training.

Every worker pushes the same gradients repeatedly. The first round, which negotiates exponents, is
reported separately.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from typing_extensions import TypedDict

from benchmarks.common import BenchError, Spread, pinned, spread_of, two_cores
from benchmarks.sampling import MainSampler
from controller.p4rt.dataplane import DataPlane
from hosts.client import Client
from hosts.data.tensors import Tensors
from hosts.net.driver import drive
from hosts.session.job_service import Service, create_service
from hosts.session.participation import Participation
from hosts.worker.core import Core
from hosts.worker.transport import WorkerTransport
from simulation.kernel.calls import ask
from simulation.kernel.engine import Engine
from simulation.links.link import Link
from simulation.network import SERVICE, Network
from simulation.nodes.endpoint import VirtualEndpoint
from simulation.nodes.frames import Demultiplexer, Framing
from simulation.nodes.host import HostNode
from simulation.nodes.switch_group import SwitchGroup
from specs.p4program import HEADERS, JUMBO, USUAL
from switch.ports.virtual_time import TimedPorts, run_together
from topologies.model.addressing import Addressing
from topologies.model.spec import parse
from workloads.layers import resnet50

TOPOLOGY = """
name: bench
defaults: {rate: 10 Gbit/s, delay: 0.002 ms, queue_bytes: 4 MiB, mtu: 9000}
racks: [{workers: 4, servers: 1}, {workers: 4}]
cores: 1
"""
_MOST_SLOW = 1343  # chunks: 11 MB
SLOW_LINK = """
name: bench
defaults: {rate: 10 Gbit/s, delay: 0.001 ms, queue_bytes: 4 MiB, ecn_bytes: 0 KiB, mtu: 9000}
racks: [{workers: 4, servers: 1}, {workers: 4, count: 3}]
cores: [{racks: 2, cores: 1}, 1]
links: [{ends: [w3, tor0], rate: 5 Gbit/s}]
"""

_STAGES = {
    run_together.__code__: "switches: program and ports' queues (C)",
    TimedPorts._collected.__code__: "switches: what leaves, as trains",
    SwitchGroup.run.__code__: "switches: the rest",
    Link.send.__code__: "links",
    Link.carry.__code__: "links",
    Link.take.__code__: "links",
    Engine._round.__code__: "engine",
    HostNode.run.__code__: "hosts: tasks and packets that arrive",
    VirtualEndpoint.give_ahead.__code__: "hosts: packets that arrive",
    Framing.frames.__code__: "hosts: frames",
    Demultiplexer.sort.__code__: "hosts: packets that arrive",
    Core.run.__code__: "transport: trains of packets",
    WorkerTransport.submit.__code__: "transport: submission",
    WorkerTransport.on_packets.__code__: "transport: packets one by one",
    WorkerTransport.poll.__code__: "transport: packets one by one",
    Participation._attend.__code__: "client: sums",
    drive.__code__: "client: the rest",
    Client.push.__code__: "client: the rest",
    Client.leave.__code__: "client: leaving, with results that others may lack",
    Tensors.pack.__code__: "client: tensors as chunks",
    Tensors.unpack.__code__: "client: tensors as chunks",
}


@dataclass(frozen=True)
class Case:
    """A workload. sizes: elements of each key; lanes, payload: of a chunk; priorities: links serve
    packets by strict priority."""

    sizes: dict[str, int]
    lanes: int
    window: int
    payload: bool
    topology: str = TOPOLOGY
    priorities: bool = False

    @property
    def chunks(self) -> int:
        """Chunks of one round."""
        return sum(-(-size // self.lanes) for size in self.sizes.values())

    @property
    def hops(self) -> int:
        """Packet-hops of a round: each chunk travels between each worker and its switch, and
        between each switch and the one above it, in both directions."""
        topology = parse(self.topology)
        return 2 * (len(topology.workers) + len(topology.switches) - 1) * self.chunks


@dataclass
class Turn:
    """CPU and wall time of each round of a job, from the first push to the last sums."""

    began: dict[int, tuple[float, float]] = field(default_factory=dict)
    ended: dict[int, tuple[float, float]] = field(default_factory=dict)
    hops: int = 0
    over: bool = False

    def cpu(self, number: int) -> float:
        """Of a round."""
        return self.ended[number][0] - self.began[number][0]

    def wall(self, number: int) -> float:
        """Of a round."""
        return self.ended[number][1] - self.began[number][1]


def _plane(case: Case) -> DataPlane:
    build = {256: USUAL, 2048: JUMBO}[case.lanes] if case.payload else HEADERS
    return DataPlane.load(*build.files(), case.lanes)


class _Job:
    """Runs a case's rounds as a job.

    begins: called with the number of each round when its first worker begins it.
    """

    def __init__(
        self, case: Case, rounds: int, begins: Callable[[int], object] = lambda _: None
    ) -> None:
        self._case, self._rounds, self.turn = case, rounds, Turn()
        self._begins = begins
        topology = parse(case.topology)
        self._addressing = Addressing(topology)
        self._network = Network(
            topology, self._addressing, _plane(case), priorities=case.priorities
        )
        self._values = [self._gradients(rank) for rank in range(len(topology.workers))]
        self._came: dict[str, Any] = {}  # each worker's sums of the last round

    def _gradients(self, rank: int) -> dict[str, Any]:
        sizes = self._case.sizes.items()
        if not self._case.payload:
            return {name: np.broadcast_to(np.float32(0), (size,)) for name, size in sizes}
        random = np.random.default_rng(rank)
        return {name: random.random(size, np.float32) - np.float32(0.5) for name, size in sizes}

    def run(self) -> Turn:
        """Runs all rounds."""
        network = self._network
        network.controller.begin()
        network.operator.tasks.thread(self._conduct).start()
        try:
            network.engine.run(lambda: self.turn.over)
        finally:
            network.close()
        return self.turn

    def _conduct(self) -> None:
        network, operator = self._network, self._network.operator
        hosts = [node.name for node in network.topology.workers]
        service = create_service(
            *(SERVICE, "job", hosts, ["s0"]),
            window=self._case.window,
            environment=network.environment(operator),
        )
        network.play(service, self._work)
        self.turn.hops = sum(link.counters.arrived for link in network.links().values())
        network.stop()
        self.turn.over = True

    def _work(self, rank: int, name: str, service: Service) -> None:
        network, turn = self._network, self.turn
        host, end = network.hosts[name], self._addressing.host_interfaces(name)[0]

        def work() -> None:
            with Client(
                SERVICE,
                address=str(end.ipv4),
                queue_bytes=end.outgoing.queue_bytes,
                link_rate=end.outgoing.rate,
                environment=network.environment(host),
            ) as client:
                client.connect_service(service.nonce, rank)
                client.init_service(self._case.sizes)
                for number in range(self._rounds):
                    if number not in turn.began:
                        self._begins(number)
                        turn.began[number] = _clocks()
                    came = client.push_pull(self._values[rank])
                    turn.ended[number] = _clocks()
                if rank == 0:
                    self._came = came

        ask(network.engine, network.operator, host, work)

    def check(self) -> None:
        """Raises BenchError if the sums of the last round are wrong."""
        if not self._case.payload:
            return
        for name in self._case.sizes:
            exact = np.sum([one[name].astype(np.float64) for one in self._values], axis=0)
            worst = float(np.abs(self._came[name] - exact).max())
            if worst > 1e-5:
                raise BenchError(f"the sum of {name} is wrong by {worst}")


def _clocks() -> tuple[float, float]:
    return time.thread_time(), time.perf_counter()


def case_of(kind: str, chunks: int, window: int) -> Case:
    """Returns the workload of a kind, as `measure` takes it."""
    if kind == "resnet50":
        return Case({n: math.prod(s) for n, s in resnet50().items()}, 2048, min(window, 256), True)
    if kind == "slow":
        size = 2048 * min(chunks, _MOST_SLOW)
        return Case({"gradients": size}, 2048, min(window, 32), False, SLOW_LINK)
    priorities = kind == "priorities"
    return Case({"gradients": 256 * chunks}, 256, window, kind == "payload", priorities=priorities)


def run(case: Case, rounds: int) -> Turn:
    """Runs a job, whose first round needs exponents, thus twice the packet-hops.

    Raises BenchError if packets are missing or sums wrong.
    """
    job = _Job(case, rounds)
    turn = job.run()
    job.check()
    if turn.hops < (rounds + 1) * case.hops:
        raise BenchError(f"{turn.hops} packets arrived, not {(rounds + 1) * case.hops}")
    return turn


class ExchangeCost(TypedDict):
    """Time of a round with hosts."""

    what: str
    """Kind of workload: payload, headers, priorities, slow or resnet50."""
    window: int
    """Chunks of a worker in flight."""
    chunks: int
    """Chunks of each worker in a round."""
    packet_hops: int
    """Packets times links in a round."""
    packet_hops_per_second: Spread
    """Packet-hops per second of CPU time."""
    first_packet_hops_per_second: float
    """The same in the first round, which negotiates exponents."""
    cpu_seconds: Spread
    """CPU time of a round."""
    wall_seconds: Spread
    """Wall time of a round."""
    profile: dict[str, float]
    """Share of CPU time by stage, 0 to 1."""


def measure(kind: str, chunks: int, window: int, rounds: int) -> ExchangeCost:
    """Measures packet-hops per second of CPU time with hosts, and a profile.

    Args:
        kind: payload, headers, priorities, slow or resnet50; the last ignores `chunks`, and
            `slow` has 1343 at most.

    Raises:
        BenchError
    """
    core, other = two_cores()
    case = case_of(kind, chunks, window)
    with pinned(core):
        turn = run(case, rounds + 1)
        sampler = MainSampler(_STAGES, other)
        # Memory is new in the first two: as many sums are in use at once.
        job = _Job(case, 4, lambda number: sampler.start() if number == 2 else None)
        try:
            job.run()
        finally:
            profile = sampler.stop() if sampler.is_alive() else {}
    whole = sum(profile.values())
    numbers = range(1, rounds + 1)
    return {
        "what": kind,
        "window": case.window,
        "chunks": case.chunks,
        "packet_hops": case.hops,
        "packet_hops_per_second": spread_of([case.hops / turn.cpu(n) for n in numbers]),
        "first_packet_hops_per_second": 2 * case.hops / turn.cpu(0),
        "cpu_seconds": spread_of([turn.cpu(n) for n in numbers]),
        "wall_seconds": spread_of([turn.wall(n) for n in numbers]),
        "profile": {stage: seconds / whole for stage, seconds in profile.items()},
    }
