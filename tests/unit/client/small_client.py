# SPDX-License-Identifier: Apache-2.0
"""Workers and a server process of a small job on loopback."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hosts.client import Client
from hosts.data.chunks import Layout
from protocol.exponents import Exponents
from protocol.reference import reference_round
from tests.unit.controller.small_service import LANES, SmallService

ROOT = Path(__file__).parents[3]
KEYS = {"w": (7, 30), "b": (30,), "big": (40, LANES)}


@pytest.fixture
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallService]:
    service = SmallService(tmp_path_factory.mktemp("s") / "jobs")
    yield service
    service.stop()


class Server:
    """The server process."""

    def __init__(self, service: SmallService, *options: str) -> None:
        command = [sys.executable, "-m", "hosts.server", "--address", "127.0.0.1"]
        self.process = subprocess.Popen(
            [*command, "--service", service.address, *(options or ("--port", "0"))],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.ready = self.answer()

    def answer(self) -> str:
        return self.process.stdout.readline().strip()

    def command(self, line: str) -> str:
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return self.answer()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            pipe.close()


@pytest.fixture
def server(service: SmallService) -> Iterator[Server]:
    server = Server(service)
    yield server
    server.close()


def create(service: SmallService, world: int) -> str:
    names = [f"w{i}" for i in range(world)]
    return Client.create_service(service.address, "test", names, ["s0"]).nonce


def in_parallel(
    service: SmallService, nonce: str, world: int, work: Callable[[Client, int], Any]
) -> list[Any]:
    """Runs `work` in each of `world` workers that have joined and named `KEYS`."""

    def worker(rank: int) -> Any:
        with Client(service.address, address="127.0.0.1") as client:
            client.connect_service(nonce, rank)
            client.init_service({name: int(np.prod(shape)) for name, shape in KEYS.items()})
            return work(client, rank)

    with ThreadPoolExecutor(world) as pool:
        return list(pool.map(worker, range(world)))


def gradients(world: int, rounds: int, seed: int) -> list[list[dict[str, np.ndarray]]]:
    """[rank][round] of float32 arrays by key, of very different magnitudes."""
    random = np.random.default_rng(seed)
    scales = {"w": 1e-3, "b": 1e4, "big": 1.0}
    return [
        [
            {
                name: (random.standard_normal(shape) * scales[name]).astype(np.float32)
                for name, shape in KEYS.items()
            }
            for _ in range(rounds)
        ]
        for _ in range(world)
    ]


def reference(values: list[list[dict[str, np.ndarray]]]) -> list[dict[str, np.ndarray]]:
    """What a single process makes of them, by round."""
    world = len(values)
    layout = Layout([int(np.prod(shape)) for shape in KEYS.values()], LANES)
    policy = Exponents(layout.chunks, world)
    rounds = []
    for r in range(len(values[0])):
        packed = np.stack(
            [
                np.concatenate([layout.pack(k, mine[r][name]) for k, name in enumerate(KEYS)])
                for mine in values
            ]
        )
        sums = reference_round(packed, np.arange(layout.chunks), policy).sums
        parts = np.split(sums, np.cumsum(layout.counts)[:-1])
        rounds.append(
            {
                name: layout.unpack(k, parts[k], shape)
                for k, (name, shape) in enumerate(KEYS.items())
            }
        )
    return rounds


def stuck(
    service: SmallService, server: Server, size: int = 30, **options: Any
) -> tuple[str, Client, Client]:
    """A job of two workers that are ready; the sums of one wait for the other."""
    nonce = create(service, 2)
    server.command(f"join {nonce} 0")
    clients = [Client(service.address, address="127.0.0.1", **options) for _ in range(2)]
    for rank, client in enumerate(clients):
        client.connect_service(nonce, rank)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda client: client.init_service({"b": size}), clients))
    return nonce, clients[0], clients[1]
