# SPDX-License-Identifier: Apache-2.0
"""Tests server pipelines: tall and wide, batches and packets, and ablations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hosts.server.state import ServerState
from protocol.codecs.registry import USUAL
from protocol.header import PORT, Batch, Flag, Op, Phase, blank, carries_payload, ops, phases
from protocol.header import peer_array as peers_of
from protocol.optimizer_plan import OptimizerPlan
from protocol.payloads import float_words, floats_of, header_hashes, word_sums
from protocol.plan import Address, Child, PlanError, RootStream, ServerPlan, WorkerPlan
from protocol.server_pipelines import ABLATIONS, Pipeline, refusal
from tests.impaired_links import Impairments
from tests.unit.protocol.packet_bytes import packet_bytes
from tests.unit.worker.simulated_job import Job

LANES, WINDOW, WORLD, CHUNKS, NODE = 8, 8, 3, 24, 9
WORKERS = tuple(Address(10 + rank, 5000 + rank) for rank in range(WORLD))
PLAN = ServerPlan(
    job=1,
    epoch=1,
    world=WORLD,
    lanes=LANES,
    rank=0,
    servers=(Address(1000, PORT),),
    workers=WORKERS,
    windows={0: WINDOW},
    counts=(CHUNKS,),
    roots=(RootStream(0, NODE, WINDOW, tuple(Child(r, w, 1, 0) for r, w in enumerate(WORKERS))),),
)
SGD = OptimizerPlan("sgd", 0.5)
LOSSY = Impairments(0.1, 0.1, 0.005)


def server(plan: ServerPlan = PLAN) -> ServerState:
    state = ServerState()
    state.install(plan)
    return state


def contributions(seqs: np.ndarray, ranks: np.ndarray, words: np.ndarray, **fields: int) -> Batch:
    """Of number and chunk `seqs`, with checksums that hold."""
    headers = blank(len(seqs), Op.CONTRIBUTE)
    values = {"job": 1, "epoch": 1, "node": NODE, "workers": 1, "lanes": LANES, **fields}
    for name, value in values.items():
        headers[name] = value
    headers["seq"] = headers["chunk"] = seqs
    headers["sender"] = ranks
    if headers["flags"].any():  # DIRECT: for the server itself
        headers["node"] = 0
    headers["checksum"] = word_sums(words) + header_hashes(headers)
    addresses = peers_of([WORKERS[rank].pair() for rank in ranks])
    return Batch(headers, words, carries_payload(headers), addresses)


def answers(state: ServerState, batch: Batch) -> Batch:
    state.on_packets(0.0, batch)
    return state.poll(0.0)[0] or Batch.empty(LANES)


def sorted_packets(batches: list[Batch]) -> list[tuple[bytes, bytes, bytes]]:
    return sorted(packet_bytes(Batch.concatenate(batches)))


def rounds(rng: np.random.Generator, largest: int, spoilt: float) -> list[Batch]:
    """Windows of contributions, each in a few batches and any order, some of them twice."""
    batches = []
    for first in range(0, CHUNKS, WINDOW):
        seqs = np.repeat(np.arange(first, first + WINDOW), WORLD)
        ranks = np.tile(np.arange(WORLD), WINDOW)
        words = rng.integers(-largest, largest, (len(seqs), LANES)).astype(">i4")
        batch = contributions(seqs, ranks, words)
        if rng.random() < 0.5:  # each worker's in their order, as trains bring them
            order = np.argsort(ranks, kind="stable")
        else:
            order = rng.permutation(len(seqs))
        again = rng.choice(order, int(spoilt * len(order)))
        cuts = np.sort(rng.integers(0, len(order), 2))
        batches += [batch.select(rows) for rows in np.split(order, cuts) if len(rows)]
        if len(again):
            batches.append(batch.select(again))
    return batches


@pytest.mark.parametrize(
    ("pipeline", "largest"),
    [(Pipeline("tall"), 1000), (Pipeline("tall"), 2**31 - 1), (Pipeline("wide"), 1000)],
    ids=["tall", "tall, overflowing", "wide"],
)
@pytest.mark.parametrize("spoilt", [0.0, 0.2], ids=["once", "some twice"])
def test_batch_equals_packets_one_by_one(pipeline: Pipeline, largest: int, spoilt: float) -> None:
    overflowed = 0
    for seed in range(4):
        batches = rounds(np.random.default_rng(seed), largest, spoilt)
        at_once, one_by_one = server(replace(PLAN, pipeline=pipeline)), server()
        found = [answers(at_once, batch) for batch in batches]
        single = [
            answers(one_by_one, batch.select(slice(at, at + 1)))
            for batch in batches
            for at in range(len(batch))
        ]
        assert sorted_packets(found) == sorted_packets(single)
        assert at_once.counters(1) == one_by_one.counters(1)
        overflowed += one_by_one.counters(1).get("overflowed", 0)
        assert one_by_one.counters(1)["completed"] == CHUNKS
    assert (overflowed > 0) == (largest > 1000)


@pytest.mark.parametrize("pipeline", [Pipeline("tall"), Pipeline("wide")], ids=str)
def test_a_sum_that_overflows_is_flagged_and_has_no_payload(pipeline: Pipeline) -> None:
    words = np.full((WORLD, LANES), 2**30).astype(">i4")
    words[2] = -(2**30)  # all three would fit; the first two do not
    batch = contributions(np.zeros(WORLD, int), np.arange(WORLD), words)
    result = answers(server(replace(PLAN, pipeline=pipeline)), batch)
    assert (result.headers["flags"] == Flag.OVERFLOW).all()
    assert (len(result), result.full.any()) == (WORLD, False)


@pytest.mark.parametrize(
    "pipeline", [Pipeline("wide"), Pipeline("tall", ("elision",)), Pipeline("wide", ("elision",))],
    ids=str,
)  # fmt: skip
def test_sums_do_not_depend_on_network_faults(pipeline: Pipeline) -> None:
    for seed in range(3):
        job = Job(seed=seed, impairments=LOSSY, pipeline=pipeline, servers=2, chunks=16)
        for number in range(3):
            values = job.random_values(10 * seed + number)
            if number == 2:
                values[1, 3, 0] = np.inf  # goes to the server in float32
            job.round(values, skew=[0.0, 0.02, 0.3])


def test_results_that_are_not_elided_come_when_they_are_asked_for() -> None:
    state = server(replace(PLAN, pipeline=Pipeline("tall", ("elision",))))
    words = np.arange(WORLD * LANES).reshape(WORLD, LANES).astype(">i4")
    said = answers(state, contributions(np.zeros(WORLD, int), np.arange(WORLD), words))
    assert (ops(said.headers) == Op.STATE).all()
    assert (phases(said.headers) == Phase.FINAL).all()
    assert not said.full.any()
    assert sorted(said.headers["sender"].tolist()) == list(range(WORLD))
    query = contributions(np.zeros(1, int), np.array([1]), np.zeros((1, LANES), ">i4"))
    query.headers["version_op"] += Op.QUERY - Op.CONTRIBUTE
    query.headers["lanes"] = 0
    query.full[:] = False
    result = answers(state, query)
    assert (ops(result.headers), result.full) == ([Op.RESULT], [True])
    assert result.payloads[0].tolist() == words.sum(axis=0).tolist()
    assert result.peers[0].item() == WORKERS[1].pair()


def test_a_job_whose_results_are_not_elided_asks_once_for_each_where_nothing_is_lost() -> None:
    job = Job(pipeline=Pipeline("tall", ("elision",)))
    for number in range(2):
        job.round(job.random_values(number))
    for worker in job.workers:
        # Exponent rounds and flagged sums have no payload that could be left out.
        assert worker.statistics.queries == worker.statistics.completed > 0
        assert worker.statistics.retransmitted == 0


def test_without_aggregation_everything_is_counted_and_every_sum_is_zero() -> None:
    state = server(replace(PLAN, pipeline=Pipeline("tall", ("aggregation",))))
    batches = rounds(np.random.default_rng(1), 1000, 0.2)
    found = Batch.concatenate([answers(state, batch) for batch in batches])
    usual = server()
    for batch in batches:
        usual.on_packets(0.0, batch)
    assert state.counters(1) == usual.counters(1)
    assert found.full.all()
    assert not found.payloads.any()

    job = Job(impairments=LOSSY, pipeline=Pipeline("wide", ("aggregation",)))
    job.submit(job.random_values(1))
    for part in job.finish():
        # What went to the server in float32 is summed as ever.
        assert not part.sums[(part.flags & Flag.DIRECT) == 0].any()


@pytest.mark.parametrize("ablated", [(), ("optimizer",), ("aggregation",)], ids=str)
def test_parameters_without_steps_or_sums(ablated: tuple[str, ...]) -> None:
    state = server(replace(PLAN, optimizer=SGD, pipeline=Pipeline("tall", ablated)))
    seqs, ranks = np.repeat(np.arange(WINDOW), WORLD), np.tile(np.arange(WORLD), WINDOW)
    rng = np.random.default_rng(2)
    begin = rng.standard_normal((WINDOW, LANES)).astype(np.float32)
    initial = float_words(np.repeat(begin, WORLD, axis=0))
    started = answers(state, contributions(seqs, ranks, initial, flags=Flag.DIRECT))
    assert (
        floats_of(started.payloads).tobytes()
        == floats_of(float_words(begin[started.headers["chunk"]])).tobytes()
    )

    words = rng.integers(-1000, 1000, (len(seqs), LANES)).astype(">i4")
    batch = contributions(seqs, ranks, words)
    batch.headers["seq"] += WINDOW  # the number after that of the initial parameters
    batch.headers["checksum"] = word_sums(words) + header_hashes(batch.headers)
    result = answers(state, batch)
    sums = words.reshape(WINDOW, WORLD, LANES).sum(axis=1).astype(">i4")
    means = USUAL.decode(sums, np.zeros(WINDOW, np.int16), WORLD).astype(np.float64) / WORLD
    stepped = begin - np.float32(0.5) * means.astype(np.float32)
    wanted = begin if ablated else stepped
    assert len(result) == WINDOW * WORLD
    assert floats_of(result.payloads).tobytes() == wanted[result.headers["chunk"]].tobytes()
    checks = word_sums(result.payloads) + np.uint32(WORLD) * header_hashes(result.headers)
    assert (result.headers["checksum"] == checks).all()


def test_invalid_pipelines_are_rejected() -> None:
    for bad in (("long", ()), ("tall", ("loss",))):
        with pytest.raises(ValueError, match=r"none of tall, wide|allowed: aggregation"):
            Pipeline(*bad)
    switch = {"at_server": False, "switches": True, "optimizer": False}
    assert "root of tree core is a switch" in refusal(Pipeline("wide"), "core", **switch)
    under = {"at_server": True, "switches": True, "optimizer": True}
    assert refusal(Pipeline("wide"), "tor", **under) == ""
    for one in ABLATIONS:
        assert "use tree none" in refusal(Pipeline("tall", (one,)), "tor", **under)
    alone = {"at_server": True, "switches": False, "optimizer": False}
    assert "this job's workers do" in refusal(Pipeline("tall", ("optimizer",)), "none", **alone)
    assert refusal(Pipeline("tall", ("elision", "aggregation")), "none", **alone) == ""


def test_a_plan_carries_it_and_refuses_what_it_does_not_know() -> None:
    plan = replace(PLAN, pipeline=Pipeline("wide", ("elision", "aggregation")))
    message = plan.to_message()
    assert ServerPlan.from_message(message) == plan
    assert ServerPlan.from_message(PLAN.to_message()) == PLAN
    message.pipeline.ablated.append("loss")
    for kind in (ServerPlan, WorkerPlan):
        with pytest.raises(PlanError, match="'loss' cannot be left out"):
            kind.from_message(message)
