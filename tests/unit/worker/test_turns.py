# SPDX-License-Identifier: Apache-2.0
"""Tests a worker's turns at its socket: how many it takes, and how long arrivals wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace

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
    turn = transport.turns(host)
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


def test_turns_are_taken_until_there_are_enough_sums(host: Endpoint, server: Endpoint) -> None:
    """One call takes all that arrives while it waits, and sends what that releases."""
    transport = worker(server, FAST)
    contact(transport)
    submit(transport, *CHUNKS)
    stop = threading.Event()

    def answer() -> None:
        while not stop.is_set():
            server.wait(0.05)
            batch = server.receive()
            for number in range(0 if batch is None else len(batch)):
                server.send(results_of(batch.select([number])))

    answering = threading.Thread(target=answer)
    answering.start()
    try:
        turn = transport.turns(host, len(CHUNKS), time.monotonic() + 10)
    finally:
        stop.set()
        answering.join()
    assert turn is not None
    assert transport.arrived == len(CHUNKS)
    assert 0 < turn.summed <= time.monotonic()
    assert host.counters.received == len(CHUNKS)
    assert host.counters.receive_calls > 0


def test_turns_end_at_their_deadline(host: Endpoint, server: Endpoint) -> None:
    transport = worker(server, FAST)
    submit(transport, *CHUNKS)
    began = time.monotonic()
    turn = transport.turns(host, len(CHUNKS), began + 0.2)
    assert turn is not None
    assert time.monotonic() >= began + 0.2
    assert turn.summed == 0
    assert not transport.arrived


def test_a_wake_ends_turns(host: Endpoint, server: Endpoint) -> None:
    """Also one that came before they began, and one from another thread."""
    transport = worker(server, FAST)
    submit(transport, *CHUNKS)
    began = time.monotonic()
    host.wake()
    assert transport.turns(host, len(CHUNKS), began + 30) is not None
    timer = threading.Timer(0.1, host.wake)
    timer.start()
    assert transport.turns(host, len(CHUNKS), began + 30) is not None
    assert 0.1 <= time.monotonic() - began < 30
    timer.join()


def test_sums_of_a_former_epoch_count(host: Endpoint, server: Endpoint) -> None:
    transport = worker(server, FAST)
    contact(transport)
    submit(transport, 0)
    batch, _ = transport.poll(time.monotonic())
    assert batch is not None
    transport.on_packets(time.monotonic(), results_of(batch))
    later = transport.successor(replace(transport.plan, epoch=transport.plan.epoch + 1))
    submit(later, 1)
    began = time.monotonic()
    assert later.arrived == 1
    assert later.turns(host, 1, began + 30) is not None
    assert time.monotonic() - began < 30
