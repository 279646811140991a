# SPDX-License-Identifier: Apache-2.0
"""Runs of asynchronous jobs: workers train at their own speed and servers step with single
gradients.

The gradient of worker w is 1 in lane w and 0 elsewhere, the rate 1 and the first parameters 0: so a
chunk's parameters say how many gradients of each worker are in them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from controller.planning.tree_planner import TreeKind
from hosts.server.state import ServerState
from protocol.consistency import Consistency
from protocol.optimizer_plan import OptimizerPlan
from tests.impaired_links import Impairments
from tests.packet.jobs.switched_job import LANES, StartedJob
from tests.packet.jobs.switched_network import SwitchedNetwork
from topologies.model.spec import parse

WORLD = 3
CHUNKS = 8
LIMIT = 300.0  # virtual seconds; a run that needs more hangs


class Apart:
    """The workers of one rack, each of which trains `rounds` rounds after the first parameters.

    Results are checked on arrival. seconds: computation time of a round, by rank.
    """

    def __init__(
        self,
        consistency: Consistency,
        faults: Impairments | None = None,
        *,
        servers: int = 2,
        rounds: int = 6,
        seconds: Sequence[float] = (0.02, 0.02, 0.02),
        seed: int = 1,
    ) -> None:
        topology = f"name: test\nracks: [{{workers: {WORLD}, servers: {servers}}}]\ncores: 0\n"
        self.network = SwitchedNetwork(parse(topology), seed, faults or Impairments())
        self.rounds = rounds
        self.complete = [-1] * WORLD  # rounds; 0: it has the first parameters
        self.reset = False  # parameters were lost with all servers: lanes tell less from then on
        self._seconds = seconds
        self._bound = consistency.staleness
        self._ready = [False] * WORLD  # the next round is computed
        self._missing = [0] * WORLD  # answers of the round under way
        # What a process began with: rounds, and its lane in each chunk.
        self._first = [0] * WORLD
        self._base = np.zeros((WORLD, CHUNKS))
        self.started = StartedJob(
            self.network,
            "job",
            [f"w{rank}" for rank in range(WORLD)],
            [f"s{rank}" for rank in range(servers)],
            TreeKind.NONE,
            CHUNKS,
            optimizer=OptimizerPlan("sgd", 1.0, consistency=consistency),
            keys=4,
            window=2,
        )
        for rank in range(WORLD):
            self._take_part(rank)

    def _take_part(self, rank: int) -> None:
        started = self.started
        started.members[rank].on_instruction = lambda: self._begin(rank)
        host = started._hosts[rank]
        assert host is not None
        host.after = lambda: self._look(rank)
        self._compute(rank)

    def _compute(self, rank: int) -> None:
        member = self.started.members[rank]

        def computed() -> None:
            if self.started.members[rank] is member:
                self._ready[rank] = True
                self._begin(rank)

        self.network.at(self.network.now + self._seconds[rank], computed)

    def _begin(self, rank: int) -> None:
        """Submits the next round once it is computed and allowed to start."""
        number = self.complete[rank] + 1
        if not self._ready[rank] or number > self.rounds:
            return
        values = np.zeros((CHUNKS, LANES), np.float32)
        values[:, rank] = min(number, 1)
        self._ready[rank], self._missing[rank] = False, CHUNKS
        if not self.started.submit(rank, np.arange(CHUNKS), values, LANES):
            self._ready[rank], self._missing[rank] = True, 0

    def _look(self, rank: int) -> None:
        """Takes the results that have arrived."""
        if self.started.members[rank].gone:
            return
        completed = self.started.transport(rank).take_completed()
        if not len(completed):
            return
        number = self.complete[rank] + 1
        self._check(rank, number, -completed.sums, completed.chunks)
        self._missing[rank] -= len(completed)
        assert self._missing[rank] >= 0, "an answer came twice"
        if not self._missing[rank]:
            self.complete[rank] = number
            self.started.complete(rank)
            self._compute(rank)

    def _check(self, rank: int, number: int, lanes: np.ndarray, chunks: np.ndarray) -> None:
        """Checks parameters (n, lanes) that answer contributions of a round."""
        if self.reset:
            return
        assert (lanes[:, WORLD:] == 0).all()
        assert lanes[:, rank].tolist() == self._due(rank, number)[chunks].tolist()
        live = [r for r in self.started.staying if r not in self.started.killed]
        if self._bound is not None and rank in live:
            assert (lanes[:, live] >= number - self._bound).all(), f"worker {rank} is too far ahead"

    def _due(self, rank: int, number: int) -> np.ndarray:
        """Returns a worker's lane after so many rounds: (chunks,)."""
        return np.asarray(self._base[rank] + number - self._first[rank])

    # -- what tests use ---------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """Tells whether all members have done all their rounds."""
        return all(self.complete[rank] == self.rounds for rank in self.started.staying)

    def run(self) -> None:
        """Runs to the end and checks that every gradient counted once."""
        self._until(lambda: self.done)
        assert self.started.reported == 0
        if not self.reset:
            # What is on its way arrives.
            self._until(lambda: not np.isnan(self.parameters()).any())
            held = self.parameters()
            for rank in self.started.staying:
                assert held[:, rank].tolist() == self._due(rank, self.rounds).tolist()

    def after(self, rounds: int, rank: int = 0) -> None:
        """Runs until a worker has done so many rounds."""
        self._until(lambda: self.complete[rank] >= rounds)

    def _until(self, condition) -> None:
        if not self.network.run(condition, self.network.now + LIMIT):
            waiting = [
                member.follower.transport and member.follower.transport.explain(self.network.now)
                for member in self.started.members
            ]
            status = self.started.job.status
            raise AssertionError(f"hangs: {self.complete}; {status}; {waiting}")

    def parameters(self) -> np.ndarray:
        """Returns the number of gradients of each worker at servers: (chunks, lanes). Each chunk is
        in the custody of one of them, or on its way."""
        job, started = self.started.job, self.started
        held = np.full((CHUNKS, LANES), np.nan)
        holders = np.zeros(CHUNKS, np.int64)
        for rank in job.scheme.servers:
            state = self.network.servers[started.servers[rank]]
            custody = state._jobs[job.number].steps.custody
            assert custody is not None
            mine = np.flatnonzero(custody.held)
            holders[mine] += 1
            held[mine] = -state._shards[job.number].snapshot(mine).parameters
        assert (holders <= 1).all(), "a chunk in the custody of two servers"
        return held

    def remap(self, draw: random.Random) -> None:
        """Moves any slices to any servers, if the job can do so now."""
        job = self.started.job
        slices = self.network.jobs.deployment.slices(job)
        servers = job.scheme.servers
        moved = {one: draw.choice(servers) for one in range(slices) if draw.random() < 0.7}
        self.started.remap(tuple(sorted(moved.items())))

    @property
    def moved(self) -> int:
        """Chunks that servers that are there have got from others."""
        counts = [state.counters(self.started.job.number) for state in self._states]
        return sum(one.get("moved_here", 0) for one in counts)

    @property
    def _states(self) -> list[ServerState]:
        number = self.started.job.number
        return [state for state in self.network.servers.values() if number in state.jobs]

    def kill(self, rank: int) -> None:
        """Kills a worker's process; its launcher reports that."""
        self.started.kill(rank)
        self.started.tell_gone(rank)

    def restart(self, rank: int) -> None:
        """Restarts a killed worker; runs until it has joined."""
        before = self.started.joined
        self.started.restart(rank, lambda calls: self._joined(rank, calls))
        self._until(lambda: self.started.joined > before)

    def _joined(self, rank: int, calls: int) -> None:
        """Checks that it joined at the current round; its lane continues where it was."""
        self._base[rank] = self.parameters()[:, rank] if calls else 0
        self.complete[rank] = calls - 1
        self._first[rank] = max(0, calls - 1)
        self._missing[rank], self._ready[rank] = 0, False
        self._take_part(rank)
