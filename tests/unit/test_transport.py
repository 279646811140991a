# SPDX-License-Identifier: Apache-2.0
"""One worker's transport, packets made by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hosts.native import VARIABLE
from hosts.transport import WorkerTransport
from protocol.exponents import Exponents
from protocol.header import (
    HEADER_BYTES,
    PORT,
    Batch,
    Flag,
    Op,
    Phase,
    blank,
    carries_payload,
    ops,
    peer_array,
)
from protocol.plan import Address, StreamPlan, WorkerPlan

pytestmark = pytest.mark.unit

SERVER = (1000, PORT)


def lone(window: int = 2, world: int = 2, **more: object) -> WorkerTransport:
    plan = WorkerPlan(
        job=1,
        epoch=1,
        world=world,
        lanes=4,
        rank=0,
        streams=(StreamPlan(0, 7, 0, window),),
        servers=(Address(*SERVER),),
        counts=(64,),
        chunks_per_slice=1,
    )
    return WorkerTransport(plan, Exponents(64, world), **more)


def submit(transport: WorkerTransport, *chunks: int, value: float = 1.0) -> None:
    values = np.full((len(chunks), 4), value, np.float32)
    transport.submit(list(chunks), values, np.full(len(chunks), 4))


def sent(transport: WorkerTransport, now: float = 0.0) -> list[tuple[Op, int, int]]:
    """(op, seq, flags) of what it sends now."""
    batch, _ = transport.poll(now)
    if batch is None:
        return []
    kinds = [Op(int(op)) for op in ops(batch.headers)]
    return list(
        zip(kinds, batch.headers["seq"].tolist(), batch.headers["flags"].tolist(), strict=True)
    )


def results_of(batch: Batch, world: int = 2, corrupt: bool = False) -> Batch:
    """What the network answers to contributions of `world` workers who all sent the same."""
    headers = batch.headers.copy()
    headers["version_op"] = 1 << 4 | Op.RESULT
    headers["flags"] &= np.uint8(~Flag.RETRANSMIT & 0xFF)
    headers["workers"] = world
    headers["node"] = 0
    headers["checksum"] *= np.uint32(world)
    payloads = (batch.payloads.astype(np.int32) * world).astype(">i4")
    if corrupt:
        payloads[:, 1] ^= 1 << 20
    return Batch(headers, payloads, carries_payload(headers), batch.peers)


def state_of(
    transport: WorkerTransport, seq: int, chunk: int, phase: Phase, children: int, **fields: int
) -> Batch:
    headers = blank(1, Op.STATE)
    headers["flags"] = phase << 4
    for name, value in {
        "job": 1,
        "epoch": 1,
        "seq": seq,
        "chunk": chunk,
        "children": children,
        "node": 7,
        **fields,
    }.items():
        headers[name] = value
    full = np.zeros(1, np.bool_)
    return Batch(headers, np.zeros((1, 4), ">i4"), full, peer_array([SERVER]))


def contacted(transport: WorkerTransport, *chunks: int) -> None:
    """Completes first contacts of `chunks`, values all one."""
    submit(transport, *chunks)
    while not transport.idle:
        batch, _ = transport.poll(0.0)
        assert batch is not None
        transport.on_packets(0.0, results_of(batch))
    transport.take_completed()


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


def test_a_contribution_is_sent_again_only_on_evidence() -> None:
    for phase, children, again in [
        (Phase.AGGREGATING, 0b01, False),  # in; another worker is slow
        (Phase.AGGREGATING, 0b10, True),  # lost
        (Phase.AGGREGATING, 0, True),
        (Phase.FINAL, 0b11, True),  # the result was lost
        (Phase.PARTIAL, 0b11, False),
    ]:
        transport = lone()
        contacted(transport, 0)
        submit(transport, 0)
        assert sent(transport, 1.0) == [(Op.CONTRIBUTE, 2, 0)]
        _, deadline = transport.poll(1.0)
        assert sent(transport, deadline) == [(Op.QUERY, 2, 0)]
        transport.on_packets(deadline, state_of(transport, 2, 0, phase, children))
        expected = [(Op.CONTRIBUTE, 2, Flag.RETRANSMIT)] if again else []
        assert sent(transport, deadline) == expected
        assert transport.statistics.retransmitted == again


def test_a_state_names_the_branch_that_it_is_about() -> None:
    transport = lone()
    contacted(transport, 0)
    submit(transport, 0)
    sent(transport, 1.0)
    sent(transport, 3.0)
    # The core says that this worker's rack, its child 3, is in: nothing was lost.
    above = state_of(transport, 2, 0, Phase.AGGREGATING, 0b1000, sender=3, node=9)
    transport.on_packets(3.0, above)
    assert sent(transport, 3.0) == []
    waiting = transport.explain(4.0)
    assert [(w.seq, w.kind, w.node, w.phase, w.children) for w in waiting] == [
        (2, "sum", 9, "AGGREGATING", 0b1000)
    ]
    assert (waiting[0].sent, waiting[0].heard, waiting[0].sent_last) == (1, 1.0, 3.0)


def test_one_question_has_one_answer() -> None:
    transport = lone()
    contacted(transport, 0)
    submit(transport, 0)
    sent(transport, 1.0)
    answer = state_of(transport, 2, 0, Phase.AGGREGATING, 0)
    transport.on_packets(1.0, answer)  # nobody asked
    assert sent(transport, 1.0) == []
    assert sent(transport, 3.0) == [(Op.QUERY, 2, 0)]
    transport.on_packets(3.0, Batch.concatenate([answer, answer]))
    transport.on_packets(3.0, answer)
    assert sent(transport, 3.0) == [(Op.CONTRIBUTE, 2, Flag.RETRANSMIT)]
    transport.on_packets(3.0, answer)
    assert sent(transport, 3.0) == []
    assert transport.statistics.dropped["unasked"] == 4


def test_questions_become_rarer_while_a_worker_is_slow() -> None:
    transport = lone(rto_initial=0.1, rto_most=0.8)
    submit(transport, 0)
    now, times = 0.0, []
    for _ in range(6):
        _, now = transport.poll(now)
        batch, _ = transport.poll(now)
        assert ops(batch.headers).tolist() == [Op.QUERY]
        times.append(now)
    assert np.allclose(np.diff([0.0, *times]), [0.1, 0.2, 0.4, 0.8, 0.8, 0.8])


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


def test_a_result_before_the_contribution_is_not_believed() -> None:
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


def test_a_corrupted_result_is_asked_for_again_and_reported_the_second_time() -> None:
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


def test_workers_that_submit_different_things_are_told_so() -> None:
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


@pytest.mark.parametrize("numpy_only", [False, True], ids=["native", "numpy"])
def test_sums_come_into_the_values_that_they_are_of(
    numpy_only: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two submissions are in one window; contributions of one are made while others are done."""
    if numpy_only:
        monkeypatch.setenv(VARIABLE, "1")
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
    assert done.select(np.argsort(done.chunks)).sums.tolist() == [
        [2.0 * n] * 4 for n in range(1, 7)
    ]


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


