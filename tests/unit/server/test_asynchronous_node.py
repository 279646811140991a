# SPDX-License-Identifier: Apache-2.0
"""Tests a server that steps with single gradients, packet by packet."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from hosts.data.snapshot import STARTED, Snapshot
from hosts.server.state import NotHereError, ServerState
from protocol.consistency import ASYNCHRONOUS, Consistency
from protocol.header import HEADER, PORT, Batch, Flag, Op, Phase, blank, ops, peer_array, phases
from protocol.optimizer_plan import OptimizerPlan
from protocol.partition import Moved
from protocol.payloads import float_words, floats_of, header_hashes, word_sums
from protocol.plan import Address, ServerPlan

LANES = 4
WORKERS = (Address(10, 5000), Address(11, 5000))
SERVERS = (Address(20, PORT), Address(21, PORT))
SGD = OptimizerPlan("sgd", 1.0, consistency=ASYNCHRONOUS)
ALONE = ServerPlan(
    job=1,
    epoch=3,
    world=2,
    lanes=LANES,
    rank=0,
    servers=SERVERS[:1],
    workers=WORKERS,
    windows={0: 2},
    counts=(1,),
    optimizer=SGD,
)
PAIR = replace(ALONE, servers=SERVERS, counts=(1, 1))  # chunk 0 is the first server's


def installed(plan: ServerPlan) -> ServerState:
    state = ServerState()
    state.install(plan)
    return state


def packet(op: Op, rank: int, number: int, values: float = 0.0, epoch: int = 3) -> Batch:
    """A worker's CONTRIBUTE or QUERY of chunk 0; its n-th contribution is seq n."""
    headers = blank(1, op)
    fields = {"job": 1, "epoch": epoch, "workers": 1, "seq": number, "children": number}
    for name, value in {**fields, "sender": rank, "lanes": LANES}.items():
        headers[name] = value
    headers["flags"] = Flag.DIRECT
    words = float_words(np.full((1, LANES), values, np.float32))
    headers["checksum"] = word_sums(words) + header_hashes(headers)
    full = np.array([op == Op.CONTRIBUTE])
    return Batch(headers, words, full, peer_array([WORKERS[rank].pair()]))


def said(state: ServerState, *packets: Batch) -> list[tuple[int, int, int, float]]:
    """What a server answers: op, rank of the worker, number, and the first parameter."""
    for one in packets:
        state.on_packets(0.0, one)
    batch, _ = state.poll(0.0)
    if batch is None:
        return []
    ranks = [WORKERS.index(Address(*peer)) for peer in batch.peers.tolist()]
    return list(
        zip(
            ops(batch.headers).tolist(),
            ranks,
            batch.headers["seq"].tolist(),
            floats_of(batch.payloads)[:, 0].tolist(),
            strict=True,
        )
    )


def asked(state: ServerState, rank: int, number: int) -> tuple[Phase, int]:
    """Phase and bitmap of the STATE that answers a QUERY."""
    state.on_packets(0.0, packet(Op.QUERY, rank, number))
    batch, _ = state.poll(0.0)
    assert batch is not None
    assert ops(batch.headers).tolist() == [Op.STATE]
    assert batch.headers["flags"][0] & Flag.DIRECT
    return Phase(int(phases(batch.headers)[0])), int(batch.headers["children"][0])


def test_the_first_workers_parameters_count_and_all_others_wait_for_them() -> None:
    state = installed(ALONE)
    assert said(state, packet(Op.CONTRIBUTE, 1, 1, 7.0)) == []
    assert asked(state, 1, 1) == (Phase.AGGREGATING, 0b11)
    assert asked(state, 0, 1)[1] & 1 == 0
    answers = said(state, packet(Op.CONTRIBUTE, 0, 1, 5.0))
    assert answers == [(Op.RESULT, 0, 1, 5.0), (Op.RESULT, 1, 1, 5.0)]


