# SPDX-License-Identifier: Apache-2.0
"""Servers that step with each worker's gradient: every one is in once, whatever happens."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from protocol.consistency import ASYNCHRONOUS, Consistency
from tests.packet.apart import Apart
from tests.packet.protocol_run import network_of
from tests.packet.switched_network import Faults, SwitchedNetwork

pytestmark = pytest.mark.packet

BAD = Faults(0.05, 0.1, 0.05)
KINDS = pytest.mark.parametrize(
    "consistency",
    [ASYNCHRONOUS, Consistency(False, 0), Consistency(False, 2)],
    ids=["asynchronous", "staleness 0", "staleness 2"],
)


@pytest.fixture
def networks() -> Iterator[list[SwitchedNetwork]]:
    opened: list[SwitchedNetwork] = []
    yield opened
    for network in opened:
        network.close()


def begin(
    networks: list[SwitchedNetwork],
    consistency: Consistency,
    topology: str = "two racks",
    faults: Faults | None = None,
    seed: int = 1,
    **options,
) -> Apart:
    network = network_of(topology, seed, faults or Faults())
    networks.append(network)
    return Apart(network, topology, consistency, **options)


@KINDS
@pytest.mark.parametrize("topology", ["one rack", "two racks"])
def test_every_gradient_is_in_once_whatever_the_network_does(
    consistency, topology, networks
) -> None:
    apart = begin(networks, consistency, topology, BAD)
    apart.run()
    assert apart.started.job.epoch == 1
    counters = networks[0].servers["s0"].counters(apart.started.job.number)
    assert counters["duplicate"] > 0
    assert counters["stepped"] == counters["started"] * apart.rounds * len(apart.seconds)


def test_a_faster_worker_gets_ahead_as_far_as_it_may(networks) -> None:
    for consistency, expected in (
        (ASYNCHRONOUS, 10),
        (Consistency(False, 3), 3),
        (Consistency(False, 0), 0),
    ):
        seconds = [0.01, 0.5, 0.5]
        apart = begin(networks, consistency, "one rack", seconds=seconds, rounds=10)
        apart.after(3, rank=1)
        # The slow ones have done 3 of 10, and the first all that it may.
        assert apart.complete[0] == min(apart.rounds, 3 + expected)
        apart.run()
        statistics = apart.transport(0).statistics
        assert statistics.most_ahead == min(expected, 10)
        assert (statistics.ahead > 0) == (expected > 0)
        assert apart.transport(1).statistics.most_ahead <= 1
        # Whoever waits for others asks, and sends nothing again.
        assert statistics.retransmitted == 0


@KINDS
@pytest.mark.parametrize("victim", [0, 1])
def test_a_server_that_dies_takes_no_gradient_with_it(consistency, victim, networks) -> None:
    """Nor does the other one, when the first is back with what it had from that."""
    apart = begin(networks, consistency, faults=Faults(0.01, 0.01, 0.01), rounds=12)
    network, started = networks[0], apart.started
    apart.after(3)
    started.kill_server(victim)
    apart.after(6)
    assert started.job.scheme.servers == (1 - victim,)
    started.restart_server(victim)
    assert network.run(lambda: started.job.scheme.servers == (0, 1), network.now + 100)
    apart.after(8)
    started.kill_server(1 - victim, told=True)
    apart.run()
    assert started.job.scheme.servers == (victim,)
    assert all(one.source.startswith("s") for one in started.job.restored)


@KINDS
def test_a_plan_that_changes_on_the_way_changes_nothing(consistency, networks) -> None:
    apart = begin(networks, consistency, faults=BAD, rounds=8, seconds=[0.01, 0.1])
    for number, options in enumerate(({"window": 2}, {"streams": 3}, {"window": 32, "streams": 1})):
        apart.after(2 * number + 1)
        apart.started.replan("test", **options)
    apart.run()
    assert apart.started.job.epoch == 4


@KINDS
def test_a_worker_that_comes_back_goes_on_where_all_are(consistency, networks) -> None:
    """Whatever became of its last gradients: its process before it may have been ahead of all."""
    apart = begin(networks, consistency, faults=Faults(0.01, 0.01, 0.01), rounds=14,
                  seconds=[0.01, 0.1, 0.05])  # fmt: skip
    network, started = networks[0], apart.started
    for victim, rounds in ((0, 4), (1, 8)):
        apart.after(rounds, rank=2)
        apart.kill(victim)
        apart.after(rounds + 1, rank=2)
        apart.restart(victim)
        before = started.joined
        assert network.run(lambda before=before: started.joined > before, network.now + 100)
    # A server that takes over afterwards knows of it.
    started.kill_server(0, told=True)
    apart.run()
    assert started.joined == 2
    assert started.job.scheme.servers == (1,)


@KINDS
@pytest.mark.parametrize("topology", ["one rack", "two racks"])
def test_without_any_server_parameters_come_from_workers(consistency, topology, networks) -> None:
    """What they were answered last is in; the job says where parameters are from, and goes on."""
    apart = begin(networks, consistency, topology, rounds=8, seconds=[0.01, 0.1])
    network, started = networks[0], apart.started
    apart.after(3, rank=1)
    apart.loose = True
    for rank in range(len(started.servers)):
        started.kill_server(rank)
        network.at(network.now + 0.2 + 0.2 * rank, lambda rank=rank: started.restart_server(rank))
    apart.run()
    restored = [one for one in started.job.restored if one.source.startswith("w")]
    assert sum(one.chunks for one in restored) >= apart.chunks
