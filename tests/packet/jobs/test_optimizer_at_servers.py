# SPDX-License-Identifier: Apache-2.0
"""Tests optimizers at servers under loss and failures, with real switches, job table and state
machines.

What servers tell each other arrives late, but surely.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from controller.planning.tree_planner import TreeKind
from protocol.learning_rate import Schedule
from protocol.optimizer_plan import OptimizerPlan
from tests.impaired_links import Impairments
from tests.packet.jobs.protocol_run import LIMIT, Run, network_of, start, streams_of
from tests.packet.jobs.switched_network import LEASE_SECONDS, SwitchedNetwork

CHUNKS = 40  # of which the second server has those above the first slice of 32
# Every step is unlike the one before, and depends on all of them.
SCHEDULE = Schedule("cosine", warmup=2, steps=9, floor=0.1)
ADAM = OptimizerPlan("adam", 0.1, weight_decay=1e-4, schedule=SCHEDULE)


@pytest.fixture
def networks() -> Iterator[list[SwitchedNetwork]]:
    opened: list[SwitchedNetwork] = []
    yield opened
    for network in opened:
        network.close()


def begin(
    networks: list[SwitchedNetwork],
    kind: TreeKind,
    *,
    seed: int = 1,
    faults: Impairments | None = None,
    topology: str = "two racks",
    rounds: int = 4,
    odd: bool = False,
    skew: float = 0.05,
) -> Run:
    network = network_of(topology, seed, faults or Impairments())
    networks.append(network)
    streams = streams_of(topology, kind, 1)
    started = start(network, topology, kind, CHUNKS, streams=streams, window=8, optimizer=ADAM)
    run = Run(started, rounds, seed, odd)
    run.submit(skew=skew, seed=seed)
    return run


def after(run: Run, share: float) -> None:
    """Runs until workers have that share of all they are to get."""
    network, total = run.started.network, run.seen.size
    assert network.run(lambda: run.done or run.seen.sum() >= share * total, LIMIT)
    assert not run.done


def restored(run: Run) -> set[tuple[str, str]]:
    """Who got parameters from whom."""
    return {(one.server, one.source) for one in run.started.job.restored}


KINDS = pytest.mark.parametrize("kind", [TreeKind.TOR, TreeKind.NONE], ids=str)


@pytest.mark.parametrize(
    ("topology", "kind"),
    [
        *itertools.product(("one rack", "two racks"), (TreeKind.TOR, TreeKind.NONE)),
        ("two racks", TreeKind.TWO_LEVEL_SERVER),
    ],
)
def test_parameters_match_single_optimizer_under_network_faults(kind, topology, networks) -> None:
    run = begin(networks, kind, topology=topology, odd=True, faults=Impairments(0.05, 0.1, 0.05))
    assert networks[0].run(lambda: run.done, LIMIT)
    run.check()
    assert run.started.job.epoch == 1
    assert run.started.job.restored == []


@KINDS
@pytest.mark.parametrize(("victim", "share"), [(0, 0.3), (1, 0.7)])
def test_server_failure_loses_no_step(kind, share, victim, networks) -> None:
    """Its chunks go to the other server, which goes on with the very state that it had."""
    run = begin(networks, kind, faults=Impairments(0.01, 0.0, 0.01))
    after(run, share)
    run.started.kill_server(victim)
    assert networks[0].run(lambda: run.done, LIMIT)
    run.check()
    other = 1 - victim
    assert run.started.job.scheme.servers == (other,)
    assert restored(run) == {(f"s{other}", f"s{other}")}


@pytest.mark.parametrize(
    ("kind", "away"),
    [(TreeKind.NONE, 0.3), (TreeKind.TOR, 10.0)],
    ids=["soon", "after its lease"],
)
def test_restarted_server_restores_shard_from_replica(kind, away, networks) -> None:
    run = begin(networks, kind, faults=Impairments(0.01, 0.0, 0.01), rounds=8, skew=away)
    network, started = networks[0], run.started
    after(run, 0.3)
    started.kill_server(0)
    network.at(network.now + away, lambda: started.restart_server(0))
    assert network.run(lambda: run.done, LIMIT)
    run.check()
    assert started.job.scheme.servers == (0, 1)
    assert ("s0", "s1") in restored(run)


@KINDS
def test_sequential_server_failures_are_survived(kind, networks) -> None:
    run = begin(networks, kind, rounds=10)
    network, started = networks[0], run.started
    for number in range(4):
        after(run, 0.2 * (number + 1))
        started.kill_server(number % 2)
        network.at(network.now + 0.3, lambda rank=number % 2: started.restart_server(rank))
    assert network.run(lambda: run.done, LIMIT)
    run.check()
    assert started.job.epoch == 5
    assert {("s0", "s1"), ("s1", "s0")} <= restored(run)


@KINDS
def test_reported_server_failure_needs_no_lease(kind, networks) -> None:
    run = begin(networks, kind, rounds=8)
    network, started = networks[0], run.started
    after(run, 0.3)
    before = network.now
    started.kill_server(0, reported=True)
    assert network.run(lambda: started.job.scheme.servers == (1,), LIMIT)
    started.restart_server(0)
    assert network.run(lambda: started.job.scheme.servers == (0, 1), LIMIT)
    assert network.run(lambda: run.done, LIMIT)
    run.check()
    assert network.now - before < LEASE_SECONDS
    assert ("s0", "s1") in restored(run)


@KINDS
def test_a_worker_that_joins_has_no_initial_round_and_can_give_parameters(kind, networks) -> None:
    """What it gives when all servers die is what it received when it joined, or has got since."""
    lossy = Impairments(0.01, 0.0, 0.01)
    run = begin(networks, kind, topology="one rack", rounds=12, faults=lossy, skew=2.0)
    network, started = networks[0], run.started
    after(run, 0.2)
    started.kill(2)
    started.tell_gone(2)
    run.restart(2)
    assert network.run(lambda: run.done or started.joined == 1, LIMIT)
    assert not run.done
    follower = started.members[2].follower
    assert follower.transport.statistics.initial == 0
    parameters, _ = follower.transport.parameters()
    other, _ = started.transport(0).parameters()
    assert np.array_equal(parameters.view("u4"), other.view("u4"))
    assert started.job.restored == []
    # Nobody else has parameters any more: those of the one that has joined are handed over.
    for rank in (0, 1):
        started.kill(rank)
        started.tell_gone(rank)
    started.kill_server(0, reported=True)
    started.restart_server(0)
    assert network.run(lambda: run.done, LIMIT)
    assert restored(run) == {("s0", "w2")}
    assert sum(one.chunks for one in started.job.restored) == CHUNKS
    assert run.seen[2].reshape(-1, CHUNKS)[follower.joined.calls :].all()


@KINDS
@pytest.mark.parametrize(("reported", "share"), [(False, 0.7), (True, 0.3)])
def test_workers_restore_parameters_without_servers(kind, share, reported, networks) -> None:
    """No worker takes a parameter back; the optimizer's state is reset, and the job says so."""
    run = begin(networks, kind, rounds=8)
    network, started = networks[0], run.started
    after(run, share)
    # Of a chunk whose initial parameters have reached no server yet, every worker sends them again.
    known = run.seen.reshape(len(run.seen), -1, CHUNKS)[:, 0].any(axis=0)
    for rank in (0, 1):
        started.kill_server(rank, reported)
        network.at(network.now + 0.2 + 0.2 * rank, lambda rank=rank: started.restart_server(rank))
    assert network.run(lambda: run.done, LIMIT)
    # With state that is reset the parameters differ from those without the fault, but one set.
    first = run.got[0].view("u4")
    assert all((got.view("u4") == first).all() for got in run.got)
    sources = {source for _, source in restored(run)}
    assert any(source.startswith("w") for source in sources)
    assert known.sum() > CHUNKS / 2
    assert sum(one.chunks for one in started.job.restored if one.source[0] == "w") >= known.sum()
