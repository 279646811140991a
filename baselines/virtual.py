# SPDX-License-Identifier: Apache-2.0
"""Runs a contender in virtual time, with the same member code as in emulation."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from baselines.boxes import BoxMember, ClientSwitches
from baselines.comparison import (
    ComparisonError,
    Contender,
    Outcome,
    SwitchedJob,
    Work,
)
from baselines.contenders import check_lossless, service_of
from baselines.innetwork import InNetwork
from baselines.members import GLOO, IN_NETWORK, ComputedStreams, Member, Report, StreamMember
from controller.p4rt.dataplane import DataPlane
from hosts.client import Client
from hosts.errors import ClientError
from hosts.net.environment import HostEnvironment
from observability.links import Carried
from observability.messages.events import Within
from planner.collectives import COLLECTIVES
from planner.collectives.streams import Array, Streams, Switches
from planner.link_loads import Direction, qualities, total
from simulation.errors import VirtualError
from simulation.kernel.calls import ask
from simulation.kernel.engine import Engine
from simulation.kernel.progress import ProgressReporter
from simulation.network import SERVICE, Network
from simulation.nodes.host import HostNode
from simulation.nodes.socket_node import SocketNode
from simulation.nodes.stream_node import StreamNode, connect
from testbed.preflight import JobPlan
from topologies.model.addressing import Addressing, HostInterface
from topologies.model.topology import Costs

Result = TypeVar("Result")
_POLL_SECONDS = 0.01
_ALMOST = 0.999  # the most progress shown within an iteration
_VARYING = 30  # iterations with losses; without they are alike
_QUIET_QUEUES = 10  # queue drain times of the slowest link, after which nothing is in flight


class NodeStreams:
    """Streams of a member at a simulated host (implements ``streams.Streams``)."""

    switches: Switches | None = None

    def __init__(self, node: StreamNode, member: int, piece: int) -> None:
        self.piece = piece
        self._node, self._member = node, member

    def send(self, peer: int, values: Array) -> None:
        """Implements ``Streams.send``."""
        self._node.send(self._member, peer, values.tobytes())

    def receive(self, peer: int, into: Array) -> None:
        """Implements ``Streams.receive``."""
        self._node.receive(self._member, peer, into.view(np.uint8).data)


class _Play:
    def __init__(
        self,
        contender: Contender,
        addressing: Addressing,
        plan: JobPlan,
        plane: DataPlane,
        work: Work,
        *,
        framing: bool,
        engine: Engine | None,
    ) -> None:
        self.name = contender.name
        self._one, self._plan, self._work = contender, plan, work
        self._payload = plane.sums
        self._streams = contender.name != IN_NETWORK
        windows = contender.windows() if self._streams else {}
        self.network = Network(
            addressing.topology,
            addressing,
            plane,
            framing=framing,
            engine=engine,
            host=_host_of(contender),
        )
        lines = qualities(addressing).values()
        self._quiet = _QUIET_QUEUES * max(
            one.delay + 8 * (one.queue_bytes + one.mtu) / one.rate for one in lines
        )
        for a, b in contender.pairs:
            ends = [(self._stream_node(m), m, contender.ends[m]) for m in (a, b)]
            connect(ends[0], ends[1], (windows[a, b], windows[b, a]), contender.segment)
        self.reports: list[tuple[Report, ...]] = []
        self.carried: dict[Direction, Carried] = {}
        self.over = False
        self._under_way: tuple[int, int] | None = None  # iteration, and bytes carried before it
        self._expected = sum(load.bytes for load in total(contender.loads).values())

    # Implements ``simulation.kernel.progress.MonitoredJob``.

    @property
    def iterations(self) -> int:
        """The number of iterations, with the one that is not measured."""
        return 1 + self._work.iterations

    def iterations_done(self) -> float | None:
        """Returns progress by the share of expected bytes that links have carried."""
        if self._under_way is None:
            return None
        number, before = self._under_way
        return number + min(_ALMOST, (self._bytes() - before) / max(1, self._expected))

    def rounds(self, done: float) -> float:
        """Returns the packets of a part in so many iterations: sums in the network have an exponent
        round in the first."""
        return done if self._streams else done + min(1.0, done)

    def _bytes(self) -> int:
        return sum(load.bytes or 0 for load in self.network.carried().values())

    def conduct(self) -> None:
        """Runs all iterations; the body of an operator task."""
        network = self.network
        operator = network.operator
        while not ask(network.engine, operator, network.controller, self._is_up):
            operator.tasks.sleep(_POLL_SECONDS)
        members = [self._member(number) for number in range(len(self._one.ends))]
        found = self._each([one.prepare for one in members])
        setup: Any = next((one for one in found if one is not None), None)
        for rank, name in enumerate(setup["servers"] if setup else ()):
            self.network.join(name, setup["nonce"], rank)
        self._each([partial(one.open, setup) for one in members])
        self._iterate(members, 0)
        before = network.carried()
        for number in range(1, self._work.iterations + 1):
            self.reports.append(self._iterate(members, number))
        self.carried = {way: load.since(before[way]) for way, load in network.carried().items()}
        self._each([one.close for one in members])
        network.stop()
        operator.tasks.sleep(self._quiet)
        self.over = True

    def _is_up(self) -> bool:
        return self.network.controller.service is not None

    def _iterate(self, members: Sequence[Member], number: int) -> tuple[Report, ...]:
        self._under_way = number, self._bytes()
        reports = self._each([partial(one.iterate, number) for one in members])
        self.network.operator.tasks.sleep(self._quiet)
        return tuple(reports)

    def _each(self, work: Sequence[Callable[[], Result]]) -> list[Result]:
        """Runs one callable per member on its host, all starting at the same time."""
        network, operator = self.network, self.network.operator
        found: dict[int, Result] = {}

        def one(number: int) -> None:
            host = network.hosts[self._one.ends[number].node]
            found[number] = ask(network.engine, operator, host, work[number])

        tasks = [operator.tasks.thread(one, args=(number,)) for number in range(len(work))]
        for task in tasks:
            task.start()
        for task in tasks:
            task.join()
        return [found[number] for number in range(len(work))]

    def _stream_node(self, member: int) -> StreamNode:
        node = self.network.hosts[self._one.ends[member].node]
        assert isinstance(node, StreamNode)
        return node

    def _member(self, number: int) -> Member:
        one, size = self._one, self._work.size
        if self._streams:
            node = self._stream_node(number)
            streams: Streams = NodeStreams(node, number, one.piece)
            if self._work.compute and number < one.workers:
                how = self._work.compute, node.tasks.now, node.tasks.sleep
                streams = ComputedStreams(streams, size, *how)
            collective, clock = COLLECTIVES[one.name], node.tasks.now
            if one.switched is not None and number >= one.workers:
                streams.switches = switches = self._switches(one.switched, number)
                return BoxMember(switches, collective, number, one.team, size, streams, clock)
            checked = one.switched is None or self._payload
            return StreamMember(collective, number, one.team, size, streams, clock, checked=checked)
        create = service_of(self._plan) if number == 0 else None
        sizes = self._work.sizes
        client, environment = self._client(one.ends[number])
        return InNetwork(number, one.workers, sizes, client, create, SERVICE, environment)

    def _switches(self, job: SwitchedJob, member: int) -> ClientSwitches:
        """Returns a server's part in the job for which switches sum."""
        rank = member - self._one.workers
        end = self.network.addressing.host_interfaces(self._one.ends[member].node)[0]
        create = service_of(job.plan) if rank == 0 else None
        client, environment = self._client(end)
        return ClientSwitches(rank, job.bounds, client, create, SERVICE, environment)

    def _client(self, end: HostInterface) -> tuple[Callable[[], Client], HostEnvironment]:
        """Returns what creates a client at an interface, and its host's environment."""
        environment = self.network.environment(self.network.hosts[end.node])

        def client() -> Client:
            return Client(
                SERVICE,
                address=str(end.ipv4),
                queue_bytes=end.outgoing.queue_bytes,
                link_rate=end.outgoing.rate,
                environment=environment,
            )

        return client, environment


