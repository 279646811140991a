# SPDX-License-Identifier: Apache-2.0
"""Workers' transports against real servers on simulated networks."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_job import Job
from simulated_network import Impairments

from hosts.transport import WorkerTransport
from protocol.exponents import Exponents
from protocol.header import (
    HEADER,
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
def test_sums_are_exact_whatever_the_network_does(scenario: dict, nasty: bool) -> None:
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


def test_what_goes_direct_and_what_the_statistics_say() -> None:
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
    job.round(values)  # the DIRECT results told the exponent: chunk 3 fits now
    assert job.workers[0].statistics.completed_direct == 3


def test_every_direct_packet_may_be_lost_once() -> None:
    job = Job(world=2, chunks=1, window=2)
    lost: set[tuple] = set()

    def lossy(datagram: bytes, _: random.Random) -> bytes:
        key = (datagram[0], datagram[1] & ~Flag.RETRANSMIT, datagram[7])
        if datagram[1] & Flag.DIRECT and key not in lost:
            lost.add(key)
            return bytes([1 << 4 | Op.STATE, 0]) + bytes(HEADER_BYTES - 2)  # nobody's packet
        return datagram

    job.network._impairments.corrupt = lossy
    job.round(np.full((2, 1, 4), np.inf, np.float32))
    kinds = {op & 15 for op, _, _ in lost}
    assert kinds == {Op.CONTRIBUTE, Op.RESULT, Op.QUERY, Op.STATE}


# -- one transport, packets by hand -------------------------------------------------------------


def lone(window: int = 2, world: int = 2, **more: object) -> WorkerTransport:
    plan = WorkerPlan(
        job=1,
        epoch=1,
        world=world,
        lanes=4,
        rank=0,
        streams=(StreamPlan(0, 7, 0, window),),
        servers=(Address(*SERVER),),
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
    elsewhere = Batch(good.headers, good.payloads, good.full, peer_array([(1001, PORT)]))
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


@given(st.integers(0, 2**32))
@settings(max_examples=20, deadline=None)
def test_no_packet_whatever_breaks_a_machine(seed: int) -> None:
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


def test_the_same_calls_give_the_same_packets() -> None:
    logs = []
    for _ in range(2):
        job = Job(seed=3, impairments=Impairments(0.2, 0.2, 0.01))
        log: list[bytes] = []
        job.network.on_sent = lambda _s, _d, datagram, log=log: log.append(datagram)
        job.round(job.random_values(3))
        logs.append(log)
    assert logs[0] == logs[1]


def test_the_last_results_are_kept_for_those_who_lack_them() -> None:
    transport = lone(window=4)
    contacted(transport, *range(6))
    submit(transport, *range(6))
    while not transport.idle:
        batch, _ = transport.poll(0.0)
        transport.on_packets(0.0, results_of(batch))
    kept = transport.kept_results()
    last = {seq: i for i, seq in enumerate(kept.headers["seq"].tolist())}
    for seq in range(18 - 4, 18):
        header = kept.headers[last[seq]]
        assert (header["workers"], header["chunk"]) == (2, seq - 12)
        assert kept.full[last[seq]]
        assert kept.payloads[last[seq]].any()


def test_submissions_that_do_not_fit_are_refused() -> None:
    transport = lone()
    with pytest.raises(ValueError, match=r"\(1, 4\)"):
        transport.submit([0], np.zeros((1, 5), np.float32), [4])
    with pytest.raises(ValueError, match="lanes"):
        transport.submit([0], np.zeros((1, 4), np.float32), [0])
    with pytest.raises(ValueError, match="world"):
        WorkerTransport(replace(transport.plan, world=3), Exponents(1, 2))
    assert transport.idle
