# SPDX-License-Identifier: Apache-2.0
"""Tests what the controller makes of reports of workers and servers, round by round."""

from __future__ import annotations

import math
from typing import Any

import pytest

from controller.jobs.measuring import Rounds
from controller.jobs.members import Membership, Role
from controller.planning.balancing.balancer import Round
from controller.planning.balancing.straggling import (
    RECOVERED,
    ROUNDS,
    SLOWER,
    TIME_CONSTANT,
    Smoothed,
    Stragglers,
)
from protocol import jobs_pb2

pytestmark = pytest.mark.unit

SERVERS = (4, 7)  # by rank, as numbered in the job
NAMES = tuple(f"s{number}" for number in range(8))
WORKERS = [Membership(Role.WORKER, rank) for rank in range(2)]


def report(rounds: Rounds, rank: int, number: int = 1, **changes: Any) -> Round | None:
    """A worker's report of a round, in which the second server is done last."""
    fields = {"sums": [10, 5], "waited": [0.1, 0.5], "ended": [2.0, 4.0], "sent": 1.0, "seconds": 5}
    measured = jobs_pb2.Measured(round=number, **{**fields, **changes})
    return rounds.take(WORKERS[rank], measured, WORKERS, SERVERS)


def own(rounds: Rounds, server: int, **changes: float) -> None:
    """A server's report of half a second in which it had a sum for 20 ms."""
    fields = {"seconds": 0.5, "sums": 10, "handled": 0.2, "queued": 0.1, "optimized": 0.05}
    measured = jobs_pb2.ServerMeasured(**{**fields, "received_bytes": 1000, **changes})
    rounds.take_from_server(Membership(Role.SERVER, server), measured, SERVERS)


def test_a_round_has_what_workers_and_servers_measured() -> None:
    rounds = Rounds()
    own(rounds, 7)
    assert report(rounds, 0) is None
    found = report(rounds, 1, ended=[4.0, 2.0], waited=[0.3, 0.5])
    assert found is not None
    first, second = found.servers
    assert (first.server, second.server) == SERVERS
    assert first.waited == pytest.approx(0.4 / 20)
    assert (first.handled, second.handled) == (0.0, pytest.approx(0.02))  # the first is silent
    assert (first.ended, second.ended) == (4.0, 4.0)
    # Each worker waits for both servers for a second, and for the last one for two more.
    assert first.blamed == second.blamed == pytest.approx((0.5 + 2.5) / 2)


def test_workers_in_rounds_of_their_own_count_alike() -> None:
    """However many rounds the faster one has had; one that has left is not waited for."""
    rounds = Rounds()
    fields: dict[str, Any] = {"waited": [0.1, 0.5], "ended": [2.0, 4.0], "sent": 1.0}

    def own(rank: int, number: int, seconds: float, sums: list[int]) -> Round | None:
        measured = jobs_pb2.Measured(round=number, seconds=seconds, sums=sums, **fields)
        return rounds.take(WORKERS[rank], measured, workers, SERVERS, apart=True)

    workers = WORKERS
    assert own(0, 1, 1.0, [10, 4]) is None
    assert own(0, 2, 3.0, [10, 8]) is None
    found = own(1, 1, 10.0, [9, 5])
    assert found is not None
    assert (found.number, found.seconds) == (1, pytest.approx((2 + 10) / 2))
    assert [one.sums for one in found.servers] == [10, 6]
    assert found.servers[1].waited == pytest.approx((0.5 + 0.5) / (6 + 5))
    assert own(1, 2, 10.0, [9, 5]) is None
    workers = WORKERS[:1]
    found = own(0, 3, 1.0, [10, 5])
    assert found is not None
    assert (found.number, found.seconds) == (2, 1.0)


def test_blame_is_for_the_time_after_the_last_contribution() -> None:
    rounds = Rounds()
    for rank in range(2):
        found = report(rounds, rank, sent=3.0)
    assert found is not None
    # Nobody waits for the first server, which is done while contributions still leave.
    assert [one.blamed for one in found.servers] == [0.0, pytest.approx(1.0)]


def test_rows_are_smoothed_and_unknown_values_are_not_a_number() -> None:
    rounds = Rounds()
    assert [one.server for one in rounds.times(SERVERS, NAMES)] == ["s4", "s7"]
    assert all(math.isnan(one.waited) for one in rounds.times(SERVERS, NAMES))
    for number, seconds in enumerate((1.0, 2.0)):
        own(rounds, 7, handled=10 * seconds)
        for rank in range(2):
            report(rounds, rank, number, waited=[1.0, 5 * seconds])
    first, second = rounds.times(SERVERS, NAMES)
    weight = 1 - math.exp(-1 / TIME_CONSTANT)
    assert second.rounds == 2
    assert second.waited == second.handled == pytest.approx(1 + weight)
    assert second.holding == pytest.approx(20 * (1 + weight))  # seconds of handling a second
    assert second.received == pytest.approx(2000)
    assert first.waited == pytest.approx(0.1)
    assert math.isnan(first.handled)
    for number in range(2, 6):
        assert not math.isnan(rounds.times(SERVERS, NAMES)[1].waited)
        for rank in range(2):
            report(rounds, rank, number, sums=[15, 0], waited=[1.0, 0.0], ended=[2.0, 0.0])
    first, second = rounds.times(SERVERS, NAMES)
    assert first.rounds == 6
    assert math.isnan(second.waited), "it sums nothing any more"
    assert math.isnan(second.handled)
    assert second.blamed == 0
    rounds.drop()
    assert not rounds.times(SERVERS, NAMES)[1].rounds


@pytest.mark.parametrize(("role", "rank"), [(Role.WORKER, 4), (Role.SERVER, 0), (Role.SERVER, 5)])
def test_only_servers_of_the_plan_have_times_of_servers(role: Role, rank: int) -> None:
    rounds = Rounds()
    with pytest.raises(ValueError, match="no server of the plan"):
        rounds.take_from_server(
            Membership(role, rank), jobs_pb2.ServerMeasured(seconds=1, sums=1), SERVERS
        )


def test_a_report_of_no_time_changes_nothing() -> None:
    rounds = Rounds()
    own(rounds, 4, seconds=0.0)
    assert math.isnan(rounds.times(SERVERS, NAMES)[0].handled)


def test_the_verdict_has_hysteresis() -> None:
    stragglers = Stragglers()

    def late(seconds: float) -> bool:
        stragglers.observe({0: seconds, 1: 1.0, 2: 1.0})
        return 0 in stragglers.now

    between = (SLOWER + RECOVERED) / 2
    assert [late(2.0) for _ in range(ROUNDS)] == [False] * (ROUNDS - 1) + [True]
    assert late(between), "it has not recovered yet"
    assert not late(RECOVERED / 2)
    assert not late(between), "it has not become slow again"
    assert not late(2.0), "for one round"


def test_one_server_alone_does_not_straggle() -> None:
    stragglers = Stragglers()
    for _ in range(2 * ROUNDS):
        stragglers.observe({3: 9.0})
    assert not stragglers.now


def test_a_step_is_smoothed_with_the_time_constant() -> None:
    smoothed = Smoothed()
    smoothed.add(x=0.0)
    for _ in range(round(TIME_CONSTANT)):
        smoothed.add(x=1.0)
    assert smoothed.get("x") == pytest.approx(1 - math.exp(-1))
    assert math.isnan(smoothed.get("y"))
