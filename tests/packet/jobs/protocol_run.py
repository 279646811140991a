# SPDX-License-Identifier: Apache-2.0
"""Rounds of a job on a simulated network, with the expected results of every worker."""

from __future__ import annotations

import random
from collections.abc import Mapping

import numpy as np

from controller.planning.tree_planner import TreeKind
from hosts.data.reports import Completed
from hosts.optimizers import Optimizer
from protocol.header import Flag
from protocol.optimizer_plan import OptimizerPlan
from tests.history import history
from tests.impaired_links import Impairments
from tests.packet.jobs.switched_job import LANES, StartedJob
from tests.packet.jobs.switched_network import SwitchedNetwork
from topologies.model.spec import parse

# Virtual seconds; a run that needs more hangs. At 30 % loss per hop one query in 17 is answered.
LIMIT = 50_000.0

TOPOLOGIES = {
    "one rack": "racks: [{workers: 3, servers: 1}]\ncores: 0\n",
    "two racks": "racks: [{workers: 2, servers: 1}, {workers: 3, servers: 1}]\ncores: 1\n",
    "four racks": (
        "racks: [{workers: 2, servers: 1}, {workers: 1, servers: 0},"
        " {workers: 2, servers: 1}, {workers: 2, servers: 0}]\ncores: 2\n"
    ),
    "server rack": (
        "racks: [{workers: 2, servers: 0}, {workers: 3, servers: 0}, {workers: 0, servers: 2}]\n"
        "cores: 1\n"
    ),
    "four by four": (
        "racks: [{workers: 4, servers: 1}, {workers: 4, servers: 1},"
        " {workers: 4, servers: 0}, {workers: 4, servers: 0}]\ncores: 2\n"
    ),
    # Three levels of switches in a tree; workers are in two of the pods, servers in the third.
    "three levels": (
        "racks: [{workers: 2}, {workers: 1}, {workers: 2}, {workers: 2}, {workers: 0, servers: 2}]"
        "\ncores: [{racks: 2, cores: 2}, 2]\n"
    ),
}
# Three levels because a core takes no more than 32 racks.
MANY = {"many racks": "racks: [{workers: 1, servers: 1}, {workers: 1, count: 32}]\ncores: [2, 1]\n"}
# Of servers with several processes: five and four of them.
WIDE = {
    "wide server": (
        "racks: [{workers: 2, servers: 1, server_cores: 2}, {workers: 2, servers: 1}]\ncores: 1\n"
        "links: [{ends: [s0, tor0], add: true}]\n"
    ),
    "two wide servers": (
        "racks: [{workers: 2, servers: 1, server_cores: 2},"
        " {workers: 2, servers: 1, server_cores: 2}]\ncores: 1\n"
    ),
}
WORKERS = {"one rack": 3, "two racks": 5, "four racks": 7, "server rack": 5, "four by four": 16}
WORKERS |= dict.fromkeys(WIDE, 4) | {"three levels": 7, "many racks": 33}
SERVERS = {"one rack": 1, "two racks": 2, "four racks": 2, "server rack": 2, "four by four": 2}
SERVERS |= dict.fromkeys(WIDE, 2) | {"three levels": 2, "many racks": 1}


def kinds_of(topology: str) -> list[TreeKind]:
    """Returns the kinds of trees possible on a topology."""
    # A core without ToR nodes sees only what crosses it, so its servers must be in other racks.
    of_core = (TreeKind.CORE, TreeKind.CORE_SERVER)
    apart = ("server rack", "three levels")
    return [k for k in TreeKind if k not in of_core or topology in apart]


def streams_of(topology: str, kind: TreeKind, streams: int) -> int:
    """Returns a number of streams possible for such a tree."""
    # A switch under a server has one way up for each stream.
    under_server = kind.ends_at_server and kind is not TreeKind.NONE
    return streams * SERVERS[topology] if under_server else streams


def network_of(name: str, seed: int, faults: Impairments) -> SwitchedNetwork:
    return SwitchedNetwork(parse(f"name: test\n{(TOPOLOGIES | WIDE | MANY)[name]}"), seed, faults)


def start(
    network: SwitchedNetwork,
    topology: str,
    kind: TreeKind,
    chunks: int,
    name: str = "job",
    **options,
) -> StartedJob:
    workers = [f"w{i}" for i in range(WORKERS[topology])]
    servers = [f"s{i}" for i in range(SERVERS[topology])]
    return StartedJob(network, name, workers, servers, kind, chunks, **options)


