# SPDX-License-Identifier: Apache-2.0
"""Tests a change of epoch: for any order of answers, failures and departures, remaining workers
end with the same right results."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from controller.jobs.members import Membership, Role
from controller.jobs.resync import PAGE_BYTES, Change, Pool, ResyncError, levels_of
from protocol import jobs_pb2

PAYLOAD = 64


def worker(rank: int) -> Membership:
    return Membership(Role.WORKER, rank)


def server(rank: int) -> Membership:
    return Membership(Role.SERVER, rank)


def result(chunk: int, level: int, payload: int = PAYLOAD) -> jobs_pb2.Result:
    """The only result that this chunk can have at this level."""
    header = f"{chunk}/{level}".encode().ljust(32)
    return jobs_pb2.Result(chunk=chunk, level=level, header=header, payload=bytes(payload))


class Node:
    """A worker (or, without levels, a server) that follows instructions as a real one does."""

    def __init__(self, place: Membership, levels: list[int] | None) -> None:
        self.place = place
        self.levels = levels
        self.held = {} if levels is None else {(c, n): result(c, n) for c, n in enumerate(levels)}
        self.done: jobs_pb2.Instruction | None = None
        self.handing: list[jobs_pb2.Result] = []

    def report(self) -> bytes:
        return b"" if self.levels is None else np.array(self.levels, "<u4").tobytes()

    def step(self, change: Change) -> None:
        """One answer to the instruction that holds; again if that was answered already."""
        instruction = change.instruction(self.place)
        assert instruction is not None
        assert instruction.epoch == change.epoch
        kind = instruction.WhichOneof("what")
        if kind == "halt":
            change.report(self.place, self.report())
        elif kind == "hand":
            if instruction is not self.done or not self.handing:
                wants = instruction.hand.wants
                self.handing = [self.held[want.chunk, want.level] for want in wants]
            given, self.handing = self.handing[:2], self.handing[2:]
            change.handed(self.place, given, not self.handing, PAYLOAD)
        else:
            assert self.levels is not None
            for taken in instruction.take.results:
                if taken.level == self.levels[taken.chunk] + 1:
                    self.levels[taken.chunk] += 1
                    self.held[taken.chunk, taken.level] = taken
                assert taken == result(taken.chunk, self.levels[taken.chunk])
            change.taken(self.place, instruction.take.page)
        self.done = instruction


def ahead_by_at_most_one(draw: st.DrawFn, world: int, chunks: int) -> list[list[int]]:
    base = draw(st.lists(st.integers(0, 3), min_size=chunks, max_size=chunks))
    more = st.lists(st.integers(0, 1), min_size=chunks, max_size=chunks)
    return [[b + m for b, m in zip(base, draw(more), strict=True)] for _ in range(world)]


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_remaining_workers_get_same_results(data: st.DataObject) -> None:
    world, servers, chunks = (data.draw(st.integers(1, n)) for n in (5, 2, 6))
    levels = ahead_by_at_most_one(data.draw, world, chunks)
    # Levels that no member had must not come up, those of orderly leavers must not be lost.
    ever = np.array(levels)
    nodes = {worker(rank): Node(worker(rank), own) for rank, own in enumerate(levels)}
    nodes |= {server(rank): Node(server(rank), None) for rank in range(servers)}
    order = random.Random(data.draw(st.integers(0, 2**32)))
    pool = Pool()
    change = Change(7, "first", nodes, chunks, pool)
    faults = data.draw(st.lists(st.sampled_from(["dies", "leaves", "again"]), max_size=4))
    kept = np.zeros(chunks, int)
    installed = False
    for _ in range(10_000):
        if faults and order.random() < 0.15:
            fault = faults.pop()
            event(f"{fault} while {kinds(change, nodes)}")
            workers = [p for p in nodes if p.role is Role.WORKER]
            if fault != "again" and len(workers) > 1:
                gone = nodes.pop(order.choice(workers))
                if fault == "leaves":
                    assert gone.levels is not None
                    kept = np.maximum(kept, gone.levels)
                    pool.add(gone.held.values())
                    pool.leave(np.array(gone.levels, np.uint32))
                    change.left(gone.place)
                    continue
            change = Change(change.epoch + 1, fault, nodes, chunks, pool)
            installed = False
        elif not installed and order.random() < 0.1:
            change.installed = installed = True
        else:
            nodes[order.choice(list(nodes))].step(change)
        assert not change.failure
        if change.settled:
            break
    assert change.settled
    assert installed
    final = [node.levels for node in nodes.values() if node.levels is not None]
    assert all(own == final[0] for own in final)
    assert (np.array(final[0]) >= kept).all()
    assert (np.array(final[0]) <= ever.max(axis=0)).all()
    assert not change.owing


def kinds(change: Change, nodes: dict[Membership, Node]) -> str:
    result = (change.instruction(place) for place in nodes)
    return "/".join(sorted({str(i.WhichOneof("what")) for i in result if i is not None}))


def test_results_come_in_pages_that_a_message_holds() -> None:
    size = PAGE_BYTES // 3
    chunks = 8
    change = Change(2, "x", [worker(0), worker(1)], chunks)
    change.installed = True
    change.report(worker(0), np.ones(chunks, "<u4").tobytes())
    change.report(worker(1), b"")
    assert not change.settled
    hand = change.instruction(worker(0))
    assert hand is not None
    assert [(want.chunk, want.level) for want in hand.hand.wants] == [(c, 1) for c in range(chunks)]
    assert change.owing == {worker(0): "to hand over 8 results"}
    for chunk in range(chunks):
        change.handed(worker(0), [result(chunk, 1, size)], chunk == chunks - 1, size)
    pages: list[list[int]] = []
    while not change.settled:
        take = change.instruction(worker(1))
        assert take is not None
        assert take.take.page == len(pages)
        assert take.ByteSize() <= 4 * 1024 * 1024
        pages.append([taken.chunk for taken in take.take.results])
        change.taken(worker(1), take.take.page + 1)  # of no member
        assert change.instruction(worker(1)) is take
        change.taken(worker(1), take.take.page)
    assert len(pages) > 3
    assert [chunk for page in pages for chunk in page] == list(range(chunks))


def test_holders_share_the_work() -> None:
    change = Change(2, "x", [worker(rank) for rank in range(4)], 9)
    for rank in range(4):
        change.report(worker(rank), b"" if rank == 3 else np.ones(9, "<u4").tobytes())
    asked = [change.instruction(worker(rank)) for rank in range(3)]
    assert [len(hand.hand.wants) for hand in asked if hand is not None] == [3, 3, 3]


def test_a_worker_two_results_behind_cannot_be_helped() -> None:
    change = Change(2, "x", [worker(0), worker(1)], 2)
    change.report(worker(0), np.array([1, 3], "<u4").tobytes())
    change.report(worker(1), np.array([1, 1], "<u4").tobytes())
    assert change.hopeless == {
        worker(1): "has 1 results of chunk 1 where others have 3: more than one behind, which they"
        " cannot make good"
    }
    assert not change.settled


def test_results_of_leaver_only_are_missing() -> None:
    pool = Pool()
    pool.leave(np.array([2], np.uint32))  # without the result itself
    change = Change(2, "x", [worker(1)], 1, pool)
    change.report(worker(1), np.array([1], "<u4").tobytes())
    assert change.failure == "no member has the result of chunk 0, level 2, any more"


def test_a_holder_that_leaves_while_it_is_asked_hands_over_by_leaving() -> None:
    pool = Pool()
    change = Change(2, "x", [worker(0), worker(1), worker(2)], 2, pool)
    change.installed = True
    for rank, own in enumerate(([1, 1], [1, 0], [0, 0])):
        change.report(worker(rank), np.array(own, "<u4").tobytes())
    # Chunk 0 is at 0 and 1, chunk 1 only at 0.
    leaver = change.instruction(worker(0))
    assert leaver is not None
    assert {want.chunk for want in leaver.hand.wants} == {0, 1}
    pool.add([result(1, 1)])
    pool.leave(np.array([1, 1], np.uint32))
    change.left(worker(0))
    other = change.instruction(worker(1))
    assert other is not None
    assert [want.chunk for want in other.hand.wants] == [0]
    change.handed(worker(1), [result(0, 1)], True, PAYLOAD)
    for rank, count in ((1, 1), (2, 2)):
        take = change.instruction(worker(rank))
        assert take is not None
        assert len(take.take.results) == count
        change.taken(worker(rank), 0)
    assert change.settled


def test_invalid_answers_are_rejected() -> None:
    with pytest.raises(ResyncError, match="7 B of levels; the keys make 3 chunks of 4 B"):
        levels_of(bytes(7), 3)
    change = Change(2, "x", [worker(0), worker(1)], 3)
    with pytest.raises(ResyncError, match="8 B of levels"):
        change.report(worker(0), bytes(8))
    assert worker(0) in change.owing
    change.report(worker(0), np.array([1, 0, 1], "<u4").tobytes())
    change.report(worker(1), b"")
    for bad, says in (
        (result(3, 1), "chunk 3, level 1: no such"),
        (result(0, 0), "chunk 0, level 0: no such"),
        (result(0, 1, 63), "63 B of payload, not 32 and 64"),
    ):
        with pytest.raises(ResyncError, match=says):
            change.handed(worker(0), [bad], False, PAYLOAD)
    with pytest.raises(ResyncError, match="1 results were not handed over, such as chunk 2"):
        change.handed(worker(0), [result(0, 1)], True, PAYLOAD)
    # Results that were not requested do no harm.
    change.handed(worker(0), [result(1, 1), result(2, 1)], True, PAYLOAD)
    assert set(change.pool.results) == {(0, 1), (2, 1)}


def test_a_stranger_is_ignored() -> None:
    change = Change(2, "x", [worker(0)], 1)
    assert change.instruction(worker(1)) is None
    change.report(worker(1), b"")
    change.handed(worker(1), [], True, PAYLOAD)
    change.taken(worker(1), 0)
    assert change.owing == {worker(0): "to report"}
