# SPDX-License-Identifier: Apache-2.0
"""Tests the balancer psld on servers whose speeds are known to the test alone."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest

from controller.planning.balancing.balancer import Load, Measurements, Round, ServerRound
from controller.planning.balancing.psld import Psld
from protocol.balance import Balance
from protocol.trees import TreeKind

CHUNKS, SLICES = 20, 400
RATE = 1000.0  # chunks a second
WINDOW = 256
LATENCY = 0.001  # seconds from a worker to a server and back
SENT = CHUNKS * SLICES / RATE / 4  # seconds in which workers send as fast as four servers sum


class Servers:
    """A job that its servers bound: a round lasts until the last of them is done.

    Workers send contributions in one order, evenly over `workers` seconds, and at most WINDOW are
    at a server. So a server that keeps up is done when they have sent all, and has no queue.

    speeds: of servers, of RATE; the last `spares` have no slices. compute: seconds of a round
    beside that. noise: of all durations, as a share. rule: the server of each slice at first; by
    turns unless given.
    """

    def __init__(
        self,
        speeds: Sequence[float],
        compute: float = 0.0,
        noise: float = 0.0,
        seed: int = 1,
        spares: int = 0,
        workers: float = 0.0,
        rule: Sequence[int] = (),
    ) -> None:
        self.speeds = list(speeds)
        self.compute, self.noise, self.workers = compute, noise, workers
        used = len(speeds) - spares
        self.spares = frozenset(range(used, len(speeds)))
        self.rule = list(rule) or [one % used for one in range(SLICES)]
        self.owners = list(self.rule)
        self.moves: list[int] = []  # slices that each changed
        self.rounds: list[float] = []
        # Maps and spares, for the rounds to come.
        self._coming: list[tuple[list[int], frozenset[int]]] = []
        self._random = random.Random(seed)

    @property
    def best(self) -> float:
        """The least duration of a round."""
        return CHUNKS * SLICES / RATE / sum(self.speeds) + self.compute

    def round(self, balancer: Psld) -> float:
        """Runs a round and lets the balancer observe it; returns its duration."""
        if self._coming:
            self.owners, self.spares = self._coming.pop(0)
        load = [CHUNKS * self.owners.count(server) for server in range(len(self.speeds))]
        busy = [n / RATE / speed for n, speed in zip(load, self.speeds, strict=True)]
        noise = 1 + self.noise * self._random.gauss(0, 1)
        busy = [max(one, self.workers) if one else 0.0 for one in busy]
        seconds = (max(busy) + self.compute) * noise
        self.rounds.append(seconds)
        servers = []
        for server in range(len(self.speeds)):
            ended = busy[server] * (1 + self.noise * self._random.gauss(0, 1))
            waited = _waited(load[server], RATE * self.speeds[server], self.workers)
            waited *= 1 + self.noise * self._random.gauss(0, 1)
            servers.append(ServerRound(server, load[server], waited, ended))
        moved = tuple(
            (one, owner)
            for one, (owner, rule) in enumerate(zip(self.owners, self.rule, strict=True))
            if owner != rule
        )
        found = Load(
            tuple(self.owners),
            (CHUNKS,) * SLICES,
            8000,
            dict.fromkeys(sorted({*range(len(self.speeds))} - self.spares), RATE),
            moved,
            bool(self._coming),
            dict.fromkeys(sorted(self.spares), RATE),
        )
        complete = Round(len(self.rounds), seconds, tuple(servers))
        for move in balancer.observe(_measurements(complete, found)):
            assert move.moved is not None
            after = list(self.rule)
            for one, owner in move.moved:
                after[one] = owner
            self.moves.append(sum(a != b for a, b in zip(after, self.owners, strict=True)))
            spares = (self.spares if move.spares is None else move.spares) - {*after}
            self._coming = [(self.owners, self.spares), (after, spares)]
        return seconds


def _waited(chunks: int, rate: float, sent: float) -> float:
    """Returns the mean seconds that contributions are at a server.

    They arrive evenly over `sent` seconds, but as long as WINDOW of them are at the server only as
    fast as it sums, `rate` a second.
    """
    if not chunks:
        return 0.0
    alone = LATENCY + 1 / rate
    if chunks <= rate * sent:
        return alone
    surplus = chunks / sent - rate if sent else math.inf
    full = WINDOW / surplus  # when the window is full
    if full > sent:
        most = surplus * sent
        area = most / 2 * (sent + most / rate)
    else:
        most = min(WINDOW, chunks)
        left = chunks - most - rate * full  # that are sent as fast as the server sums
        area = most * (full / 2 + left / rate + most / rate / 2)
    return alone + area / chunks


def _measurements(complete: Round, load: Load) -> Measurements:
    return Measurements(
        changed="", now=0.0, epoch=1, changing=False, waiting="", kind=TreeKind.NONE, window=WINDOW,
        streams=1, switches=frozenset(), servers=(), unanswered={}, slots={},
        outdated=lambda: False, round=complete, load=load,
    )  # fmt: skip


@pytest.mark.parametrize("k", [2, 3.5, 5])
@pytest.mark.parametrize("noise", [0.0, 0.02])
@pytest.mark.parametrize(("servers", "slow"), [(2, 1), (4, 1), (4, 2), (10, 1), (10, 3)])
def test_stragglers_cost_little_in_the_end(servers: int, slow: int, k: float, noise: float) -> None:
    """The bound is (k (P - S) + S) / P: the others take what S slow ones cannot."""
    job = Servers([1 / k] * slow + [1.0] * (servers - slow), noise=noise)
    balancer = Psld(Balance("psld"))
    before = job.round(balancer)
    for _ in range(100):
        job.round(balancer)
    after = sum(job.rounds[-20:]) / 20
    assert before / after >= 0.9 * (k * (servers - slow) + slow) / servers
    assert after >= job.best * (1 - 5 * noise)


def test_recovery_takes_few_rounds() -> None:
    job = Servers([1 / 3.5, 1, 1, 1])
    balancer = Psld(Balance("psld"))
    for _ in range(30):
        job.round(balancer)
    assert next(n for n, one in enumerate(job.rounds) if one < 1.1 * job.best) <= 6


@pytest.mark.parametrize("compute", [0.0, 5.0])
def test_nothing_moves_while_nothing_is_wrong(compute: float) -> None:
    job = Servers([1, 1, 1, 1], compute, noise=0.05)
    balancer = Psld(Balance("psld"))
    for _ in range(500):
        job.round(balancer)
    assert job.moves == []


def test_load_does_not_swing() -> None:
    """After the straggler is dealt with, 500 noisy rounds move little."""
    job = Servers([1 / 3.5, 1, 1, 1], noise=0.05)
    balancer = Psld(Balance("psld"))
    for _ in range(500):
        job.round(balancer)
    assert sum(job.moves[4:]) <= SLICES // 4


@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_what_changes_late_is_answered_as_fast(noise: float) -> None:
    """Rounds before the change do not count as noise."""
    job = Servers([1, 1, 1, 1], noise=noise)
    balancer = Psld(Balance("psld"))
    for _ in range(30):
        job.round(balancer)
    job.speeds[0] = 1 / 3.5
    for _ in range(8):
        job.round(balancer)
    assert job.rounds[-1] < 1.15 * job.best


def test_a_straggler_that_recovers_gets_load_again() -> None:
    job = Servers([1 / 5, 1, 1, 1], noise=0.01)
    balancer = Psld(Balance("psld"))
    for _ in range(60):
        job.round(balancer)
    job.speeds[0] = 1.0
    for _ in range(40):
        job.round(balancer)
    assert sum(job.rounds[-20:]) / 20 <= 1.1 * job.best


def test_a_move_takes_no_more_bytes_than_it_may() -> None:
    job = Servers([1 / 5, 1, 1, 1])
    balancer = Psld(Balance("psld", most_bytes=10 * CHUNKS * 8000))
    for _ in range(100):
        job.round(balancer)
    assert job.moves
    assert max(job.moves) <= 10
    assert job.rounds[-1] < 0.7 * job.rounds[0]


def test_a_move_that_does_not_help_is_undone() -> None:
    """The others are slower with more slices than they have at first, and it is tried ever more
    rarely."""
    job = Servers([1 / 3, 1, 1, 1])
    balancer = Psld(Balance("psld"))
    undone = 0
    for _ in range(500):
        job.speeds = [1 / 3, 1, 1, 1] if job.owners == job.rule else [1 / 3, 0.1, 0.1, 0.1]
        moved = job.owners != job.rule
        job.round(balancer)
        undone += moved and job.owners == job.rule
    assert job.owners == job.rule
    assert 1 <= undone <= _tries(500)
    assert len(job.moves) == 2 * undone


def _tries(rounds: int) -> int:
    """How often one thing is tried at most that does not help: with rests of 20, 80, 320 rounds."""
    tries, rest, left = 1, 20, rounds
    while left > rest:
        left, rest, tries = left - rest, rest * 4, tries + 1
    return tries


@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_whole_keys_at_ten_servers_become_level_in_few_moves(noise: float) -> None:
    """Servers with few chunks are done when workers have sent all, which looks slow."""
    rule = [0] * 286 + [1] * 46 + [2 + one % 8 for one in range(SLICES - 286 - 46)]
    job = Servers([1.0] * 10, noise=noise, workers=CHUNKS * SLICES / RATE / 10, rule=rule)
    balancer = Psld(Balance("psld"))
    for _ in range(30):
        job.round(balancer)
    assert job.rounds[0] > 7 * job.best
    assert sum(job.rounds[-4:]) / 4 <= 1.1 * job.best
    assert len(job.moves) <= 3


@pytest.mark.parametrize("k", [2, 3.5, 5])
@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_a_straggler_that_comes_and_goes_gets_its_load_back(k: float, noise: float) -> None:
    """It is slow for 25 rounds of 50."""
    job = Servers([1, 1, 1, 1], noise=noise, workers=SENT)
    balancer = Psld(Balance("psld"))
    alone = ideal = 0.0
    for number in range(500):
        job.speeds[0] = 1 / k if number // 25 % 2 else 1.0
        alone += max(CHUNKS * SLICES / 4 / RATE / job.speeds[0], SENT)
        job.round(balancer)
        if number > 50 and number % 25 == 24:
            assert job.rounds[-1] <= 1.15 * job.best * (1 + 2 * noise)
        ideal += job.best
    assert sum(job.rounds) < alone / 1.25
    assert sum(job.rounds) < ideal * 1.35


@pytest.mark.parametrize("k", [2, 3.5, 5])
def test_load_does_not_swing_where_workers_send_in_one_order(k: float) -> None:
    job = Servers([1 / k, 1, 1, 1], noise=0.05, workers=SENT)
    balancer = Psld(Balance("psld"))
    for _ in range(500):
        job.round(balancer)
    assert sum(job.rounds[50:]) / 450 <= 1.07 * job.best  # noise makes the longest longer
    assert sum(job.moves[4:]) <= SLICES // 4


def test_a_slow_server_without_a_queue_is_rarely_given_too_much() -> None:
    """It has less than it could sum while workers send, so nothing shows how slow it is."""
    rule = [0] * 20 + [1 + one % 3 for one in range(SLICES - 20)]
    job = Servers([1 / 3.5, 1, 1, 1], noise=0.02, workers=SENT, rule=rule)
    balancer = Psld(Balance("psld"))
    tries = 0
    for _ in range(500):
        few = job.owners.count(0)
        job.round(balancer)
        tries += job.owners.count(0) > few
    assert 1 <= tries <= _tries(500)
    assert job.owners == job.rule
    assert sum(job.rounds) / 500 <= 1.07 * job.best


def test_a_spare_server_is_used_where_servers_bound_rounds() -> None:
    job = Servers([1, 1, 1, 1, 1], noise=0.01, spares=1)
    balancer = Psld(Balance("psld"))
    for _ in range(60):
        job.round(balancer)
    assert job.spares == frozenset()
    assert sum(job.rounds[-20:]) / 20 <= 1.05 * job.best


def test_a_straggler_and_a_spare_server_beat_the_bound() -> None:
    """With what servers have at first, rounds would become at most 2.875 times shorter."""
    job = Servers([1 / 3.5, 1, 1, 1, 1], spares=1)
    balancer = Psld(Balance("psld"))
    for _ in range(60):
        job.round(balancer)
    assert job.rounds[0] / job.rounds[-1] > 3.5


def test_a_spare_server_that_does_not_help_is_left_alone() -> None:
    """Workers bound rounds: each server seems busy all the time, and is not."""
    seconds = 1.5 * CHUNKS * SLICES / RATE / 4
    job = Servers([1, 1, 1, 1, 1], noise=0.01, spares=1, workers=seconds)
    balancer = Psld(Balance("psld"))
    for _ in range(500):
        job.round(balancer)
    assert job.spares == {4}
    assert 2 <= len(job.moves) <= 2 * 4  # tried and undone, ever more rarely


def test_a_server_that_does_next_to_nothing_becomes_a_spare() -> None:
    job = Servers([1e-3, 1, 1, 1])
    balancer = Psld(Balance("psld"))
    for _ in range(60):
        job.round(balancer)
    assert job.spares == {0}
    assert job.rounds[-1] <= 1.05 * job.best


@pytest.mark.parametrize("spares", [{}, {2: RATE}])
def test_slices_that_cannot_move_are_no_move(spares: dict[int, float]) -> None:
    """Each server has one long slice. A server that sums more than its chunks, as some come again
    in float32, seems to be less busy with what it has than it was."""
    balancer = Psld(Balance("psld"))
    load = Load((0, 1), (20, 20), 8000, {0: RATE, 1: RATE}, (), False, spares)
    for number in range(1, 50):
        servers = ServerRound(0, 40, 0.1, 1.0), ServerRound(1, 36, 0.1, 0.9)
        complete = Round(number, 1.0, servers)
        assert list(balancer.observe(_measurements(complete, load))) == []


def test_a_job_with_one_server_tries_no_moves() -> None:
    job, balancer = Servers([1], noise=0.01), Psld(Balance("psld", explore=1.0))
    for _ in range(60):
        job.round(balancer)
    assert job.moves == []
