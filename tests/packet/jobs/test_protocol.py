# SPDX-License-Identifier: Apache-2.0
"""Tests the whole protocol over the compiled P4 program: exact sums and no hang on faulty networks.

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

from controller.planning.tree_planner import TreeKind
from hosts.epoch_change import UnrecoverableChunkError
from protocol.frames import OVERHEAD
from protocol.header import HEADER_BYTES, Op
from protocol.outcomes import Outcome
from protocol.priorities import PRIORITIES, priority_of
from protocol.propagation import Propagation
from tests.impaired_links import Impairments
from tests.packet.jobs import epochs
from tests.packet.jobs.protocol_run import (
    LIMIT,
    TOPOLOGIES,
    Run,
    kinds_of,
    network_of,
    start,
    streams_of,
)
from tests.packet.jobs.switched_network import SwitchedNetwork

# Sums in all runs of epochs.py, about; more for a longer test.
CHUNKS = int(os.environ.get("RACKHUB_CHUNKS", "3000"))
FEWEST_CHUNKS_PER_RUN = 100  # on average
# From here on few runs meet everything that may happen.
SEED = int(os.environ.get("RACKHUB_SEED", "20"))

PLACES = [
    (topology, kind)
    for topology in TOPOLOGIES
    for kind in kinds_of(topology)
    if kind is not TreeKind.NONE or topology != "three levels"  # where levels are only passed
]


@pytest.fixture
def networks() -> Iterator[list[SwitchedNetwork]]:
    opened: list[SwitchedNetwork] = []
    yield opened
    for network in opened:
        network.close()


@pytest.mark.parametrize(("topology", "kind"), PLACES)
def test_without_faults_nothing_is_sent_twice(topology, kind, networks) -> None:
    """However late some workers are: waiting is not loss."""
    network = network_of(topology, 1, Impairments())
    networks.append(network)
    streams = streams_of(topology, kind, 1 if kind.ends_at_server else 2)
    run = Run(start(network, topology, kind, 10, streams=streams), 2, seed=5, odd=False)
    run.submit(skew=5.0, seed=2)
    assert network.run(lambda: run.done, LIMIT)
    run.check()
    statistics = [transport.statistics for transport in run.started.transports]
    assert sum(s.retransmitted for s in statistics) == 0
    assert sum(s.queries for s in statistics) > 0, "no worker waited long enough to query"
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
    place=("three levels", TreeKind.TWO_LEVEL),
    seed=5,
    loss=0.3,
    duplicate=0.3,
    jitter=0.3,
    window=2,
    streams=2,
    odd=True,
)
@example(
    place=("three levels", TreeKind.TWO_LEVEL_SERVER),
    seed=6,
    loss=0.05,
    duplicate=0.1,
    jitter=0.3,
    window=8,
    streams=1,
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
def test_sums_are_exact_under_network_faults(
    place, seed, loss, duplicate, jitter, window, streams, odd
) -> None:
    topology, kind = place
    streams = streams_of(topology, kind, streams)
    network = network_of(topology, seed, Impairments(loss, duplicate, jitter))
    started = start(network, topology, kind, 12, window=window, streams=streams)
    run = Run(started, 2, seed, odd)
    run.submit(skew=0.5, seed=seed)
    finished = network.run(lambda: run.done, LIMIT)
    network.close()
    assert finished, run.waiting()
    run.check()
    assert started.reported == 0


@pytest.mark.parametrize(
    ("topology", "kind"),
    [("three levels", TreeKind.TWO_LEVEL), ("two racks", TreeKind.NONE)],
)
@pytest.mark.parametrize("classes", [3, 12])  # also more than there are priorities
def test_sums_of_classes_that_switches_know_are_exact(topology, kind, classes, networks) -> None:
    network = network_of(topology, classes, Impairments(0.05, 0.1, 0.05))
    networks.append(network)
    propagation = Propagation(order="priority", classes=classes, in_network=True)
    streams = streams_of(topology, kind, 1)
    started = start(
        *(network, topology, kind, 24),
        keys=12,
        window=2,
        streams=streams,
        propagation=propagation,
    )
    plan = started.transports[0].plan
    urgencies = {priority_of(stream.stream) for stream in plan.streams}
    assert len(plan.streams) == classes * streams
    assert urgencies == {urgency * PRIORITIES // classes for urgency in range(classes)}
    run = Run(started, 2, seed=1, odd=True)
    run.submit(skew=0.5, seed=1)
    assert network.run(lambda: run.done, LIMIT), run.waiting()
    run.check()
    assert started.reported == 0


@pytest.mark.timeout(600 + CHUNKS // 20)
def test_sums_survive_concurrent_changes_and_failures() -> None:
    """Other trees, windows and streams, switches that lose everything or their controller, workers
    that die, leave or come back, servers with the job's optimizer that die and come back, one on
    top of the other: see tests/packet/jobs/epochs.py."""
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


def test_more_racks_than_a_core_has_children_are_summed_by_levels(networks) -> None:
    network = network_of("many racks", 13, Impairments(loss=0.02, duplicate=0.02, jitter=0.01))
    networks.append(network)
    started = start(network, "many racks", TreeKind.TWO_LEVEL, 2, window=2)
    assert {len(n.children) for t in started.job.trees for n in t.nodes} == {1, 2, 16, 17}
    run = Run(started, 2, seed=13, odd=False)
    run.submit(skew=0.01, seed=13)
    assert network.run(lambda: run.done, LIMIT), run.waiting()
    run.check()
    # Two exponent rounds and four of data, at the one root that there is.
    assert network.outcomes()[Outcome.COMPLETED] == 6


def test_sums_route_around_dead_cores(networks) -> None:
    network = network_of("three levels", 15, Impairments())
    networks.append(network)
    started = start(network, "three levels", TreeKind.TWO_LEVEL, 40, window=2)
    run = Run(started, 3, seed=15, odd=False)
    run.submit(skew=0.0, seed=15)
    job, outages = started.job, network.jobs.outages

    def cores() -> set[str | None]:
        return {n.switch for t in job.trees for n in t.switches if (n.switch or "")[:4] == "core"}

    def kill(core: str) -> None:
        run.done  # noqa: B018 - collects what has come
        assert run.seen.sum() > before, "nothing was under way"
        network.break_switch(core)
        network.call(network.now, lambda: outages.died(core, "was killed", network.now))

    assert cores() == {"core0", "core2", "core6"}
    for epoch, dead, then in (
        (2, "core6", {"core0", "core2", "core7"}),
        (3, "core0", {"core1", "core2", "core7"}),
        (4, "core7", None),
    ):
        before = run.seen.sum()
        network.run_for(0.1)
        kill(dead)
        assert network.run(lambda epoch=epoch: job.epoch == epoch, LIMIT)
        if then is not None:
            assert network.run(lambda: job.change is None and not run.done, LIMIT)
            assert cores() == then
    assert job.status.startswith("waits: tree TWO_LEVEL: no way from ")
    network.run_for(1.0)
    assert not run.done

    def repair() -> None:
        network.repair_switch("core6")
        outages.regained("core6")

    network.call(network.now, repair)
    assert network.run(lambda: run.done, LIMIT), run.waiting()
    assert cores() == {"core1", "core2", "core6"}
    run.check()


def test_returned_tor_is_reached_through_unmanaged_core(networks) -> None:
    """The core could be written when the ToR died, and cannot when it is back: what it has must do.
    Servers of both racks sum for workers of both."""
    network = network_of("two racks", 17, Impairments())
    networks.append(network)
    started = start(network, "two racks", TreeKind.TWO_LEVEL, 40, window=2)
    run = Run(started, 2, seed=17, odd=False)
    run.submit(skew=0.0, seed=17)
    job, outages = started.job, network.jobs.outages
    network.run_for(0.1)
    assert not run.done

    def kill() -> None:
        network.break_switch("tor0")
        outages.died("tor0", "was killed", network.now)
        network.connections["core0"].cut = True
        outages.lost("core0")

    def repair() -> None:
        network.repair_switch("tor0")
        outages.regained("tor0")

    network.call(network.now, kill)
    network.run_for(1.0)
    assert "no way from " in job.status
    network.call(network.now, repair)
    assert network.run(lambda: run.done, LIMIT), run.waiting()
    assert {node.switch for tree in job.trees for node in tree.switches} == {"tor0", "tor1"}
    run.check()


def test_jobs_side_by_side_do_not_mix(networks) -> None:
    network = network_of("two racks", 7, Impairments(0.05, 0.1, 0.05))
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
    network = network_of("two racks", 9, Impairments())
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
    """A result with one wrong lane is never taken. When it stays wrong the chunk is summed again in
    another epoch, and when it is wrong in every epoch the job is reported as unrecoverable."""
    network = network_of("two racks", 11, Impairments())
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
        with pytest.raises(UnrecoverableChunkError, match=r"chunk 2 .*in 4 epochs"):
            network.run(lambda: run.done, LIMIT)
        assert [rank for rank in range(started.world) if run.seen[rank][2]] == []
    else:
        assert network.run(lambda: run.done, LIMIT)
        run.check()
        assert started.job.epoch == spoiled + 1
    assert set(victims) == {2}
    assert all(t.statistics.wrong_checksum >= 2 for t in started.transports)
