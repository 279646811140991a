# SPDX-License-Identifier: Apache-2.0
"""Tests how long a worker lets packets wait that arrive at its socket."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from hosts.net.driver import Turn
from hosts.net.pacer import BACKLOG
from hosts.net.udp import Endpoint
from hosts.worker.transport import WorkerTransport
from protocol.header import Batch
from tests.unit.worker.lone_worker import lone, results_of, submit

CHUNKS = range(64)
SLOW, FAST = 2_000_000, 10_000_000_000  # bit/s: a packet takes 0.4 ms, and next to nothing
LANES = 4


@pytest.fixture
def host() -> Iterator[Endpoint]:
    with Endpoint(("127.0.0.1", 0), lanes=LANES) as endpoint:
        yield endpoint


@pytest.fixture
def server() -> Iterator[Endpoint]:
    with Endpoint(("127.0.0.1", 0), lanes=LANES) as endpoint:
        yield endpoint


def worker(server: Endpoint, rate: int) -> WorkerTransport:
    to = (server.ipv4, server.port)
    return lone(len(CHUNKS), link_rate=rate, server=to, rto_least=60.0, rto_most=60.0)  # no probes


def took(transport: WorkerTransport, host: Endpoint) -> Turn:
    turn = transport.turn(host)
    assert turn is not None
    return turn


def contact(transport: WorkerTransport) -> None:
    """Completes first contacts, long ago."""
    submit(transport, *CHUNKS)
    now = 0.0
    while not transport.idle:
        batch, _ = transport.poll(now)
        if batch is not None:
            transport.on_packets(now, results_of(batch))
        now += BACKLOG
    transport.take_completed()


def all_that_is_sent(transport: WorkerTransport, host: Endpoint, server: Endpoint) -> Batch:
    """Takes turns until every chunk has been sent and the link is free again; returns them."""
    batches, count = [], 0
    while count < len(CHUNKS):
        turn = took(transport, host)
        host.wait(max(0.001, min(0.1, turn.following - time.monotonic())))
        while (batch := server.receive()) is not None:
            batches.append(batch.select(slice(None)))
            count += len(batch)
    host.wait(2 * BACKLOG)
    return Batch.concatenate(batches)


def test_arrivals_wait_while_the_link_has_packets(host: Endpoint, server: Endpoint) -> None:
    transport = worker(server, SLOW)
    submit(transport, *CHUNKS)
    turn = took(transport, host)
    assert 0 < turn.unhurried <= BACKLOG / 2
    assert turn.unhurried <= turn.following - time.monotonic() + BACKLOG


def test_results_that_release_packets_do_not_wait(host: Endpoint, server: Endpoint) -> None:
    transport = worker(server, FAST)
    submit(transport, *CHUNKS)  # of which only first contacts are sent before results
    assert took(transport, host).unhurried == 0


def test_results_wait_while_most_are_missing(host: Endpoint, server: Endpoint) -> None:
    transport = worker(server, SLOW)
    contact(transport)
    submit(transport, *CHUNKS)
    results = results_of(all_that_is_sent(transport, host, server))
    assert took(transport, host).unhurried > 0
    server.send(results.select(slice(0, len(CHUNKS) - 2)))
    host.wait(10)
    assert took(transport, host).unhurried == 0
    server.send(results.select(slice(len(CHUNKS) - 2, None)))
    host.wait(10)
    took(transport, host)
    assert transport.idle


def test_only_a_wake_ends_an_unhurried_wait(host: Endpoint, server: Endpoint) -> None:
    sender = worker(host, FAST)
    submit(sender, *CHUNKS)
    took(sender, server)  # of which the first arrive at the host
    began = time.monotonic()
    host.wait(10, 0.2)
    assert time.monotonic() - began >= 0.2
    began = time.monotonic()
    host.wake()
    host.wait(10, 5)
    assert time.monotonic() - began < 5
    assert len(host.receive() or ()) > 0
