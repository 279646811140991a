# SPDX-License-Identifier: Apache-2.0
"""The whole protocol over the compiled P4 program: exact sums, no hang, on networks that misbehave.

Seeded; `hypothesis` prints the arguments of a failing run, with which it can be repeated.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from controller.job import Role
from controller.trees import TreeKind
from protocol.exponents import Exponents, reference_round
from protocol.frames import OVERHEAD
from protocol.header import HEADER_BYTES, Flag, Op
from protocol.outcomes import Outcome
from tests.packet.switched_network import Faults, StartedJob, SwitchedNetwork
from topologies.spec import parse

pytestmark = pytest.mark.packet

LANES = 256
# Virtual seconds; a run that needs more hangs. At 30 % loss per hop one question in 17 is answered.
LIMIT = 50_000.0

TOPOLOGIES = {
    "one rack": "racks: [{workers: 3, servers: 1}]\ncores: 0\n",
    "two racks": "racks: [{workers: 2, servers: 1}, {workers: 3, servers: 1}]\ncores: 1\n",
    "four racks": (
        "racks: [{workers: 2, servers: 1}, {workers: 1, servers: 0},"
        " {workers: 2, servers: 1}, {workers: 2, servers: 0}]\ncores: 2\n"
    ),
    "server rack": (
        "racks: [{workers: 2, servers: 0}, {workers: 3, servers: 0}, {workers: 0, servers: 2}]\n"
        "cores: 1\n"
    ),
}
WORKERS = {"one rack": 3, "two racks": 5, "four racks": 7, "server rack": 5}
SERVERS = {"one rack": 1, "two racks": 2, "four racks": 2, "server rack": 2}
# A core without ToR nodes sees only what crosses it, so its servers must be in other racks.
PLACES = [
    (topology, kind)
    for topology in TOPOLOGIES
    for kind in TreeKind
    if kind is not TreeKind.CORE or topology == "server rack"
]


def network_of(name: str, seed: int, faults: Faults) -> SwitchedNetwork:
    return SwitchedNetwork(parse(f"name: test\n{TOPOLOGIES[name]}"), seed, faults)


def start(
    network: SwitchedNetwork, topology: str, kind: TreeKind, name: str = "job", **options: int
) -> StartedJob:
    workers = [f"w{i}" for i in range(WORKERS[topology])]
    servers = [f"s{i}" for i in range(SERVERS[topology])]
    return network.start(name, workers, servers, kind, **options)


def gradients(seed: int, world: int, chunks: int, odd: bool) -> np.ndarray:
    """(world, chunks, lanes) float32 of all scales; `odd` ones overflow, are not finite or zero."""
    draw = np.random.default_rng(seed)
    scale = np.exp2(draw.integers(-40, 20, (1, chunks, 1)))
    values = (draw.standard_normal((world, chunks, LANES)) * scale).astype(np.float32)
    if odd:
        for chunk in range(0, chunks, 5):
            rank, lane = int(draw.integers(world)), int(draw.integers(LANES))
            values[rank, chunk, lane] *= np.float32(draw.choice([1e12, np.inf, np.nan, 0]))
        values[:, chunks // 2] = 0
    return values


class Run:
    """A job's rounds on a network, with what every worker got."""

    def __init__(self, started: StartedJob, chunks: int, rounds: int, seed: int, odd: bool) -> None:
        self.started = started
        self.chunks = chunks
        self.rounds = [
            gradients(seed + 1000 * i, started.world, chunks, odd) for i in range(rounds)
        ]
        self.got = [np.full((rounds * chunks, LANES), np.nan, np.float32) for _ in started.plans]
        self.flags = [np.zeros(rounds * chunks, np.uint8) for _ in started.plans]
        self.seen = [np.zeros(rounds * chunks, np.int64) for _ in started.plans]
        started.open(chunks)

    def submit(self, skew: float, seed: int) -> None:
        """Every worker submits all rounds, each at a time of its own."""
        draw = random.Random(seed)
        for rank in range(self.started.world):
            at = self.started.network.now
            for values in self.rounds:
                at += draw.random() * skew
                self.started.network.at(
                    at,
                    lambda r=rank, v=values: self.started.submit(
                        r, np.arange(self.chunks), v[r], LANES
                    ),
                )

    @property
    def done(self) -> bool:
        for rank, transport in enumerate(self.started.transports):
            assert transport.take_failures() == []
            completed = transport.take_completed()
            self.got[rank][completed.tickets] = completed.sums
            self.flags[rank][completed.tickets] = completed.flags
            self.seen[rank][completed.tickets] += 1
        return all((seen == 1).all() for seen in self.seen)

    def expected(self) -> tuple[np.ndarray, np.ndarray]:
        """(rounds x chunks, lanes) sums without a network, and the flags of the integer sums."""
        policy = Exponents(self.chunks, self.started.world)
        results = [reference_round(v, np.arange(self.chunks), policy) for v in self.rounds]
        sums = np.concatenate([result.sums for result in results])
        return sums, np.concatenate([result.flags for result in results])

    def check(self) -> None:
        sums, flags = self.expected()
        for rank in range(self.started.world):
            assert (self.seen[rank] == 1).all()
            got = self.got[rank]
            assert np.array_equal(got, sums, equal_nan=True), f"worker {rank}"
            direct = (self.flags[rank] & Flag.DIRECT) != 0
            assert np.array_equal(direct, flags != 0), "who went to the server"


