# SPDX-License-Identifier: Apache-2.0
"""Tests congestion windows: the contract of those registered, and that one file makes a new
one."""

from __future__ import annotations

import math
from typing import ClassVar

import pytest

from hosts.errors import PolicyError
from hosts.worker.congestion.registry import WINDOWS
from hosts.worker.congestion.window import CongestionWindow, RoundTrip
from protocol.plan import PlanError
from tests.impaired_links import Impairments
from tests.unit.worker.simulated_job import Job

SLOTS = 8
CLEAR = RoundTrip(results=8, marked=0, retransmitted=0, smoothed=0.002, lowest=0.001)
LOST = RoundTrip(results=8, marked=3, retransmitted=2, smoothed=math.nan, lowest=math.inf)


class Halving(CongestionWindow):
    """Adds a chunk in each round trip, halves after a loss or a mark."""

    trips: ClassVar[list[RoundTrip]] = []

    def first(self):
        self._window = 1
        return 1

    def following(self, trip):
        Halving.trips.append(trip)
        congested = trip.marked or trip.retransmitted
        self._window = max(1, self._window // 2) if congested else self._window + 1
        return self._window


class Two(CongestionWindow):
    trips: ClassVar[list[RoundTrip]] = []

    def first(self):
        return 2

    def following(self, trip):
        Two.trips.append(trip)
        return 2


class OutOfBounds(CongestionWindow):
    def first(self):
        return 0

    def following(self, trip):
        return 1 << 40


OWN = {"halving": Halving, "two": Two, "out-of-bounds": OutOfBounds}


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    Halving.trips.clear()
    Two.trips.clear()
    for name, kind in OWN.items():
        assert name not in WINDOWS, "a test's own would hide the registered one"
        monkeypatch.setitem(WINDOWS, name, kind)


@pytest.mark.parametrize("name", list(WINDOWS))
def test_window_keeps_the_contract(name):
    window = WINDOWS[name](SLOTS)
    first = window.first()
    assert 1 <= first <= SLOTS
    following = [window.following(trip) for trip in (CLEAR, LOST, CLEAR)]
    assert all(1 <= size <= SLOTS for size in following)
    assert window.adapts or set(following) == {first}


@pytest.mark.parametrize("name", [*WINDOWS, *OWN])
def test_sums_do_not_depend_on_the_window(name):
    losses = Impairments(loss=0.1, duplicate=0.05, jitter=0.002)
    job = Job(
        servers=2,
        streams_per_server=2,
        chunks=32,
        window=SLOTS,
        congestion=name,
        impairments=losses,
    )
    for seed in range(2):  # each compares with sums made without a network
        job.round(job.random_values(seed), skew=[0.0, 0.01 * seed, 0.02])


def test_window_bounds_the_chunks_in_flight():
    job = Job(chunks=32, window=SLOTS, congestion="two")
    job.rule.windows[1] = 2  # no number leaves before the result of two before
    for _ in range(2):
        job.round(job.random_values(0))
    assert job.rule.contributions == 3 * 32 * job.world  # exponent rounds, two rounds of data


def test_window_is_asked_once_per_round_trip():
    job = Job(world=1, chunks=32, window=SLOTS, congestion="two")
    job.round(job.random_values(0))
    Two.trips.clear()
    job.round(job.random_values(0))
    # 32 numbers, two at a time; the end of a round is seen when the next one's chunks wait.
    assert [trip.results for trip in Two.trips] == [2] * (32 // 2)
    assert not any(trip.marked or trip.retransmitted for trip in Two.trips)
    assert all(trip.lowest == pytest.approx(0.002) for trip in Two.trips)  # two links of 1 ms


def test_losses_are_reported():
    job = Job(chunks=32, window=SLOTS, congestion="halving", impairments=Impairments(loss=0.1))
    for seed in range(3):
        job.round(job.random_values(seed))
    reported = sum(trip.retransmitted for trip in Halving.trips)
    assert 0 < reported <= sum(worker.statistics.retransmitted for worker in job.workers)


def test_unknown_window_is_refused():
    with pytest.raises(PlanError, match="congestion window 'elastic' is none of fixed"):
        Job(congestion="elastic")


def test_broken_window_is_named_with_its_file(monkeypatch):
    class Broken(Two):
        def following(self, trip):
            raise LookupError("no more windows")

    monkeypatch.setitem(WINDOWS, "broken", Broken)
    broken = Job(chunks=32, window=SLOTS, congestion="broken")
    with pytest.raises(PolicyError) as raised:
        broken.round(broken.random_values(0))
    assert str(raised.value).startswith(f"congestion window Broken ({__file__}:")
    assert str(raised.value).endswith("): LookupError: no more windows")
