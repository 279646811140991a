# SPDX-License-Identifier: Apache-2.0
"""Tests chunk schedulers: the contract of those registered, and that one file makes a new one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hosts.errors import PolicyError
from hosts.worker.scheduling.registry import SCHEDULERS
from hosts.worker.scheduling.scheduler import ChunkScheduler
from protocol.header import Op, decode
from protocol.partition import servers_of
from protocol.plan import PlanError
from tests.impaired_links import Impairments
from tests.unit.worker.simulated_job import Job

STREAMS, SERVERS = 2, 2  # streams of each server
WORKER = 0
LOSSES = Impairments(loss=0.1, duplicate=0.05, jitter=0.002)


class Reversed(ChunkScheduler):
    """The last chunk of a submission first."""

    def arrange(self, chunks):
        return np.arange(len(chunks))[::-1]


class FirstHalfUrgent(ChunkScheduler):
    """The first half of the chunks, which the next forward pass needs first, has streams of its
    own, and these send first."""

    def arrange(self, chunks):
        return np.arange(len(chunks))

    def streams(self, chunks):
        servers = len(self.plan.servers)
        lazy = np.asarray(chunks) >= sum(self.plan.counts) // 2
        return self.plan.server_of(chunks) + servers * lazy

    def priorities(self):
        return np.repeat([1, 0], len(self.plan.servers))


OWN = {"reversed": Reversed, "first-half-urgent": FirstHalfUrgent}


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    for name, kind in OWN.items():
        assert name not in SCHEDULERS, "a test's own would hide the registered one"
        monkeypatch.setitem(SCHEDULERS, name, kind)


def job(scheduler: str, **more) -> Job:
    options = {"servers": SERVERS, "streams_per_server": STREAMS, "chunks": 8, "window": 2}
    return Job(scheduler=scheduler, **{**options, **more})


@pytest.mark.parametrize("name", [*SCHEDULERS, *OWN])
def test_scheduler_keeps_the_contract(name):
    plan = job(name).workers[WORKER].plan
    scheduler = SCHEDULERS[name](plan)
    assert scheduler.priorities().shape == (len(plan.streams),)
    every = np.arange(sum(plan.counts))
    streams = scheduler.streams(every)
    for chunk, stream in zip(every.tolist(), streams.tolist(), strict=True):
        leads_to = servers_of(stream, len(plan.streams), len(plan.servers))
        assert plan.server_of(chunk) in leads_to
    for chunks in (every, every[5:6], every[::-3], every[:0]):
        arranged = scheduler.arrange(chunks)
        assert sorted(arranged.tolist()) == list(range(len(chunks)))
        assert (scheduler.streams(chunks) == streams[chunks]).all()


@pytest.mark.parametrize("name", [*SCHEDULERS, *OWN])
def test_sums_do_not_depend_on_the_scheduler(name):
    trained = job(name, impairments=LOSSES, seed=3)
    for seed in range(2):  # each compares with sums made without a network
        trained.round(trained.random_values(seed), skew=[0.0, 0.01 * seed, 0.02])


@pytest.mark.parametrize("name", [*SCHEDULERS, *OWN])
def test_chunks_keep_their_order_over_a_change_of_plan(name):
    changed = job(name, impairments=LOSSES, seed=4)
    changed.round(changed.random_values(0))
    values = changed.random_values(1)
    changed.submit(values)
    reference = changed.expected(values)
    changed.network.at(changed.network.now + 0.003, lambda: changed.change(4, STREAMS))
    for part in changed.finish():
        assert part.sums.tobytes() == reference.sums.tobytes()
    changed.round(changed.random_values(2))


def contributed(one: Job, rounds: int) -> list[int]:
    """The chunks that worker 0 contributes, in the order in which it sends them."""
    chunks: list[int] = []
    address = one.worker_addresses[WORKER].pair()

    def sent(source, _destination, datagram):
        header = decode([datagram], [(0, 0)], one.lanes)[0].headers[0]
        if source == address and header["version_op"] & 15 == Op.CONTRIBUTE and header["lanes"]:
            chunks.append(int(header["chunk"]))

    one.network.on_sent = sent
    for _ in range(rounds):  # of the same values, so no sum exceeds its exponent
        one.round(one.random_values(0))
    return chunks


def test_scheduler_decides_the_order_on_the_wire():
    every = list(range(8))
    one_stream = {"servers": 1, "streams_per_server": 1}
    assert contributed(job("fifo", **one_stream), 2)[8:] == every
    assert contributed(job("reversed", **one_stream), 2)[8:] == every[::-1]


def test_urgent_streams_send_first():
    # All fits into the windows, and the exponents are known: each round leaves at once.
    sent = contributed(job("first-half-urgent", window=4), 2)[8:]
    assert sent == sorted(sent)
    fifo = contributed(job("fifo", window=4), 2)[8:]
    assert fifo == sorted(fifo)
    late = job("first-half-urgent", window=4)
    contributed(late, 1)
    for worker, values in zip(late.workers, late.random_values(0), strict=True):
        halves = np.arange(4, 8), np.arange(4)  # the lazy ones are submitted first
        for half in halves:
            worker.submit(half, values[half], np.full(4, late.lanes))
    batch, _ = late.workers[WORKER].poll(late.network.now)
    assert sorted(batch.headers["chunk"][:4].tolist()) == list(range(4))


class Broken(ChunkScheduler):
    """Raises, or returns what it must not."""

    returned: object = None

    def arrange(self, chunks):
        if self.returned is None:
            raise LookupError("no such order")
        return self.returned


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        (None, "LookupError: no such order"),
        (np.zeros(2, np.int64), "arrange() has to return the numbers from 0 to 7, each once; it"),
        (np.array([0, 1, 2, 3, 4, 5, 6, 6]), "it returned [0 1 2 3 4 5 6 6]"),
        (np.array([1, 2, 3, 4, 5, 6, 7, 8]), "it returned [1 2 3 4 5 6 7 8]"),
        (np.arange(8.0), "TypeError: "),
    ],
)
def test_broken_scheduler_is_named_with_its_file(monkeypatch, returned, text):
    monkeypatch.setitem(SCHEDULERS, "broken", Broken)
    monkeypatch.setattr(Broken, "returned", returned)
    broken = job("broken", servers=1, streams_per_server=1)
    with pytest.raises(PolicyError) as raised:
        broken.round(broken.random_values(0))
    said = str(raised.value)
    assert said.startswith(f"chunk scheduler Broken ({__file__}")
    assert text in said
    if returned is None:
        source = Path(__file__).read_text().splitlines()
        line = next(n for n, one in enumerate(source, 1) if "raise LookupError" in one)
        assert said.startswith(f"chunk scheduler Broken ({__file__}:{line}): ")


@pytest.mark.parametrize(
    "wrong",
    [lambda n: np.zeros(n - 1, np.int64), lambda n: np.full(n, 4), lambda n: np.full(n, -1)],
)
def test_wrong_streams_are_named(monkeypatch, wrong):
    class Astray(Reversed):
        def streams(self, chunks):
            return wrong(len(chunks))

    monkeypatch.setitem(SCHEDULERS, "astray", Astray)
    astray = job("astray")
    with pytest.raises(
        PolicyError, match=r"Astray .*streams\(\) has to return \d+ numbers from 0 to 3"
    ):
        astray.round(astray.random_values(0))


def test_unknown_scheduler_is_refused():
    with pytest.raises(PlanError, match="order 'alphabetic' is none of fifo"):
        job("alphabetic")