def gradients(seed: int, rounds: int, world: int, chunks: int, odd: bool) -> np.ndarray:
    """(rounds, world, chunks, lanes) float32, chunks of all scales, each about the same in every
    round; `odd` ones overflow, are not finite or zero, in some rounds."""
    draw = np.random.default_rng(seed)
    scale = np.exp2(draw.integers(-40, 20, (1, 1, chunks, 1)))
    values = (draw.standard_normal((rounds, world, chunks, LANES)) * scale).astype(np.float32)
    if odd:
        for number in range(rounds):
            for chunk in range(number, chunks, 5):
                rank, lane = int(draw.integers(world)), int(draw.integers(LANES))
                factor = np.float32(draw.choice([1e12, np.inf, np.nan, 0]))
                values[number, rank, chunk, lane] *= factor
            values[number, :, chunks // 2] = 0
    return values


def optimized(
    values: np.ndarray, sums: np.ndarray, workers: np.ndarray, plan: OptimizerPlan
) -> np.ndarray:
    """(rounds, chunks, lanes) parameters that servers make of sums. values: (rounds, world, chunks,
    lanes), the first round's being initial parameters; workers: (rounds, chunks) in each sum."""
    parameters = values[0, 0].copy()
    optimizer = Optimizer(plan)
    result = [parameters.copy()]
    with np.errstate(over="ignore", invalid="ignore"):
        for number in range(1, len(values)):
            wide = sums[number].astype(np.float64) / workers[number][:, None]
            optimizer.step([parameters], [wide.astype(np.float32)])
            result.append(parameters.copy())
    return np.stack(result)


class ChunkError(AssertionError):
    """A chunk has a wrong or missing result."""

    def __init__(self, chunk: int, text: str) -> None:
        super().__init__(f"chunk {chunk}: {text}")
        self.chunk = chunk


class Run:
    """A job's rounds on a network, with what every worker got.

    leaving: how many rounds those take part in who leave before the end, by rank. Where servers
    optimize, the first round is one more, of initial parameters, the same at all. lead: rounds that
    a worker has under way at most.
    """

    def __init__(
        self,
        started: StartedJob,
        rounds: int,
        seed: int,
        odd: bool,
        leaving: Mapping[int, int] | None = None,
        lead: int = 1000,
    ) -> None:
        self.started = started
        self.chunks = chunks = started.chunks
        self._lead = lead
        self.optimizer = started.job.optimizer
        first = self.optimizer is not None
        self.rounds = rounds = rounds + first
        self.leaving = {rank: count + first for rank, count in (leaving or {}).items()}
        world = started.world
        self.values = gradients(seed, rounds, world, chunks, odd)
        if first:
            self.values[0] = self.values[0, :1]
        total = rounds * chunks
        self.got = np.full((world, total, LANES), np.nan, np.float32)
        self.flags = np.zeros((world, total), np.uint8)
        self.workers = np.zeros((world, total), np.int64)  # which of started.worlds is in it
        self.seen = np.zeros((world, total), np.int64)
        self._missing = [self.leaving.get(rank, rounds) * chunks for rank in range(world)]
        self._first = [0] * world  # round of a worker that came back
        self._next = [0] * world  # round to submit
        self._ready = [0] * world  # whose time has come: before this one
        self._complete = [0] * world  # rounds
        for rank, member in enumerate(started.members):
            member.on_instruction = lambda rank=rank: self._advance(rank)

    def submit(self, skew: float, seed: int) -> None:
        """Schedules each worker's submissions at its own times."""
        self._draw, self._skew = random.Random(seed), skew
        for rank in range(self.started.world):
            self._plan(rank)

    def restart(self, rank: int) -> None:
        """Restarts a dead worker, which continues with the next round."""
        self._missing[rank] = 1  # not in yet
        self.started.restart(rank, lambda calls: self._resume(rank, calls))

    def _resume(self, rank: int, calls: int) -> None:
        mine = self.seen[rank].reshape(self.rounds, self.chunks)
        assert not mine[calls:].any(), "a round that had begun without it was not complete"
        self._first[rank] = self._next[rank] = self._ready[rank] = self._complete[rank] = calls
        self._missing[rank] = (self.rounds - calls) * self.chunks
        self.started.members[rank].on_instruction = lambda: self._advance(rank)
        self._plan(rank)

    def _plan(self, rank: int) -> None:
        """Schedules the remaining rounds."""
        network, member = self.started.network, self.started.members[rank]
        at = network.now
        for number in range(self._next[rank], self.leaving.get(rank, self.rounds)):
            at += self._draw.random() * self._skew

            def ready(upto: int = number + 1) -> None:
                if self.started.members[rank] is member:
                    self._ready[rank] = max(upto, self._ready[rank])
                    self._advance(rank)

            network.at(at, ready)

    def _advance(self, rank: int) -> None:
        """Submits the rounds that are due."""
        while self._next[rank] < min(self._ready[rank], self._complete[rank] + self._lead):
            values = self.values[self._next[rank]][rank]
            if not self.started.submit(rank, np.arange(self.chunks), values, LANES):
                return
            self._next[rank] += 1

    @property
    def done(self) -> bool:
        """Collects results; tells whether every remaining worker has all of them."""
        started = self.started
        done = True
        for rank in started.staying:
            assert not started.members[rank].refused, started.members[rank].refused
            if started.members[rank].follower.transport is None:
                done = False
                continue
            completed = started.transport(rank).take_completed()
            if len(completed):
                self._collect(rank, completed)
            complete = self._missing[rank] == 0
            if rank in self.leaving and complete:
                started.leave(rank)
            done &= complete or rank in self.leaving
        return done

    def _collect(self, rank: int, completed: Completed) -> None:
        tickets = completed.tickets + self._first[rank] * self.chunks
        self._missing[rank] -= len(tickets)
        self.got[rank][tickets] = completed.sums
        self.flags[rank][tickets] = completed.flags
        members = self.started.members[rank].follower.members
        worlds = {n: self.started.worlds.index(members[n]) for n in set(completed.workers.tolist())}
        self.workers[rank][tickets] = [worlds[n] for n in completed.workers.tolist()]
        np.add.at(self.seen[rank], tickets, 1)
        twice = tickets[self.seen[rank][tickets] > 1]
        if len(twice):
            raise ChunkError(int(twice[0]) % self.chunks, f"worker {rank} got a sum twice")
        seen = self.seen[rank].reshape(self.rounds, self.chunks)
        while self._complete[rank] < self.rounds and seen[self._complete[rank]].all():
            self._complete[rank] += 1
            self.started.complete(rank)
        self._advance(rank)

    def check(self) -> None:
        """Checks that every worker has the contributors' sums, to the bit."""
        started = self.started
        stay = [rank for rank in started.staying if rank not in self.leaving]
        first = next(rank for rank in stay if rank not in started.killed)
        found = started.policies[first].found
        workers = self.workers[first].reshape(self.rounds, self.chunks)
        worlds = dict(enumerate(started.worlds))
        sums, flags = history(self.values, workers, found, worlds)
        if self.optimizer is not None:
            sizes = np.array([len(members) for members in started.worlds])[workers]
            sums = optimized(self.values, sums, sizes, self.optimizer)
            flags[0] = Flag.OVERFLOW  # whatever they are, initial parameters go DIRECT
        sums, direct = sums.reshape(-1, LANES), flags.reshape(-1) != 0
        for rank in range(started.world):
            mine = np.flatnonzero(self.seen[rank])
            due = (self.rounds - self._first[rank]) * self.chunks
            assert rank not in stay or np.count_nonzero(mine >= len(sums) - due) == due
            known = started.policies[rank].found
            if rank in started.killed:
                # It may have taken a sum that died with it, so that the others made another one.
                # What it has got since it came back is another matter.
                since = mine[mine >= len(sums) - due] if rank in stay else mine[:0]
                known = {chunk: known[chunk] for chunk in known if known[chunk] == found[chunk]}
                before = mine[~np.isin(mine, since)]
                before = before[self.workers[rank][before] == self.workers[first][before]]
                if rank not in stay:
                    before = before[np.isin(before % self.chunks, list(known))]
                mine = np.concatenate([before, since])
            for wrong, text in (
                ([c for c in known if known[c] != found[c]], "another exponent round"),
                (mine[self.workers[rank][mine] != self.workers[first][mine]], "of other workers"),
                (mine[different(self.got[rank][mine], sums[mine])], "wrong sum"),
                (
                    mine[(self.flags[rank][mine] & Flag.DIRECT != 0) != direct[mine]],
                    "who went to the server",
                ),
            ):
                for ticket in wrong[:1]:
                    raise ChunkError(int(ticket) % self.chunks, f"worker {rank}: {text}")

    def waiting(self) -> ChunkError:
        """Describes why it does not end."""
        now = self.started.network.now
        waiting = {
            rank: self.started.transport(rank).explain(now)[:2]
            for rank in self.started.staying
            if self.started.members[rank].follower.transport is not None
        }
        chunks = [known[0].chunk for known in waiting.values() if known]
        status = self.started.job.status
        return ChunkError(chunks[0] if chunks else 0, f"no sum; {status}; {waiting}")


def different(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(n,) which rows are not the same numbers."""
    return ~((a == b) | (np.isnan(a) & np.isnan(b))).all(axis=1)
