# SPDX-License-Identifier: Apache-2.0
"""A contender on a network in virtual time: the members' code is that of emulation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from baselines.contest import IN_NETWORK, Contender, Outcome, Work, service_of
from baselines.innetwork import InNetwork
from baselines.members import Member, Report, StreamMember
from controller.p4rt.dataplane import DataPlane
from hosts.client import Client
from observability.links import Carried
from planner.collectives import Array
from planner.expected import Direction, total
from planner.flows import qualities
from simulation.errors import VirtualError
from simulation.kernel.calls import ask
from simulation.kernel.engine import Engine
from simulation.kernel.progress import ProgressReporter
from simulation.network import SERVICE, Network
from simulation.nodes.host import HostNode
from simulation.nodes.stream import StreamNode, connect
from testbed.preflight import JobPlan
from topologies.model.addressing import Addressing

Result = TypeVar("Result")
Message = dict[str, Any]
_POLL_SECONDS = 0.01
_ALMOST = 0.999  # of an iteration that is not over
_QUIET_QUEUES = 10  # of the slowest link: how long whatever is under way may take


class NodeStreams:
    """See ``collectives.Streams``: those of a member at a simulated host."""

    def __init__(self, node: StreamNode, member: int, piece: int) -> None:
        self.piece = piece
        self._node, self._member = node, member

    def send(self, peer: int, values: Array) -> None:
        """See Streams."""
        self._node.send(self._member, peer, values.tobytes())

    def receive(self, peer: int, into: Array) -> None:
        """See Streams."""
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
        self._streams = contender.name != IN_NETWORK
        windows = contender.windows() if self._streams else {}
        self.network = Network(
            addressing.topology,
            addressing,
            plane,
            framing=framing,
            engine=engine,
            host=StreamNode if self._streams else HostNode,
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

    # How far it is, see ``simulation.kernel.progress``.

    @property
    def iterations(self) -> int:
        """See Watched: with the one that is not measured."""
        return 1 + self._work.iterations

    def iterations_done(self) -> float | None:
        """See Watched: by the share of an iteration's bytes that links have carried, but for what
        is sent again."""
        if self._under_way is None:
            return None
        number, before = self._under_way
        return number + min(_ALMOST, (self._bytes() - before) / max(1, self._expected))

    def _bytes(self) -> int:
        return sum(load.bytes or 0 for load in self.network.carried().values())

    def conduct(self) -> None:
        """All of it; for a task of the operator."""
        network = self.network
        operator = network.operator
        while not ask(network.engine, operator, network.controller, self._is_up):
            operator.tasks.sleep(_POLL_SECONDS)
        members = [self._member(number) for number in range(len(self._one.ends))]
        told = self._each([one.prepare for one in members])[0]
        for rank, name in enumerate(told["servers"] if told else ()):
            self._join(name, told["nonce"], rank)
        self._each([partial(one.open, told) for one in members])
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

    def _join(self, name: str, nonce: str, rank: int) -> None:
        network = self.network
        host = network.hosts[network.addressing.unit(name).host]
        ask(network.engine, network.operator, host, lambda: network.server(name).join(nonce, rank))

    def _iterate(self, members: Sequence[Member], number: int) -> tuple[Report, ...]:
        self._under_way = number, self._bytes()
        reports = self._each([partial(one.iterate, number) for one in members])
        self.network.operator.tasks.sleep(self._quiet)
        return tuple(reports)

    def _each(self, work: Sequence[Callable[[], Result]]) -> list[Result]:
        """Has work done by every member at its host, all beginning at one time."""
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
            streams = NodeStreams(node, number, one.piece(size))
            part = one.part(number, size)
            return StreamMember(
                one.name, number, one.workers, one.servers, (size, part), streams, node.tasks.now
            )
        end = one.ends[number]
        outside = self.network.outside(self.network.hosts[end.node])

        def client() -> Client:
            return Client(
                SERVICE,
                address=str(end.ipv4),
                queue_bytes=end.outgoing.queue_bytes,
                link_rate=end.outgoing.rate,
                outside=outside,
            )

        create = service_of(self._plan) if number == 0 else None
        sizes = self._work.sizes
        return InNetwork(number, one.workers, sizes, client, create, SERVICE, outside)


def play(
    contender: Contender,
    addressing: Addressing,
    plan: JobPlan,
    plane: DataPlane,
    work: Work,
    *,
    framing: bool = False,
    engine: Engine | None = None,
    tell: Callable[[Message], None] = lambda message: None,
) -> Outcome:
    """Runs a contender. engine: another one than usual, which changes nothing. tell: takes events
    ``within`` iterations, see ``simulation.kernel.progress``.

    Raises ContestError, ClientError, VirtualError.
    """
    played = _Play(contender, addressing, plan, plane, work, framing=framing, engine=engine)
    network = played.network
    progress = ProgressReporter([played], network.engine.settled, tell)

    def over() -> bool:
        progress.poll()
        return played.over

    try:
        network.controller.begin()
        network.operator.tasks.thread(played.conduct, name="compare").start()
        network.engine.run(over)
        _check_drops(contender, network)
    finally:
        network.close()
    return Outcome(contender, tuple(played.reports), played.carried)


def _check_drops(contender: Contender, network: Network) -> None:
    lost: Mapping[Direction, int] = {
        way: link.counters.dropped for way, link in network.links().items() if link.counters.dropped
    }
    if lost and contender.rounds:
        raise VirtualError(f"{contender.name}: queues were full: {lost}")
