# SPDX-License-Identifier: Apache-2.0
"""Tests a worker's transport across epochs."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hosts.worker.transport import WorkerTransport
from protocol import jobs_pb2
from protocol.exponents import Exponents
from protocol.header import HEADER, Batch, Flag, Op, Phase
from protocol.payloads import NO_EXPONENT, float_words, header_hashes, word_sums
from protocol.plan import StreamPlan, WorkerPlan
from tests.history import history
from tests.impaired_links import Impairments
from tests.unit.worker.lone_worker import contacted, lone, results_of, sent, state_of, submit
from tests.unit.worker.simulated_job import Job


def next_plan(transport: WorkerTransport, **changes: object) -> WorkerPlan:
    fields = {"epoch": transport.plan.epoch + 1, "members": (), **changes}
    return replace(transport.plan, **fields)


def one(transport: WorkerTransport) -> Batch:
    """What it sends at once, which must be something."""
    batch, _ = transport.poll(0.0)
    assert batch is not None
    return batch


def numbers(transport: WorkerTransport) -> dict[tuple[int, int], tuple[int, bool]]:
    """(stream, seq) of everything it sends at once: its chunk, and whether an exponent round."""
    batch, _ = transport.poll(0.0)
    headers = batch.headers if batch is not None else np.zeros(0, HEADER)
    keys = zip(headers["stream"].tolist(), headers["seq"].tolist(), strict=True)
    values = zip(headers["chunk"].tolist(), (headers["lanes"] == 0).tolist(), strict=True)
    return dict(zip(keys, values, strict=True))


def two(window: int = 4) -> tuple[WorkerTransport, WorkerTransport]:
    """Both workers of a job; the sums of `results_of` are right as long as they send the same."""
    first, second = lone(window=window), lone(window=window)
    second.plan = replace(second.plan, rank=1)
    return first, second


def test_numbering_agrees_between_workers() -> None:
    """Worker 0 is two submissions ahead and has results that worker 1 lacks."""
    ahead, behind = two(window=4)
    submit(ahead, 0, 1, 2)
    submit(behind, 0, 1, 2)
    submit(ahead, 2, 0)
    submit(ahead, 3, 1)
    batch = one(ahead)
    one(behind)
    assert batch.headers["seq"].tolist() == [0, 2]  # 1 and 3 are held
    ahead.on_packets(0.0, results_of(batch))  # chunk 0 and 1 are contacted, here only
    batch = one(ahead)
    assert batch.headers["seq"].tolist() == [1, 3, 4]
    ahead.freeze()
    behind.freeze()
    assert (ahead.levels()[:4].tolist(), behind.levels()[:4].tolist()) == ([1, 1, 0, 0], [0] * 4)
    behind.take_results(ahead.results([(0, 1), (1, 1)]))
    streams = (StreamPlan(0, 7, 0, 16), StreamPlan(1, 8, 0, 16), StreamPlan(2, 9, 0, 16))
    ahead, behind = (
        transport.successor(next_plan(transport, streams=streams)) for transport in (ahead, behind)
    )
    # By stream: 0 has chunk 0 (data), then 0 again, 3's exponent round and data; and so on.
    submit(behind, 2, 0)
    of_ahead, of_behind = numbers(ahead), numbers(behind)
    assert of_ahead.items() >= of_behind.items()
    assert of_ahead == {
        (0, 0): (0, False),
        (1, 0): (1, False),
        (2, 0): (2, True),
        (0, 2): (3, True),
    }
    assert of_ahead.keys() - of_behind.keys() == {(0, 2)}
    submit(behind, 3, 1)
    assert numbers(behind) == {(0, 2): (3, True)}


def finished(transport: WorkerTransport) -> list[tuple[int, int, list[float]]]:
    """Runs it to the end with `results_of`; (ticket, chunk, sum) as they complete."""
    while not transport.idle:
        transport.on_packets(0.0, results_of(one(transport), world=transport.plan.world))
    completed = transport.take_completed()
    return list(
        zip(
            completed.tickets.tolist(),
            completed.chunks.tolist(),
            completed.sums.tolist(),
            strict=True,
        )
    )


def test_every_ticket_completes_once_across_epochs_with_its_own_values() -> None:
    transport = lone(window=4)
    for i, chunk in enumerate([5, 1, 5, 9, 1, 5]):
        submit(transport, chunk, value=2.0**i)
    transport.on_packets(0.0, results_of(one(transport)))
    transport.on_packets(0.0, results_of(one(transport)))
    assert transport.levels()[[5, 1, 9]].tolist() == [2, 2, 0]
    transport.freeze()
    submit(transport, 9, value=64.0)  # a worker may go on computing meanwhile
    next_epoch = transport.successor(next_plan(transport, world=1))
    assert len(transport.take_completed()) == 0  # what is not collected is the next_epoch's
    assert next_epoch.statistics is transport.statistics
    chunks, worlds = [5, 1, 5, 9, 1, 5, 9], [2, 2, 1, 1, 1, 1, 1]
    expected = [
        (ticket, chunk, [world * 2.0**ticket] * 4)
        for ticket, (chunk, world) in enumerate(zip(chunks, worlds, strict=True))
    ]
    first = next_epoch.take_completed()
    assert first.workers.tolist() == [2, 2]
    assert first.tickets.tolist() == [0, 1]
    done = [*zip(first.tickets.tolist(), first.chunks.tolist(), first.sums.tolist(), strict=True)]
    assert sorted(done + finished(next_epoch)) == expected
    assert next_epoch.levels()[[5, 1, 9]].tolist() == [4, 3, 3]
    # Each counts under the plan that it was summed by; some did not fit their chunk's scale.
    statistics = next_epoch.statistics
    by_plan = [(plan.epoch, plan.chunks) for plan in statistics.plans]
    later = 5 - statistics.completed_direct
    assert 0 < later < 5
    assert by_plan == [(transport.plan.epoch, 2), (next_epoch.plan.epoch, later)]


def test_sums_say_how_many_workers_are_in_them() -> None:
    transport = lone(world=3)
    contacted3 = results_of
    submit(transport, 0)
    transport.on_packets(0.0, contacted3(one(transport), world=3))
    transport.on_packets(0.0, contacted3(one(transport), world=3))
    next_epoch = transport.successor(next_plan(transport, world=2))
    submit(next_epoch, 0)
    next_epoch.on_packets(0.0, results_of(one(next_epoch), world=2))
    completed = next_epoch.take_completed()
    assert completed.workers.tolist() == [3, 2]
    assert completed.sums[:, 0].tolist() == [3.0, 2.0]


def test_a_frozen_transport_neither_takes_nor_sends() -> None:
    transport = lone()
    submit(transport, 0)
    answer = results_of(one(transport))
    transport.freeze()
    transport.freeze()
    transport.on_packets(9.0, answer)
    assert transport.poll(9.0) == (None, np.inf)
    assert transport.levels()[0] == 0
    assert transport.statistics.dropped == {"frozen": 1}
    assert transport.explain(9.0)[0].chunk == 0
    late = transport.successor(next_plan(transport))
    late.on_packets(9.0, answer)  # of the old epoch
    assert late.levels()[0] == 0
    assert late.statistics.dropped == {"frozen": 1, "foreign": 1}


def test_a_result_that_was_taken_can_be_handed_on_and_is_there_at_the_next_halt() -> None:
    first, second = two()
    third = lone(window=4)
    for transport in (first, second, third):
        contacted(transport, 0)
        submit(transport, 0, value=3.0)
    first.on_packets(0.0, results_of(one(first)))
    one(second)
    one(third)
    for transport in (first, second, third):
        transport.freeze()
    [result] = first.results([(0, 3)])
    second.take_results([result])
    del first  # it dies, and the change begins again
    for transport in (second, third):
        transport.freeze()
    assert (second.levels()[0], third.levels()[0]) == (3, 2)
    assert second.results([(0, 3)]) == [result] == second.results()
    third.take_results(second.results([(0, 3)]))
    assert third.take_completed().sums.tolist() == [[6.0] * 4]
    with pytest.raises(KeyError, match="chunk 0: the result that leads to level 4 is not here"):
        second.results([(0, 4)])
    with pytest.raises(KeyError, match="chunk 7"):
        second.results([(7, 1)])


def test_the_last_window_of_results_is_at_hand_of_each_stream() -> None:
    transport = lone(window=4)
    contacted(transport, *range(6))
    submit(transport, *range(6))
    while not transport.idle:
        transport.on_packets(0.0, results_of(one(transport)))
    kept = {result.chunk: result for result in transport.results()}
    assert set(kept) >= {2, 3, 4, 5}
    for result in kept.values():
        header = np.frombuffer(result.header, HEADER)[0]
        assert (header["workers"], header["chunk"], result.level) == (2, result.chunk, 3)
        assert np.frombuffer(result.payload, ">i4").any()


def direct_result(transport: WorkerTransport, batch: Batch, value: float) -> Batch:
    """The server's answer to DIRECT contributions."""
    headers = batch.headers.copy()
    headers["version_op"] = 1 << 4 | Op.RESULT
    headers["flags"] = Flag.DIRECT | Flag.OVERFLOW
    headers["workers"] = transport.plan.world
    headers["lanes"] = 4
    headers["max_exponent"] = 9
    words = float_words(np.full((len(headers), 4), value, np.float32))
    headers["checksum"] = word_sums(words) + header_hashes(headers)
    return Batch(headers, words, np.ones(len(headers), np.bool_), batch.peers)


