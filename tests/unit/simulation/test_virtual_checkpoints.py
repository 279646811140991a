# SPDX-License-Identifier: Apache-2.0
"""Tests checkpoints of jobs in virtual time, while chunks move from server to server."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import numpy as np
import pytest

from controller.jobs.job import JobError
from controller.p4rt.dataplane import DataPlane
from hosts.client import Client
from hosts.data import checkpoint
from hosts.data.checkpoint import Checkpoint
from hosts.data.snapshot import STARTED
from hosts.session.job_service import Service, create_service
from protocol.consistency import ASYNCHRONOUS
from protocol.optimizer_plan import OptimizerPlan
from simulation.kernel.calls import ask
from simulation.links.trains import SECOND
from simulation.network import SERVICE, Network
from specs.p4program import SOURCES
from topologies.model.addressing import Addressing
from topologies.model.spec import parse

BUILD = SOURCES / "build"
RACK = """
name: rack
defaults: {rate: 20 Mbit/s, delay: 0.5 ms, queue_bytes: 64 KiB, loss: 0.01}
racks: [{workers: 3, servers: 4}]
cores: 0
"""
KEYS = {f"key{n}": 700 for n in range(12)}
ROUNDS = 3
MOVING = 2.0  # seconds
LIMIT = 60 * SECOND  # a run that needs more hangs
FIRST, VELOCITY, DECAY = 3.0, 64.0, 0.5
MOMENTUM = OptimizerPlan("momentum", 1.0, DECAY, consistency=ASYNCHRONOUS)


class Restored:
    """A job that begins from a checkpoint, whose gradients are 0, so that the checkpoint's momentum
    alone says what the servers' parameters are after so many steps.

    Meanwhile, also before the first gradient, some chunks move to any servers.
    """

    def __init__(self, path: Path, seed: int) -> None:
        topology = parse(RACK)
        self.addressing = Addressing(topology)
        plane = DataPlane.load(BUILD / "aggregation.json", BUILD / "aggregation.p4info.txtpb")
        self.network = network = Network(topology, self.addressing, plane)
        self._path, self._random, self._over = path, random.Random(seed), False
        parameters, state = (
            {name: np.full(n, value, np.float32) for name, n in KEYS.items()}
            for value in (FIRST, VELOCITY)
        )
        taken = Checkpoint(0, KEYS, 1, b"", {}, MOMENTUM.name, parameters, (state,))
        checkpoint.write(path, taken)
        self.moved = 0
        self.trained = 0
        network.controller.begin()
        network.operator.tasks.thread(self._conduct).start()
        try:
            network.engine.run(lambda: self._over or network.engine.settled() > LIMIT)
        finally:
            network.close()

    def _conduct(self) -> None:
        network, operator = self.network, self.network.operator
        workers = [node.name for node in network.topology.workers]
        servers = [node.name for node in network.topology.servers]
        service = create_service(
            *(SERVICE, "job", workers, servers),
            tree="none",
            environment=network.environment(operator),
        )
        network.controller.tasks.thread(self._move, "moves", (service.job,)).start()
        network.play(service, self._work)
        self._over = True

    def _move(self, number: int) -> None:
        table, draw = self.network.controller.table, self._random
        sleep = self.network.controller.tasks.sleep
        while self.network.controller.tasks.now() < MOVING:
            sleep(0.002)
            with contextlib.suppress(JobError):
                slices = range(table.deployment.slices(table.roster.alive(number)))
                moved = ((n, draw.randrange(4)) for n in slices if draw.random() < 0.7)
                table.remap(number, tuple(moved), "a test")
                sleep(draw.random() * draw.choice([0.01, 0.03, 0.3]))

    def _work(self, rank: int, name: str, service: Service) -> None:
        host, end = self.network.hosts[name], self.addressing.host_interfaces(name)[0]

        def work() -> None:
            with Client(
                SERVICE,
                address=str(end.ipv4),
                queue_bytes=end.outgoing.queue_bytes,
                link_rate=end.outgoing.rate,
                environment=self.network.environment(host),
            ) as client:
                client.connect_service(service.nonce, rank)
                zeros = {name: np.zeros(n, np.float32) for name, n in KEYS.items()}
                client.init_service(zeros, optimizer=MOMENTUM, restore=self._path)
                for _ in range(ROUNDS):
                    client.push_pull(zeros)
                self.trained += 1
                if self.trained == 3:
                    self._check(service.job)

        ask(self.network.engine, self.network.operator, host, work)

    def _check(self, job: int) -> None:
        """Checks each chunk at the server that may step it."""
        states = [server.state for server in self.network.servers.values()]
        steps = 3 * ROUNDS
        due = FIRST - VELOCITY * sum(DECAY**n for n in range(1, steps + 1))
        found = 0
        for state in states:
            custody = state._jobs[job].steps.custody
            shards = state._shards[job]
            mine = np.flatnonzero(custody.held)
            mine = mine[shards.levels[mine] == STARTED + steps]
            used = shards.parameters(mine)
            assert np.isin(used, [due, 0.0]).all(), np.unique(used)
            found += len(mine)
            self.moved += state.counters(job).get("moved_here", 0)
        assert found > 0


@pytest.mark.parametrize("seed", range(6))
def test_momentum_of_a_checkpoint_goes_wherever_its_chunks_go(seed, tmp_path) -> None:
    restored = Restored(tmp_path / "job.checkpoint", seed)
    assert restored.trained == 3
    assert restored.moved > 0