def asked(transport: WorkerTransport, now: float) -> list[int]:
    """Numbers that it asks about now."""
    return [seq for op, seq, _ in sent(transport, now) if op == Op.QUERY]


def test_while_another_worker_is_slow_only_the_oldest_number_is_asked_about() -> None:
    transport = lone(window=8)
    contacted(transport, *range(8))  # numbers 0..15
    submit(transport, *range(8))
    assert len(sent(transport, 1.0)) == 8
    questions: list[int] = []
    now = 1.0
    for _ in range(4):
        _, now = transport.poll(now)
        questions += asked(transport, now)
        transport.on_packets(now, state_of(transport, 16, 0, Phase.AGGREGATING, 0b01))
    assert questions == [16] * 4
    assert transport.statistics.retransmitted == 0


def test_a_result_restarts_the_timer_of_its_stream() -> None:
    transport = lone(window=4)
    contacted(transport, *range(4))  # numbers 0..7
    submit(transport, *range(4))
    batch, deadline = transport.poll(1.0)
    assert batch is not None
    timeout = transport.poll(1.0)[1] - 1.0
    later = 1.0 + timeout / 2
    transport.on_packets(later, results_of(batch.select([0])))
    assert asked(transport, 1.0 + timeout) == []
    _, deadline = transport.poll(1.0 + timeout)
    assert deadline == pytest.approx(later + timeout)
    assert asked(transport, deadline) == [9]


def test_after_a_loss_all_that_is_overdue_is_asked_about() -> None:
    transport = lone(window=4)
    contacted(transport, *range(4))
    submit(transport, *range(4))
    sent(transport, 1.0)
    _, deadline = transport.poll(1.0)
    assert asked(transport, deadline) == [8]
    transport.on_packets(deadline, state_of(transport, 8, 0, Phase.AGGREGATING, 0b10))
    assert sent(transport, deadline) == [
        *((Op.QUERY, seq, 0) for seq in (9, 10, 11)),
        (Op.CONTRIBUTE, 8, Flag.RETRANSMIT),
    ]


def spread(transport: WorkerTransport, *numbers: int, others: tuple[int, ...] = ()) -> list[Batch]:
    """First contacts of chunks 0..n-1 and of others with a round trip of 40 ms, then a second round
    of the former, each sent 12 ms after the one before, from 1.0 on: their contributions."""
    submit(transport, *numbers, *others)
    for now in (0.0, 0.1):
        batch, _ = transport.poll(now)
        assert batch is not None
        transport.on_packets(now + 0.04, results_of(batch))
    packets = []
    for number in numbers:
        submit(transport, number)
        batch, _ = transport.poll(1.0 + 0.012 * number)
        assert batch is not None
        packets.append(batch)
    return packets


