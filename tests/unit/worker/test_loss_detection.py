# SPDX-License-Identifier: Apache-2.0
"""Tests when a worker queries and retransmits: one worker's transport with hand-made packets."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hosts.net.pacer import wire_bytes
from hosts.worker.transport import WorkerTransport
from protocol.exponents import Exponents
from protocol.header import (
    HEADER_BYTES,
    Batch,
    Flag,
    Op,
    Phase,
    ops,
)
from protocol.plan import StreamPlan
from tests.unit.worker.lone_worker import contacted, lone, results_of, sent, state_of, submit


def test_contribution_is_retransmitted_only_on_evidence() -> None:
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


def test_one_query_has_one_answer() -> None:
    transport = lone()
    contacted(transport, 0)
    submit(transport, 0)
    sent(transport, 1.0)
    answer = state_of(transport, 2, 0, Phase.AGGREGATING, 0)
    transport.on_packets(1.0, answer)  # unasked
    assert sent(transport, 1.0) == []
    assert sent(transport, 3.0) == [(Op.QUERY, 2, 0)]
    transport.on_packets(3.0, Batch.concatenate([answer, answer]))
    transport.on_packets(3.0, answer)
    assert sent(transport, 3.0) == [(Op.CONTRIBUTE, 2, Flag.RETRANSMIT)]
    transport.on_packets(3.0, answer)
    assert sent(transport, 3.0) == []
    assert transport.statistics.dropped["unasked"] == 4


def test_queries_back_off_while_worker_is_slow() -> None:
    transport = lone(rto_initial=0.1, rto_most=0.8)
    submit(transport, 0)
    now, times = 0.0, []
    for _ in range(6):
        _, now = transport.poll(now)
        batch, _ = transport.poll(now)
        assert ops(batch.headers).tolist() == [Op.QUERY]
        times.append(now)
    assert np.allclose(np.diff([0.0, *times]), [0.1, 0.2, 0.4, 0.8, 0.8, 0.8])


def asked(transport: WorkerTransport, now: float) -> list[int]:
    """Numbers that it asks about now."""
    return [seq for op, seq, _ in sent(transport, now) if op == Op.QUERY]


def test_only_oldest_chunk_is_probed_while_worker_is_slow() -> None:
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


def test_overdue_chunks_are_probed_after_loss() -> None:
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


def test_chunk_is_probed_when_later_sum_arrives() -> None:
    transport = lone(window=16)
    packets = spread(transport, *range(6))  # numbers 12..17
    assert asked(transport, 1.065) == []
    transport.on_packets(1.065, results_of(packets[2]))
    assert asked(transport, 1.065) == [12, 13]
    # 12 waits for the other worker; the answer for 13 is lost. A sum of what was sent before the
    # queries says nothing of either.
    transport.on_packets(1.072, state_of(transport, 12, 0, Phase.AGGREGATING, 0b01))
    submit(transport, 2)
    third = transport.poll(1.08)[0]
    assert third is not None
    transport.on_packets(1.101, results_of(packets[5]))
    assert asked(transport, 1.101) == [15, 16]
    # Enough after the query about 13, not enough after the answer about 12.
    transport.on_packets(1.122, results_of(third))
    submit(transport, 2)
    data = transport.poll(1.123)[0]
    assert data is not None
    kinds = zip(ops(data.headers).tolist(), data.headers["seq"].tolist(), strict=True)
    assert list(kinds) == [(Op.QUERY, 13), (Op.CONTRIBUTE, 19)]
    transport.on_packets(1.164, results_of(data.select([1])))
    assert asked(transport, 1.164) == [12, 15, 16]
    assert transport.statistics.retransmitted == 0


def test_reordering_is_not_probed() -> None:
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


def lose(transport: WorkerTransport, *numbers: int, now: float) -> Batch:
    """Has these numbers reported lost when their timers expire; returns their retransmissions."""
    for number in numbers:
        _, deadline = transport.poll(now)
        now = max(now, deadline)
        transport.poll(now)
        transport.on_packets(now, state_of(transport, number, 0, Phase.AGGREGATING, 0b10))
    batch = transport.poll(now)[0]
    assert batch is not None
    return batch.select(ops(batch.headers) == Op.CONTRIBUTE)


def test_a_recovered_number_says_nothing_of_those_behind_it() -> None:
    """They may wait for another worker. If they were lost, too, the next one's timer shows it."""
    transport = lone(window=16)
    spread(transport, *range(4))  # numbers 8..11
    _, deadline = transport.poll(1.07)
    repaired = lose(transport, 8, now=deadline)
    assert repaired.headers["seq"].tolist() == [8]
    transport.on_packets(deadline + 0.04, results_of(repaired))
    assert asked(transport, deadline + 0.04) == []
    _, deadline = transport.poll(deadline + 0.04)
    assert asked(transport, deadline) == [9]
    transport.on_packets(deadline, state_of(transport, 9, 1, Phase.AGGREGATING, 0b10))
    assert asked(transport, deadline) == [10, 11]


