# SPDX-License-Identifier: Apache-2.0
"""Tests clients, controller and switches in virtual time: exact sums at deterministic times."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from controller.p4rt.dataplane import DataPlane
from emulation.nodes.processes import environment, python
from hosts.client import Client
from hosts.errors import ClientError, WrongNonceError
from hosts.session.job_service import Service, create_service
from observability.record import RunDirectory, known
from observability.trace_report import read as read_trace
from simulation.kernel.calls import ask
from simulation.kernel.engine import Engine
from simulation.links.trains import SECOND, Train
from simulation.network import SERVICE, Network
from specs.p4program import SOURCES
from topologies.model.addressing import Addressing
from topologies.model.spec import parse

SMALL = """
name: small
defaults: {rate: 100 Mbit/s, delay: 0.02 ms, queue_bytes: 64 KiB}
racks: [{workers: 2, servers: 1}, {workers: 1}]
cores: 1
"""
SIZES = {"weights": 2000, "biases": 10}
ROUNDS = 3
CALLED = SECOND // 20  # from when workers are started until they are done
BUILD = SOURCES / "build"
PLANE = BUILD / "aggregation.json", BUILD / "aggregation.p4info.txtpb"


class Played:
    """A job of clients on a network: what they got, when, and what the links carried."""

    def __init__(
        self,
        engine: Engine | None = None,
        *,
        together: bool = True,
        every: int = 0,
        priorities: bool = False,
    ) -> None:
        """every: ps between calls of which each switch gets one after the other; 0: none."""
        topology = parse(SMALL)
        self.addressing = Addressing(topology)
        plane = DataPlane.load(*PLANE)
        self.network = Network(
            topology, self.addressing, plane, engine=engine, priorities=priorities
        )
        self.times: list[tuple[int, int, int]] = []
        self.sums: dict[tuple[int, int], dict[str, np.ndarray]] = {}
        self.refusals: list[Exception] = []
        self.over = False
        self.every = every
        network = self.network
        network.together = together
        left: dict[Any, list[Train]] = {}
        for way, link in network.links().items():
            if way.node in network.hosts:
                sent = left.setdefault(way, [])
                link.on_departure = lambda train, came, sent=sent: sent.append(train)
        network.controller.begin()
        network.operator.tasks.thread(self._conduct).start()
        try:
            network.engine.run(lambda: self.over)
            self.carried = [(way, load) for way, load in network.carried().items()]
            self.counters = {way: link.counters for way, link in network.links().items()}
        finally:
            network.close()
        self.left = {
            way: [at for train in sent for at in train.times.tolist()] for way, sent in left.items()
        }

    def values(self, rank: int, number: int) -> dict[str, np.ndarray]:
        random = np.random.default_rng([rank, number])
        return {n: random.standard_normal(s).astype(np.float32) for n, s in SIZES.items()}

    def _conduct(self) -> None:
        network, operator = self.network, self.network.operator
        host_environment = network.environment(operator)
        hosts = [node.name for node in network.topology.workers]
        service = create_service(SERVICE, "job", hosts, ["s0"], environment=host_environment)
        try:
            create_service(SERVICE, "job", hosts, ["s0"], environment=host_environment)
        except ClientError as error:
            self.refusals.append(error)
        begin = operator.now + network.engine.control_latency
        self.called_until = begin + CALLED
        for at in range(begin, self.called_until, self.every) if self.every else ():
            for switch in network.switches.values():
                network.engine.post(operator, switch, at, int)
        network.play(service, self._work)
        network.stop()
        operator.tasks.sleep(0.1)
        self.over = True

    def _work(self, rank: int, name: str, service: Service) -> None:
        network = self.network
        host = network.hosts[name]
        end = self.addressing.host_interfaces(name)[0]

        def work() -> None:
            client = Client(
                SERVICE,
                address=str(end.ipv4),
                queue_bytes=end.outgoing.queue_bytes,
                link_rate=end.outgoing.rate,
                environment=network.environment(host),
            )
            with client:
                try:
                    client.connect_service("0" * 32, rank)
                except WrongNonceError as error:
                    self.refusals.append(error)
                client.connect_service(service.nonce, rank)
                client.init_service(SIZES)
                for number in range(ROUNDS):
                    self.sums[rank, number] = client.push_pull(self.values(rank, number))
                    self.times.append((number, rank, host.now))

        ask(network.engine, network.operator, host, work)


@pytest.fixture(scope="module")
def played() -> Played:
    return Played()


def test_every_worker_gets_the_sums(played: Played):
    for number in range(ROUNDS):
        given = [played.values(rank, number) for rank in range(3)]
        for name in SIZES:
            exact = np.sum([one[name].astype(np.float64) for one in given], axis=0)
            for rank in range(3):
                np.testing.assert_allclose(played.sums[rank, number][name], exact, atol=1e-5)
            alike = {played.sums[rank, number][name].tobytes() for rank in range(3)}
            assert len(alike) == 1


def test_refusals_are_those_of_the_job_service(played: Played):
    texts = [str(error) for error in played.refusals]
    assert "a job named 'job' is alive" in texts[0]
    assert len(texts) == 4
    assert all(isinstance(error, WrongNonceError) for error in played.refusals[1:])


def test_a_round_takes_as_long_as_its_bytes_and_the_ways_do(played: Played):
    """9 chunks of 1,098 bytes at 100 Mbit/s, and a chunk's way over six links."""
    ends = [at for number, rank, at in sorted(played.times) if rank == 2]
    took = (ends[2] - ends[1]) / SECOND
    chunk = 8 * 1098 / 100e6
    assert 9 * chunk + 6 * 20e-6 < took < (9 + 6) * chunk + 6 * 20e-6 + 1e-6


