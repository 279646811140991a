# SPDX-License-Identifier: Apache-2.0
"""Tests calls between servers in virtual time, whose messages are on the links."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import grpc
import numpy as np
import pytest

from controller.p4rt.dataplane import DataPlane
from protocol import shards_pb2
from protocol.plan import Address
from protocol.shards_pb2_grpc import ShardServiceServicer
from simulation.kernel.calls import ask
from simulation.kernel.engine import Engine
from simulation.links.trains import SECOND
from simulation.network import Network
from simulation.nodes.background import BackgroundFlow
from specs.p4program import SOURCES
from topologies.model.addressing import Addressing
from topologies.model.spec import parse

BUILD = SOURCES / "build"
MEGABYTE = 1_000_000
RATE = 100_000_000  # bit/s
RACK = """
name: rack
defaults: {rate: 100 Mbit/s, delay: 0.1 ms, queue_bytes: 64 KiB%s}
racks: [{workers: 1, servers: 3}]
cores: 0
"""
PORT = 47110
DRAWN = np.random.default_rng(1).bytes(MEGABYTE)


class Shelf(ShardServiceServicer):
    """Gives a megabyte in five parts, and takes anything."""

    def __init__(self) -> None:
        self.taken = b""

    def Fetch(self, request: Any, context: Any) -> Iterator[shards_pb2.Shard]:  # noqa: N802
        for first in range(0, MEGABYTE, MEGABYTE // 5):
            yield shards_pb2.Shard(parameters=DRAWN[first : first + MEGABYTE // 5])

    def Load(self, request: Any, context: Any) -> shards_pb2.Held:  # noqa: N802
        self.taken = request.parameters
        return shards_pb2.Held()


class Rack:
    """Three servers' hosts, the first of which serves a shelf.

    `work` runs at `callers` of the others, with a stub of it, after `begin` at the operator.

    said: what it returned. ended: how long it took, in s.
    fragile: the switch can be killed.
    """

    def __init__(
        self,
        work: Callable[[Rack, Any], Any],
        faults: str = "",
        begin: Callable[[Rack], None] = lambda rack: None,
        engine: Engine | None = None,
        callers: int = 1,
        fragile: bool = False,
    ) -> None:
        self.addressing = Addressing(parse(RACK % faults))
        plane = DataPlane.load(BUILD / "aggregation.json", BUILD / "aggregation.p4info.txtpb")
        topology = self.addressing.topology
        self.network = network = Network(
            topology, self.addressing, plane, engine=engine, fragile=fragile
        )
        self.shelf = Shelf()
        self.said: list[Any] = []
        self.ended: list[float] = []
        self._work, self._begin, self._over = work, begin, False
        self._callers = [network.hosts[f"s{n}"] for n in range(1, callers + 1)]
        network.controller.begin()
        network.operator.tasks.thread(self._conduct).start()
        try:
            network.engine.run(lambda: self._over)
        finally:
            network.close()

    def at(self, name: str, work: Callable[[], Any]) -> None:
        """Runs work at a node; call from a task of the operator."""
        network = self.network
        ask(network.engine, network.operator, network.node(name), work)

    def _conduct(self) -> None:
        network, tasks = self.network, self.network.operator.tasks
        tasks.sleep(1.0)  # until the switch forwards
        address = Address(int(self.addressing.address("s0")), PORT)
        served = network.hosts["s0"]
        environment = network.environment(served)
        ask(
            network.engine,
            network.operator,
            served,
            lambda: environment.answer(address, self.shelf),
        )
        self._begin(self)

        def call(host: Any) -> None:
            def there() -> None:
                with network.environment(host).peer(address) as stub:
                    since = host.tasks.now()
                    self.said.append(self._work(self, stub))
                    self.ended.append(host.tasks.now() - since)

            ask(network.engine, network.operator, host, there)

        running = [tasks.thread(call, args=(host,)) for host in self._callers]
        for one in running:
            one.start()
        for one in running:
            one.join()
        self._over = True


def fetched(rack: Rack, stub: Any) -> bool:
    """Fetches the megabyte; returns whether it is the same."""
    parts = stub.Fetch(shards_pb2.FetchRequest(job=1), timeout=30.0)
    return b"".join(part.parameters for part in parts) == DRAWN


def test_a_call_takes_the_time_of_its_bytes_on_the_links() -> None:
    plain = Rack(fetched)
    assert plain.said == [True]
    least = 8 * MEGABYTE / RATE
    assert least < plain.ended[0] < 1.15 * least

    def slow(rack: Rack) -> None:
        host = rack.network.hosts["s0"]
        link = host.ports[0].out
        engine = rack.network.engine
        ask(
            engine,
            rack.network.operator,
            host,
            lambda: link.slow(host.now, [(host.now, Fraction(4))]),
        )

    slowed = Rack(fetched, begin=slow)
    assert 4 * least < slowed.ended[0] < 4.6 * least
    # A request is as long as an answer, and callers share the link of the one that they call.
    asked = Rack(lambda rack, stub: stub.Load(shards_pb2.Shard(parameters=DRAWN), timeout=30.0))
    assert asked.shelf.taken == DRAWN
    assert least < asked.ended[0] < 1.15 * least
    both = Rack(fetched, callers=2)
    assert 2 * least < max(both.ended) < 2.3 * least
    links = both.network.links().values()
    assert sum(link.counters.dropped for link in links) == 0


def test_lost_segments_are_sent_again() -> None:
    rack = Rack(fetched, ", loss: 0.05, reorder: 0.02, duplicate: 0.02, corrupt: 0.02")
    assert rack.said == [True]


def test_times_do_not_depend_on_rounds() -> None:
    """Also where packets are lost, and several call."""
    faults = ", loss: 0.02, reorder: 0.02"
    one = Rack(fetched, faults, callers=2)
    small = Engine(span=SECOND // 10**4, order=lambda nodes: list(reversed(nodes)))
    assert Rack(fetched, faults, engine=small, callers=2).ended == one.ended


@pytest.mark.parametrize(
    ("timeout", "seconds", "code"),
    [(1.0, 1.0, grpc.StatusCode.DEADLINE_EXCEEDED), (30.0, 4.0, grpc.StatusCode.UNAVAILABLE)],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_call_fails_if_its_peer_cannot_be_reached(timeout, seconds, code, stream) -> None:
    def unanswered(rack: Rack, stub: Any) -> Any:
        try:
            if stream:
                next(stub.Fetch(shards_pb2.FetchRequest(), timeout=timeout))
            else:
                stub.Load(shards_pb2.Shard(parameters=DRAWN), timeout=timeout)
        except grpc.RpcError as error:
            return error.code()

    def kill(rack: Rack) -> None:
        rack.at("tor0", rack.network.switches["tor0"].kill)

    rack = Rack(unanswered, begin=kill, fragile=True)
    assert rack.said == [code]
    assert rack.ended[0] == pytest.approx(seconds, abs=0.01)


def test_calls_give_way_to_what_else_a_host_sends() -> None:
    """Other packets of the host lose no time and no place in the queue."""
    share = 0.8

    def busy(rack: Rack) -> None:
        host = rack.network.hosts["s0"]
        target = int(rack.addressing.address("w0"))
        flow = BackgroundFlow(host, target, 1500, int(share * RATE))
        rack.at("s0", lambda: flow.begin(host.now, host.now + 10 * SECOND))

    rack = Rack(fetched, begin=busy)
    least = 8 * MEGABYTE / RATE / (1 - share)
    assert rack.said == [True]
    assert least < rack.ended[0] < 1.5 * least
    counters = rack.network.hosts["s0"].ports[0].out.counters
    assert counters.dropped == 0
    assert counters.queue_most < 20_000