@pytest.fixture
def networks() -> Iterator[list[SwitchedNetwork]]:
    opened: list[SwitchedNetwork] = []
    yield opened
    for network in opened:
        network.close()


@pytest.mark.parametrize(("topology", "kind"), PLACES)
def test_without_faults_nothing_is_sent_twice(topology, kind, networks) -> None:
    """However late some workers are: waiting is not loss."""
    network = network_of(topology, 1, Faults())
    networks.append(network)
    run = Run(start(network, topology, kind, streams=2), 10, 2, seed=5, odd=False)
    run.submit(skew=5.0, seed=2)
    assert network.run(lambda: run.done, LIMIT)
    run.check()
    statistics = [transport.statistics for transport in run.started.transports]
    assert sum(s.retransmitted for s in statistics) == 0
    assert sum(s.queries for s in statistics) > 0, "nobody waited long enough to ask"
    counted = network.outcomes()
    in_network = kind in (TreeKind.TWO_LEVEL, TreeKind.CORE)
    # 10 exponent rounds and 2 rounds of 10 chunks, each completed once at a root that is a switch.
    assert counted.get(Outcome.COMPLETED, 0) == (30 if in_network else 0)
    dropped = {Outcome.STALE, Outcome.OTHER_CHUNK, Outcome.MALFORMED, Outcome.NOT_A_CHILD}
    assert not dropped & counted.keys()


@settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],  # a seed says enough; shrinking takes minutes
    suppress_health_check=[HealthCheck.too_slow],
)
@given(
    place=st.sampled_from(PLACES),
    seed=st.integers(0, 10_000),
    loss=st.sampled_from([0.0, 0.01, 0.05, 0.3]),
    duplicate=st.sampled_from([0.0, 0.1, 0.3]),
    jitter=st.sampled_from([0.0, 0.005, 0.3]),
    window=st.sampled_from([1, 2, 8]),
    streams=st.integers(1, 3),
    odd=st.booleans(),
)
@example(
    place=("two racks", TreeKind.TWO_LEVEL),
    seed=3,
    loss=0.3,
    duplicate=0.3,
    jitter=0.3,
    window=2,
    streams=2,
    odd=True,
)
@example(
    place=("four racks", TreeKind.TOR),
    seed=4,
    loss=0.05,
    duplicate=0.1,
    jitter=0.3,
    window=1,
    streams=1,
    odd=True,
)
def test_every_sum_is_exact_whatever_the_network_does(
    place, seed, loss, duplicate, jitter, window, streams, odd
) -> None:
    topology, kind = place
    if kind is TreeKind.TOR:
        streams *= SERVERS[topology]  # a ToR under a server: one way up for each stream
    network = network_of(topology, seed, Faults(loss, duplicate, jitter))
    started = start(network, topology, kind, window=window, streams=streams)
    run = Run(started, 12, 2, seed, odd)
    run.submit(skew=0.5, seed=seed)
    finished = network.run(lambda: run.done, LIMIT)
    waiting = [w for transport in started.transports for w in transport.explain(network.now)]
    network.close()
    assert finished, waiting
    run.check()