def test_a_recovered_number_overtakes_those_before_it() -> None:
    transport = lone(window=16)
    packets = spread(transport, *range(4))  # numbers 8..11
    transport.on_packets(1.065, results_of(packets[2]))
    assert asked(transport, 1.065) == [8, 9]
    transport.on_packets(1.08, state_of(transport, 9, 1, Phase.AGGREGATING, 0b10))
    again = transport.poll(1.08)[0]
    assert again is not None
    transport.on_packets(1.12, results_of(again))
    assert asked(transport, 1.12) == [8]  # 11 may wait for another worker


def test_silence_is_probed_early_where_packets_are_lost() -> None:
    """Results come one a millisecond, but not the last: after a loss in the round before that is
    noticed within milliseconds, else after the timeout, which is that of many packets."""
    silence = []
    for loss in (False, True):
        transport = lone(window=16, rto_initial=0.25, rto_least=0.1)
        contacted(transport, *range(8))
        for start in (1.0, 2.0):
            submit(transport, *range(8))  # from number 16, then from 24
            batch = transport.poll(start)[0]
            assert batch is not None
            for place in range(7):
                now = start + 0.02 + place / 1000
                transport.on_packets(now, results_of(batch.select([place])))
            _, deadline = transport.poll(now)
            silence.append(deadline - now)
            if loss:
                assert asked(transport, deadline) == [23 if start == 1.0 else 31]
                answer = state_of(transport, 23, 7, Phase.AGGREGATING, 0b10)
                transport.on_packets(deadline, answer)
                batch = transport.poll(deadline)[0]
                assert batch is None or start == 1.0
                if batch is not None:
                    transport.on_packets(deadline + 0.02, results_of(batch))
            else:
                transport.on_packets(now + 0.001, results_of(batch.select([7])))
    assert min(silence[:3]) >= 0.1
    assert 0.001 < silence[3] < 0.01


def at_high_loss() -> tuple[WorkerTransport, float]:
    """A transport whose packets were mostly lost, and the time."""
    transport = lone(window=32, rto_least=0.01)
    contacted(transport, *range(16))
    submit(transport, *range(16))  # numbers 32..47
    sent(transport, 1.0)
    _, now = transport.poll(1.0)
    sent(transport, now)
    for number in range(32, 48):  # the first shows that all are overdue
        transport.on_packets(now, state_of(transport, number, number - 32, Phase.FINAL, 0b11))
        sent(transport, now)
    return transport, now


def test_what_is_late_at_high_loss_is_retransmitted_without_a_query() -> None:
    transport, now = at_high_loss()
    tries: list[float] = []
    packets: list[Op] = []
    for _ in range(8):
        _, following = transport.poll(now)
        tries.append(following - now)
        now = following
        packets += [op for op, _, _ in sent(transport, now)]
    # One try in four asks, and no timeout is longer than the one before.
    assert packets.count(Op.CONTRIBUTE) > 2.5 * packets.count(Op.QUERY) > 0
    assert max(tries) < 1.01 * tries[0]


