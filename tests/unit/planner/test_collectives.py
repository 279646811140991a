# SPDX-License-Identifier: Apache-2.0
"""Tests every collective's sum against numpy, and its traffic against its closed forms."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from queue import SimpleQueue

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines.members import StreamMember, sum_of, values_of
from planner.collectives import COLLECTIVES, Team
from planner.collectives.streams import Array
from planner.flows import VALUE, Round
from planner.network import Line, Network

WAIT_SECONDS = 30.0
Queues = dict[tuple[int, int], SimpleQueue[Array]]


class Sums:
    """See ``streams.Switches``: the server that adds last gives all of them their sums."""

    def __init__(self, boxes: int, size: int, key: int):
        self.bounds = (*range(0, size, key), size)
        self._sum = np.zeros(size, np.float32)
        self._missing = [boxes] * (len(self.bounds) - 1)
        self._then: list[list[Callable[[Array], None]]] = [[] for _ in self._missing]
        self._lock, self._given = threading.Lock(), 0
        self.over = threading.Event()

    def add(self, key: int, values: Array, then: Callable[[Array], None]) -> None:
        with self._lock:
            here = self._sum[self.bounds[key] : self.bounds[key + 1]]
            here += values
            self._missing[key] -= 1
            self._then[key].append(then)
            while self._given < len(self._missing) and not self._missing[self._given]:
                low, high = self.bounds[self._given], self.bounds[self._given + 1]
                for one in self._then[self._given]:
                    one(self._sum[low:high].copy())
                self._given += 1
            if self._given == len(self._missing):
                self.over.set()

    def wait(self) -> None:
        assert self.over.wait(WAIT_SECONDS)


class Memory:
    """See ``streams.Streams``: queues between threads, which keep what was sent over them."""

    switches: Sums | None = None

    def __init__(self, member: int, piece: int, queues: Queues, sent: dict[tuple[int, int], int]):
        self.piece = piece
        self._member, self._queues, self._sent = member, queues, sent
        self._left: dict[int, Array] = defaultdict(lambda: np.zeros(0, np.float32))

    def send(self, peer: int, values: Array) -> None:
        self._sent[self._member, peer] += VALUE * len(values)
        self._queues[self._member, peer].put(values.copy())

    def receive(self, peer: int, into: Array) -> None:
        while len(self._left[peer]) < len(into):
            came = self._queues[peer, self._member].get(timeout=WAIT_SECONDS)
            self._left[peer] = np.concatenate([self._left[peer], came])
        into[...] = self._left[peer][: len(into)]
        self._left[peer] = self._left[peer][len(into) :]


def together(members: int, piece: int, work: Callable[[int, Memory], None]) -> dict:
    """Runs all members at once; returns the bytes that each sent to each."""
    queues: Queues = defaultdict(SimpleQueue)
    sent: dict[tuple[int, int], int] = defaultdict(int)
    errors: list[Exception] = []
    for pair in [(a, b) for a in range(members) for b in range(members)]:
        queues[pair], sent[pair] = SimpleQueue(), 0

    def one(member: int) -> None:
        try:
            work(member, Memory(member, piece, queues, sent))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=one, args=[member]) for member in range(members)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    return {pair: count for pair, count in sent.items() if count}


def values_per_pair(rounds: list[Round]) -> dict[tuple[int, int], int]:
    found: dict[tuple[int, int], int] = defaultdict(int)
    for one in rounds:
        for pair, messages in one.items():
            found[pair] += sum(messages)
    return {pair: count for pair, count in found.items() if count}


@pytest.mark.parametrize("name", COLLECTIVES)
@settings(max_examples=30, deadline=None)
@given(
    racks=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    boxes=st.integers(1, 3),
    size=st.integers(1, 300),
    piece=st.integers(1, 64),
    key=st.integers(1, 64),
    seed=st.integers(0, 99),
)
def test_all_workers_get_the_sum(
    name: str, racks: list[int], boxes: int, size: int, piece: int, key: int, seed: int
):
    """Each pair of members also exchanges the bytes of the closed form. racks: workers of each.
    Where switches sum for servers, whatever pieces and keys are."""
    one = COLLECTIVES[name]
    places = tuple(rack for rack, count in enumerate(racks) for _ in range(count))
    team = Team(places, tuple(range(len(racks))) * boxes)
    team = team.with_servers(one.servers(team))
    random = np.random.default_rng(seed)
    given_ = random.integers(-1000, 1000, (len(places), size)).astype(np.float32)
    values = given_.copy()
    switches = Sums(len(racks), size, min(key, piece))

    def work(member: int, streams: Memory) -> None:
        if member < len(places):
            one.reduce(member, team, values[member], streams)
        else:
            if one.switched and len(racks) > 1:
                streams.switches = switches
            one.serve(member, team, size, streams)

    sent = together(len(team.members), piece, work)
    assert (values == given_.sum(axis=0)).all()
    assert sent == values_per_pair(one.rounds(team, size))


@pytest.mark.parametrize("name", COLLECTIVES)
@pytest.mark.parametrize("workers", [2, 3, 6, 8, 12, 16])
def test_bytes_are_those_of_the_plan(name: str, workers: int):
    """`rackhub plan` has the same algorithms as shares of a tensor (Patarasuk and Yuan; Thakur et
    al.; PHub), over classes of links."""
    one, size = COLLECTIVES[name], 48 * workers
    team = Team((0,) * workers, (0,) * 4)
    team = team.with_servers(one.servers(team))
    lines = {"worker": Line(1e9), "server": Line(1e9)}
    loads = one.loads(Network((workers,), (4,), (), lines))
    out: dict[int, int] = defaultdict(int)
    into: dict[int, int] = defaultdict(int)
    for (a, b), count in values_per_pair(one.rounds(team, size)).items():
        out[a] += count
        into[b] += count
    for kind, members in (
        ("worker", range(workers)),
        ("server", team.server_members),
    ):
        busiest = max((max(out[member], into[member]) for member in members), default=0)
        assert busiest == pytest.approx(loads.get(kind, 0) * VALUE * size)


def test_wrong_sum_is_reported():
    """One value of one piece arrives as another."""
    workers, size = 3, 40

    class Lying(Memory):
        def receive(self, peer: int, into: Array) -> None:
            super().receive(peer, into)
            into[0] += 1

    reports = {}

    def work(member: int, streams: Memory) -> None:
        if member == 1:
            streams.__class__ = Lying
        ring = COLLECTIVES["ring"]
        one = StreamMember(ring, member, Team((0,) * workers), size, streams, lambda: 0.0)
        reports[member] = one.iterate(1)

    together(workers, 64, work)
    assert sum(report.wrong for report in reports.values()) > 0
    total = sum(values_of(rank, 5, size).astype(np.float64) for rank in range(workers))
    assert (sum_of(workers, 5, size) == total).all()
