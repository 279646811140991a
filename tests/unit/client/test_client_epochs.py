# SPDX-License-Identifier: Apache-2.0
"""Tests workers and a server on loopback while the job is replanned and the job service
restarts."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from hosts.client import Client
from hosts.errors import ClientError
from hosts.net.udp import Endpoint
from hosts.server.process import ServerProcess
from hosts.server.state import ServerState
from hosts.session.membership import HEARTBEAT_SECONDS
from protocol import jobs_pb2
from protocol.header import Batch
from tests.unit.client.small_client import Server, create, server, service, stuck
from tests.unit.controller.small_service import SmallService

__all__ = ["server", "service"]  # fixtures


def bias(value: float) -> dict[str, np.ndarray]:
    return {"b": np.full(30, value, np.float32)}


def test_replan_does_not_wait_for_computing_worker(service: SmallService, server: Server) -> None:
    nonce, waiting, computing = stuck(service, server)
    job = service.jobs[nonce]
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(waiting.push_pull, bias(1.0))
        service.wait_for(lambda: service.beats[nonce, jobs_pb2.WORKER, 0] >= 1)
        for number, window in ((2, 4), (3, 32)):
            service.replan(nonce, window)
            service.wait_for(lambda number=number: job.served == number)
            assert not call.done()
        sums = computing.push_pull(bias(2.0))
        for got in (sums, call.result(60)):
            np.testing.assert_array_equal(got["b"], np.full(30, 3.0, np.float32))
            assert got.workers["b"].tolist() == [2]
    for client in (waiting, computing):
        assert client.statistics["completed"] == 1
        client.leave()


def test_the_job_goes_on_without_a_worker_and_averages_over_the_others(
    service: SmallService, server: Server
) -> None:
    nonce, waiting, dead = stuck(service, server)
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda c: c.push_pull(bias(3.0), average=True), (waiting, dead)))
        assert both[0]["b"].tobytes() == bias(3.0)["b"].tobytes() == both[1]["b"].tobytes()
        assert waiting.world == 2
        call = pool.submit(waiting.push_pull, bias(5.0), average=True)
        service.replan(nonce, lost=1)
        got = call.result(60)
    np.testing.assert_array_equal(got["b"], np.full(30, 5.0, np.float32))
    assert got.workers["b"].tolist() == [1]
    assert waiting.world == 1
    waiting.leave()
    dead.leave()


def test_a_mean_is_the_sum_divided_in_double_precision(
    service: SmallService, server: Server
) -> None:
    nonce = create(service, 3)
    server.command(f"join {nonce} 0")
    values = np.random.default_rng(4).standard_normal((3, 30)).astype(np.float32)

    def work(rank: int) -> tuple[np.ndarray, np.ndarray]:
        with Client(service.address, address="127.0.0.1") as client:
            client.connect_service(nonce, rank)
            client.init_service({"b": 30})
            sums = client.all_reduce([values[rank]])
            means = client.all_reduce([values[rank]], average=True)
            return sums[0], means[0]

    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(work, range(3)))
    exact = values.astype(np.float64).sum(axis=0) / 3
    for sums, means in results:
        assert means.dtype == np.float32
        # The second round has its own exponent, so another rounding than the first.
        assert np.abs(means - exact).max() < 1e-6
        assert np.abs(sums / 3 - means).max() < 1e-6
        assert means.tobytes() == results[0][1].tobytes()


def test_a_job_service_that_is_restarted_is_waited_for(
    service: SmallService, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hosts.session.membership.HEARTBEAT_SECONDS", 0.1)
    nonce, first, second = stuck(service, server)
    service.stop()
    with ThreadPoolExecutor(2) as pool:
        sums = list(pool.map(lambda client: client.push_pull(bias(1.0)), (first, second)))
        assert [s["b"][0] for s in sums] == [2.0, 2.0]
        call = pool.submit(first.push_pull, bias(4.0))
        service.start()
        service.beats.clear()
        service.wait_for(lambda: min(service.beats[nonce, 1, r] for r in (0, 1)) >= 2)
        service.replan(nonce)  # reaches them through new calls
        service.wait_for(lambda: service.jobs[nonce].served == 2)
        assert second.push_pull(bias(4.0))["b"][0] == 8.0
        assert call.result(60)["b"][0] == 8.0
    # One that comes back a little after the members want to leave is waited for, too.
    service.stop()
    timer = threading.Timer(0.5, service.start)
    timer.start()
    first.leave()
    second.leave()
    timer.join()
    assert [reason for _, _, reason in service.jobs[nonce].left] == ["", ""]


def test_a_job_service_that_is_away_when_members_come_is_waited_for(
    service: SmallService, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """Its process was killed, and leaves a socket without a listener."""
    nonce = create(service, 1)
    path = Path(service.address.removeprefix("unix:"))
    service.stop()
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    caplog.set_level("INFO", "hosts.session.job_service")
    with (
        ThreadPoolExecutor(2) as pool,
        Client(service.address, address="127.0.0.1") as client,
    ):
        joined = pool.submit(server.command, f"join {nonce} 0")
        connected = pool.submit(client.connect_service, nonce, 0)
        while "retrying" not in caplog.text:
            assert not connected.done()
        service.start()
        connected.result(60)
        assert joined.result(60) == "joined 1"


def test_leaving_worker_hands_over_last_results(service: SmallService, server: Server) -> None:
    nonce, first, second = stuck(service, server)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda client: client.push_pull(bias(1.0)), (first, second)))
    first.leave()
    results, levels = service.jobs[nonce].kept[0]
    assert results == 1
    assert np.frombuffer(levels, "<u4").tolist() == [2]
    second.leave("out of memory")
    assert service.jobs[nonce].kept[1] == (0, b"")


def test_silence_duration_is_reported(
    service: SmallService, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hosts.session.membership.HEARTBEAT_SECONDS", 0.05)
    nonce, waiting, other = stuck(service, server)
    place = nonce, jobs_pb2.WORKER, 0
    server.process.kill()
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(waiting.push_pull, bias(1.0), timeout=2.0)
        service.wait_for(lambda: service.unanswered.get(place, 0.0) > 0.5)
        assert service.unanswered[nonce, jobs_pb2.WORKER, 1] == 0.0
        assert isinstance(call.exception(60), TimeoutError)
    for client in (waiting, other):
        client.leave("no server")


class Spoiler(ServerState):
    """A server whose sums are wrong in its first `epochs`."""

    def __init__(self, epochs: int) -> None:
        super().__init__()
        self.epochs = epochs

    def poll(self, now: float) -> tuple[Batch | None, float]:
        batch, following = super().poll(now)
        if batch is not None and self.epoch(1) <= self.epochs:
            # Of its own: what was made to be sent to everybody is sent as it was made.
            batch = Batch(batch.headers, batch.payloads.copy(), batch.full, batch.peers)
            batch.payloads[batch.full, 3] += 1
        return batch, following


@contextmanager
def spoiling(service: SmallService, nonce: str, epochs: int) -> Iterator[None]:
    with Endpoint(("127.0.0.1", 0)) as endpoint:
        process = ServerProcess(endpoint, service.address)
        process.state = Spoiler(epochs)
        thread = threading.Thread(target=process.run)
        thread.start()
        try:
            process.join(nonce, 0)
            yield
        finally:
            process.stop()
            thread.join()


@pytest.mark.parametrize("epochs", [1, 3, 100])
def test_persistently_bad_sum_triggers_replan(service: SmallService, epochs: int) -> None:
    """Up to three times; then the job is given up."""
    nonce = create(service, 1)
    with spoiling(service, nonce, epochs), Client(service.address, address="127.0.0.1") as client:
        client.connect_service(nonce, 0)
        client.init_service({"b": 30})
        if epochs <= 3:
            assert client.push_pull(bias(1.0))["b"].tobytes() == bias(1.0)["b"].tobytes()
            assert service.jobs[nonce].epoch == epochs + 1
        else:
            with pytest.raises(ClientError, match="failed the check twice, in 4 epochs"):
                client.push_pull(bias(1.0))
        broken = service.jobs[nonce].broken
        assert [(b.chunk, b.stream) for b in broken] == [(0, 0)] * min(epochs, 3)
        assert client.statistics["wrong_checksum"] >= 2 * len(broken)


def test_smooth_work_adds_no_service_calls(service: SmallService, server: Server) -> None:
    nonce, first, second = stuck(service, server)
    places = [(nonce, jobs_pb2.WORKER, rank) for rank in (0, 1)]
    service.wait_for(lambda: all(service.beats[place] for place in places))
    service.beats.clear()
    began = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        for _ in range(20):
            list(pool.map(lambda client: client.push_pull(bias(1.0)), (first, second)))
    most = 1 + (time.monotonic() - began) / HEARTBEAT_SECONDS
    assert max(service.beats[place] for place in places) <= most
    first.leave()
    second.leave()
