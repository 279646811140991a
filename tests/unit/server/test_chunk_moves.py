# SPDX-License-Identifier: Apache-2.0
"""Tests that chunks have one sequence of steps whichever servers take them, for any maps, orders of
answers, and keys that are not pushed."""

from __future__ import annotations

import random

import numpy as np
import pytest

from hosts.data.snapshot import pages
from hosts.server.chunk_fetches import MoveTask
from hosts.server.chunk_moves import ChunkMoves
from hosts.server.shards import Shards
from protocol.optimizer_plan import OptimizerPlan
from protocol.plan import ServerPlan
from tests.unit.server.plans import server_plan

SERVERS, CHUNKS, LANES = 4, 12, 4
ADAM = OptimizerPlan("adam", 0.1)
PLAN = server_plan(ADAM, SERVERS, CHUNKS, LANES)


class Servers:
    """The servers of a job, beside one that has all chunks and no map."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        plans = [ServerPlan.from_message(PLAN.to_message()) for _ in range(SERVERS)]
        for rank, plan in enumerate(plans):
            object.__setattr__(plan, "rank", rank)
        self.shards = [Shards(ADAM, CHUNKS, LANES) for _ in plans]
        pairs = zip(plans, self.shards, strict=True)
        self.moves = [ChunkMoves(plan, shards) for plan, shards in pairs]
        self.alone = Shards(ADAM, CHUNKS, LANES)
        self.owners = np.asarray(PLAN.server_of(np.arange(CHUNKS)), np.int64)
        self.values = np.random.default_rng(seed)
        self.gradients: dict[int, np.ndarray] = {}  # contributed, and no step of them taken
        self.addressed: dict[int, int] = {}  # of these: number of the map by which they were sent
        self.map = 0
        self.calls: list[tuple[ChunkMoves, MoveTask]] = []
        self.moved = self.searched = 0

    def contribute(self) -> None:
        """A worker contributes to some chunks whose last results it has."""
        for chunk in self.draw.sample(range(CHUNKS), self.draw.randint(1, CHUNKS // 2)):
            if chunk in self.gradients:
                continue
            gradient = self.values.standard_normal((1, LANES)).astype(np.float32)
            self.gradients[chunk], self.addressed[chunk] = gradient, self.map
            self._step(self.alone, chunk)
            rank, at = int(self.owners[chunk]), np.array([chunk])
            for slot in self.moves[rank].here(
                at, at, lambda slots, rank=rank: self._go(rank, slots)
            ):
                self._go(rank, [slot])
        self.ask()

    def _go(self, rank: int, slots) -> list:
        for chunk in map(int, slots):
            self._step(self.shards[rank], chunk)
            del self.gradients[chunk], self.addressed[chunk]
        return []

    def _step(self, shards: Shards, chunk: int) -> None:
        at = np.array([chunk])
        if shards.levels[chunk]:
            shards.step(at, self.gradients[chunk])
        else:
            shards.start(at, self.gradients[chunk])

    def ask(self) -> None:
        self.calls += [(moves, task) for moves in self.moves for task in moves.take_tasks(0.0)]
        ranks = [(id(moves), task.rank) for moves, task in self.calls]
        assert len(set(ranks)) == len(ranks), "two calls to one server at a time"

    def answer(self) -> None:
        """One call is answered."""
        moves, task = self.calls.pop(self.draw.randrange(len(self.calls)))
        given = self.moves[task.rank].give(task.chunks, task.stale)
        self.searched += task.stale
        self.moved += len(given)
        moves.arrived(task, list(pages(given)), 0.0)
        self.ask()

    def remap(self) -> None:
        """The next map, which is cancelled now and then."""
        while any(number < self.map for number in self.addressed.values()):
            self.answer()  # as workers complete these rounds before
        after = self.owners.copy()
        some = self.values.random(CHUNKS) < 0.5
        after[some] = self.values.integers(0, SERVERS, np.count_nonzero(some))
        for moves in self.moves:
            moves.own(self.map + 1, self.owners, after)
        if self.draw.random() < 0.7:
            self.owners, self.map = after, self.map + 1

    def check(self) -> None:
        """The newest copy of each chunk is that of the one that is alone."""
        while self.calls:
            self.answer()
        assert not self.gradients
        every = np.arange(CHUNKS)
        newest = np.argmax([shards.levels for shards in self.shards], axis=0)
        for chunk, rank in enumerate(newest.tolist()):
            at = every[chunk : chunk + 1]
            mine, right = self.shards[rank].copy(at), self.alone.copy(at)
            assert mine.levels == right.levels
            assert np.array_equal(mine.parameters.view("u4"), right.parameters.view("u4"))
            assert np.array_equal(mine.state.view("u4"), right.state.view("u4"))


@pytest.mark.parametrize("seed", range(30))
def test_moved_chunks_have_one_sequence_of_steps(seed: int) -> None:
    servers = Servers(seed)
    for _ in range(200):
        actions = [servers.contribute, servers.remap]
        if servers.calls:
            actions += [servers.answer] * 4
        servers.draw.choice(actions)()
    servers.check()
    assert servers.moved > 50
    assert servers.searched, "no chunk passed a server that got no contribution to it"


def test_a_call_asks_for_no_more_than_its_share() -> None:
    plan = ServerPlan.from_message(PLAN.to_message())
    shards = Shards(ADAM, CHUNKS, 1 << 16)  # 768 KiB each
    moves = ChunkMoves(plan, shards)
    everything, other = np.arange(CHUNKS), np.ones(CHUNKS, np.int64)
    moves.own(1, other, 0 * other)
    moves.need(everything)
    asked = []
    while moves.expected:
        (task,) = moves.take_tasks(0.0)
        assert not moves.take_tasks(0.0)
        assert len(task.chunks) == 1
        asked += task.chunks.tolist()
        moves.arrived(task, [shards.copy(task.chunks)], 0.0)
    assert asked == everything.tolist()
    assert not moves.pending
