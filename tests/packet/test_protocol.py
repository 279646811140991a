# SPDX-License-Identifier: Apache-2.0
"""The whole protocol over the compiled P4 program: exact sums, no hang, on networks that misbehave.

Seeded; a failing run says how to repeat it. RACKHUB_CHUNKS=1000000 makes the one with changes of
epoch longer, RACKHUB_SEED=N begins it elsewhere.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from controller.trees import TreeKind
from hosts.follower import HopelessError
from protocol.frames import OVERHEAD
from protocol.header import HEADER_BYTES, Op
from protocol.outcomes import Outcome
from tests.packet import epochs
from tests.packet.protocol_run import (
    LIMIT,
    TOPOLOGIES,
    Run,
    kinds_of,
    network_of,
    start,
    streams_of,
)
from tests.packet.switched_network import Faults, SwitchedNetwork

pytestmark = pytest.mark.packet

# Sums in all runs of epochs.py, about; more for a longer test.
CHUNKS = int(os.environ.get("RACKHUB_CHUNKS", "20000"))
FEWEST_CHUNKS_PER_RUN = 100  # on average
SEED = int(os.environ.get("RACKHUB_SEED", "0"))

PLACES = [(topology, kind) for topology in TOPOLOGIES for kind in kinds_of(topology)]


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
    streams = streams_of(topology, kind, 1 if kind.ends_at_server else 2)
    run = Run(start(network, topology, kind, 10, streams=streams), 2, seed=5, odd=False)
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
    max_examples=8,
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
    streams = streams_of(topology, kind, streams)
    network = network_of(topology, seed, Faults(loss, duplicate, jitter))
    started = start(network, topology, kind, 12, window=window, streams=streams)
    run = Run(started, 2, seed, odd)
    run.submit(skew=0.5, seed=seed)
    finished = network.run(lambda: run.done, LIMIT)
    network.close()
    assert finished, run.waiting()
    run.check()
    assert started.reported == 0


@pytest.mark.timeout(600 + CHUNKS // 20)
def test_everything_may_change_and_fail_while_sums_are_under_way() -> None:
    """Other trees, windows and streams, switches that lose everything or their controller, workers
    that die, leave or come back, servers with the job's optimizer that die and come back, one on
    top of the other: see tests/packet/epochs.py."""
    runs = chunks = changes = losses = moved = restored = joined = 0
    outcomes = epochs.play_all(range(SEED, SEED + CHUNKS // FEWEST_CHUNKS_PER_RUN))
    with contextlib.closing(outcomes):
        for outcome in outcomes:
            assert not outcome.error, str(outcome)
            runs += 1
            chunks += outcome.chunks
            changes += outcome.epochs - 1
            losses += outcome.worlds - 1
            moved += outcome.moved
            restored += outcome.restored
            joined += outcome.joined
            if chunks >= CHUNKS:
                break
    # That they were worth it: changes met sums under way, and workers were lost and came back.
    assert chunks >= CHUNKS
    assert changes > runs
    assert losses > runs // 10
    assert moved > runs
    assert restored > runs // 20
    assert joined > runs // 20


def test_jobs_side_by_side_do_not_mix(networks) -> None:
    network = network_of("two racks", 7, Faults(0.05, 0.1, 0.05))
    networks.append(network)
    runs = []
    for i, kind in enumerate([TreeKind.TWO_LEVEL, TreeKind.TWO_LEVEL, TreeKind.TOR]):
        started = start(network, "two racks", kind, 10, name=f"job-{i}", window=2)
        runs.append(Run(started, 2, seed=50 + i, odd=True))
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
        started = start(network, "two racks", TreeKind.TWO_LEVEL, 6, name=f"job-{i}", window=2)
        run = Run(started, 2, seed=70 + i, odd=False)
        run.submit(skew=0.0, seed=i)
        assert network.run(lambda run=run: run.done, LIMIT)
        run.check()
        for rank in range(started.world):
            started.leave(rank)
        assert network.run(lambda started=started: started.over, LIMIT)
        for server in network.servers.values():
            server.remove(started.job.number)


def corrupt_lane(frame: bytes, lane: int, change: int) -> bytes:
    at = OVERHEAD + HEADER_BYTES + 4 * lane
    (word,) = struct.unpack_from(">I", frame, at)
    return frame[:at] + struct.pack(">I", (word + change) % 2**32) + frame[at + 4 :]


@pytest.mark.parametrize("spoiled", [1, 3, 100], ids=lambda epochs: f"in {epochs} epochs")
def test_checksum_catches_a_switch_that_corrupts_a_lane(spoiled: int, networks) -> None:
    """A result with one wrong lane is never taken. When it stays wrong the chunk is summed anew in
    another epoch, and when it is wrong in every epoch the job is told to be hopeless."""
    network = network_of("two racks", 11, Faults())
    networks.append(network)
    started = start(network, "two racks", TreeKind.TWO_LEVEL, 4)
    run = Run(started, 1, seed=3, odd=False)
    victims: list[int] = []

    def broken_core(node: str, port: int, frame: bytes) -> bytes | None:
        header = frame[OVERHEAD : OVERHEAD + HEADER_BYTES]
        going_up = node == "core0" and header[0] & 0x0F == Op.CONTRIBUTE
        epoch = int.from_bytes(header[4:6], "big")
        if going_up and len(frame) > OVERHEAD + HEADER_BYTES and header[15] == 2:
            victims.append(int.from_bytes(header[12:16], "big"))
            return corrupt_lane(frame, lane=77, change=1 if epoch <= spoiled else 0)
        return frame

    network.tamper = broken_core
    run.submit(skew=0.0, seed=1)
    if spoiled > 3:
        with pytest.raises(HopelessError, match=r"chunk 2 .*in 4 epochs"):
            network.run(lambda: run.done, LIMIT)
        assert [rank for rank in range(started.world) if run.seen[rank][2]] == []
    else:
        assert network.run(lambda: run.done, LIMIT)
        run.check()
        assert started.job.epoch == spoiled + 1
    assert set(victims) == {2}
    assert all(t.statistics.wrong_checksum >= 2 for t in started.transports)
