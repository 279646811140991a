# SPDX-License-Identifier: Apache-2.0
"""Tests that plans survive serialisation, and that invalid plans are rejected."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from protocol import jobs_pb2
from protocol.plan import (
    Address,
    Child,
    PlanError,
    RootStream,
    ServerPlan,
    StreamPlan,
    WorkerPlan,
)

SERVERS = (Address.of("10.0.1.1", 47110), Address.of("10.0.1.2", 47110))
WORKERS = tuple(Address.of(f"10.0.0.{rank + 1}", 40000 + rank) for rank in range(3))
WORKER = WorkerPlan(
    job=3,
    epoch=2,
    world=3,
    lanes=256,
    rank=1,
    streams=(StreamPlan(0, 7, 1, 16, 2), StreamPlan(4, 8, 0, 32, 0)),
    servers=SERVERS,
    counts=(40, 30),
    chunks_per_slice=32,
    link_rate=10_000_000,
    tree="tor",
    roots=("s0", "s1"),
)
SERVER = ServerPlan(
    job=3,
    epoch=2,
    world=3,
    lanes=256,
    rank=1,
    servers=SERVERS,
    workers=WORKERS,
    windows={0: 16, 4: 32},
    counts=(40, 30),
    roots=(RootStream(4, 9, 32, (Child(0, WORKERS[0], 1, 0), Child(1, SERVERS[0], 2, 5))),),
    chunks_per_slice=32,
)


def test_plans_survive_the_wire() -> None:
    for plan, kind in ((WORKER, WorkerPlan), (SERVER, ServerPlan)):
        message = jobs_pb2.Plan.FromString(plan.to_message().SerializeToString())
        assert kind.from_message(message) == plan


def test_slices_of_keys_go_to_servers_by_their_size() -> None:
    """Slices of 32, 8 and 30 chunks: the largest, then the next, then the smallest to that one."""
    chunks = np.array([0, 31, 32, 39, 40, 69])
    assert WORKER.server_of(chunks).tolist() == [0, 0, 1, 1, 1, 1]
    assert WORKER.stream_of(chunks).tolist() == [0, 0, 1, 1, 1, 1]
    assert SERVER.server_of(40) == 1
    assert SERVER.server_of(np.array([69, 70, 1 << 31])).tolist() == [1, -1, -1]


def test_addresses_read_as_people_write_them() -> None:
    assert str(SERVERS[0]) == "10.0.1.1:47110"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"job": 0}, "job 0"),
        ({"epoch": 65536}, "epoch 65536"),
        ({"rank": 3}, "rank 3"),
        ({"servers": ()}, "at least one server"),
        ({"chunks_per_slice": 0}, "chunks_per_slice"),
        ({"counts": ()}, "at least one key"),
        ({"counts": (4, 0)}, "key 1 has no chunks"),
        ({"streams": (StreamPlan(0, 7, 1, 12),)}, "window 12"),
        ({"streams": (StreamPlan(0, 7, 32, 16),)}, "sender 32"),
        ({"streams": (StreamPlan(0, 7, 1, 16), StreamPlan(0, 8, 1, 16))}, "ascending"),
    ],
)
def test_a_worker_refuses_what_it_cannot_follow(change: dict, complaint: str) -> None:
    with pytest.raises(PlanError, match=complaint):
        replace(WORKER, **change)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"rank": 2}, "rank 2"),
        ({"workers": WORKERS[:2]}, "world of 3"),
        ({"workers": (WORKERS[0],) * 3}, "share"),
        ({"roots": (RootStream(0, 9, 16, (Child(0, WORKERS[0], 1, 0),)),)}, "have 1 workers"),
        ({"roots": (RootStream(0, 9, 16, (Child(1, WORKERS[0], 3, 0),)),)}, "senders"),
    ],
)
def test_a_server_refuses_what_it_cannot_follow(change: dict, complaint: str) -> None:
    with pytest.raises(PlanError, match=complaint):
        replace(SERVER, **change)
