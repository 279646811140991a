# SPDX-License-Identifier: Apache-2.0
"""Tests workers whose sums do not arrive: reports and timeouts."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest

from hosts.client import Stall
from hosts.errors import ClientError, PlanWithdrawnError, ServiceUnavailableError, StalledError
from tests.unit.client.small_client import LANES, Server, server, service, stuck
from tests.unit.controller.small_service import SmallService

__all__ = ["server", "service"]  # fixtures


ENDINGS: dict[str, tuple[Callable[[SmallService, str], None], type[ClientError], str]] = {
    "service dies": (
        lambda s, nonce: s.stop(),
        ServiceUnavailableError,
        "not available.*waited 1 s",
    ),
    "job ends": (
        lambda s, nonce: s.end(nonce, grpc.StatusCode.OK),
        PlanWithdrawnError,
        "has ended",
    ),
    "job fails": (
        lambda s, nonce: s.end(nonce, grpc.StatusCode.ABORTED, "w1 gave up: no more memory"),
        PlanWithdrawnError,
        "w1 gave up: no more memory",
    ),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_sum_that_will_not_come_raises_instead_of_hanging(
    service: SmallService, server: Server, ending: str
) -> None:
    end, error, text = ENDINGS[ending]
    nonce, waiting, other = stuck(service, server, outage=1.0)
    timer = threading.Timer(0.2, end, (service, nonce))
    timer.start()
    began = time.monotonic()
    with pytest.raises(error, match=text):
        waiting.push_pull({"b": np.ones(30, np.float32)})
    assert time.monotonic() - began < 60  # nothing else would end it
    timer.join()
    with pytest.raises(ClientError, match="an earlier call failed"):
        waiting.push_pull({"b": np.ones(30, np.float32)})
    for client in (waiting, other):
        with contextlib.suppress(ServiceUnavailableError):
            client.leave()


def test_a_timeout_says_what_is_missing(service: SmallService, server: Server) -> None:
    _, waiting, other = stuck(service, server)
    with pytest.raises(TimeoutError, match=r"1 chunks without a sum after 0\.3 s.*exponent round"):
        waiting.push_pull({"b": np.ones(30, np.float32)}, timeout=0.3)
    assert waiting.explain()[0].kind == "exponent round"
    other.leave()
    waiting.leave()


def test_arrays_of_a_call_that_failed_may_change(service: SmallService, server: Server) -> None:
    """The worker still answers for them, so that others get their sums."""
    values = np.ones(40 * LANES, np.float32)
    _, waiting, other = stuck(service, server, values.size)
    with pytest.raises(TimeoutError):
        waiting.push_pull({"b": values}, timeout=0.3)
    values.fill(1000)
    sums = other.push_pull({"b": np.ones_like(values)}, timeout=20)
    assert (sums["b"] == 2).all()
    other.leave()
    waiting.leave()


def test_stall_timeout_names_chunk_node_and_phase(service: SmallService, server: Server) -> None:
    _, waiting, other = stuck(service, server, patience=1.5)
    expected = (
        r"no sum for 1\.5 s, 1 chunks wait; the first: "
        r"chunk 0 \(stream 0, seq 0, exponent round\): "
        r"[0-9.]+ s ago node 1 was AGGREGATING, children in: 0b1, .*; given up after 1\.5 s"
    )
    with pytest.raises(StalledError, match=expected):
        waiting.push_pull({"b": np.ones(30, np.float32)})
    with pytest.raises(ClientError, match="an earlier call failed"):
        waiting.push_pull({"b": np.ones(30, np.float32)})
    other.leave()
    waiting.leave()


def test_dead_server_is_distinguished_from_waiting_one(
    service: SmallService, server: Server
) -> None:
    _, waiting, other = stuck(service, server, patience=1.5)
    server.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, server.process.pid, os.WSTOPPED | os.WNOWAIT)
    expected = (
        r"the first, sent to node 1: chunk 0 .*: sent 1\.5 s ago, no node has reported its phase"
    )
    with pytest.raises(StalledError, match=expected):
        waiting.push_pull({"b": np.ones(30, np.float32)})
    server.process.send_signal(signal.SIGCONT)
    other.leave()
    waiting.leave()


def test_waiting_is_reported_until_straggler_arrives(
    service: SmallService, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hosts.session.stall_timeout._STALL_SECONDS", 0.5)
    monkeypatch.setattr("hosts.session.stall_timeout._STALL_AGAIN_SECONDS", 0.1)
    stalls: list[Stall] = []
    late = threading.Event()

    def notice(stall: Stall) -> None:
        stalls.append(stall)
        if len(stalls) == 3:
            late.set()

    _, waiting, other = stuck(service, server, patience=50, on_stall=notice)
    ones = {"b": np.ones(30, np.float32)}
    with ThreadPoolExecutor(1) as pool:
        straggler = pool.submit(lambda: late.wait(40) and other.push_pull(ones))
        np.testing.assert_array_equal(waiting.push_pull(ones)["b"], 2 * ones["b"])
        assert straggler.result()
    assert stalls[0].missing == 1
    assert stalls[0].node == 1
    assert stalls[0].seconds < stalls[2].seconds
    other.leave()
    waiting.leave()
