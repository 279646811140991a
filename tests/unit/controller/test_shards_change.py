# SPDX-License-Identifier: Apache-2.0
"""Tests state transfer between servers and workers in a change of epoch."""

from __future__ import annotations

import numpy as np

from controller.jobs.members import Membership, Role
from controller.jobs.resync import Change
from controller.jobs.shards import Holding, Restored
from protocol import jobs_pb2
from protocol.optimizer_plan import OptimizerPlan
from protocol.plan import Address

W0, W1 = Membership(Role.WORKER, 0), Membership(Role.WORKER, 1)
S0, S1, S2 = (Membership(Role.SERVER, rank) for rank in range(3))
CHUNKS = 6  # each a slice, so chunk c is server c mod n's


def change(*servers: Membership, before: tuple[Membership, ...] = (S0, S1, S2)) -> Change:
    holding = Holding(
        servers,
        tuple(Address(1000 + server.rank, 47110) for server in servers),
        before,
        OptimizerPlan("sgd", 0.1),
        (CHUNKS,),
        lanes=4,
        chunks_per_slice=1,
    )
    made = Change(2, "test", [W0, W1, *servers], CHUNKS, None, holding)
    made.installed = True
    return made


def levels(*numbers: int) -> bytes:
    return np.array(numbers, "<u4").tobytes()


def instruction_kind(made: Change, place: Membership) -> str | None:
    instruction = made.instruction(place)
    assert instruction is not None
    return instruction.WhichOneof("what")


def sources(made: Change, place: Membership) -> dict[int, list[int]]:
    """What a server is to fetch, by the last digit of the address."""
    instruction = made.instruction(place)
    assert instruction is not None
    return {
        source.server.ipv4 - 1000: np.frombuffer(source.chunks, "<u4").tolist()
        for source in instruction.fetch.sources
    }


def result(chunk: int, level: int) -> jobs_pb2.Result:
    return jobs_pb2.Result(chunk=chunk, level=level, header=bytes(32), payload=bytes(16))


def test_unseen_step_is_replicated_before_delivery() -> None:
    """s0 died; s1 has stepped chunk 0 as its backup, and no other server has heard of it."""
    made = change(S1, S2)
    for worker in (W0, W1):
        made.report(worker, levels(4, 4, 4, 4, 4, 4))
    made.report(S1, levels(5, 4, 0, 4, 4, 0))
    made.report(S2, levels(0, 4, 4, 0, 4, 4))
    # Two servers: each holds all, as primary or backup.
    assert sources(made, S1) == {2: [2, 5]}
    assert sources(made, S2) == {1: [0, 3]}
    made.fetched(S1)
    # Nothing moves to workers while only s1 has the step.
    assert {instruction_kind(made, place) for place in (W0, W1)} == {"halt"}
    assert list(made.owing) == [S2]
    made.fetched(S2)
    assert instruction_kind(made, S1) == "hand"
    made.handed(S1, [result(0, 5)], last=True, payload=16)
    assert instruction_kind(made, W0) == instruction_kind(made, W1) == "take"
    made.taken(W0, 0)
    assert not made.settled
    made.taken(W1, 0)
    assert made.settled
    # s1 is primary of the even chunks now: it had a replica of 0, and served 4 before; s2 of the
    # odd ones: it had a replica of 1, and served 5.
    assert set(made.restored) == {
        Restored(S1, S2, 2),
        Restored(S2, S1, 2),
        Restored(S1, S1, 1),
        Restored(S2, S2, 1),
    }


def test_shards_without_server_come_from_workers() -> None:
    made = change(S0, before=(S0, S1))
    made.report(W0, levels(4, 4, 4, 4, 4, 4))
    made.report(W1, levels(4, 4, 4, 4, 4, 3))
    made.report(S0, b"")
    asked = {p: made.instruction(p).hand.wants for p in (W0, W1)}  # type: ignore[union-attr]
    assert sorted(w.chunk for wants in asked.values() for w in wants) == list(range(CHUNKS))
    for place, wants in asked.items():
        made.handed(place, [result(w.chunk, w.level) for w in wants], last=True, payload=16)
    assert instruction_kind(made, S0) == "take"
    made.taken(S0, 0)
    assert not made.settled  # the other worker lacks the last result of chunk 5
    made.taken(W1, 0)
    assert made.settled
    assert {restored.source for restored in made.restored} == {W0, W1}
    assert sum(restored.chunks for restored in made.restored) == CHUNKS


def test_assignments_are_reported_even_if_change_aborts() -> None:
    """Another fault may come before all have what they lack: what s0 has then is from workers."""
    made = change(S0, before=(S0, S1))
    for place in (W0, W1):
        made.report(place, levels(4, 4, 4, 4, 4, 4))
    made.report(S0, b"")
    assert made.news() == []
    for place in (W0, W1):
        wants = made.instruction(place).hand.wants  # type: ignore[union-attr]
        made.handed(place, [result(w.chunk, w.level) for w in wants], last=True, payload=16)
    assert instruction_kind(made, S0) == "take"
    assert not made.settled
    assert {one.source: one.chunks for one in made.news()} == {W0: 3, W1: 3}
    made.taken(S0, 0)
    assert made.settled
    assert made.news() == []


def test_a_replica_serves_only_in_an_epoch_that_begins() -> None:
    made = change(S0, before=(S0, S1))
    for place in (W0, W1):
        made.report(place, levels(4, 4, 4, 4, 4, 3))
    made.report(S0, levels(4, 4, 4, 4, 4, 4))
    assert made.news() == []
    (holder,) = made.owing
    made.handed(holder, [result(5, 4)], last=True, payload=16)
    assert made.news() == []
    made.taken(W0, 0)
    made.taken(W1, 0)
    assert made.news() == [Restored(S0, S0, 3)]
    assert made.news() == []


def test_before_anything_is_started_servers_need_nothing() -> None:
    made = change(S0, S1)
    for place in (W0, W1):
        made.report(place, levels(1, 1, 1, 0, 0, 0))
    made.report(S0, b"")
    made.report(S1, b"")
    assert made.settled
    assert made.restored == []