def overflown(batch: Batch) -> Batch:
    answer = results_of(batch)
    answer.headers["flags"] |= np.uint8(Flag.OVERFLOW)
    answer.full[:] = False
    return answer


@pytest.mark.parametrize("aware", [True, False], ids=["it knows of the overflow", "it does not"])
def test_a_direct_result_is_taken_also_by_one_that_waits_for_integers(aware: bool) -> None:
    holder, lacker = two()
    for transport in (holder, lacker):
        contacted(transport, 0)
        submit(transport, 0, value=100.0)
    first = one(holder)
    holder.on_packets(0.0, overflown(first))
    direct = one(holder)
    assert direct.headers["flags"][0] & Flag.DIRECT
    holder.on_packets(0.0, direct_result(holder, direct, 123.0))
    batch = one(lacker)
    if aware:
        lacker.on_packets(0.0, overflown(batch))
        one(lacker)
    for transport in (holder, lacker):
        transport.freeze()
    lacker.take_results(holder.results([(0, 3)]))
    completed = lacker.take_completed()
    assert completed.sums.tolist() == [[123.0] * 4]
    assert completed.flags[0] == Flag.DIRECT | Flag.OVERFLOW
    # The next round uses what the result said, at both.
    for transport in (holder, lacker):
        next_epoch = transport.successor(next_plan(transport))
        submit(next_epoch, 0)
        assert one(next_epoch).headers["exponent"].tolist() == [9 + 2]


