# SPDX-License-Identifier: Apache-2.0
"""Tests that batched results equal one-by-one processing, to the picosecond."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from controller.p4rt.dataplane import DataPlane
from hosts.client import Client
from hosts.errors import PolicyError
from hosts.net.arrivals import Pending, Released
from hosts.net.background import Background, Space
from hosts.server.root_node import RootNode
from hosts.session.job_service import Service, create_service
from hosts.worker.congestion.registry import WINDOWS
from hosts.worker.congestion.window import CongestionWindow, RoundTrip
from hosts.worker.scheduling.registry import SCHEDULERS
from hosts.worker.scheduling.scheduler import ChunkScheduler
from hosts.worker.transport import WorkerTransport
from protocol.plan import FIXED
from protocol.propagation import FIFO
from simulation.kernel.calls import ask
from simulation.kernel.engine import Engine
from simulation.links.trains import SECOND, Train
from simulation.network import SERVICE, Network
from specs.p4program import SOURCES
from topologies.model.addressing import Addressing
from topologies.model.spec import parse

BUILD = SOURCES / "build"
PLANE = BUILD / "aggregation.json", BUILD / "aggregation.p4info.txtpb"
RACK = """
name: rack
defaults: {rate: %s, delay: %s, queue_bytes: %s, loss: %s, reorder: %s, duplicate: %s, corrupt: %s}
costs: {%s}
%s
"""


@dataclass
class Case:
    """Links, a job of `elements` values, and how much later than the one before each worker is."""

    rate: str
    delay: str = "0 ms"
    queue_bytes: str = "64 KiB"
    elements: int = 20_000
    window: int = 0
    streams: int = 0
    late: float = 0.0
    outlier: float = 1.0  # a value of the second round: too large for its chunk's scale
    rounds: int = 4
    costs: str = ""
    loss: float = 0.0
    reorder: float = 0.0
    duplicate: float = 0.0
    corrupt: float = 0.0
    tree: str = "two-level"
    racks: str = "racks: [{workers: 2, servers: 1}]"  # and what else the topology has
    pushes: int = 1  # calls of a round, 0.1 ms one after the other; each but the first: one chunk


class Played:
    """What leaves on each link and when, and what workers know at the end."""

    def __init__(
        self, case: Case, *, trains: bool, together: bool = True, engine: Engine | None = None
    ) -> None:
        quality = case.rate, case.delay, case.queue_bytes, case.loss, case.reorder
        quality += case.duplicate, case.corrupt
        topology = parse(RACK % (*quality, case.costs, case.racks))
        self.case = case
        self.addressing = Addressing(topology)
        self.network = network = Network(
            topology, self.addressing, DataPlane.load(*PLANE), engine=engine
        )
        network.together = together
        self.known: dict[int, Any] = {}
        self.sums: dict[tuple[int, int, str], tuple[int, bytes]] = {}
        self.over = False
        left: dict[Any, list[Train]] = {}
        for host in network.hosts.values():
            host.trains = trains
        for way, link in network.links().items():
            sent = left.setdefault(way, [])
            link.on_departure = lambda train, came, sent=sent: sent.append(train)
        network.controller.begin()
        network.operator.tasks.thread(self._conduct).start()
        try:
            network.engine.run(lambda: self.over)
        finally:
            network.close()
        self.left = {
            way: (
                np.concatenate([train.times for train in sent]).tolist(),
                b"".join(
                    frame[:length].tobytes()
                    for train in sent
                    for frame, length in zip(train.frames, train.lengths.tolist(), strict=True)
                ),
            )
            for way, sent in left.items()
            if sent
        }

    def _conduct(self) -> None:
        network, operator, case = self.network, self.network.operator, self.case
        hosts = [node.name for node in network.topology.workers]
        service = create_service(
            *(SERVICE, "job", hosts, ["s0"]),
            window=case.window,
            streams=case.streams,
            tree=case.tree,
            environment=network.environment(operator),
        )
        network.play(service, self._work)
        network.stop()
        operator.tasks.sleep(0.1)
        self.over = True

    def _work(self, rank: int, name: str, service: Service) -> None:
        network, case = self.network, self.case
        host, end = network.hosts[name], self.addressing.host_interfaces(name)[0]
        environment = network.environment(host)

        def work() -> None:
            link = end.outgoing
            with Client(
                SERVICE,
                address=str(end.ipv4),
                queue_bytes=link.queue_bytes,
                link_rate=link.rate,
                environment=environment,
            ) as client:
                client.connect_service(service.nonce, rank)
                sizes = {f"small{n}": 100 for n in range(1, case.pushes)}
                client.init_service({"values": case.elements, **sizes})
                draw = np.random.default_rng(rank)
                for number in range(case.rounds):
                    values = draw.uniform(0.5, 1, case.elements).astype(np.float32)
                    if number == 1 and rank == 1:
                        values[case.elements // 2] *= case.outlier
                    environment.runtime.sleep(case.late * rank)
                    sums = client.push({"values": values})
                    others = {}
                    for name, size in sizes.items():
                        environment.runtime.sleep(1e-4)
                        others[name] = client.push({name: values[:size]})
                    for name, future in {"values": sums, **others}.items():
                        came = future.result()[name]
                        self.sums[rank, number, name] = host.now, came.tobytes()
                statistics = client.statistics
                statistics.pop("socket")
                trips = client._transport.round_trips
                self.known[rank] = statistics, trips.timeouts.tolist(), str(trips.smoothed.tolist())

        ask(network.engine, network.operator, host, work)


def counting(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[int]:
    """How many packets each call takes at once, from now on, of a function that may refuse to."""
    taken: list[int] = []
    function = getattr(owner, name)

    def counted(*arguments: Any) -> Any:
        found = function(*arguments)
        if isinstance(found, Pending):
            return Pending(found.ready, lambda: count(found.finish()))
        return None if found is None else count(found)

    def count(released: Released) -> Released:
        taken.append(released.taken)
        return released

    monkeypatch.setattr(owner, name, counted)
    return taken


@pytest.mark.parametrize(
    "case",
    [
        Case("10 Gbit/s", "0.005 ms", "128 KiB", late=0.0001),
        Case("1 Gbit/s", "0.01 ms", window=16, streams=2),
        Case("500 Mbit/s", queue_bytes="16 KiB", late=0.00037),
        Case("1 Gbit/s", "0.001 ms", elements=10_000, outlier=1e6),
        Case("20 Mbit/s", elements=10_000, outlier=1e6),
        Case("10 Gbit/s", "0.005 ms", "128 KiB", elements=40_000, loss=0.002),
        Case("1 Gbit/s", "0.005 ms", window=16, streams=2, loss=0.01),
        Case("1 Gbit/s", "0.005 ms", elements=10_000, loss=0.3),
        Case("1 Gbit/s", "0.005 ms", elements=40_000, duplicate=0.05),
        Case("1 Gbit/s", "0.005 ms", elements=40_000, reorder=0.05),
        Case("1 Gbit/s", "0.005 ms", elements=40_000, corrupt=0.02),
        Case("1 Gbit/s", "0.02 ms", loss=0.02, duplicate=0.02, reorder=0.02, corrupt=0.02),
        Case("10 Gbit/s", "0.005 ms", elements=80_000, pushes=4),
        Case("10 Gbit/s", "0.005 ms", costs="host_per_packet: 2 us, host_per_byte: 0.3 ns"),
        Case(
            "1 Gbit/s",
            "0.02 ms",
            window=16,
            late=0.0003,
            costs="host_per_packet: 1 us, switch_latency: 2 us, framing: true",
        ),
    ],
    ids=[
        *("paced", "windows", "short-queue", "float32", "float32-waits", "losses"),
        *("losses-streams", "many-losses"),
        *(
            "duplicates",
            "reordered",
            "corrupted",
            "all-impairments",
            "calls",
            "hosts-cost",
            "all-cost",
        ),
    ],
)
def test_releases_in_batch_equal_one_by_one(case: Case, monkeypatch: pytest.MonkeyPatch):
    taken = counting(monkeypatch, WorkerTransport, "on_train")
    together = Played(case, trains=True)
    # Else this shows nothing.
    results = sum(
        statistics["completed"] + statistics["exponent_rounds"]
        for statistics, *_ in together.known.values()
    )
    assert sum(taken) > 0.9 * results
    assert max(taken) > 3
    taken.clear()
    singly = Played(case, trains=False)
    assert not taken
    assert together.sums == singly.sums
    assert together.known == singly.known
    assert together.left == singly.left


def test_workers_in_the_background_change_nothing(monkeypatch: pytest.MonkeyPatch):
    case = Case("10 Gbit/s", "0.02 ms", "1 MiB", elements=200_000, loss=0.001, late=0.0001)
    case.racks = "racks: [{workers: 3, servers: 1}, {workers: 3}]\ncores: 1"
    begun: list[Space] = []
    run = Background.run

    def counted(background: Background, space: Space, *addresses: int) -> None:
        begun.append(space)
        run(background, space, *addresses)

    monkeypatch.setattr(Background, "run", counted)
    together = Played(case, trains=True, engine=Engine(threads=3))
    assert len(begun) >= 32  # then they may pause, if no CPU is free
    begun.clear()
    alone = Played(case, trains=True, engine=Engine(threads=1))
    assert not begun
    assert together.sums == alone.sums
    assert together.known == alone.known
    assert together.left == alone.left


class Reversed(ChunkScheduler):
    def arrange(self, chunks: np.ndarray) -> np.ndarray:
        return np.arange(len(chunks))[::-1]


def test_batches_follow_any_scheduler(monkeypatch: pytest.MonkeyPatch):
    case = Case("1 Gbit/s", "0.005 ms", window=16, streams=2, late=0.0001)
    usual = Played(case, trains=True)
    monkeypatch.setitem(SCHEDULERS, FIFO, Reversed)
    taken = counting(monkeypatch, WorkerTransport, "on_train")
    together = Played(case, trains=True)
    assert max(taken) > 3
    singly = Played(case, trains=False)
    assert together.known == singly.known
    assert together.left == singly.left
    assert together.left != usual.left
    sums = {key: values for key, (_, values) in usual.sums.items()}
    assert {key: values for key, (_, values) in together.sums.items()} == sums


class Failing(CongestionWindow):
    """Fails in the third round trip."""

    def first(self) -> int:
        self._trips = 0
        return 16

    def following(self, trip: RoundTrip) -> int:
        self._trips += 1
        return 16 // (3 - self._trips)


@pytest.mark.parametrize("trains", [True, False], ids=["batch", "one-by-one"])
def test_error_of_a_policy_reaches_the_caller(
    trains: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setitem(WINDOWS, FIXED, Failing)
    with pytest.raises(PolicyError, match=r"congestion window Failing.*ZeroDivisionError"):
        Played(Case("1 Gbit/s", "0.005 ms", late=0.0001), trains=trains)
    assert "this worker can only leave" in caplog.text  # it did not end the simulation itself


def unlike(seed: int) -> Case:
    """Racks under one core or two, in which every link has a rate and a delay of its own."""
    draw = random.Random(seed)
    racks = [draw.randint(1, 3), draw.randint(1, 2)]
    cores = draw.randint(1, 2)
    ends = [(f"w{n}", f"tor{int(n >= racks[0])}") for n in range(sum(racks))]
    ends += [(f"tor{tor}", f"core{core}") for tor in range(2) for core in range(cores)]
    links = [
        f"  - {{ends: [{a}, {b}], rate: {draw.choice([0.7, 1, 2.5, 4, 10])} Gbit/s,"
        f" delay: {draw.choice([0, 0.5, 1.3, 5, 20])} us}}"
        for a, b in ends
    ]
    parts = [f"{{workers: {racks[0]}, servers: 1}}", f"{{workers: {racks[1]}}}"]
    return Case(
        "10 Gbit/s",
        "0.002 ms",
        draw.choice(["32 KiB", "256 KiB"]),
        elements=draw.randint(6_000, 12_000),
        window=draw.choice([4, 16, 128]),
        streams=draw.randint(1, 2),
        late=draw.choice([0.0, 0.00003]),
        racks="\n".join([f"racks: [{', '.join(parts)}]", f"cores: {cores}", "links:", *links]),
    )


@pytest.mark.parametrize("seed", range(4))
def test_links_unlike_each_other_change_no_packets_times(
    seed: int, monkeypatch: pytest.MonkeyPatch
):
    """Nodes together as far as they can be, and each by itself, packet by packet, in the other
    order and in short spans."""
    taken = counting(monkeypatch, WorkerTransport, "on_train")
    together = Played(unlike(seed), trains=True)
    assert max(taken) > 1
    taken.clear()
    apart = Engine(span=SECOND // 10**5, order=lambda nodes: nodes[::-1])
    singly = Played(unlike(seed), trains=False, together=False, engine=apart)
    assert not taken
    assert together.sums == singly.sums
    assert together.known == singly.known
    assert together.left == singly.left


@pytest.mark.parametrize(
    "case",
    [
        Case("10 Gbit/s", "0.005 ms", "256 KiB", late=0.0001, tree="tor"),
        Case("1 Gbit/s", "0.01 ms", window=16, tree="none", outlier=1e6),
        Case("10 Gbit/s", "0.005 ms", elements=30_000, loss=0.003, tree="none"),
        Case("500 Mbit/s", queue_bytes="16 KiB", elements=10_000, tree="none", streams=1),
        Case("10 Gbit/s", "0.005 ms", elements=5_000, tree="none", costs="server_rate: 2 Gbit/s"),
    ],
    ids=["tor", "float32", "losses", "short-queue", "server-cost"],
)
def test_server_batch_equals_one_by_one(case: Case, monkeypatch: pytest.MonkeyPatch):
    """But one that takes time for each, which has times of its own."""
    taken = counting(monkeypatch, RootNode, "on_train")
    together = Played(case, trains=True)
    sums = together.known[0][0]["completed"] + together.known[0][0]["exponent_rounds"]
    contributions = sums * (1 if case.tree == "tor" else 2)
    if "server_rate" in case.costs:
        assert not taken
    else:
        assert sum(taken) > (0.8 if case.loss else 0.9) * contributions
        assert max(taken) > 3
    taken.clear()
    singly = Played(case, trains=False)
    assert not taken
    assert together.sums == singly.sums
    assert together.known == singly.known
    assert together.left == singly.left
