# SPDX-License-Identifier: Apache-2.0
"""Tests one worker's transport with hand-made packets."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hosts.worker.transport import WorkerTransport
from protocol.exponents import Exponents
from protocol.header import (
    HEADER_BYTES,
    PORT,
    Batch,
    Flag,
    Op,
    Phase,
    carries_payload,
    peer_array,
)
from protocol.plan import Address, StreamPlan, WorkerPlan
from tests.unit.worker.lone_worker import (
    SERVER,
    contacted,
    lone,
    results_of,
    sent,
    state_of,
    submit,
)


def test_a_first_contact_is_an_exponent_round_and_then_data() -> None:
    transport = lone(window=4)
    submit(transport, 5, value=3.0)
    batch, _ = transport.poll(0.0)
    header = batch.headers[0]
    assert (len(batch), header["seq"], header["lanes"], bool(batch.full[0])) == (1, 0, 0, False)
    assert (header["max_exponent"], header["exponent"], header["chunk"]) == (2, 0, 5)
    answer = results_of(batch)
    answer.headers["max_exponent"] = 4  # another worker's values are larger
    transport.on_packets(0.0, answer)
    batch, _ = transport.poll(0.0)
    header = batch.headers[0]
    assert (header["seq"], header["lanes"], header["exponent"], header["max_exponent"]) == (
        *(1, 4, 4),
        2,
    )
    transport.on_packets(0.0, results_of(batch))
    assert transport.take_completed().sums.tolist() == [[6.0] * 4]
    assert transport.idle


@pytest.mark.parametrize(("small", "coarse"), [(1e-3, 1), (0.0, 0), (1.0, 0), (0.9, 1)])
def test_sums_that_are_coarse_beside_the_round_before_are_counted(
    small: float, coarse: int
) -> None:
    """After 1e6, which is below 2^20, s is 30 - 1 - 22 = 7: of 1.0 there are 8 digits left."""
    transport = lone()
    for value, count in ((1e6, 0), (small, coarse), (small, coarse)):
        submit(transport, 3, value=value)
        while not transport.idle:
            batch, _ = transport.poll(0.0)
            assert batch is not None
            transport.on_packets(0.0, results_of(batch))
        assert transport.statistics.coarse == count
        sums = transport.take_completed().sums
    np.testing.assert_allclose(sums, 2 * small)  # the round after is exact again


def test_a_worker_that_trains_as_usual_has_no_coarse_sums() -> None:
    transport = lone(window=4)
    random = np.random.default_rng(1)
    for step in range(50):  # gradients of any kind that fade to a ten thousandth
        values = (random.standard_normal((4, 4)) * 0.8**step).astype(np.float32)
        transport.submit(range(4), values, np.full(4, 4))
        while not transport.idle:
            batch, _ = transport.poll(0.0)
            assert batch is not None
            transport.on_packets(0.0, results_of(batch))
    assert transport.statistics.completed == 200
    assert transport.statistics.coarse == 0


def test_the_window_is_the_last_number_without_a_result_plus_w() -> None:
    transport = lone(window=2)
    contacted(transport, *range(6))  # numbers 0..11
    submit(transport, *range(6))
    first, _ = transport.poll(0.0)
    assert first.headers["seq"].tolist() == [12, 13]
    assert sent(transport) == []
    transport.on_packets(0.0, results_of(first.select([1])))
    assert sent(transport) == []  # 14 waits for 12
    transport.on_packets(0.0, results_of(first.select([0])))
    assert [seq for _, seq, _ in sent(transport)] == [14, 15]


def test_what_is_not_for_a_number_in_flight_changes_nothing() -> None:
    transport = lone()
    submit(transport, 0)
    batch, _ = transport.poll(0.0)
    good = results_of(batch)
    causes = {
        "foreign": {"job": 2},
        "stale": {"seq": 4},
        "other_chunk": {"chunk": 1},
        "wrong_workers": {"workers": 1},
        "wrong_lanes": {"lanes": 4},
        "wrong_exponent": {"exponent": 1},
    }
    for cause, change in causes.items():
        bad = results_of(batch)
        for name, value in change.items():
            bad.headers[name] = value
        bad.full[:] = carries_payload(bad.headers)
        transport.on_packets(0.0, bad)
        assert transport.statistics.dropped.pop(cause) == 1
        assert not transport.statistics.dropped
    for place in ((1001, PORT), (1000, PORT + 1)):  # another server, another of its processes
        elsewhere = Batch(good.headers, good.payloads, good.full, peer_array([place]))
        transport.on_packets(0.0, elsewhere)
        assert transport.statistics.dropped.pop("wrong_source") == 1
    for change in ({"epoch": 9}, {"stream": 3}, {"version_op": 1 << 4 | Op.QUERY}):
        bad = results_of(batch)
        for name, value in change.items():
            bad.headers[name] = value
        transport.on_packets(0.0, bad)
    assert transport.statistics.dropped.pop("foreign") == 3
    assert transport.statistics.exponent_rounds == 0
    transport.on_packets(0.0, Batch.concatenate([good, good]))
    transport.on_packets(0.0, good)
    assert transport.statistics.exponent_rounds == 1
    assert transport.statistics.duplicates == 2


def test_result_before_contribution_is_ignored() -> None:
    transport = lone(window=2)
    contacted(transport, 0)
    submit(transport, 0, 1)
    batch, _ = transport.poll(0.0)  # seq 2 data, seq 3 exponent round
    assert batch.headers["seq"].tolist() == [2, 3]
    transport.on_packets(0.0, results_of(batch.select([1])))
    ahead = results_of(batch.select([0]))
    ahead.headers["seq"] = 4
    ahead.headers["chunk"] = 1
    transport.on_packets(0.0, ahead)
    assert transport.statistics.dropped["stale"] == 1


def test_corrupted_result_is_requeried_then_reported() -> None:
    transport = lone()
    contacted(transport, 0)
    submit(transport, 0)
    batch, _ = transport.poll(1.0)
    bad = results_of(batch, corrupt=True)
    transport.on_packets(1.0, Batch.concatenate([bad, bad]))
    transport.on_packets(1.0, bad)  # copies of one packet are one failure
    assert transport.statistics.wrong_checksum == 3
    assert transport.take_failures() == []
    assert sent(transport, 1.0) == [(Op.QUERY, 2, 0)]
    transport.on_packets(1.0, state_of(transport, 2, 0, Phase.FINAL, 3))
    again, _ = transport.poll(1.0)
    transport.on_packets(1.0, results_of(again, corrupt=True))
    failures = transport.take_failures()
    assert [(f.chunk, f.seq) for f in failures] == [(0, 2)]
    assert "twice" in str(failures[0])
    assert len(transport.take_completed()) == 0


def test_diverging_submissions_are_reported() -> None:
    transport = lone()
    submit(transport, 0)
    batch, _ = transport.poll(0.0)
    answer = results_of(batch)
    answer.headers["flags"] = Flag.OVERFLOW  # another worker sent data under this number
    transport.on_packets(0.0, answer)
    assert sent(transport) == [(Op.QUERY, 0, 0)]
    transport.on_packets(0.0, state_of(transport, 0, 0, Phase.FINAL, 3))
    assert sent(transport) == [(Op.CONTRIBUTE, 0, Flag.RETRANSMIT)]
    transport.on_packets(0.0, answer)
    [failure] = transport.take_failures()
    assert "same order" in failure.reason
    assert not transport.idle


def test_congestion_seen_by_any_contribution_is_reported() -> None:
    transport = lone()
    submit(transport, 0)
    batch, _ = transport.poll(0.0)
    answer = results_of(batch)
    answer.headers["flags"] |= np.uint8(Flag.ECN)
    transport.on_packets(0.0, answer)
    assert transport.statistics.congested == 1
    batch, _ = transport.poll(0.0)
    transport.on_packets(0.0, results_of(batch))
    assert transport.statistics.congested == 1


def test_urgent_streams_go_first_and_no_stream_is_reordered() -> None:
    plan = WorkerPlan(
        job=1,
        epoch=1,
        world=1,
        lanes=4,
        rank=0,
        streams=(StreamPlan(0, 7, 0, 8, 0), StreamPlan(1, 7, 0, 8, 5)),
        servers=(Address(*SERVER),),
        counts=(8,),
        chunks_per_slice=1,
        link_rate=1_000_000,
    )
    transport = WorkerTransport(plan, Exponents(8, 1))
    submit(transport, *range(8))
    order: list[tuple[int, int]] = []
    now = 0.0
    while len(order) < 8:
        batch, following = transport.poll(now)
        assert following >= now
        if batch is not None:
            order += zip(batch.headers["stream"].tolist(), batch.headers["seq"], strict=True)
            bits = 8 * (HEADER_BYTES + 42) * len(batch)
            assert bits <= 1_000_000 * 0.004 + 8 * (HEADER_BYTES + 42)  # a backlog, not a flood
        now = following
    assert [stream for stream, _ in order] == [1] * 4 + [0] * 4
    for stream in (0, 1):
        seqs = [seq for s, seq in order if s == stream]
        assert seqs == sorted(seqs)


def test_a_server_on_the_same_host_takes_none_of_the_link() -> None:
    rate, chunks = 1_000_000, 256
    plan = WorkerPlan(
        job=1,
        epoch=1,
        world=1,
        lanes=4,
        rank=0,
        streams=tuple(StreamPlan(s, 7, 0, chunks) for s in range(2)),
        servers=(Address(*SERVER), Address(SERVER[0] + 1, SERVER[1])),
        counts=(chunks,),
        chunks_per_slice=1,
        link_rate=rate,
    )

    def times(host: int) -> list[list[float]]:
        """Returns when packets leave for each of the servers."""
        transport = WorkerTransport(plan, Exponents(chunks, 1), host=host)
        submit(transport, *range(chunks))
        left: list[list[float]] = [[], []]
        now = 0.0
        while sum(map(len, left)) < chunks:
            batch, following = transport.poll(now)
            if batch is not None:
                for server, packets in enumerate(left):
                    mine = batch.peers["ipv4"] == SERVER[0] + server
                    packets += [now] * int(np.count_nonzero(mine))
            now = following
        return left

    own, other = times(host=SERVER[0])
    assert len(own) == len(other) == chunks // 2
    seconds = len(other) * 8 * (HEADER_BYTES + 42) / rate
    assert 0.9 * seconds < other[-1] + 0.004 < 1.1 * seconds
    assert own[-1] <= other[-1]
    assert max(times(host=0)[0]) + 0.004 > 1.9 * seconds


def test_sums_come_into_the_values_that_they_are_of() -> None:
    """Two submissions are in one window; contributions of one are made while others are done."""
    transport = lone(window=4)
    first, second = (np.repeat(np.arange(n, n + 3, dtype="f4"), 4).reshape(3, 4) for n in (1, 4))
    kept = second.copy()
    for chunks, values, into in (([0, 1, 2], first, first), ([3, 4, 5], second, None)):
        transport.submit(chunks, values, [4] * 3, into)
    batches = []
    while not transport.idle:
        batch, _ = transport.poll(0.0)
        batches += [] if batch is None else [batch.select([n]) for n in range(len(batch))]
        transport.on_packets(0.0, results_of(batches.pop()))
    assert first.tolist() == [[2.0 * n] * 4 for n in (1, 2, 3)]
    assert second.tobytes() == kept.tobytes()
    done = transport.take_completed()
    assert done.sums[np.argsort(done.chunks)].tolist() == [[2.0 * n] * 4 for n in range(1, 7)]


def test_submissions_that_do_not_fit_are_refused() -> None:
    transport = lone()
    with pytest.raises(ValueError, match=r"\(1, 4\)"):
        transport.submit([0], np.zeros((1, 5), np.float32), [4])
    with pytest.raises(ValueError, match="lanes"):
        transport.submit([0], np.zeros((1, 4), np.float32), [0])
    for into in (np.zeros((1, 3), np.float32), np.zeros((1, 8), np.float32)[:, ::2]):
        with pytest.raises(ValueError, match="sums"):
            transport.submit([0], np.zeros((1, 4), np.float32), [4], into)
    with pytest.raises(ValueError, match="world"):
        WorkerTransport(replace(transport.plan, world=3), Exponents(1, 2))
    assert transport.idle