def test_a_chunk_on_its_way_to_the_server_starts_over_as_integers() -> None:
    """Perhaps who overflowed is no more, or the scale is another one."""
    transport = lone(world=3)
    submit(transport, 0, value=3.0)
    transport.on_packets(0.0, results_of(one(transport), world=3))
    batch = one(transport)
    answer = overflown(batch)
    answer.headers["workers"] = 3
    transport.on_packets(0.0, answer)
    assert one(transport).headers["flags"][0] & Flag.DIRECT
    next_epoch = transport.successor(next_plan(transport, world=2, rank=1))
    again = one(next_epoch)
    assert again.headers["flags"].tolist() == [0]
    assert again.headers["seq"].tolist() == [0]
    assert again.headers["epoch"].tolist() == [2]
    # Scaled for two instead of three workers: twice as fine.
    assert again.payloads.tolist() == (2 * batch.payloads).tolist()
    next_epoch.on_packets(0.0, results_of(again))
    assert next_epoch.take_completed().sums.tolist() == [[6.0] * 4]


def test_results_come_once_however_often_they_are_given() -> None:
    holder, lacker = two()
    for transport in (holder, lacker):
        submit(transport, 0)
    holder.on_packets(0.0, results_of(one(holder)))
    answer = results_of(one(lacker))
    results = holder.results([(0, 1)])
    lacker.take_results(results * 2)
    lacker.take_results(results)
    lacker.on_packets(0.0, answer)
    assert lacker.statistics.exponent_rounds == 1
    assert lacker.statistics.duplicates == 1
    assert finished(lacker) == [(0, 0, [2.0] * 4)]


