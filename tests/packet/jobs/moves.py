# SPDX-License-Identifier: Apache-2.0
"""Seeded random runs in which servers with an optimizer hand chunks over while their job goes on.

    python -m tests.packet.jobs.moves SEED ROUNDS [faulty]

repeats one.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass

from controller.planning.tree_planner import TreeKind
from protocol.optimizer_plan import OptimizerPlan
from tests.impaired_links import Impairments
from tests.packet.jobs.protocol_run import LIMIT, Run
from tests.packet.jobs.switched_job import LANES, StartedJob
from tests.packet.jobs.switched_network import SwitchedNetwork
from topologies.model.spec import parse

CHUNKS = 24
SERVERS = 4
TOPOLOGY = f"name: test\nracks: [{{workers: 2, servers: {SERVERS}}}]\ncores: 0\n"
OPTIMIZERS = (OptimizerPlan("momentum", 0.1, 0.9), OptimizerPlan("adam", 0.1, weight_decay=1e-4))


@dataclass
class Outcome:
    """The result of a run.

    moved: chunks that servers have got from others, with all copies.
    """

    moved: int
    epochs: int
    kills: int
    restarts: int


def play(seed: int, rounds: int, faulty: bool) -> Outcome:
    """Runs a job of so many rounds and checks that every worker has the parameters of an optimizer
    that never moves.

    faulty: servers die and come back, and the controller is replaced.
    """
    draw = random.Random(seed)
    faults = Impairments(
        loss=draw.choice([0.0, 0.01, 0.05]),
        duplicate=draw.choice([0.0, 0.01, 0.2]),
        jitter=draw.choice([0.0, 0.002, 0.02]),
    )
    network = SwitchedNetwork(parse(TOPOLOGY), seed, faults)
    try:
        return _Moves(network, draw, seed, rounds, faulty).play()
    finally:
        network.close()


class _Moves:
    def __init__(
        self, network: SwitchedNetwork, draw: random.Random, seed: int, rounds: int, faulty: bool
    ) -> None:
        self.network, self.draw, self.faulty = network, draw, faulty
        self.started = started = StartedJob(
            network,
            "job",
            ["w0", "w1"],
            [f"s{rank}" for rank in range(SERVERS)],
            draw.choice([TreeKind.NONE, TreeKind.TOR]),
            CHUNKS,
            delay=draw.choice([0.001, 0.01]),
            optimizer=draw.choice(OPTIMIZERS),
            window=draw.choice([2, 8, 32]),
            slice_bytes=4 * LANES,
            spares=draw.choice([(), ("s3",)]),
        )
        self.moved = self.kills = self.restarts = 0
        self.run = Run(started, rounds, seed, draw.random() < 0.3, lead=draw.choice([1, 2, 3]))
        self.run.submit(skew=draw.choice([0.02, 0.1]), seed=seed)
        self._later(0.02, self._remap)
        if faulty:
            self._later(0.3, self._kill)
            self._later(1.0, self._restart)

    def play(self) -> Outcome:
        started = self.started
        assert self.network.run(lambda: self.run.done, self.network.now + LIMIT / 10), (
            self.run.waiting()
        )
        self.run.check()
        assert started.reported == 0
        self._count(range(SERVERS))
        return Outcome(self.moved, started.job.epoch, self.kills, self.restarts)

    def _later(self, most: float, action: Callable[[], None]) -> None:
        def act() -> None:
            if not self.run.done:
                action()

        self.network.at(self.network.now + self.draw.random() * most, act)

    def _remap(self) -> None:
        """Moves any slices to any servers, and others back to where they began."""
        job = self.started.job
        moved = dict(job.moved)
        for one in range(CHUNKS):
            if self.draw.random() < 0.3:
                moved.pop(one, None)
            if self.draw.random() < 0.8:
                moved[one] = self.draw.choice(job.scheme.servers)
        self.started.remap(
            tuple(sorted((one, to) for one, to in moved.items() if to in job.scheme.servers))
        )
        self._later(self.draw.choice([0.02, 0.1]), self._remap)

    def _kill(self) -> None:
        """Kills a server, unless another one is away, whose replica it might have."""
        started = self.started
        job, members = started.job, started.server_members
        if job.change is None and all(
            not member.gone and member.follower.epoch == job.epoch for member in members
        ):
            rank = self.draw.randrange(SERVERS)
            self.kills += 1
            self._count([rank])
            started.kill_server(rank, reported=True)
            self._later(0.5, lambda: started.restart_server(rank))
        self._later(1.0, self._kill)

    def _restart(self) -> None:
        self.restarts += 1
        self.started.restart_controller()
        self._later(4.0, self._restart)

    def _count(self, ranks) -> None:
        for rank in ranks:
            state = self.network.servers[self.started.servers[rank]]
            number = self.started.job.number
            if number in state.jobs:
                self.moved += state.counters(number).get("moved_here", 0)


if __name__ == "__main__":
    print(play(int(sys.argv[1]), int(sys.argv[2]), faulty="faulty" in sys.argv))
