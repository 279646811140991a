# SPDX-License-Identifier: Apache-2.0
"""Tests whole jobs of transports and servers on faulty simulated networks."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.header import HEADER, HEADER_BYTES, Batch, Flag, Op, carries_payload, peer_array
from tests.impaired_links import Impairments
from tests.unit.worker.simulated_job import Job


@st.composite
def scenarios(draw: st.DrawFn) -> dict:
    return {
        "world": draw(st.integers(1, 3)),
        "servers": draw(st.integers(1, 2)),
        "streams_per_server": draw(st.integers(1, 2)),
        "window": draw(st.sampled_from([1, 2, 4, 8])),
        "chunks": draw(st.integers(1, 8)),
        "seed": draw(st.integers(0, 2**32)),
        "impairments": Impairments(
            loss=draw(st.sampled_from([0.0, 0.05, 0.3])),
            duplicate=draw(st.sampled_from([0.0, 0.05, 0.3])),
            jitter=draw(st.sampled_from([0.0, 0.002, 0.5])),
        ),
    }


@given(scenarios(), st.booleans())
@settings(max_examples=25, deadline=None, derandomize=True)
def test_sums_are_exact_under_network_faults(scenario: dict, nasty: bool) -> None:
    job = Job(**scenario)
    rng = np.random.default_rng(scenario["seed"])
    for turn in range(2):
        values = job.random_values(scenario["seed"] + turn)
        if nasty and turn == 1:
            values[0, 0] *= 100  # does not fit what the last round suggests
            values[-1, -1, 0] = np.inf
        job.round(values, skew=(rng.random(job.world) * 0.4).tolist())


@given(st.integers(0, 2**32), st.lists(st.floats(0, 5), min_size=3, max_size=3), st.integers(1, 2))
@settings(max_examples=10, deadline=None, derandomize=True)
def test_waiting_for_slower_workers_is_not_loss(seed: int, skew: list[float], servers: int) -> None:
    job = Job(servers=servers, seed=seed, window=4, chunks=6)
    job.round(job.random_values(seed), skew)
    values = job.random_values(seed + 1)
    values[0, 2, 0] = np.nan
    job.round(values, skew[::-1])
    for worker in job.workers:
        assert worker.statistics.retransmitted == 0
    # Contributions of exponent rounds, two rounds of data and DIRECT chunks, each once.
    direct = job.workers[0].statistics.completed_direct
    assert direct >= 1
    assert job.rule.contributions == 3 * (3 * 6 + direct)


def test_direct_chunks_and_statistics() -> None:
    job = Job(world=3, chunks=6, servers=2, window=8)
    small = np.full((3, 6, 4), 0.5, np.float32)
    job.round(small)
    values = small.copy()
    values[1, 0, 3] = np.nan
    values[2, 3] = 1e6
    values[0, 3] = -1e6
    reference = job.round(values)
    assert reference.flags.tolist() == [Flag.NONFINITE, 0, 0, Flag.OVERFLOW, 0, 0]
    for worker in job.workers:
        statistics = worker.statistics
        assert (statistics.completed, statistics.completed_direct) == (10, 2)
        assert statistics.exponent_rounds == 6
        assert statistics.sent == 6 + 6 + 6 + 2
        assert statistics.retransmitted == 0
        assert not statistics.dropped
    direct = sum(state.counters(1)["direct_completed"] for state in job.servers)
    completed = sum(state.counters(1)["completed"] for state in job.servers)
    assert (direct, completed) == (2, 6 + 12)
    job.round(values)  # the DIRECT results gave the exponent: chunk 3 fits now
    assert job.workers[0].statistics.completed_direct == 3


def test_every_direct_packet_may_be_lost_once() -> None:
    job = Job(world=2, chunks=1, window=2)
    lost: set[tuple] = set()

    def lossy(datagram: bytes, _: random.Random) -> bytes:
        key = (datagram[0], datagram[1] & ~Flag.RETRANSMIT, datagram[7])
        if datagram[1] & Flag.DIRECT and key not in lost:
            lost.add(key)
            return bytes([1 << 4 | Op.STATE, 0]) + bytes(HEADER_BYTES - 2)  # a malformed packet
        return datagram

    job.network._impairments.corrupt = lossy
    job.round(np.full((2, 1, 4), np.inf, np.float32))
    kinds = {op & 15 for op, _, _ in lost}
    assert kinds == {Op.CONTRIBUTE, Op.RESULT, Op.QUERY, Op.STATE}


def test_a_result_corrupted_on_its_way_is_replayed() -> None:
    spoiled: set[bytes] = set()

    def corrupt(datagram: bytes, rng: random.Random) -> bytes:
        full = len(datagram) > HEADER_BYTES
        if datagram[0] & 15 == Op.RESULT and full and datagram[:12] not in spoiled:
            spoiled.add(datagram[:12])
            at = rng.randrange(HEADER_BYTES, len(datagram))
            return (
                datagram[:at] + bytes([datagram[at] ^ 1 << rng.randrange(8)]) + datagram[at + 1 :]
            )
        return datagram

    job = Job(world=2, chunks=4, seed=5, impairments=Impairments(corrupt=corrupt))
    job.round(job.random_values(1))
    assert sum(worker.statistics.wrong_checksum for worker in job.workers) >= 4


def test_the_same_calls_give_the_same_packets() -> None:
    logs = []
    for _ in range(2):
        job = Job(seed=3, impairments=Impairments(0.2, 0.2, 0.01))
        log: list[bytes] = []
        job.network.on_sent = lambda _s, _d, datagram, log=log: log.append(datagram)
        job.round(job.random_values(3))
        logs.append(log)
    assert logs[0] == logs[1]


@given(st.integers(0, 2**32))
@settings(max_examples=20, deadline=None)
def test_arbitrary_packets_are_harmless(seed: int) -> None:
    job = Job(world=2, chunks=4, window=2)
    job.submit(job.random_values(1))
    job.network.run(lambda: job.network.packets > 6, 10.0)
    rng = np.random.default_rng(seed)
    raw = rng.integers(0, 256, (200, HEADER_BYTES), dtype=np.uint8)
    raw[:, 0] = 1 << 4 | rng.integers(1, 5, 200)
    headers = raw.reshape(-1).view(HEADER)
    for name, values in (
        ("job", [1]),
        ("epoch", [1]),
        ("stream", [0]),
        ("seq", range(8)),
        ("chunk", range(4)),
        ("node", [7]),
        ("workers", [1, 2]),
        ("lanes", [0, 4]),
        ("sender", [0, 1, 40]),
        ("flags", [0, 4, 0x20, 0x24, 1, 9]),
    ):
        likely = rng.random(200) < 0.9
        headers[name][likely] = rng.choice(list(values), likely.sum())
    peers = [job.server_addresses[0].pair(), *(a.pair() for a in job.worker_addresses)]
    words = rng.integers(-(2**31), 2**31, (200, 4)).astype(">i4")
    sources = peer_array([peers[i] for i in rng.integers(0, len(peers), 200)])
    batch = Batch(headers, words, carries_payload(headers), sources)
    for machine in (*job.workers, *job.servers):
        machine.on_packets(job.network.now, batch)
        output, _ = machine.poll(job.network.now)
        assert output is None or len(output) < 1000