@pytest.mark.parametrize("answers", [False, True])
def test_unanswered_queries_are_losses_only_if_others_are_answered(answers: bool) -> None:
    """A server that stalls answers nothing; where packets are lost some answers arrive."""
    transport = lone(window=32, rto_least=0.01)
    contacted(transport, *range(28))
    submit(transport, *range(16))
    sent(transport, 1.0)
    now, packets = 1.0, []
    for turn in range(48):
        _, now = transport.poll(now)
        packets += sent(transport, now)
        if answers and turn % 4 == 0:
            submit(transport, 16 + turn // 4)
            later = transport.poll(now)[0]
            assert later is not None
            transport.on_packets(now + 0.001, results_of(later))
    assert any(op == Op.CONTRIBUTE for op, _, _ in packets) == answers


def test_a_straggler_at_high_loss_is_queried_alone() -> None:
    transport, now = at_high_loss()
    questions = []
    for _ in range(12):
        _, now = transport.poll(now)
        packets = sent(transport, now)
        questions.append([(op, seq) for op, seq, _ in packets])
        for op, seq, _ in packets:
            if op == Op.QUERY:  # this worker's is in, another's is not
                state = state_of(transport, seq, seq - 32, Phase.AGGREGATING, 0b01)
                transport.on_packets(now, state)
    assert questions[-4:] == [[(Op.QUERY, 32)]] * 4


@pytest.mark.parametrize("child", [0, 1])
def test_first_child_retransmits_what_was_lost_above_its_node(child: int) -> None:
    plan = replace(lone().plan, streams=(StreamPlan(0, 7, child, 2),))
    transport = WorkerTransport(plan, Exponents(64, 2))
    contacted(transport, 0)
    submit(transport, 0)
    sent(transport, 1.0)
    now, answers = 1.0, []
    for _ in range(2):
        _, now = transport.poll(now)
        sent(transport, now)
        above = state_of(transport, 2, 0, Phase.AGGREGATING, 0b10, sender=0, node=9)
        transport.on_packets(now, above)
        answers.append([op for op, _, _ in sent(transport, now)])
        if answers[-1]:
            break
    assert answers == ([[Op.CONTRIBUTE]] if child == 0 else [[], [Op.CONTRIBUTE]])


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


def test_packets_sent_with_query_have_own_timer() -> None:
    """A stream that has waited for long, whose queries are rare, does not slow another down."""
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


def test_partial_window_does_not_delay_probes() -> None:
    asked = []
    for window in (64, 1024):  # of 64 chunks
        transport = lone(window, link_rate=100_000)
        submit(transport, 0)
        _, asked_at = transport.poll(0.0)
        assert sent(transport, asked_at) == [(Op.QUERY, 0, 0)]
        asked.append(asked_at)
    assert asked[1] == asked[0]


def test_timeouts_follow_rfc_6298() -> None:
    transport = lone(window=4, rto_initial=0.5, rto_most=4.0)
    trips = transport.round_trips
    assert trips.timeouts.tolist() == [0.5]
    now, smoothed, variation = 0.0, 0.1, 0.05  # after a sample of 0.1
    for number, trip in enumerate([0.1, 0.12, 0.09, 0.17]):
        submit(transport, 0, 1)
        while not transport.idle:
            batch, _ = transport.poll(now)
            assert batch is not None
            transport.on_packets(now + trip, results_of(batch))
            now += trip
        if number:
            variation = 0.75 * variation + 0.25 * abs(smoothed - trip)
            smoothed = 0.875 * smoothed + 0.125 * trip
        assert trips.smoothed[0] == pytest.approx(smoothed)
        assert trips.timeouts[0] == pytest.approx(smoothed + max(4 * variation, smoothed))
        now += 1.0


def test_queries_without_an_answer_wait_twice_as_long_each() -> None:
    transport = lone(window=1, rto_initial=0.5, rto_most=4.0)
    submit(transport, 0)
    now, waits = 0.0, []
    for _ in range(6):
        _, following = transport.poll(now)
        waits.append(following - now)
        now = following
    assert waits == pytest.approx([0.5, 1.0, 2.0, 4.0, 4.0, 4.0])


def test_pacing_hands_over_the_links_rate_and_no_more() -> None:
    rate = 1_000_000  # bit/s
    transport = lone(window=64, link_rate=rate, backlog=0.004, rto_initial=100.0, rto_most=1000.0)
    small, large = wire_bytes(transport.lanes)
    assert (small, large) == (14 + 20 + 8 + HEADER_BYTES, small + 16)
    now, bits, began = 0.0, 0, None
    while began is None or now < began + 1.0:
        if transport.idle:
            began = now if bits and began is None else began
            bits = 0 if began == now else bits
            submit(transport, *range(64))
        batch, following = transport.poll(now)
        if batch is None:
            now = following
            continue
        bits += 8 * int(np.where(batch.full, large, small).sum())
        transport.on_packets(now, results_of(batch))
    assert rate <= bits <= rate * 1.004 + 2 * 8 * large
