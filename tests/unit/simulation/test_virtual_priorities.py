# SPDX-License-Identifier: Apache-2.0
"""Tests that hosts in virtual time serve urgent packets first: their links, and servers'
processors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.p4rt.dataplane import DataPlane
from hosts.client import Client
from hosts.net.pacer import urgent_bytes
from hosts.session.job_service import Service, create_service
from protocol.frames import OVERHEAD
from protocol.header import PORT, Batch, Op, blank, packet_bytes, peer_array
from protocol.priorities import priority_of, stream_number
from protocol.propagation import Propagation
from simulation.kernel.calls import ask
from simulation.kernel.engine import Engine
from simulation.links.link import LinkSpec
from simulation.links.trains import SECOND
from simulation.network import SERVICE, Network
from simulation.nodes.costs import Core, ProcessingCost, UrgentFirstCore
from simulation.nodes.endpoint import URGENT_BACKLOG, VirtualEndpoint
from simulation.nodes.host import HostNode
from specs.p4program import USUAL
from tests.unit.simulation.virtual_session import run
from topologies.model.addressing import Addressing
from topologies.model.spec import parse

LANES = 256
RATE = 1_000_000_000
PACKET = OVERHEAD + packet_bytes(LANES)
LAZY, URGENT = stream_number(0, 0), stream_number(7, 0)

Packet = tuple[int, int, int]  # time of arrival, length, stream


@st.composite
def arrivals(draw: st.DrawFn, streams: st.SearchStrategy[int]) -> list[Packet]:
    gap, length = st.integers(1, 3000), st.integers(1, 2000)
    drawn = draw(st.lists(st.tuples(gap, length, streams), max_size=30))
    times = np.cumsum([gap for gap, _, _ in drawn]).astype(np.int64).tolist()
    return [(at, length, stream) for at, (_, length, stream) in zip(times, drawn, strict=True)]


COST = ProcessingCost(100, 1, 2)


def handled(packets: list[Packet]) -> list[tuple[int, int]]:
    """When a processor that serves by priority ends each packet, and its number, in that order."""
    core: UrgentFirstCore[int] = UrgentFirstCore(COST, lambda number: packets[number][2])
    found: list[tuple[int, int]] = []

    def ends_before(at: int) -> None:
        while core.busy and found[-1][0] < at:
            core.end()
            begin(found[-1][0])

    def begin(at: int) -> None:
        begun = core.begin(at)
        if begun is not None:
            found.append((at + begun[0], begun[1]))

    for number, (at, length, _) in enumerate(packets):
        ends_before(at)
        core.add(np.array([length]), [number])
        begin(at)
    ends_before(1 << 62)
    return found


@given(arrivals(st.integers(0, 255)))
def test_a_processor_takes_the_most_urgent_of_those_that_are_there(packets: list[Packet]) -> None:
    waiting, free = set(range(len(packets))), 0
    expected = []
    while waiting:
        free = max(free, min(packets[n][0] for n in waiting))
        there = [n for n in waiting if packets[n][0] <= free]
        first = max(there, key=lambda n: (priority_of(packets[n][2]), -n))
        free += int(COST.of(np.array([packets[first][1]]))[0])
        expected.append((free, first))
        waiting.remove(first)
    assert handled(packets) == expected


@given(arrivals(st.integers(208, 223)))
def test_a_processor_of_one_priority_is_first_come_first_served(packets: list[Packet]) -> None:
    times = np.array([at for at, _, _ in packets], np.int64)
    lengths = np.array([length for _, length, _ in packets], np.int64)
    ends = Core(COST).ends(times, lengths).tolist()
    assert handled(packets) == list(zip(ends, range(len(ends)), strict=True))


TOPOLOGY = f"""
name: pair
defaults: {{rate: {RATE}, delay: 0.02 ms, queue_bytes: 128 KiB}}
racks: [{{workers: 1, servers: 1}}]
costs: {{server_rate: {RATE // 2}}}
"""


class Pair:
    """A server's host and a worker's on one link, without a switch between."""

    def __init__(self, by_priority: bool) -> None:
        addressing = Addressing(parse(TOPOLOGY))
        self.engine = Engine()
        self.server, self.worker = HostNode("s0", addressing), HostNode("w0", addressing)
        for node in (self.server, self.worker):
            node.by_priority = by_priority
            self.engine.add(node)
        spec = LinkSpec(RATE, delay=20_000_000, priorities=by_priority)
        there, _ = self.engine.connect(self.server, 0, self.worker, 0, spec)
        self.left: list[int] = []
        there.on_departure = lambda train, came: self.left.extend(train.times.tolist())
        self.ends = [
            node.endpoint(str(node.interfaces[0].ipv4), PORT if node is self.server else 0)
            for node in (self.server, self.worker)
        ]
        for end in self.ends:
            end.configure(LANES, RATE)
        self.got: list[tuple[int, int]] = []

    def batch(self, stream: int, first: int, count: int, to: VirtualEndpoint) -> Batch:
        headers = blank(count, Op.RESULT)
        headers["stream"], headers["seq"] = stream, np.arange(first, first + count)
        headers["lanes"] = LANES
        payloads = np.zeros((count, LANES), ">i4")
        peers = peer_array([(to.ipv4, to.port)] * count)
        return Batch(headers, payloads, np.ones(count, np.bool_), peers)

    def run(self, sender: HostNode, batches: list[Batch], sleep: float = 0.0) -> None:
        """Sends batches, the later ones after so many seconds; keeps what arrives in order."""
        there, back = self.ends if sender is self.server else self.ends[::-1]
        count = sum(map(len, batches))

        def send() -> None:
            for batch in batches:
                there.send(batch)
                there.wait(sleep)
            while not there.flush():
                there.wait(1)

        def receive() -> None:
            while len(self.got) < count:
                if (batch := back.receive()) is None:
                    back.wait(1)
                else:
                    streams, seqs = batch.headers["stream"], batch.headers["seq"]
                    self.got += zip(streams.tolist(), seqs.tolist(), strict=True)

        receiver = self.worker if sender is self.server else self.server
        sender.tasks.thread(send).start()
        receiver.tasks.thread(receive).start()
        self.engine.run(lambda: len(self.got) >= count)
        for node in (self.server, self.worker):
            node.tasks.close()


def test_urgent_results_overtake_those_that_wait_above_a_hosts_link() -> None:
    pair = Pair(by_priority=True)
    end, worker = pair.ends
    end.configure(LANES, RATE, by_priority=True)
    batches = [pair.batch(LAZY, 0, 200, worker), pair.batch(URGENT, 0, 20, worker)]
    pair.run(pair.server, batches, sleep=1e-6)
    lazy, urgent = [(LAZY, n) for n in range(200)], [(URGENT, n) for n in range(20)]
    ahead = pair.got.index(urgent[0])
    assert pair.got == lazy[:ahead] + urgent + lazy[ahead:]
    assert ahead * PACKET <= urgent_bytes(RATE, PACKET, URGENT_BACKLOG) + PACKET


def test_a_short_queue_keeps_the_link_as_busy_as_a_long_one() -> None:
    left = []
    for by_priority in (False, True):
        pair = Pair(by_priority)
        end, worker = pair.ends
        end.configure(LANES, RATE, by_priority=by_priority)
        stream = URGENT if by_priority else 3
        pair.run(pair.server, [pair.batch(stream, 0, 300, worker)])
        assert pair.got == [(stream, n) for n in range(300)]
        left.append(pair.left)
    assert left[0] == left[1]


@pytest.mark.parametrize("by_priority", [False, True])
def test_a_servers_processor_handles_urgent_contributions_first(by_priority: bool) -> None:
    """They come at twice its rate, the urgent ones last."""
    pair = Pair(by_priority)
    server, _ = pair.ends
    pair.run(pair.worker, [pair.batch(LAZY, 0, 40, server), pair.batch(URGENT, 0, 8, server)])
    sent = [(LAZY, n) for n in range(40)] + [(URGENT, n) for n in range(8)]
    if not by_priority:
        assert pair.got == sent
    else:
        ahead = pair.got.index((URGENT, 0))
        # So many were handled while all 40 came.
        assert ahead == pytest.approx(40 * PACKET / (2 * 4 * LANES), abs=2)
        assert [one for one in pair.got if one[0] == LAZY] == sent[:40]
        assert [one for one in pair.got if one[0] == URGENT] == sent[40:]


RACKS = """
name: racks
defaults: {rate: 100 Mbit/s, delay: 0.01 ms, queue_bytes: 128 KiB}
racks: [{workers: 2, servers: 1}, {workers: 1}]
cores: 1
"""
FIRST, LAST = 10 * LANES, 300 * LANES  # parameters of the first and of the last layer


def seconds_of_the_first_layer(in_network: bool, tree: str, together: bool = True) -> float:
    """How long after its gradients are pushed the first layer has its sums, those of the last being
    on their way, which take a while. All sums are right."""
    topology = parse(RACKS)
    addressing = Addressing(topology)
    network = Network(topology, addressing, DataPlane.load(*USUAL.files()), priorities=in_network)
    network.together = together
    propagation = Propagation(order="priority", classes=2, in_network=in_network)
    took: dict[int, float] = {}
    over: list[bool] = []

    def work(rank: int, name: str, service: Service) -> None:
        end = addressing.host_interfaces(name)[0]
        node = network.hosts[name]

        def push() -> None:
            client = Client(
                SERVICE,
                address=str(end.ipv4),
                queue_bytes=end.outgoing.queue_bytes,
                link_rate=end.outgoing.rate,
                environment=network.environment(node),
            )
            with client:
                client.connect_service(service.nonce, rank)
                client.init_service({"first": FIRST, "last": LAST})
                ones = {"first": np.ones(FIRST, np.float32), "last": np.ones(LAST, np.float32)}
                client.push_pull(ones)  # all agree on exponents
                client.push({"last": ones["last"]})
                client.pull(["last"])
                client.push({"last": ones["last"]})
                node.tasks.sleep(0.01)  # less than half of what it takes
                began = node.now
                client.push({"first": ones["first"]})
                sums = client.pull(["first"])["first"]
                took[rank] = (node.now - began) / SECOND
                assert (sums == 3).all()
                assert (client.pull(["last"])["last"] == 3).all()

        ask(network.engine, network.operator, node, push)

    def conduct() -> None:
        operator = network.operator
        names = [node.name for node in topology.workers]
        service = create_service(
            *(SERVICE, "job", names, ["s0"]),
            tree=tree,
            window=16,
            propagation=propagation,
            environment=network.environment(operator),
        )
        network.play(service, work)
        network.stop()
        over.append(True)

    network.controller.begin()
    network.operator.tasks.thread(conduct).start()
    try:
        network.engine.run(lambda: bool(over))
    finally:
        network.close()
    return max(took.values())


@pytest.mark.parametrize("tree", ["none", "two-level-server"])
def test_sums_of_the_first_layer_overtake_those_of_the_last_in_the_network(tree: str) -> None:
    by_workers_alone, everywhere = (
        seconds_of_the_first_layer(in_network, tree) for in_network in (False, True)
    )
    assert everywhere < 0.7 * by_workers_alone


def test_switches_that_run_together_serve_by_priority_as_each_does_by_itself() -> None:
    together, apart = (
        seconds_of_the_first_layer(True, "two-level-server", together) for together in (True, False)
    )
    assert together == apart


def test_what_waits_behind_urgent_chunks_is_not_taken_for_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two racks share the server's link, and its queue has room for all that may be in flight."""
    topology = (
        "name: point\ndefaults: {rate: 4 Gbit/s, delay: 1 us, queue_bytes: 4 MiB, mtu: 9216}\n"
        "racks: [{workers: 4, count: 2}, {workers: 0, servers: 1}]\ncores: 1\n"
    )
    job = (
        f"name: layers\nworkload: layers\nlayers: {[1 << 20] * 8}\npayload: none\niterations: 3\n"
        "chunk_bytes: 8 KiB\nwindow: 32\ntree: tor\nschedule: {order: priority}\n"
    )
    session = run(tmp_path, monkeypatch, {"topology.yaml": topology, "job.yaml": job})
    summary = json.loads(session.run.summary.read_text())
    assert summary["chunks"]["retransmitted"] == 0
    once = 8 * (1 << 20) * 2 * 8 / 4e9  # the racks' sums on the server's link
    assert summary["seconds_per_iteration"][-1] < 1.2 * once
