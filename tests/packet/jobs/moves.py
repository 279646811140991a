# SPDX-License-Identifier: Apache-2.0
"""Seeded random runs in which servers with an optimizer hand chunks over while their job goes on.

    python -m tests.packet.jobs.moves SEED ROUNDS [faulty | VICTIM STAGE]

repeats one.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from unittest.mock import patch

import numpy as np

from controller.planning.tree_planner import TreeKind
from hosts.server import chunk_fetches
from hosts.server.shards import Shards
from protocol.optimizer_plan import OptimizerPlan
from tests.impaired_links import Impairments
from tests.packet.jobs.aims import Aim
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
    kills: processes that died.
    """

    moved: int
    epochs: int
    kills: int
    restarts: int


def play(
    seed: int, rounds: int, faulty: bool = False, aim: tuple[str, str] | None = None
) -> Outcome:
    """Runs a job of so many rounds and checks that every worker has the parameters of an optimizer
    that never moves, and that no step is taken at two servers.

    faulty: servers die and come back, and the controller is replaced, at any time.
    aim: a victim that dies at a stage of a move, and comes back (tests.packet.jobs.aims).
    """
    draw = random.Random(seed)
    faults = Impairments(
        loss=draw.choice([0.0, 0.01, 0.05]),
        duplicate=draw.choice([0.0, 0.01, 0.2]),
        jitter=draw.choice([0.0, 0.002, 0.02]),
    )
    network = SwitchedNetwork(parse(TOPOLOGY), seed, faults)
    try:
        # Of the chunks of one server all at once, or a few.
        share = draw.choice([1 << 20, 12 * LANES * 4])
        with patch.object(chunk_fetches, "CALL_BYTES", share), _one_owner(network):
            return _Moves(network, draw, seed, rounds, faulty, aim).play()
    finally:
        network.close()


@contextmanager
def _one_owner(network: SwitchedNetwork) -> Iterator[None]:
    """Fails if two servers take the same step of a chunk in an epoch, or one takes it twice."""
    taken: set[tuple[int, int, int]] = set()
    step = Shards.step

    def watch(shards: Shards, chunks: np.ndarray, means: np.ndarray) -> np.ndarray:
        states = network.servers.values()
        (epoch,) = {
            state.epoch(number)
            for state in states
            for number, one in state._shards.items()
            if one is shards
        }
        for chunk, level in zip(chunks.tolist(), shards.levels[chunks].tolist(), strict=True):
            assert (epoch, chunk, level) not in taken, f"chunk {chunk}: step {level} taken twice"
            taken.add((epoch, chunk, level))
        return step(shards, chunks, means)

    with patch.object(Shards, "step", watch):
        yield


class _Moves:
    def __init__(
        self,
        network: SwitchedNetwork,
        draw: random.Random,
        seed: int,
        rounds: int,
        faulty: bool,
        aim: tuple[str, str] | None,
    ) -> None:
        self.network, self.draw, self.faulty, self.aim = network, draw, faulty, aim
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
        self.moved = self.bytes = 0
        self.run = Run(started, rounds, seed, draw.random() < 0.3, lead=draw.choice([1, 2, 3]))
        self.run.submit(skew=draw.choice([0.02, 0.1]), seed=seed)
        self._later(0.02, self._remap)
        self.faults = Aim(started, draw, lambda: self.run.done, lambda rank: self._count([rank]))
        if faulty:
            self._later(0.3, self._kill)
            self._later(1.0, self._restart)
        if aim is not None:
            self.faults.at(*aim)

    def play(self) -> Outcome:
        started = self.started
        assert self.network.run(lambda: self.run.done, self.network.now + LIMIT / 10), (
            self.run.waiting()
        )
        self.run.check()
        assert started.reported == 0
        self._count(range(SERVERS))
        if not self.faulty and self.aim is None:
            self.network.run_for(10.0)  # until servers have reported
            told = [one.to_message().bytes for one in started.job.moves]
            assert sum(told) == self.bytes
        return Outcome(self.moved, started.job.epoch, self.faults.kills, self.faults.restarts)

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
        if self.faults.whole:
            self.faults.kill_server(self.draw.randrange(SERVERS))
        self._later(1.0, self._kill)

    def _restart(self) -> None:
        self.faults.restarts += 1
        self.started.restart_controller()
        self._later(4.0, self._restart)

    def _count(self, ranks) -> None:
        for rank in ranks:
            state = self.network.servers[self.started.servers[rank]]
            number = self.started.job.number
            if number in state.jobs:
                self.moved += state.counters(number).get("moved_here", 0)
                self.bytes += state.counters(number).get("moved_bytes", 0)


if __name__ == "__main__":
    rest = sys.argv[3:]
    aimed = None if len(rest) < 2 else (rest[0], rest[1])
    print(play(int(sys.argv[1]), int(sys.argv[2]), faulty=rest == ["faulty"], aim=aimed))
