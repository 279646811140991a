# SPDX-License-Identifier: Apache-2.0
"""Tests the balancer psld on servers whose speeds are known to the test alone."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from controller.planning.balancing.balancer import Load, Measurements, Round, ServerRound
from controller.planning.balancing.psld import Psld
from protocol.balance import Balance
from protocol.trees import TreeKind

CHUNKS, SLICES = 20, 400
RATE = 1000.0  # chunks a second
WINDOW = 64


class Servers:
    """A job that its servers bound: a round lasts until the last of them is done.

    speeds: of servers, of RATE; the last `spares` have no slices. compute: seconds of a round
    beside that. workers: seconds that workers take at least until they have all sums. noise: of a
    round's duration, as a share.
    """

    def __init__(
        self,
        speeds: Sequence[float],
        compute: float = 0.0,
        noise: float = 0.0,
        seed: int = 1,
        spares: int = 0,
        workers: float = 0.0,
    ) -> None:
        self.speeds = list(speeds)
        self.compute, self.noise, self.workers = compute, noise, workers
        used = len(speeds) - spares
        self.spares = frozenset(range(used, len(speeds)))
        self.rule = [one % used for one in range(SLICES)]
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
            servers.append(ServerRound(server, load[server], 0.0, ended))
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
    """Rounds are bound by computing, which no move makes shorter."""
    job = Servers([1 / 3, 1, 1, 1])
    balancer = Psld(Balance("psld"))
    while not job.moves:
        job.round(balancer)
    job.speeds = [1 / 3, 1e-2, 1e-2, 1e-2]  # the others became slower meanwhile
    for _ in range(12):
        job.round(balancer)
    assert job.owners == job.rule


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
