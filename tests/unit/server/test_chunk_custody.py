# SPDX-License-Identifier: Apache-2.0
"""Tests that one server at a time may step a chunk of an asynchronous job, for any maps that
servers and workers hear of at any time, and calls that are lost, repeated or late."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from hosts.data.snapshot import pages
from hosts.server.chunk_custody import ChunkCustody
from hosts.server.chunk_fetches import MoveTask
from hosts.server.shards import Shards
from protocol import shards_pb2
from protocol.consistency import ASYNCHRONOUS
from protocol.optimizer_plan import OptimizerPlan
from tests.unit.server.plans import server_plan

SERVERS, CHUNKS, LANES = 4, 6, 4
SGD = OptimizerPlan("sgd", 1.0, consistency=ASYNCHRONOUS)
PLAN = server_plan(SGD, SERVERS, CHUNKS, LANES)


class Servers:
    """The servers of a job. A step adds one to a chunk's parameters at the server that may take it,
    wherever workers send to."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        plans = [replace(PLAN, rank=rank) for rank in range(SERVERS)]
        self.shards = [Shards(SGD, CHUNKS, LANES, 1) for _ in plans]
        pairs = zip(plans, self.shards, strict=True)
        self.custody = [ChunkCustody(plan, shards) for plan, shards in pairs]
        self.owners = np.asarray(PLAN.server_of(np.arange(CHUNKS)), np.int64)
        for rank, shards in enumerate(self.shards):
            mine = np.flatnonzero(self.owners == rank)
            shards.start(mine, np.zeros((len(mine), LANES), np.float32))
        self.number = 0
        self.attempts = 0
        self.steps = np.zeros(CHUNKS, np.int64)
        # Calls on their way, and those that may still arrive although their caller has given up.
        self.calls: list[tuple[ChunkCustody, MoveTask]] = []
        self.late: list[tuple[int, shards_pb2.FetchRequest]] = []
        self.moved = self.refused = 0

    def remap(self) -> None:
        """Servers hear of the next map, some of it before it is given up for another one."""
        after = self.draw.choices(range(SERVERS), k=CHUNKS)
        self.number += 1
        told = self.custody if self.draw.random() < 0.8 else self.draw.sample(self.custody, 2)
        for one in told:
            one.own(self.number, self.owners, np.array(after))
        if len(told) == SERVERS:
            self.owners = np.array(after)

    def contribute(self) -> None:
        """A packet of a worker that has any map comes to a server."""
        rank, chunk = self.draw.randrange(SERVERS), self.draw.randrange(CHUNKS)
        if self.draw.random() < 0.7:
            rank = int(self.owners[chunk])
        at, one = np.array([chunk]), self.custody[rank]
        if one.held[chunk]:
            gradient = np.full((1, LANES), -1, np.float32)
            self.shards[rank].step(at, gradient)
            self.steps[chunk] += 1
        one.need(at)
        self.calls += [(one, task) for task in one.take_tasks(0.0)]

    def call(self) -> None:
        """One call reaches the other server; the answer, or the call, may be lost. Then it is made
        again, and may come later all the same."""
        one, task = self.calls.pop(self.draw.randrange(len(self.calls)))
        self.attempts += 1
        request = task.to_message(self.attempts)
        fate = self.draw.random()
        if fate < 0.2:
            self.late.append((task.rank, request))
            self.calls.append((one, task))
            return
        given = self._give(task.rank, request)
        assert given is not None, "the newest call is never late"
        if fate < 0.4:
            self.calls.append((one, task))
            return
        found = one.arrived(task, list(pages(given)), 0.0)
        self.moved += len(found)
        self.calls += [(one, task) for task in one.take_tasks(0.0)]

    def come_late(self) -> None:
        rank, request = self.late.pop(self.draw.randrange(len(self.late)))
        self.refused += self._give(rank, request) is None

    def _give(self, rank: int, request: shards_pb2.FetchRequest):
        chunks = np.frombuffer(request.chunks, "<u4").astype(np.int64)
        return self.custody[rank].give(chunks, request.rank, request.ticket, request.attempt)

    @property
    def held(self) -> np.ndarray:
        """(servers, chunks)"""
        return np.array([one.held[:-1] for one in self.custody])

    def settle(self) -> None:
        """Workers go on with the newest map until each chunk is where it says."""
        for one in self.custody:
            one.own(self.number + 1, self.owners, self.owners)
        for _ in range(10_000):
            if self.late:
                self.come_late()
            for chunk, rank in enumerate(self.owners.tolist()):
                self.custody[rank].need(np.array([chunk]))
            self.calls += [(one, task) for one in self.custody for task in one.take_tasks(0.0)]
            if not self.calls:
                break
            self.call()


@pytest.mark.parametrize("seed", range(40))
def test_one_server_takes_all_steps_of_a_chunk(seed: int) -> None:
    servers = Servers(seed)
    for _ in range(400):
        actions = [servers.contribute] * 6 + [servers.remap]
        if servers.calls:
            actions += [servers.call] * 6
        if servers.late:
            actions += [servers.come_late]
        servers.draw.choice(actions)()
        assert (servers.held.sum(axis=0) <= 1).all(), "a chunk in the custody of two servers"
    servers.settle()
    assert servers.held.argmax(axis=0).tolist() == servers.owners.tolist()
    assert (servers.held.sum(axis=0) == 1).all()
    for chunk, rank in enumerate(servers.owners.tolist()):
        parameters = servers.shards[rank].parameters(np.array([chunk]))
        assert parameters.tolist() == [[servers.steps[chunk]] * LANES]
    assert servers.moved > 20
    assert servers.refused > 0


def test_a_chunk_that_is_sought_in_vain_is_sought_again_with_the_next_packet() -> None:
    """It was on its way, and nobody had it."""
    servers = Servers(0)
    one = servers.custody[0]
    chunk = np.flatnonzero(~one.held[:-1])[:1]
    one.own(1, np.full(CHUNKS, 1), np.zeros(CHUNKS, np.int64))
    for _ in range(2):
        one.need(chunk)
        asked = []
        while tasks := one.take_tasks(0.0):
            asked += [task.rank for task in tasks]
            for task in tasks:
                one.arrived(task, [], 0.0)
        # The server of the map before, then all.
        assert sorted(asked) == [1, 1, 2, 3]