def test_duplicate_gradient_gets_current_parameters() -> None:
    state = installed(ALONE)
    said(state, packet(Op.CONTRIBUTE, 0, 1), packet(Op.CONTRIBUTE, 1, 1))
    assert said(state, packet(Op.CONTRIBUTE, 0, 2, 1.0)) == [(Op.RESULT, 0, 2, -1.0)]
    assert said(state, packet(Op.CONTRIBUTE, 1, 2, 10.0)) == [(Op.RESULT, 1, 2, -11.0)]
    assert asked(state, 0, 2)[0] is Phase.FINAL
    assert said(state, packet(Op.CONTRIBUTE, 0, 2, 1.0)) == [(Op.RESULT, 0, 2, -11.0)]
    # A copy of what came before it is no query.
    assert said(state, packet(Op.CONTRIBUTE, 0, 1)) == []
    assert state.counters(1)["stale"] == 1


def test_both_workers_gradients_in_one_batch_are_two_steps() -> None:
    state = installed(ALONE)
    said(state, packet(Op.CONTRIBUTE, 0, 1), packet(Op.CONTRIBUTE, 1, 1))
    both = Batch.concatenate([packet(Op.CONTRIBUTE, rank, 2, 1.0 + rank) for rank in (0, 1)])
    assert said(state, both) == [(Op.RESULT, 0, 2, -3.0), (Op.RESULT, 1, 2, -3.0)]


def test_no_answer_leaves_before_the_backup_holds_the_step() -> None:
    primary, backup = installed(PAIR), installed(replace(PAIR, rank=1))

    def replicate() -> None:
        for update in primary.take_updates():
            backup.replicate(1, 3, SERVERS[0].ipv4, update.snapshot)
            primary.replicated(update)

    for rank in (1, 0):
        assert said(primary, packet(Op.CONTRIBUTE, rank, 1, 5.0)) == []
    replicate()
    assert len(said(primary)) == 2
    # Twice the same chunk in one update.
    step = packet(Op.CONTRIBUTE, 0, 2, 1.0), packet(Op.CONTRIBUTE, 1, 2, 2.0)
    assert said(primary, *step) == []
    assert asked(primary, 0, 2) == (Phase.AGGREGATING, 0b11)
    # Sent again meanwhile it is neither stepped again nor answered.
    assert said(primary, step[0]) == []
    replicate()
    assert said(primary) == [(Op.RESULT, 0, 2, 2.0), (Op.RESULT, 1, 2, 2.0)]
    # The backup, alone in the next epoch, knows what is in.
    backup.freeze(1)
    backup.install(replace(PAIR, epoch=4, servers=SERVERS[1:]))
    assert said(backup, packet(Op.CONTRIBUTE, 0, 2, 1.0, epoch=4)) == [(Op.RESULT, 0, 2, 2.0)]
    assert said(backup, packet(Op.CONTRIBUTE, 0, 3, 1.0, epoch=4)) == [(Op.RESULT, 0, 3, 1.0)]


def test_worker_beyond_staleness_bound_waits_with_reason() -> None:
    bounded = replace(SGD, consistency=Consistency(False, 1))
    state = installed(replace(ALONE, optimizer=bounded))
    said(state, packet(Op.CONTRIBUTE, 0, 1), packet(Op.CONTRIBUTE, 1, 1))
    assert said(state, packet(Op.CONTRIBUTE, 0, 2, 1.0)) == [(Op.RESULT, 0, 2, -1.0)]
    assert said(state, packet(Op.CONTRIBUTE, 0, 3, 1.0)) == []
    assert asked(state, 0, 3) == (Phase.AGGREGATING, 0b01)
    # The step was taken all the same, and the slower worker sees it.
    answers = said(state, packet(Op.CONTRIBUTE, 1, 2, 1.0))
    assert answers == [(Op.RESULT, 0, 3, -3.0), (Op.RESULT, 1, 2, -3.0)]
    # A worker that is not in the plan any more keeps no other waiting.
    assert said(state, packet(Op.CONTRIBUTE, 0, 4, 1.0)) == []
    state.freeze(1)
    state.install(replace(state._jobs[1].plan, epoch=4, world=1, workers=WORKERS[:1], members=(0,)))
    assert said(state, packet(Op.CONTRIBUTE, 0, 4, 1.0, epoch=4)) == [(Op.RESULT, 0, 4, -4.0)]


