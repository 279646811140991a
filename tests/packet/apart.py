# SPDX-License-Identifier: Apache-2.0
"""Workers that train each at a speed of its own, in a job whose servers take single gradients.

The gradient of worker w is 1 in lane w and 0 elsewhere, the rate 1 and the first parameters 0: so a
chunk's parameters say how many gradients of each worker are in them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from controller.trees import TreeKind
from hosts.transport import WorkerTransport
from protocol.consistency import Consistency
from protocol.optimizer import OptimizerPlan
from tests.packet.protocol_run import LIMIT, WORKERS, start
from tests.packet.switched_job import LANES, StartedJob
from tests.packet.switched_network import SwitchedNetwork


class Apart:
    """A job of `topology`, of which every worker does `rounds` rounds after the first parameters.

    seconds: that each worker computes, by rank. What comes is checked as it comes.
    """

    def __init__(
        self,
        network: SwitchedNetwork,
        topology: str,
        consistency: Consistency,
        *,
        seconds: Sequence[float] = (),
        rounds: int = 6,
        chunks: int = 40,
        window: int = 8,
    ) -> None:
        optimizer = OptimizerPlan("sgd", 1.0, consistency=consistency)
        self.network = network
        self.rounds, self.chunks = rounds, chunks
        self.bound = consistency.staleness
        world = WORKERS[topology]
        self.seconds = [seconds[rank] if rank < len(seconds) else 0.02 for rank in range(world)]
        self.complete = [-1] * world  # rounds; 0: has the first parameters
        self.ahead = [0] * world  # the most that each was seen to be ahead of the slowest
        self.most = rounds  # a lane can tell of
        self.loose = False  # parameters were lost with all servers: lanes tell less
        self._begun = [0] * world
        self._missing = [0] * world
        # (chunks,) lane values and rounds that a process of each worker began with.
        self._base = [np.zeros(chunks) for _ in range(world)]
        self._first = [0] * world
        self.started: StartedJob = start(
            network, topology, TreeKind.NONE, chunks, window=window, optimizer=optimizer
        )
        for rank in range(world):
            self._take_part(rank)

    def _take_part(self, rank: int) -> None:
        started = self.started
        member = started.members[rank]
        member.on_told = lambda: self._begin(rank)
        host = started._hosts[rank]
        assert host is not None
        host.after = lambda: self._look(rank)
        self._due(rank)

    def _due(self, rank: int) -> None:
        member = self.started.members[rank]

        def ready() -> None:
            if self.started.members[rank] is member:
                self._waits[rank] = True
                self._begin(rank)

        self._waits = getattr(self, "_waits", [False] * len(self.seconds))
        self.network.at(self.network.now + self.seconds[rank], ready)

    def _begin(self, rank: int) -> None:
        """Submits the next round, when it has been computed and may begin."""
        number = self.complete[rank] + 1
        if not self._waits[rank] or self._missing[rank] or number > self.rounds:
            return
        values = np.zeros((self.chunks, LANES), np.float32)
        if number:
            values[:, rank] = 1
        else:
            values += 1000 * rank  # those of the first worker are to count
        self._missing[rank] = self.chunks
        if self.started.submit(rank, np.arange(self.chunks), values, LANES):
            self._waits[rank] = False
        else:
            self._missing[rank] = 0

    def _look(self, rank: int) -> None:
        """Takes what has come."""
        if self.started.members[rank].gone:
            return
        completed = self.transport(rank).take_completed()
        if not len(completed):
            return
        number = self.complete[rank] + 1
        self._check(rank, number, -completed.sums, completed.chunks)
        self._missing[rank] -= len(completed)
        assert self._missing[rank] >= 0, "an answer came twice"
        if not self._missing[rank]:
            self.complete[rank] = number
            self.started.complete(rank)
            self._due(rank)

    def _check(self, rank: int, number: int, lanes: np.ndarray, chunks: np.ndarray) -> None:
        """Parameters (n, lanes) that answer contributions of a round."""
        assert (lanes[:, len(self.seconds) :] == 0).all()
        if self.loose:
            return
        own = self._base[rank][chunks] + number - self._first[rank]
        assert (lanes[:, rank] == own).all(), f"worker {rank}, round {number}: {lanes[:, rank]}"
        staying = [r for r in self.started.staying if r not in self.started.killed]
        if rank in staying:
            slowest = lanes[:, staying].min(axis=1)
            lead = int((number - slowest).max())
            self.ahead[rank] = max(self.ahead[rank], lead)
            assert self.bound is None or lead <= self.bound, f"worker {rank} is {lead} ahead"

    # -- what tests use ---------------------------------------------------------------------------

    def transport(self, rank: int) -> WorkerTransport:
        return self.started.transport(rank)

    @property
    def done(self) -> bool:
        return all(self.complete[rank] == self.rounds for rank in self.started.staying)

    def run(self) -> None:
        """To the end, at which every gradient of those who were never killed is in once."""
        ended = self.network.run(lambda: self.done, self.network.now + LIMIT / 100)
        status = self.started.job.status, self.started.job.reason
        waiting = [m.follower.transport and m.follower.transport.explain(self.network.now)[:1]
                   for m in self.started.members]  # fmt: skip
        assert ended, f"hangs: {self.complete}, {status}, {waiting}"
        assert self.started.reported == 0
        if self.loose:
            return
        counts = self.parameters()
        for rank in self.started.staying:
            expected = self._base[rank] + self.rounds - self._first[rank]
            assert counts[:, rank].tolist() == expected.tolist()

    def parameters(self) -> np.ndarray:
        """(chunks, lanes) gradients that the servers' parameters have of each worker."""
        counts = np.full((self.chunks, LANES), np.nan)
        job = self.started.job
        plan = self.transport(self.started.staying[0]).plan
        primary = plan.server_of(np.arange(self.chunks))
        for position, rank in enumerate(job.scheme.servers):
            mine = np.flatnonzero(primary == position)
            shards = self.network.servers[self.started.servers[rank]]._shards[job.number]
            assert (shards.levels[mine] > 0).all()
            counts[mine] = -shards.parameters(mine)
        return counts

    def after(self, rounds: int, rank: int = 0) -> None:
        """Runs until a worker has completed so many rounds."""
        assert self.network.run(
            lambda: self.complete[rank] >= rounds, self.network.now + LIMIT / 100
        ), f"hangs: {self.complete}, {self.started.job.status}"

    def kill(self, rank: int) -> None:
        """A worker's process dies, and whoever started it says so."""
        self.started.kill(rank)
        self.started.tell_gone(rank)

    def restart(self, rank: int) -> None:
        """Another process comes in a killed worker's place."""
        self.started.restart(rank, lambda calls: self._joined(rank, calls))

    def _joined(self, rank: int, calls: int) -> None:
        """It goes on where all are; its lane goes on where the one before left it."""
        parameters, _ = self.transport(rank).parameters()
        self._base[rank] = -parameters[:, rank].astype(np.float64)
        self._first[rank] = self.complete[rank] = calls - 1
        self._missing[rank] = 0
        self._waits[rank] = False
        self._take_part(rank)