def _host_of(contender: Contender) -> type[HostNode]:
    """Returns the class of hosts that a contender needs."""
    if contender.switched is not None:
        return SocketNode
    return HostNode if contender.name == IN_NETWORK else StreamNode


def play(
    contender: Contender,
    addressing: Addressing,
    plan: JobPlan,
    plane: DataPlane,
    work: Work,
    *,
    framing: bool = False,
    engine: Engine | None = None,
    tell: Callable[[Within], None] = lambda message: None,
    seconds: float = math.inf,
) -> Outcome:
    """Runs a contender.

    Args:
        engine: Replaces the default engine; results are the same.
        tell: Receives progress events within iterations (``simulation.kernel.progress``).
        seconds: Of real time, after which it ends with the iterations that are done.

    Raises:
        ComparisonError, ClientError, VirtualError
    """
    played = _Play(contender, addressing, plan, plane, work, framing=framing, engine=engine)
    network = played.network
    progress = ProgressReporter([played], network.engine.settled, tell)

    until = time.monotonic() + seconds

    def over() -> bool:
        progress.poll()
        return played.over or time.monotonic() > until

    try:
        network.controller.begin()
        network.operator.tasks.thread(played.conduct, name="compare").start()
        network.engine.run(over)
        _check_drops(contender, network)
    finally:
        network.close()
    return Outcome(contender, tuple(played.reports), played.carried)


def explained(
    contender: Contender,
    addressing: Addressing,
    plan: JobPlan,
    plane: DataPlane,
    work: Work,
    seconds: float,
) -> float | None:
    """Returns the median seconds of an iteration where nodes cost nothing, as in emulation they
    take what they take.

    None for what virtual time does not have: gloo, TCP over links with losses, a queue too short
    for a stream, or an iteration within so many seconds of real time.
    """
    topology = replace(addressing.topology, costs=Costs())
    work = replace(work, iterations=_VARYING if topology.impaired else 1)
    if contender.name == GLOO:
        return None
    try:
        if contender.rounds:
            check_lossless(topology)
        found = play(contender, Addressing(topology), plan, plane, work, seconds=seconds)
    except (ComparisonError, ClientError, VirtualError):
        return None
    return statistics.median(found.seconds) if found.iterations else None


def _check_drops(contender: Contender, network: Network) -> None:
    lost: Mapping[Direction, int] = {
        way: link.counters.dropped for way, link in network.links().items() if link.counters.dropped
    }
    if lost and contender.rounds:
        raise VirtualError(f"{contender.name}: queues were full: {lost}")
