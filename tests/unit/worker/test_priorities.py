# SPDX-License-Identifier: Apache-2.0
"""Tests classes of urgency, credits and sums released by slice, between transports and servers."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from hosts.net.pacer import wire_bytes
from protocol.header import Op, decode
from protocol.propagation import SLICE, Propagation
from tests.impaired_links import Impairments
from tests.unit.worker.simulated_job import SLICE as CHUNKS_PER_SLICE
from tests.unit.worker.simulated_job import Job

COUNTS = (1, 5, 2, 4)  # of keys in the order of the forward pass
CHUNKS = sum(COUNTS)
LOSSES = Impairments(loss=0.1, duplicate=0.05, jitter=0.002)
WAYS = {
    "priority": Propagation("priority", classes=3),
    "priority, by slice": Propagation("priority", classes=3, release=SLICE),
    "hashed": Propagation("priority", classes=4, assign="hashed"),
    "whole keys": Propagation("fifo", parts=True, assign="hashed", release=SLICE),
    "credit": Propagation("credit", classes=3, credit=200),
    "credit, by slice": Propagation("credit", classes=3, credit=100, release=SLICE),
    "more classes than keys": Propagation("priority", classes=7),
}


def job(propagation: Propagation, **more) -> Job:
    options = {"servers": 2, "chunks": CHUNKS, "counts": COUNTS, "window": 4}
    return Job(propagation=propagation, **{**options, **more})


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("impairments", [None, LOSSES], ids=["clean", "lossy"])
def test_sums_are_those_of_any_other_order(name, impairments):
    trained = job(WAYS[name], impairments=impairments, seed=5)
    for seed in range(3):  # each compares with sums made without a network
        trained.round(trained.random_values(seed), skew=[0.0, 0.01 * seed, 0.02])


@pytest.mark.parametrize("name", [n for n, way in WAYS.items() if not way.by_slice])
def test_chunks_keep_their_class_over_a_change_of_plan(name):
    changed = job(WAYS[name], impairments=LOSSES, seed=4)
    changed.round(changed.random_values(0))
    values = changed.random_values(1)
    changed.submit(values)
    reference = changed.expected(values)
    changed.network.at(changed.network.now + 0.003, lambda: changed.change(4))
    for part in changed.finish():
        assert part.sums.tobytes() == reference.sums.tobytes()
    changed.round(changed.random_values(2))


def _contributions(batch) -> list[int]:
    return batch.headers["chunk"].astype(int).tolist()


def test_urgent_chunks_overtake_all_that_wait():
    """Keys are pushed in the order of the backward pass; then the first key goes first."""
    one = job(WAYS["priority"], window=16)
    one.round(one.random_values(0))
    values, worker = one.random_values(1), one.workers[0]
    bounds = np.cumsum((0, *COUNTS))
    for first, last in reversed(list(pairwise(bounds))):
        rows = np.arange(first, last)
        worker.submit(rows, values[0][rows], np.full(len(rows), one.lanes))
    batch, _ = worker.poll(one.network.now)
    classes = worker.plan.shares.classes.repeat(COUNTS)
    sent = classes[_contributions(batch)].tolist()
    assert sent == sorted(sent, reverse=True)
    assert len(set(sent)) == 3


def test_priority_of_a_push_is_the_class_of_its_chunks():
    one = job(WAYS["priority"], window=16)
    one.round(one.random_values(0))
    worker, values = one.workers[0], one.random_values(1)
    last = np.arange(CHUNKS - COUNTS[-1], CHUNKS)
    others = np.arange(CHUNKS - COUNTS[-1])
    worker.submit(others, values[0][others], np.full(len(others), one.lanes), None, 0)
    worker.submit(last, values[0][last], np.full(len(last), one.lanes), None, 2)
    batch, _ = worker.poll(one.network.now)
    assert set(_contributions(batch)[: len(last)]) == set(last.tolist())


def test_credit_bounds_the_bytes_in_flight():
    large = wire_bytes(4)[1]
    one = job(Propagation("credit", credit=3 * large), servers=1, window=16)
    outstanding: set[tuple[int, int]] = set()
    most = 0
    address, checked = one.worker_addresses[0].pair(), one.network.on_arrived

    def passed(source, destination, datagram):
        nonlocal most
        header = decode([datagram], [(0, 0)], one.lanes)[0].headers[0]
        number = int(header["stream"]), int(header["seq"])
        if source == address and header["version_op"] & 15 == Op.CONTRIBUTE:
            outstanding.add(number)
            most = max(most, len(outstanding))

    def arrived(source, destination, datagram):
        checked(source, destination, datagram)
        header = decode([datagram], [(0, 0)], one.lanes)[0].headers[0]
        if destination == address and header["version_op"] & 15 == Op.RESULT:
            outstanding.discard((int(header["stream"]), int(header["seq"])))

    one.network.on_sent, one.network.on_arrived = passed, arrived
    one.round(one.random_values(0))
    assert most == 3


def test_credit_that_workers_spend_on_different_keys_stops_none():
    """One has sent of the last key what its credit allows, when others begin with the first."""
    credit = Propagation("credit", classes=2, credit=2 * wire_bytes(4)[1])
    one = job(credit, servers=1, counts=(6, 6), chunks=12, window=8)
    one.round(one.random_values(0))
    values = one.random_values(1)
    reference = one.expected(values)
    keys = np.arange(6), np.arange(6, 12)

    def push(rank: int, *pushed: int) -> None:
        worker = one.workers[rank]
        for key in pushed:
            rows = keys[key]
            worker.submit(rows, values[rank][rows], np.full(len(rows), one.lanes))
        one.network.poke(one.worker_addresses[rank].pair())

    now = one.network.now
    one.network.at(now, lambda: push(0, 1))
    for rank in range(1, one.world):
        one.network.at(now + 0.02, lambda rank=rank: push(rank, 1, 0))
    one.network.at(now + 0.02, lambda: push(0, 0))
    one.network.run_for(0.03)
    for part in one.finish(10.0):
        order = np.argsort(part.chunks)
        assert part.sums[order].tobytes() == reference.sums.tobytes()


def test_servers_send_the_sums_of_a_slice_together():
    """Contributions arrive in any order; between two results of a slice there is none of
    another."""
    shaken = Impairments(jitter=0.01)
    one = job(
        Propagation("fifo", release=SLICE),
        **{"servers": 1, "counts": (9,), "chunks": 9, "window": 8, "impairments": shaken},
    )
    sent: list[int] = []  # slices
    address, checked = one.worker_addresses[0].pair(), one.network.on_sent

    def passed(source, destination, datagram):
        checked(source, destination, datagram)
        header = decode([datagram], [(0, 0)], one.lanes)[0].headers[0]
        if destination == address and header["lanes"] and header["version_op"] & 15 == Op.RESULT:
            sent.append(int(header["chunk"]) // CHUNKS_PER_SLICE)

    one.network.on_sent = passed
    one.round(one.random_values(0))
    assert len(sent) == 9
    begins = [one for one, before in zip(sent, [None, *sent], strict=False) if one != before]
    assert len(begins) == len(set(sent))


def test_parts_of_a_whole_key_go_to_all_servers_at_a_time():
    """Else all workers send to the first server, then all to the second."""
    one = job(WAYS["whole keys"], servers=3, chunks=12, counts=(12,), window=16)
    one.round(one.random_values(0))
    values, worker = one.random_values(1), one.workers[0]
    rows = np.arange(12)
    worker.submit(rows, values[0][rows], np.full(len(rows), one.lanes))
    batch, _ = worker.poll(one.network.now)
    servers = worker.plan.server_of(np.array(_contributions(batch)))
    assert servers.reshape(4, 3).tolist() == [[0, 1, 2]] * 4


@pytest.mark.parametrize("window", [4, 8, 16])
def test_whole_keys_longer_than_a_window_are_released_in_pieces(window):
    one = job(WAYS["whole keys"], servers=3, chunks=97, counts=(96, 1), window=window)
    for seed in range(2):
        one.round(one.random_values(seed))