def changed(**fields: int) -> Callable[[jobs_pb2.Result], None]:
    def change(result: jobs_pb2.Result) -> None:
        header = np.frombuffer(result.header, HEADER).copy()
        for name, value in fields.items():
            header[name] = value
        result.header = header.tobytes()

    return change


def set_to(name: str, value: object) -> Callable[[jobs_pb2.Result], None]:
    return lambda result: setattr(result, name, value)


REFUSED = {
    "of another epoch": (changed(epoch=2), "another job or epoch"),
    "of another job": (changed(job=2), "another job or epoch"),
    "no result": (changed(version_op=1 << 4 | Op.CONTRIBUTE), "another job or epoch"),
    "of another stream": (changed(stream=4), "no such stream"),
    "of another number": (changed(seq=3), "under this number"),
    "of another chunk": (changed(chunk=1), "header is of another chunk"),
    "another chunk in name": (set_to("chunk", 1), "header is of another chunk"),
    "no chunk of this job": (set_to("chunk", 64), "chunks 0..63"),
    "of a later round": (set_to("level", 4), "under this number"),
    "a miscounted sum": (changed(workers=1), "wrong workers"),
    "of another width": (changed(lanes=3), "wrong lanes"),
    "of another scale": (changed(exponent=5), "wrong exponent"),
    "spoiled": (lambda r: setattr(r, "payload", b"\0\0\0\1" + r.payload[4:]), "wrong checksum"),
    "cut short": (lambda r: setattr(r, "payload", r.payload[:-4]), "payload of 12 bytes, not 16"),
    "without a header": (set_to("header", b""), "header of 0 bytes"),
    "flagged": (
        lambda r: (changed(flags=Flag.OVERFLOW)(r), setattr(r, "payload", b"")),
        "a flagged sum is no result",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_result_that_does_not_hold_is_refused_and_spoils_no_other(case: str) -> None:
    spoil, cause = REFUSED[case]
    holder, lacker = two()
    for transport in (holder, lacker):
        contacted(transport, 0, 1)
        submit(transport, 0, 1)
    holder.on_packets(0.0, results_of(one(holder)))
    one(lacker)
    results = holder.results([(1, 3), (0, 3)])
    spoil(results[1])
    with pytest.raises(ValueError, match=cause):
        lacker.take_results(results)
    assert lacker.levels()[:2].tolist() == [2, 2]
    assert len(lacker.take_completed()) == 0
    lacker.take_results(holder.results([(1, 3), (0, 3)]))
    assert lacker.take_completed().sums.tolist() == [[2.0] * 4] * 2


def test_uncontributed_chunk_cannot_complete() -> None:
    holder, lacker = two()
    for transport in (holder, lacker):
        contacted(transport, 0)
    submit(holder, 0)
    submit(lacker, 0)
    holder.on_packets(0.0, results_of(one(holder)))
    with pytest.raises(ValueError, match="does not wait for it"):
        lacker.take_results(holder.results([(0, 3)]))


def test_plan_of_wrong_epoch_is_rejected() -> None:
    transport = lone()
    submit(transport, 0)
    for change, text in (
        ({"epoch": 1}, "not newer"),
        ({"job": 2, "epoch": 2}, "cannot go on as job 2"),
        ({"lanes": 8, "epoch": 2}, "4 lanes"),
    ):
        with pytest.raises(ValueError, match=text):
            transport.successor(replace(transport.plan, **change))
    assert sent(transport) == [(Op.CONTRIBUTE, 0, 0)]


def test_silence_is_measured() -> None:
    transport = lone()
    assert transport.unanswered(5.0) == 0.0
    submit(transport, 0)
    assert transport.unanswered(5.0) == 0.0  # nothing is sent yet
    transport.poll(5.0)
    transport.poll(6.0)
    assert transport.unanswered(7.5) == 2.5
    transport.on_packets(7.0, state_of(transport, 0, 0, Phase.AGGREGATING, 1))
    assert transport.unanswered(7.5) == 0.5
    transport.poll(9.0)
    assert transport.unanswered(9.0) == 2.0


def test_a_worker_that_joins_derives_the_same_exponents() -> None:
    """Chunks never seen, contacted only, all zero, and after some rounds."""
    old = Exponents(4, world=2)
    old.begin([1, 2, 3])
    old.contact([1, 2, 3], [7, NO_EXPONENT, -3])
    with pytest.raises(ValueError, match="chunk 1 and 2 others have a round that is not complete"):
        old.export()
    old.complete([1, 2, 3], [0, 0, 0], [NO_EXPONENT, NO_EXPONENT, -9])
    old.begin([3])
    old.complete([3], [1], [4])
    joined = Exponents(4, world=3)
    joined.restore(old.export())
    assert joined.levels().tolist() == old.levels().tolist() == [0, 2, 2, 3]
    for policy in (old, joined):
        rounds, first = policy.begin([0, 1, 2, 3])
        assert rounds.tolist() == [0, 1, 1, 2]
        assert first.tolist() == [True, False, False, False]
        assert policy.exponents([1, 2, 3], rounds[1:]).tolist() == [7, 0, 6]
        policy.contact([0], [2])
        policy.complete([0, 1, 2, 3], rounds, [1, NO_EXPONENT, 5, NO_EXPONENT])
        rounds, _ = policy.begin([0, 1, 2, 3])
        assert policy.exponents([0, 1, 2, 3], rounds).tolist() == [3, 7, 7, 6]
    with pytest.raises(ValueError, match="4 chunks"):
        joined.restore(b"\0" * 12)
    with pytest.raises(ValueError, match="staleness"):
        Exponents(1, 1, staleness=1).levels()


@st.composite
def scenarios(draw: st.DrawFn) -> dict:
    return {
        "world": draw(st.integers(2, 4)),
        "servers": draw(st.integers(1, 2)),
        "window": draw(st.sampled_from([1, 2, 4, 8])),
        "chunks": draw(st.integers(3, 12)),
        "seed": draw(st.integers(0, 2**32)),
        "impairments": Impairments(
            loss=draw(st.sampled_from([0.0, 0.05, 0.3])),
            duplicate=draw(st.sampled_from([0.0, 0.3])),
            jitter=draw(st.sampled_from([0.0, 0.002, 0.1])),
        ),
    }


@given(scenarios(), st.integers(1, 4), st.booleans())
@example(
    {"world": 4, "window": 2, "chunks": 8, "seed": 1, "impairments": Impairments(0.3, 0.3, 0.5)},
    4,
    True,
)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_sums_are_exact_across_epochs(scenario: dict, changes: int, dying: bool) -> None:
    """Other windows and streams, workers that die, changes before the last one is through."""
    job = Job(**scenario)
    rng = random.Random(scenario["seed"])
    rounds = 3
    slow = rng.choice([0.0, 0.002, 0.1])
    values = np.stack([job.random_values(scenario["seed"] + i) for i in range(rounds)])
    values[1, 0, 0] *= 100  # does not fit what the last round suggests
    values[2, -1, -1, 0] = np.inf
    worlds = {job.world: list(job.live)}

    def change() -> None:
        dead = [rng.choice(job.live)] if dying and len(job.live) > 1 and rng.random() < 0.6 else []
        window, streams = rng.choice([1, 2, 4, 8]), rng.randint(1, 3)
        late = [rng.random() * rng.choice([0.001, 0.01, 0.1]) for _ in range(job.world)]
        job.change(window, streams, dead, late)
        worlds[len(job.live)] = list(job.live)

    skew = np.zeros(job.world)
    for number in range(rounds):
        skew += [rng.random() * slow for _ in range(job.world)]
        job.submit(values[number], skew.tolist())
    at = 0.0
    for _ in range(changes):
        at += rng.random() * rng.choice([0.005, 0.02, 0.2])
        job.network.at(at, change)
    parts = job.finish()
    # A change may still be to come when everybody is done.
    sums, flags = history(
        values,
        parts[0].workers.reshape(rounds, -1),
        job.policies[job.live[0]].found,
        worlds,
    )
    for member, part in zip(job.live, parts, strict=True):
        assert part.tickets.tolist() == list(range(rounds * job.chunks))
        assert part.chunks.tolist() == list(range(job.chunks)) * rounds
        assert part.workers.tolist() == parts[0].workers.tolist()
        assert part.sums.tobytes() == sums.tobytes()
        direct = (part.flags & Flag.DIRECT) != 0
        assert direct.tolist() == (flags.reshape(-1) != 0).tolist()
        assert job.policies[member].found == job.policies[job.live[0]].found
