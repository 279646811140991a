# SPDX-License-Identifier: Apache-2.0
"""Tests a server as root of a tree, as summer of DIRECT chunks, and with several jobs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hosts.server.state import ServerState
from protocol.header import (
    PORT,
    Array,
    Batch,
    Flag,
    Op,
    Phase,
    blank,
    carries_payload,
    ops,
    peer_array,
    phases,
)
from protocol.payloads import float_words, floats_of, header_hashes, word_sums
from protocol.plan import Address, Child, RootStream, ServerPlan
from tests.impaired_links import Impairments
from tests.unit.worker.simulated_job import Job
from tests.unit.worker.simulated_network import Network

LANES = 4
WINDOW = 2
NODE = 9
WORKERS = tuple(Address(10 + rank, 5000 + rank) for rank in range(4))
SWITCH = Address(200, PORT)  # with workers 1..3 below
PLAN = ServerPlan(
    job=1,
    epoch=3,
    world=4,
    lanes=LANES,
    rank=0,
    servers=(Address(1000, PORT),),
    workers=WORKERS,
    windows={0: WINDOW, 1: WINDOW},
    counts=(100,),
    roots=(
        RootStream(0, NODE, WINDOW, (Child(0, WORKERS[0], 1, 0), Child(1, SWITCH, 3, 5))),
        RootStream(1, NODE, WINDOW, tuple(Child(r, WORKERS[r], 1, 0) for r in range(4))),
    ),
)
ADDRESSES = {0: WORKERS[0], 1: SWITCH}


@pytest.fixture
def server() -> ServerState:
    state = ServerState()
    state.install(PLAN)
    return state


def packet(op: Op, peer: Address, words: list[int] | None = None, **fields: int) -> Batch:
    """One packet with a checksum that holds, unless given."""
    headers = blank(1, op)
    payload = np.zeros((1, LANES), ">i4")
    if words is not None:
        payload[0] = words
    values = {"job": 1, "epoch": 3, "node": NODE, "workers": 1, "lanes": LANES, **fields}
    if op == Op.QUERY:
        values["lanes"] = 0
    for name, value in values.items():
        headers[name] = value
    if "checksum" not in fields:
        times = 1 if values.get("flags", 0) & Flag.DIRECT else headers["workers"]
        headers["checksum"] = word_sums(payload) + header_hashes(headers) * np.uint32(times)
    return Batch(headers, payload, carries_payload(headers), peer_array([peer.pair()]))


def child(sender: int, words: list[int] | None = None, **fields: int) -> Batch:
    """A contribution from child 0 (a worker) or 1 (a switch of three) of stream 0."""
    fields = {"sender": sender, "workers": 3 if sender else 1, **fields}
    peer = Address(fields.pop("ipv4", ADDRESSES[sender].ipv4), ADDRESSES[sender].port)
    return packet(Op.CONTRIBUTE, peer, words or [sender + 1] * LANES, **fields)


def answers(server: ServerState, *batches: Batch) -> Batch:
    server.on_packets(0.0, Batch.concatenate(list(batches)))
    out, _ = server.poll(0.0)
    return out if out is not None else Batch.empty(LANES)


def destinations(batch: Batch) -> list[tuple[int, int]]:
    return [tuple(peer) for peer in batch.peers.tolist()]


def test_the_sum_goes_to_every_child_once_all_are_in(server: ServerState) -> None:
    assert len(answers(server, child(0, [1, 2, 3, -4], max_exponent=-3))) == 0
    out = answers(server, child(1, [10, 20, 30, 40], max_exponent=5))
    assert ops(out.headers).tolist() == [Op.RESULT] * 2
    assert destinations(out) == [WORKERS[0].pair(), SWITCH.pair()]
    assert out.payloads.tolist() == [[11, 22, 33, 36]] * 2
    header = out.headers[1]
    assert header["node"] == 5  # the switch's own
    assert out.headers[0]["node"] == 0
    assert (header["workers"], header["children"], header["max_exponent"]) == (4, 0b11, 5)
    expected = word_sums(out.payloads) + header_hashes(out.headers) * np.uint32(4)
    assert (out.headers["checksum"] == expected).all()
    assert server.counters(1) == {"claimed": 1, "added": 1, "completed": 1}


def test_both_in_one_batch_are_the_same(server: ServerState) -> None:
    both = Batch.concatenate([child(1), child(0), child(0, seq=1, chunk=1)])
    out = answers(server, both)
    assert out.headers["seq"].tolist() == [0, 0]
    assert out.payloads.tolist() == [[3] * LANES] * 2


def test_duplicates_do_not_count_and_the_final_sum_is_replayed(server: ServerState) -> None:
    assert len(answers(server, child(0), child(0))) == 0
    assert len(answers(server, child(1))) == 2
    again = answers(server, child(1, flags=Flag.RETRANSMIT))
    assert destinations(again) == [SWITCH.pair()]
    assert again.payloads.tolist() == [[3] * LANES]
    assert again.headers["flags"][0] == 0
    counters = server.counters(1)
    assert (counters["duplicate"], counters["replayed"]) == (1, 1)


def test_newer_numbers_claim_and_older_ones_are_dropped(server: ServerState) -> None:
    answers(server, child(0), child(1))
    later = 2 * WINDOW
    assert len(answers(server, child(0, seq=later, chunk=8))) == 0
    assert len(answers(server, child(1))) == 0
    assert len(answers(server, child(1, seq=later, chunk=9))) == 0  # another chunk
    out = answers(server, child(1, [5] * LANES, seq=later, chunk=8))
    assert out.payloads.tolist() == [[6] * LANES] * 2
    counters = server.counters(1)
    assert (counters["claimed"], counters["stale"], counters["other_chunk"]) == (2, 1, 1)


def test_numbers_wrap(server: ServerState) -> None:
    last = 2**32 - 2 * WINDOW
    assert len(answers(server, child(0, seq=last), child(1, seq=last))) == 2
    assert len(answers(server, child(0, seq=0), child(1, seq=0))) == 2
    assert len(answers(server, child(0, seq=last))) == 0
    assert server.counters(1)["stale"] == 1


def test_only_the_childs_own_packets_count(server: ServerState) -> None:
    for outcome, bad in {
        "wrong_source": child(0, ipv4=77),
        "wrong_workers": child(1, workers=2),
        "not_a_child": child(0, node=NODE + 1),
        "bad_checksum": child(0, checksum=1),
        "no_such_node": child(0, stream=2),
        "other_epoch": child(0, epoch=2),
        "unexpected": packet(Op.RESULT, WORKERS[0]),
    }.items():
        assert len(answers(server, bad)) == 0
        assert server.counters(1).get(outcome) == 1, outcome
    stranger = child(0)
    stranger.headers["sender"] = 2
    assert len(answers(server, stranger)) == 0
    assert server.counters(1)["not_a_child"] == 2
    assert len(answers(server, child(0, job=2))) == 0
    assert server.foreign == 1
    assert "claimed" not in server.counters(1)


def test_overflow_in_any_lane_and_any_difference_flag_the_sum(server: ServerState) -> None:
    top = 2**31 - 1
    cases: list[tuple[Batch, Batch, int]] = [
        (child(0, [top, 0, 0, 0]), child(1, [1, 0, 0, 0]), Flag.OVERFLOW),
        (child(0, [0, 0, 0, -top - 1]), child(1, [0, 0, 0, -1]), Flag.OVERFLOW),
        (child(0, [top, 0, 0, 0]), child(1, [-1, 0, 0, 0]), 0),
        (child(0, exponent=1), child(1, exponent=2), Flag.OVERFLOW),
        (child(0, lanes=3), child(1, lanes=4), Flag.OVERFLOW),
        (child(0, flags=Flag.NONFINITE), child(1), Flag.NONFINITE),
        (child(0), child(1, flags=Flag.OVERFLOW | Flag.ECN), Flag.OVERFLOW | Flag.ECN),
        (child(0, flags=Flag.ECN | Flag.RETRANSMIT), child(1), Flag.ECN),
    ]
    for seq, (first, second, flags) in enumerate(cases):
        for batch in (first, second):
            old = header_hashes(batch.headers) * np.uint32(batch.headers["workers"][0])
            batch.headers["seq"] = seq
            new = header_hashes(batch.headers) * np.uint32(batch.headers["workers"][0])
            batch.headers["checksum"] += (new - old).astype(np.uint32)
        out = answers(server, first, second)
        assert out.headers["flags"].tolist() == [flags] * 2, seq
        flagged = bool(flags & (Flag.OVERFLOW | Flag.NONFINITE))
        assert out.full.tolist() == [not flagged] * 2


def ask(server: ServerState, sender: int, peer: Address, **fields: int) -> Array:
    fields = {"workers": 3 if sender else 1, **fields}
    out = answers(server, packet(Op.QUERY, peer, sender=sender, **fields))
    assert all(op == Op.STATE for op in ops(out.headers))
    assert not out.full.any()
    if len(out):
        assert destinations(out) == [peer.pair()]
    return out.headers


def test_queries_are_answered_to_sender(server: ServerState) -> None:
    # Passed on by the switch (child 1) in the name of worker 2.
    nothing = ask(server, 1, WORKERS[2], seq=1, chunk=4)
    assert (phases(nothing)[0], nothing["children"][0]) == (Phase.AGGREGATING, 0)
    answers(server, child(0, seq=1, chunk=4))
    one = ask(server, 1, WORKERS[2], seq=1, chunk=4)
    assert (phases(one)[0], one["children"][0], one["sender"][0], one["node"][0]) == (
        *(Phase.AGGREGATING, 0b01),
        *(1, NODE),
    )
    answers(server, child(1, seq=1, chunk=4))
    assert phases(ask(server, 0, WORKERS[0], seq=1, chunk=4))[0] == Phase.FINAL
    assert len(ask(server, 0, WORKERS[0], seq=1, chunk=5)) == 0  # of another chunk
    answers(server, child(0, seq=1 + 2 * WINDOW, chunk=6))
    assert len(ask(server, 0, WORKERS[0], seq=1, chunk=4)) == 0  # no longer known
    assert server.counters(1)["query_stale"] == 2
    assert len(ask(server, 1, Address(66, 66), seq=1)) == 0  # no worker of this job
    assert len(ask(server, 0, WORKERS[2], seq=1)) == 0  # child 0 is worker 0
    assert server.counters(1)["wrong_source"] == 2


def test_a_switchs_sum_that_stays_bad_is_reported(server: ServerState) -> None:
    bad = child(1, checksum=1)
    answers(server, bad, bad)  # a copy that the network made
    assert server.take_failures() == []
    ask(server, 1, WORKERS[2])
    answers(server, bad)
    [(job, failure)] = server.take_failures()
    assert (job, failure.seq) == (1, 0)
    assert "twice" in str(failure)
    assert server.take_failures() == []


def direct(rank: int, values: list[float], **fields: int) -> Batch:
    words = float_words(np.array([values], np.float32))[0].tolist()
    fields = {"flags": Flag.DIRECT, "sender": rank, "node": 0, **fields}
    return packet(Op.CONTRIBUTE, WORKERS[rank], words, **fields)


def test_direct_chunks_are_summed_in_rank_order_whatever_the_order_of_arrival(
    server: ServerState,
) -> None:
    values = np.array([[1e8, 1, 0, 0], [1, 2, 0, 0], [-1e8, 3, 0, 0], [0.5, 4, 0, 0]], np.float32)
    expected = ((values[0] + values[1]) + values[2]) + values[3]
    for seq, order in enumerate([(0, 1, 2, 3), (3, 1, 0, 2)]):
        parts = [
            direct(
                *(rank, values[rank].tolist()),
                seq=seq,
                exponent=rank,
                max_exponent=rank,
                flags=Flag.DIRECT | (Flag.OVERFLOW if rank == 2 else 0),
            )
            for rank in order
        ]
        assert len(answers(server, *parts[:3], parts[0])) == 0
        out = answers(server, parts[3])
        assert destinations(out) == [worker.pair() for worker in WORKERS]
        assert (floats_of(out.payloads) == expected).all()
        assert (out.headers["flags"] == Flag.DIRECT | Flag.OVERFLOW).all()
        assert (out.headers["max_exponent"] == 3).all()
        assert (out.headers["exponent"] == 0).all()  # rank 0's
        assert (out.headers["workers"] == 4).all()
        again = answers(server, parts[1])
        assert destinations(again) == [WORKERS[order[1]].pair()]
    counters = server.counters(1)
    assert (counters["duplicate"], counters["direct_completed"], counters["direct_replayed"]) == (
        *(2, 2),
        2,
    )


def test_direct_query_reports_own_contribution(server: ServerState) -> None:
    def asked(rank: int, seq: int = 0) -> tuple[int, int]:
        query = packet(
            *(Op.QUERY, WORKERS[rank]), flags=Flag.DIRECT, sender=rank, node=0, stream=1, seq=seq
        )
        out = answers(server, query)
        assert out.headers["flags"][0] & Flag.DIRECT
        return int(phases(out.headers)[0]), int(out.headers["children"][0])

    assert asked(2) == (Phase.AGGREGATING, 0)
    answers(server, *(direct(rank, [1.0] * 4, stream=1) for rank in (0, 2, 3)))
    assert asked(2) == (Phase.AGGREGATING, 1 << 2)
    assert asked(1) == (Phase.AGGREGATING, 0)
    answers(server, direct(1, [1.0] * 4, stream=1))
    assert asked(1)[0] == Phase.FINAL
    assert asked(1, seq=1) == (Phase.AGGREGATING, 0)


@pytest.mark.parametrize("ahead", [2 * WINDOW, 2**31 - 4, 2**31, 3 * 2**30, 2**32 - 2**25])
def test_a_slot_that_rested_serves_a_number_any_distance_ahead(
    server: ServerState, ahead: int
) -> None:
    """Of a stream a server sees only its own chunks, and few go DIRECT: slots may rest long."""
    everyone = range(4)
    assert len(answers(server, *(direct(rank, [1.0] * 4) for rank in everyone))) == 4
    assert len(answers(server, child(0), child(1))) == 2
    query = packet(Op.QUERY, WORKERS[1], flags=Flag.DIRECT, sender=1, node=0, stream=0, seq=ahead)
    state = answers(server, query).headers
    assert (phases(state).tolist(), state["children"].tolist()) == ([Phase.AGGREGATING], [0])
    assert phases(ask(server, 0, WORKERS[0], seq=ahead)).tolist() == [Phase.AGGREGATING]
    out = answers(server, *(direct(rank, [2.0] * 4, seq=ahead) for rank in everyone))
    assert floats_of(out.payloads).tolist() == [[8.0] * 4] * 4
    assert len(answers(server, child(0, seq=ahead), child(1, seq=ahead))) == 2
    assert "stale" not in server.counters(1)


@pytest.mark.parametrize("behind", [2 * WINDOW, 4 * WINDOW, 64 * WINDOW, 2**20, 2**24])
def test_late_copy_does_not_evict_needed_sum(server: ServerState, behind: int) -> None:
    """However many windows late: the others have the result and would never send again."""
    now = 2**24 - 2**23  # so that some of the copies come from before the wrap
    late = (now - behind) % 2**32
    everyone = range(4)
    assert len(answers(server, *(direct(rank, [1.0] * 4, seq=now) for rank in everyone))) == 4
    assert len(answers(server, child(0, seq=now), child(1, seq=now))) == 2
    assert len(answers(server, direct(2, [5.0] * 4, seq=late), child(1, seq=late))) == 0
    assert server.counters(1)["stale"] == 2
    again = answers(server, direct(3, [1.0] * 4, seq=now))
    assert floats_of(again.payloads).tolist() == [[4.0] * 4]
    assert destinations(answers(server, child(1, seq=now))) == [SWITCH.pair()]


def test_direct_is_taken_only_from_the_worker_that_it_names(server: ServerState) -> None:
    impostor = direct(0, [1.0] * 4)
    impostor.peers["port"] += 1
    for outcome, bad in {
        "wrong_source": impostor,
        "not_a_child": direct(0, [1.0] * 4, sender=1),
        "bad_checksum": direct(0, [1.0] * 4, checksum=5),
        "direct_malformed": direct(0, [1.0] * 4, lanes=0),
        "no_such_node": direct(0, [1.0] * 4, stream=7),
    }.items():
        assert len(answers(server, bad)) == 0
        assert server.counters(1).get(outcome) == 1, outcome


def test_a_newer_epoch_starts_over_and_an_older_one_is_refused(server: ServerState) -> None:
    answers(server, child(0))
    server.install(replace(PLAN, epoch=4))
    assert len(answers(server, child(1))) == 0
    assert len(answers(server, child(1, epoch=4))) == 0  # child 0 has to contribute again
    assert len(answers(server, child(0, epoch=4))) == 2
    with pytest.raises(ValueError, match="not newer"):
        server.install(PLAN)
    with pytest.raises(ValueError, match="lanes"):
        server.install(replace(PLAN, job=2, lanes=8))
    server.remove(1)
    assert server.jobs == []
    with pytest.raises(KeyError):
        server.counters(1)


def test_two_jobs_share_a_server_and_not_a_sum() -> None:
    network = Network(1, impairments=Impairments(0.1, 0.1, 0.005))
    state = ServerState()
    jobs = [
        Job(job=number, network=network, states=[state], chunks=4, world=2) for number in (1, 2)
    ]
    values = [job.random_values(number) for number, job in enumerate(jobs)]
    for job, mine in zip(jobs, values, strict=True):
        job.submit(mine, skew=[0.0, 0.3])
    for job, mine in zip(jobs, values, strict=True):
        expected = job.expected(mine)
        for part in job.finish():
            assert part.sums.tobytes() == expected.sums.tobytes()
    assert state.jobs == [1, 2]