def test_jobs_side_by_side_do_not_mix(networks) -> None:
    network = network_of("two racks", 7, Faults(0.05, 0.1, 0.05))
    networks.append(network)
    runs = []
    for i, kind in enumerate([TreeKind.TWO_LEVEL, TreeKind.TWO_LEVEL, TreeKind.TOR]):
        started = start(network, "two racks", kind, name=f"job-{i}", window=2)
        runs.append(Run(started, 10, 2, seed=50 + i, odd=True))
    for i, run in enumerate(runs):
        run.submit(skew=0.2, seed=i)
    assert network.run(lambda: sum(run.done for run in runs) == len(runs), LIMIT)
    for run in runs:
        run.check()


def test_slots_of_a_job_that_left_serve_the_next(networks) -> None:
    """Registers cannot be cleared: what the first job left in them must not leak into the next."""
    network = network_of("two racks", 9, Faults())
    networks.append(network)
    for i in range(2):
        started = start(network, "two racks", TreeKind.TWO_LEVEL, name=f"job-{i}", window=2)
        run = Run(started, 6, 2, seed=70 + i, odd=False)
        run.submit(skew=0.0, seed=i)
        assert network.run(lambda run=run: run.done, LIMIT)
        run.check()
        for rank in range(started.world):
            network.jobs.leave(started.job.nonce, Role.WORKER, rank)
        for server in network.servers.values():
            server.remove(started.job.number)


def corrupt_lane(frame: bytes, lane: int, change: int) -> bytes:
    at = OVERHEAD + HEADER_BYTES + 4 * lane
    (word,) = struct.unpack_from(">I", frame, at)
    return frame[:at] + struct.pack(">I", (word + change) % 2**32) + frame[at + 4 :]


def test_checksum_catches_a_switch_that_corrupts_a_lane(networks) -> None:
    """A result with one wrong lane is never taken; when it stays wrong the chunk is reported."""
    network = network_of("two racks", 11, Faults())
    networks.append(network)
    started = start(network, "two racks", TreeKind.TWO_LEVEL)
    started.open(4)
    values = gradients(3, started.world, 4, odd=False)
    victims: list[int] = []

    def broken_core(node: str, port: int, frame: bytes) -> bytes | None:
        header = frame[OVERHEAD : OVERHEAD + HEADER_BYTES]
        going_up = node == "core0" and header[0] & 0x0F == Op.CONTRIBUTE
        if going_up and len(frame) > OVERHEAD + HEADER_BYTES and header[15] == 2:
            victims.append(int.from_bytes(header[12:16], "big"))
            return corrupt_lane(frame, lane=77, change=1)
        return frame

    network.tamper = broken_core
    for rank in range(started.world):
        started.submit(rank, np.arange(4), values[rank], LANES)
    failed: list = []

    def reported() -> bool:
        for transport in started.transports:
            failed.extend(transport.take_failures())
        return len(failed) >= started.world

    assert network.run(reported, LIMIT)
    assert set(victims) == {2}
    assert {failure.chunk for failure in failed} == {2}
    for transport in started.transports:
        assert 2 not in transport.take_completed().chunks
        assert transport.statistics.wrong_checksum >= 2
