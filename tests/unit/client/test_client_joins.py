# SPDX-License-Identifier: Apache-2.0
"""Tests a worker on loopback that rejoins a running job as a new process."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from hosts.client import Client, Stall
from hosts.errors import StalledError
from hosts.session.job_service import report_gone
from protocol import jobs_pb2
from tests.unit.client.small_client import Server, create, server, service
from tests.unit.controller.small_service import SmallService

__all__ = ["server", "service"]  # fixtures

KEYS = {"w": 1000, "b": 30}


class Trainer:
    """An application: its weights are the sum of all means so far."""

    def __init__(self, service: SmallService, nonce: str, rank: int, **options: Any) -> None:
        self.rank = rank
        self.client = Client(service.address, address="127.0.0.1", **options)
        self.weights = {name: np.zeros(size, np.float32) for name, size in KEYS.items()}
        self.steps = 0
        self.workers: list[set[int]] = []
        self.members: list[dict[int, tuple[int, ...]]] = []
        self.client.connect_service(nonce, rank)

    def state(self) -> dict[str, np.ndarray]:
        return {**self.weights, "steps": np.array(self.steps)}

    def init(self, state: Callable[[], dict[str, np.ndarray]] | None = None) -> None:
        self.client.init_service(KEYS, state=state or self.state)
        if self.client.joined is not None:
            arrays = dict(self.client.joined.arrays)
            self.steps = int(arrays.pop("steps"))
            assert self.steps == self.client.joined.calls
            self.weights = arrays

    def step(self) -> None:
        """Gradients depend on rank and step alone."""
        draw = np.random.default_rng([self.rank, self.steps])
        gradients = {
            name: draw.standard_normal(size).astype(np.float32) for name, size in KEYS.items()
        }
        means = self.client.push_pull(gradients, average=True)
        for name, mean in means.items():
            self.weights[name] += mean
        self.steps += 1
        self.workers.append({int(n) for counts in means.workers.values() for n in counts})
        self.members.append(means.members)

    def run(self, until: Callable[[], bool]) -> None:
        while not until():
            self.step()


def crew(service: SmallService, server: Server, world: int, **options: Any) -> list[Trainer]:
    """Trainers that are ready."""
    nonce = create(service, world)
    server.command(f"join {nonce} 0")
    trainers = [Trainer(service, nonce, rank, **options) for rank in range(world)]
    with ThreadPoolExecutor(world) as pool:
        list(pool.map(lambda trainer: trainer.init(), trainers))
    return trainers


def nonce_of(service: SmallService) -> str:
    (nonce,) = service.jobs
    return nonce


def together(pool: ThreadPoolExecutor, trainers: list[Trainer], steps: int) -> list[Future[None]]:
    """All up to so many steps."""
    return [
        pool.submit(trainer.run, lambda trainer=trainer: trainer.steps >= steps)
        for trainer in trainers
    ]


def test_rejoining_client_continues_at_current_round(service: SmallService, server: Server) -> None:
    first, dead, last = crew(service, server, 3)
    nonce = nonce_of(service)
    with ThreadPoolExecutor(4) as pool:
        for done in together(pool, [first, dead, last], 5):
            done.result(60)
        service.replan(nonce, lost=1)
        others = together(pool, [first, last], 40)
        back = Trainer(service, nonce, 1)
        back.init()
        assert 5 <= back.steps <= 40
        for done in [*others, *together(pool, [back], 40)]:
            done.result(60)
        joined_at = back.steps - len(back.workers)
        for trainer in (first, back, last):
            for name in KEYS:
                assert trainer.weights[name].tobytes() == first.weights[name].tobytes()
        # Nobody joins within a call, and everybody knows who took part.
        alone = first.workers[5:joined_at]
        assert alone == [{2}] * len(alone)
        assert first.workers[joined_at:] == [{3}] * (40 - joined_at)
        assert first.members[-1:] == ([{3: (0, 1, 2)}] if joined_at < 40 else [{2: (0, 2)}])
        assert {tuple(one) for one in first.members[:5]} == {(3,)}
        assert first.client.joined is None
        for trainer in (first, back, last):
            trainer.client.leave()
    dead.client.leave()


def test_a_worker_that_computes_is_waited_for_and_not_interrupted(
    service: SmallService, server: Server
) -> None:
    first, dead, slow = crew(service, server, 3)
    nonce = nonce_of(service)
    with ThreadPoolExecutor(4) as pool:
        service.replan(nonce, lost=1)
        call = pool.submit(first.step)
        back = Trainer(service, nonce, 1)
        joining = pool.submit(back.init)
        job = service.jobs[nonce]
        # `first` has begun its call, so the boundary is behind it.
        service.wait_for(lambda: job.join is not None and bool(job.join.owing))
        service.wait_for(lambda: "to complete round 1" in job.join.owing.values())
        assert not call.done()
        assert not joining.done()
        slow.step()
        call.result(60)
        # The member that gives the state does so when its application comes to the next call.
        service.wait_for(lambda: "to give its state" in job.join.owing.values())
        assert not joining.done()
        first_again, slow_again = pool.submit(first.step), pool.submit(slow.step)
        joining.result(60)
        assert back.steps == 1
        assert not first_again.done()
        back.step()
        first_again.result(60)
        slow_again.result(60)
    for trainer in (first, back, slow):
        assert trainer.weights["b"].tobytes() == first.weights["b"].tobytes()
        assert trainer.workers[-1] == {3}
        trainer.client.leave()
    dead.client.leave()


def test_failing_callback_does_not_fail_job(
    service: SmallService, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """Another one is asked, and the worker whose application failed goes on."""
    nonce = create(service, 3)
    server.command(f"join {nonce} 0")
    first, dead, last = (Trainer(service, nonce, rank) for rank in range(3))

    def broken() -> dict[str, np.ndarray]:
        raise ZeroDivisionError("no weights today")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda t: t.init(broken if t is first else None), (first, dead, last)))
        service.replan(nonce, lost=1)
        others = together(pool, [first, last], 30)
        back = Trainer(service, nonce, 1)
        back.init()
        for done in [*others, *together(pool, [back], 30)]:
            done.result(60)
    assert "no weights today" in caplog.text
    assert back.weights["w"].tobytes() == first.weights["w"].tobytes()
    for trainer in (first, back, last):
        trainer.client.leave()
    dead.client.leave()


def test_endless_boundary_is_reported_and_abandoned(
    service: SmallService, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hosts.session.stall_timeout._STALL_SECONDS", 0.2)
    monkeypatch.setattr("hosts.session.stall_timeout._STALL_AGAIN_SECONDS", 0.1)
    stalls: list[Stall] = []
    first, dead, last = crew(service, server, 3, patience=1.0, on_stall=stalls.append)
    nonce = nonce_of(service)
    job = service.jobs[nonce]
    with ThreadPoolExecutor(2) as pool:
        service.replan(nonce, lost=1)
        for done in together(pool, [first, last], 1):
            done.result(60)
        back = Trainer(service, nonce, 1)  # never names its keys, so it takes no state
        service.wait_for(lambda: job.join and "to give its state" in job.join.owing.values())
        call = pool.submit(first.step)
        error = call.exception(60)
    assert isinstance(error, StalledError)
    assert "not begun for 1.0 s: a worker is about to join; given up after 1 s" in str(error)
    assert stalls[-1].boundary
    for trainer in (first, last, back):
        trainer.client.leave("done")
    dead.client.leave()


def test_process_end_can_be_reported_with_nonce_only(service: SmallService) -> None:
    nonce = create(service, 2)
    report_gone(service.address, nonce, jobs_pb2.WORKER, 1, "was killed by SIGKILL")
    assert service.jobs[nonce].gone == [(jobs_pb2.WORKER, 1, "was killed by SIGKILL")]