@pytest.mark.parametrize("span", [SECOND // 10**5, SECOND])
def test_neither_the_order_of_nodes_nor_the_size_of_rounds_matters(played: Played, span: int):
    other = Played(Engine(span=span, order=lambda nodes: list(reversed(nodes))))
    assert other.times == sorted(other.times, key=other.times.index)
    assert sorted(other.times) == sorted(played.times)
    assert other.carried == played.carried


def test_switches_that_run_together_do_what_each_does_by_itself(played: Played):
    apart = Played(together=False)
    assert apart.network.engine.rounds > played.network.engine.rounds
    assert apart.times == played.times
    assert apart.counters == played.counters
    assert apart.left == played.left


def test_priorities_that_nobody_gives_change_nothing(played: Played) -> None:
    for together in (True, False):
        strict = Played(together=together, priorities=True)
        assert strict.times == played.times
        assert strict.counters == played.counters
        assert strict.left == played.left


def test_calls_of_switches_change_no_packets_times(played: Played):
    """A call comes between packets that leave and what they are answered with."""
    called = Played(every=SECOND // 10**4)
    assert called.network.engine.rounds > played.network.engine.rounds
    assert max(at for _, _, at in called.times) < called.called_until
    assert called.times == played.times
    assert called.left == played.left


JOB = """
name: tiny
workload: digits
hidden: [8]
iterations: 3
batch: 24
optimizer: {name: momentum, rate: 0.05, at: %s}
tree: %s
compute: 2 ms
"""


LAYERS = """
name: sizes
workload: layers
layers: [40 kB, 100 B, 4 kB]
iterations: 3
window: 16
payload: %s
tree: %s
"""


def run(folder: Path, seed: int, job: str) -> dict[str, Any]:
    """The summary of a run in a process of its own, less what depends on the machine; its events
    are in trace.json."""
    (folder / "small.yaml").write_text(SMALL)
    (folder / "job.yaml").write_text(job)
    files = (str(folder / "small.yaml"), "--job", str(folder / "job.yaml"))
    trace = ("--trace", str(folder / "trace.json"))
    ran = subprocess.run(
        python("cli", "run", *files, "--clock", "virtual", "--pcap", "--json", *trace),
        env={
            **environment(),
            "RACKHUB_RUNS": str(folder / "runs"),
            "PYTHONHASHSEED": str(seed),
            "OPENBLAS_NUM_THREADS": str(seed),
            "OPENBLAS_CORETYPE": ("Prescott", "Haswell")[seed % 2],
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    summary: dict[str, Any] = json.loads(ran.stdout)
    for part in (summary, *summary["jobs"]):
        part.pop("machine")
    return summary


@pytest.mark.parametrize(("tree", "at"), [("two-level", "workers"), ("none", "servers")])
def test_a_run_trains_what_the_reference_does_and_is_repeated_to_the_byte(
    tmp_path: Path, tree: str, at: str
):
    job = JOB % (at, tree)
    summary = run(tmp_path, 1, job)
    assert summary["clock"] == "virtual"
    assert summary["matches_reference"] is True
    assert summary["chunks"]["retransmitted"] == 0
    assert all(
        row["bytes"] == row["expected_bytes"] == row["first_bytes"]
        for row in (*summary["links"], *summary["jobs"][0]["links"])
    )
    assert len(summary["seconds_per_iteration"]) == 3
    assert min(summary["seconds_per_iteration"]) > 0.002  # computing alone takes that
    result = read_trace(known(str(tmp_path / "runs" / "latest")), "tiny", 2, 2)
    hops = result["rounds"][-1]["hops"]
    if tree == "two-level":
        # From tor1, where it has arrived, to core0 and back, and to w2: three times its 1,098 bytes
        # at 100 Mbit/s, and 20 us twice; to the nanosecond, as captures have it.
        sent = [hop["ms"] for hop in hops if hop["from"] == "w2"]
        came = [hop["ms"] for hop in hops if hop["to"] == "w2"]
        took = 3 * (8 * 1098 / 100e6 * 1e3) + 2 * 0.02
        assert came == [pytest.approx(sent[0] + took, abs=1e-5)]
    events = (tmp_path / "trace.json").read_bytes()
    assert events.count(b'"ph":"B"') > 10
    assert json.dumps(run(tmp_path, 4, job)) == json.dumps(summary)
    assert (tmp_path / "trace.json").read_bytes() == events


@pytest.mark.parametrize("tree", ["two-level", "tor"])
def test_chunks_without_payload_take_the_same_time(tmp_path: Path, tree: str):
    full, empty = (run(tmp_path, 1, LAYERS % (payload, tree)) for payload in ("summed", "none"))
    folders = sorted(path for path in (tmp_path / "runs").glob("*-*") if not path.is_symlink())
    rounds = [read_trace(RunDirectory(path), "sizes", 2, 1)["rounds"] for path in folders]
    assert [one["exponents"] for one in rounds[0]] == [True, False]
    assert [[one.pop("headers_only") for one in of] for of in rounds] == [
        [False] * 2,
        [False, True],
    ]
    assert rounds[0] == rounds[1]  # hop by hop, to the nanosecond
    assert (full["payload"], empty["payload"]) == ("summed", "none")
    assert full["matches_reference"] is True
    assert empty["matches_reference"] is None
    assert empty["no_reference"] == "without payload there are no sums"
    assert empty["chunks"] == full["chunks"]
    assert empty["links"] == full["links"]
    assert empty["virtual"]["seconds"] == full["virtual"]["seconds"]
    assert empty["seconds_per_iteration"] == full["seconds_per_iteration"]
    iteration = 8 * max(row["bytes"] for row in full["links"]) / 3 / 100e6
    assert iteration * 0.8 < full["seconds_per_iteration"][-1] < iteration * 1.2 + 0.001