def test_a_number_is_asked_about_when_the_sum_of_a_later_one_is_there() -> None:
    transport = lone(window=16)
    packets = spread(transport, *range(6))  # numbers 12..17
    assert asked(transport, 1.065) == []
    transport.on_packets(1.065, results_of(packets[2]))
    assert asked(transport, 1.065) == [12, 13]
    # 12 waits for the other worker; the answer for 13 is lost. A sum of what was sent before the
    # questions tells nothing of either.
    transport.on_packets(1.072, state_of(transport, 12, 0, Phase.AGGREGATING, 0b01))
    submit(transport, 2)
    third = transport.poll(1.08)[0]
    assert third is not None
    transport.on_packets(1.101, results_of(packets[5]))
    assert asked(transport, 1.101) == [15, 16]
    # Enough after the question about 13, not enough after the answer about 12.
    transport.on_packets(1.122, results_of(third))
    submit(transport, 2)
    data = transport.poll(1.123)[0]
    assert data is not None
    kinds = zip(ops(data.headers).tolist(), data.headers["seq"].tolist(), strict=True)
    assert list(kinds) == [(Op.QUERY, 13), (Op.CONTRIBUTE, 19)]
    transport.on_packets(1.164, results_of(data.select([1])))
    assert asked(transport, 1.164) == [12, 15, 16]
    assert transport.statistics.retransmitted == 0


def test_what_reordering_explains_is_not_asked_about() -> None:
    transport = lone(window=16)
    spread(transport, 0, 1, others=(2, 3))  # numbers 8 and 9
    submit(transport, 2, 3)
    more = transport.poll(1.018)[0]  # 6 ms after 9: less than a quarter of the round trip
    assert more is not None
    transport.on_packets(1.06, results_of(more.select([1])))
    assert asked(transport, 1.06) == [8]


def test_an_exponent_round_overtakes_no_data() -> None:
    """Another worker may have sent the later exponent round before it heard of the earlier one's
    result, which its data had to wait for."""
    transport = lone(window=16)
    packets = spread(transport, 0, 1)  # numbers 4 and 5
    submit(transport, 2)
    contact = transport.poll(1.03)[0]
    assert contact is not None
    transport.on_packets(1.06, results_of(contact))
    assert asked(transport, 1.06) == []
    transport.on_packets(1.06, results_of(packets[1]))
    assert asked(transport, 1.06) == [4]


def test_what_a_repair_shows_needs_no_timer() -> None:
    """A burst of losses: one number's timer rings, and when its sum is there the others follow."""
    transport = lone(window=16)
    spread(transport, *range(4))  # numbers 8..11
    _, deadline = transport.poll(1.07)
    assert asked(transport, deadline) == [8]
    transport.on_packets(deadline, state_of(transport, 8, 0, Phase.AGGREGATING, 0b10))
    again = transport.poll(deadline)[0]
    assert again is not None
    repaired = again.select(ops(again.headers) == Op.CONTRIBUTE)
    assert repaired.headers["seq"].tolist() == [8]
    transport.on_packets(deadline + 0.04, results_of(repaired))
    late = set(asked(transport, deadline + 0.04)) | set(again.headers["seq"].tolist())
    assert late == {8, 9, 10, 11}


def test_timeouts_follow_the_round_trip_up_and_down() -> None:
    transport = lone(window=4)
    now, timeouts = 0.0, []
    for trip in [5e-5] * 40 + [0.02] * 40 + [5e-5] * 60:
        submit(transport, 0)
        while not transport.idle:
            batch, _ = transport.poll(now)
            assert batch is not None
            assert (ops(batch.headers) == Op.CONTRIBUTE).all()
            transport.on_packets(now + trip, results_of(batch))
            now += trip
        timeouts.append(float(transport.round_trips.timeouts[0]))
        now += 1.0
    assert timeouts[39] == timeouts[-1] == transport.round_trips.least == 0.001
    assert timeouts[79] == pytest.approx(0.04, rel=0.1)


def test_what_is_sent_beside_a_question_has_its_own_timer() -> None:
    """A stream that has waited for long, whose questions are rare, does not slow another down."""
    plan = replace(lone().plan, streams=(StreamPlan(0, 7, 0, 2), StreamPlan(1, 7, 0, 2)))
    transport = WorkerTransport(plan, Exponents(64, 2))
    submit(transport, 0)  # stream 0
    now = 0.0
    for _ in range(5):
        _, now = transport.poll(now)
    submit(transport, 1)  # stream 1
    batch, following = transport.poll(now)
    assert batch is not None
    assert ops(batch.headers).tolist() == [Op.QUERY, Op.CONTRIBUTE]
    assert following - now == pytest.approx(float(transport.round_trips.timeouts[1]))
