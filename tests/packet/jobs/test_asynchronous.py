# SPDX-License-Identifier: Apache-2.0
"""Tests asynchronous servers: every gradient counts exactly once."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from controller.jobs.job import JobError
from controller.planning.tree_planner import TreeKind
from hosts.data.snapshot import STARTED
from protocol.consistency import ASYNCHRONOUS, Consistency
from tests.impaired_links import Impairments
from tests.packet.jobs.aims import AIMS, Aim
from tests.packet.jobs.apart import CHUNKS, LIMIT, WORLD, Apart

Begin = Callable[..., Apart]

SOME = Impairments(0.01, 0.01, 0.01)
MANY = Impairments(0.05, 0.1, 0.05)
KINDS = pytest.mark.parametrize(
    "consistency",
    [ASYNCHRONOUS, Consistency(False, 0), Consistency(False, 2)],
    ids=["asynchronous", "staleness 0", "staleness 2"],
)


@pytest.fixture
def begin() -> Iterator[Begin]:
    opened: list[Apart] = []

    def begin(*arguments, **options) -> Apart:
        opened.append(Apart(*arguments, **options))
        return opened[-1]

    yield begin
    for apart in opened:
        apart.network.close()


@KINDS
@pytest.mark.parametrize("seed", range(2))
def test_every_gradient_counts_once_under_network_faults(consistency, seed, begin) -> None:
    apart = begin(consistency, MANY, seed=seed)
    apart.run()
    assert apart.started.job.epoch == 1
    steps = [state.counters(1) for state in apart.network.servers.values()]
    assert sum(one["duplicate"] for one in steps) > 0
    assert sum(one["stepped"] for one in steps) == WORLD * CHUNKS * apart.rounds


def test_faster_worker_leads_up_to_staleness_bound(begin) -> None:
    for consistency, most in (
        (ASYNCHRONOUS, 10),
        (Consistency(False, 3), 3),
        (Consistency(False, 0), 0),
    ):
        apart = begin(consistency, seconds=(0.01, 2.0, 2.0), rounds=10)
        apart.after(3, rank=1)
        assert apart.complete[0] == min(apart.rounds, 3 + most)
        apart.run()
        statistics = apart.started.transport(0).statistics
        assert statistics.most_ahead == most
        assert (statistics.ahead > 0) == (most > 0)
        # Who waits for others asks, and sends nothing again.
        assert statistics.retransmitted == 0
        assert (statistics.queries > 0) == (most < apart.rounds)


@KINDS
def test_server_failure_loses_no_gradient(consistency, begin) -> None:
    """Nor does the other one, when the first is back with what it has from that."""
    apart = begin(consistency, SOME, rounds=12)
    network, started = apart.network, apart.started
    apart.after(2)
    started.kill_server(0)
    apart.after(4)
    assert started.job.scheme.servers == (1,)
    started.restart_server(0)
    assert network.run(lambda: started.job.scheme.servers == (0, 1), network.now + 100)
    apart.after(8)
    started.kill_server(1, reported=True)
    apart.run()
    assert started.job.scheme.servers == (0,)
    sources = {(one.server, one.source) for one in started.job.restored}
    assert sources == {("s1", "s1"), ("s0", "s1"), ("s0", "s0")}


def _move(apart: Apart, draw: random.Random) -> None:
    """Moves chunks all the time until workers are done."""
    while not apart.done:
        assert apart.network.now < LIMIT, f"hangs: {apart.complete}, {apart.started.job.status}"
        apart.remap(draw)
        apart.network.run_for(draw.random() * draw.choice([0.02, 0.1, 0.5]))


@KINDS
@pytest.mark.parametrize("seed", range(3))
def test_moves_lose_no_gradient_and_apply_none_twice(consistency, seed, begin) -> None:
    """As many steps as gradients, whichever servers take them, and workers as close as ever."""
    draw = random.Random(seed)
    faults = draw.choice([Impairments(), SOME, MANY])
    apart = begin(consistency, faults, servers=3, rounds=12, seconds=(0.01, 0.05, 0.02), seed=seed)
    _move(apart, draw)
    apart.run()
    assert apart.started.job.epoch == 1
    steps = [state.counters(1) for state in apart.network.servers.values()]
    assert sum(one["stepped"] for one in steps) == WORLD * CHUNKS * apart.rounds
    assert apart.moved > 2 * CHUNKS


def _strike(begin: Begin, seed: int, victim: str, stage: str, rounds: int, most: int) -> Apart:
    """Runs a job in which chunks move all the time, and a victim dies at a stage of that, so often
    at most."""
    draw = random.Random(seed)
    consistency = draw.choice([ASYNCHRONOUS, *(Consistency(False, n) for n in (0, 1, 3))])
    faults = draw.choice([Impairments(), SOME, MANY])
    seconds = [draw.choice([0.01, 0.05, 0.1]) for _ in range(WORLD)]
    apart = begin(consistency, faults, servers=3, rounds=rounds, seconds=seconds, seed=seed)
    aim = Aim(apart.started, draw, lambda: apart.done)
    aim.at(victim, stage, most)
    _move(apart, draw)
    apart.run()
    assert aim.kills + aim.restarts > 0
    return apart


@pytest.mark.parametrize(("victim", "stage"), AIMS[::3])
def test_no_party_of_a_move_takes_a_gradient_with_it(victim, stage, begin) -> None:
    _strike(begin, AIMS.index((victim, stage)), victim, stage, 5, 1)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 140))
def test_no_party_of_a_move_takes_a_gradient_with_it_ever(seed, begin) -> None:
    for number, aim in enumerate(AIMS):
        _strike(begin, 100 * seed + number, *aim, 40, 4).network.close()


@KINDS
def test_replan_in_flight_changes_no_result(consistency, begin) -> None:
    apart = begin(consistency, MANY, rounds=8, seconds=(0.01, 0.1, 0.02))
    for number, options in enumerate(({"window": 1}, {"streams": 3}, {"window": 8, "streams": 1})):
        apart.after(2 * number + 1)
        apart.started.replan("test", **options)
    apart.run()
    assert apart.started.job.epoch == 4


@KINDS
def test_rejoining_worker_continues_at_current_iteration(consistency, begin) -> None:
    """True if the process before it was ahead of the others or behind."""
    apart = begin(consistency, SOME, rounds=14, seconds=(0.01, 0.1, 0.05))
    for victim, rounds in ((0, 4), (1, 8)):
        apart.after(rounds, rank=2)
        apart.kill(victim)
        apart.after(rounds + 1, rank=2)
        apart.restart(victim)
    # The server that takes over knows of it.
    apart.started.kill_server(0, reported=True)
    apart.run()
    assert apart.started.joined == 2
    assert apart.started.job.scheme.servers == (1,)


@KINDS
@pytest.mark.parametrize("servers", [1, 2])
def test_parameters_come_from_workers_without_servers(consistency, servers, begin) -> None:
    """What they were answered last is in, and the job says where it is from."""
    apart = begin(consistency, servers=servers, rounds=8, seconds=(0.01, 0.1, 0.02))
    network, started = apart.network, apart.started
    apart.after(3, rank=1)
    apart.reset = True
    for rank in range(servers):
        started.kill_server(rank)
        network.at(network.now + 0.2 + 0.2 * rank, lambda rank=rank: started.restart_server(rank))
    apart.run()
    restored = [one for one in started.job.restored if one.source.startswith("w")]
    assert sum(one.chunks for one in restored) == servers * CHUNKS
    # Every gradient that had no answer by then has had its step since, once.
    shards = [network.servers[f"s{rank}"]._shards[1] for rank in range(servers)]
    assert all((one.ledger[:, 1:] == apart.rounds + 1).all() for one in shards)
    assert all((one.levels == STARTED + WORLD * apart.rounds).all() for one in shards)


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 200))]
)
def test_every_gradient_counts_once_under_failures(seed, begin) -> None:
    """Plans and chunk maps that change, servers, workers and the controller that die, in any order,
    of which some come back."""
    draw = random.Random(seed)
    consistency = draw.choice([ASYNCHRONOUS, *(Consistency(False, n) for n in (0, 1, 3))])
    faults = Impairments(
        draw.choice([0.0, 0.01, 0.05]), draw.choice([0.0, 0.3]), draw.choice([0.0, 0.02, 0.1])
    )
    seconds = [draw.choice([0.005, 0.02, 0.1, 0.3]) for _ in range(WORLD)]
    servers = draw.choice([2, 3])
    apart = begin(consistency, faults, servers=servers, rounds=14, seconds=seconds, seed=seed)
    network, started = apart.network, apart.started
    moves = draw.random() < 0.7
    for _ in range(draw.randint(2, 6)):
        for _ in range(draw.randint(0, 5) if moves else 0):
            apart.remap(draw)
            network.run_for(draw.random() * draw.choice([0.01, 0.05, 0.2]))
        network.run_for(0 if moves else draw.random() * draw.choice([0.05, 0.3, 1.0]))
        event = draw.choice(["plan", "server", "worker", "controller"])
        job, rank = started.job, draw.choice(started.staying)
        if event == "plan":
            started.replan("test", window=draw.choice([1, 2, 8]), streams=draw.randint(1, 3))
        elif event == "controller":
            started.restart_controller()
        elif event == "worker" and len(started.staying) > 1:
            apart.kill(rank)
            network.run_for(draw.random() * 0.5)
            if draw.random() < 0.8 and not apart.done:
                apart.restart(rank)
        elif event == "server" and all(
            not member.gone and job.change is None and member.follower.epoch == job.epoch
            for member in started.server_members
        ):  # with another one away, no other might have what it has
            victim = draw.randrange(servers)
            started.kill_server(victim, reported=draw.random() < 0.7)
            back = network.now + draw.choice([0.1, 1.0, 10.0])
            if draw.random() < 0.8:
                network.at(back, lambda victim=victim: started.restart_server(victim))
    apart.run()


def test_switches_that_sum_are_refused_with_the_reason(begin) -> None:
    apart = begin(ASYNCHRONOUS)
    with pytest.raises(JobError, match="servers take a step with each worker's gradient, so no"):
        apart.network.jobs.replan(apart.started.job, "test", kind=TreeKind.TOR)