def test_a_gradient_without_those_before_it_is_reported() -> None:
    state = installed(ALONE)
    said(state, packet(Op.CONTRIBUTE, 0, 1), packet(Op.CONTRIBUTE, 1, 1))
    assert said(state, packet(Op.CONTRIBUTE, 0, 4, 1.0)) == []
    ((job, failure),) = state.take_failures()
    assert (job, failure.chunk) == (1, 0)
    assert failure.reason == "worker 0's contribution 4 came, and 1 are in"


def test_a_job_may_go_on_from_a_checkpoint() -> None:
    """Whoever brings the state first; what comes after a step changes nothing."""
    momentum = OptimizerPlan("momentum", 1.0, 0.5, consistency=ASYNCHRONOUS)
    state = installed(replace(ALONE, optimizer=momentum))
    said(state, packet(Op.CONTRIBUTE, 0, 1, 5.0), packet(Op.CONTRIBUTE, 1, 1, 5.0))
    parameters = np.full((1, LANES), 5, np.float32)
    levels, kept = np.full(1, STARTED, np.uint32), np.full((1, 1, LANES), 4, np.float32)
    brought = Snapshot(np.arange(1), levels, np.zeros(1, HEADER), parameters, kept)
    state.load(1, 3, WORKERS[0].ipv4, brought)
    stepped = [(Op.RESULT, 0, 2, 5.0 - (0.5 * 4 + 1))]
    assert said(state, packet(Op.CONTRIBUTE, 0, 2, 1.0)) == stepped
    state.load(1, 3, WORKERS[1].ipv4, brought)
    assert said(state, packet(Op.CONTRIBUTE, 1, 2, 0.0)) == [(Op.RESULT, 1, 2, 2.0 - 0.5 * 3)]


def test_a_chunk_takes_its_momentum_from_server_to_server() -> None:
    """A server that has given a chunk away takes none for it, but as a backup."""
    momentum = OptimizerPlan("momentum", 1.0, 0.5, consistency=ASYNCHRONOUS)
    plan = replace(PAIR, optimizer=momentum, servers=(*SERVERS, Address(22, PORT)), counts=(1,) * 3)
    servers = [installed(replace(plan, rank=rank)) for rank in range(3)]
    parameters, kept = np.full((1, LANES), 5, np.float32), np.full((1, 1, LANES), 4, np.float32)
    levels = np.full(1, STARTED, np.uint32)
    brought = Snapshot(np.arange(1), levels, np.zeros(1, HEADER), parameters, kept)

    calls = itertools.count(1)

    def go() -> None:
        """Calls between servers, until there are none."""
        while any(one.has_updates for one in servers):
            for rank, state in enumerate(servers):
                for update in state.take_updates():
                    backup = servers[(rank + 1) % 3]
                    backup.replicate(1, 3, plan.servers[rank].ipv4, update.snapshot)
                    state.replicated(update)
                for task in state.take_moves(0.0):
                    request = task.to_message(next(calls))
                    given = servers[task.rank].move(plan.servers[rank].ipv4, request)
                    state.moved(task, [given], 0.0)

    def moves(number: int, before: Moved, after: Moved) -> None:
        for state in servers:
            state.own(1, number, before, after)

    said(servers[0], packet(Op.CONTRIBUTE, 0, 1, 5.0), packet(Op.CONTRIBUTE, 1, 1, 5.0))
    go()
    moves(1, (), ((0, 2),))
    # No contribution has come to the next server, which asks for the chunk all the same.
    with pytest.raises(NotHereError, match="in the custody of another"):
        servers[2].load(1, 3, WORKERS[0].ipv4, brought)
    go()
    with pytest.raises(NotHereError, match="in the custody of another"):
        servers[0].load(1, 3, WORKERS[0].ipv4, brought)
    servers[2].load(1, 3, WORKERS[0].ipv4, brought)
    # The first has its copy from before, of the same level.
    moves(2, ((0, 2),), ((0, 0),))
    said(servers[0], packet(Op.CONTRIBUTE, 0, 2, 1.0))
    go()
    assert said(servers[0]) == [(Op.RESULT, 0, 2, 5.0 - (0.5 * 4 + 1))]
