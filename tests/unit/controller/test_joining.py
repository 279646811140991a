# SPDX-License-Identifier: Apache-2.0
"""Tests joins: for any order of answers, departures and corrupted state, all workers stop at the
same call and joiners get one donor's whole state."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.jobs.joining import Join
from controller.jobs.members import Membership, Role
from hosts.worker.round_barrier import RoundBarrier
from protocol import jobs_pb2
from protocol.state import PAGE_BYTES, Collector, Pages, State, StateError, decode, encode


def worker(rank: int) -> Membership:
    return Membership(Role.WORKER, rank)


class Worker:
    """A worker with its barrier, and an application that goes on as far as it may."""

    def __init__(self, rank: int, state: bytes | None) -> None:
        self.place = worker(rank)
        self.barrier = RoundBarrier()
        self.state = state  # None: it is unknown
        self.latest: jobs_pb2.Instruction | None = None

    def look(self, join: Join) -> None:
        instruction = join.instruction(self.place)
        if instruction is None or instruction is self.latest:
            return
        self.latest = instruction
        if instruction.WhichOneof("what") == "boundary":
            self.barrier.on_boundary(instruction.boundary)
        else:
            self.barrier.on_donate(instruction.donate)

    def compute(self, others: list[Worker]) -> None:
        """Begins a call, or completes one that all have begun, or tells what it knows."""
        barrier = self.barrier
        if barrier.begun > barrier.completed:
            if all(other.barrier.begun >= barrier.begun for other in others):
                barrier.complete()
        elif barrier.donation is not None:
            if self.state is None:
                barrier.give(barrier.donation, None, "no state today")
            else:
                barrier.give(barrier.donation, self.state)
        else:
            barrier.begin()

    def answer(self, join: Join) -> None:
        for answer in self.barrier.take_answers():
            what = answer.WhichOneof("what")
            getattr(join, what)(self.place, getattr(answer, what))


class Joiner:
    def __init__(self, rank: int, fails: bool) -> None:
        self.place = worker(rank)
        self.fails = fails
        self.data: bytes | None = None
        self._collector = Collector()

    def step(self, join: Join) -> None:
        instruction = join.instruction(self.place)
        if instruction is None:
            return
        restore = instruction.restore
        restored = jobs_pb2.Restored(number=restore.number, page=restore.page.page)
        if self.fails and restore.page.page:
            restored.unable = "no room"
        else:
            self.data = self._collector.take(restore.page)
        join.restored(self.place, restored)


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_members_stop_at_same_call_and_joiners_get_state(
    data: st.DataObject,
) -> None:
    order = random.Random(data.draw(st.integers(0, 2**32)))
    number = data.draw(st.integers(1, 4))
    sizes = [0, 1, PAGE_BYTES, PAGE_BYTES + 1, 2 * PAGE_BYTES + 5]
    size = data.draw(st.sampled_from(sizes))
    able = data.draw(st.lists(st.booleans(), min_size=number, max_size=number))
    workers = [
        Worker(rank, bytes([rank + 1]) * (size + 1) if can else None)
        for rank, can in enumerate(able)
    ]
    joiners = [Joiner(10, False), Joiner(11, data.draw(st.booleans()))]
    leaving = data.draw(st.booleans())
    for _ in range(data.draw(st.integers(0, 30))):
        order.choice(workers).compute(workers)
    join = Join(5, 1000, [w.place for w in workers], [w.place for w in workers],
                [j.place for j in joiners])  # fmt: skip
    for _ in range(20_000):
        if join.settled or join.failure:
            break
        one = order.choice([*workers, *joiners])
        if isinstance(one, Joiner):
            one.step(join)
            continue
        if leaving and one.barrier.begun == one.barrier.completed > 3 and len(workers) > 1:
            workers.remove(one)
            leaving = False
            join.left(one.place)
            continue
        order.choice((one.look, one.answer))(join)
        one.compute(workers)
    if join.failure:
        assert not any(w.state is not None for w in workers)
        assert "no state today" in join.failure or "could have left" in join.failure
        return
    assert join.settled
    assert len({w.barrier.completed for w in workers}) == 1
    assert {w.barrier.begun - w.barrier.completed for w in workers} == {0}
    assert all(not w.barrier.open for w in workers)
    assert join.joiners | join.refused.keys() == {j.place for j in joiners}
    states = {j.data for j in joiners if j.place in join.joiners}
    assert len(states) == 1
    assert states.pop() in {bytes([rank + 1]) * (size + 1) for rank in range(number)}
    for w in workers:
        w.barrier.release()
        assert w.barrier.begin()


def in_order(*workers: int) -> Join:
    """An attempt of worker 9, all others at call 3."""
    join = Join(2, 7, [worker(r) for r in workers], [worker(r) for r in workers], [worker(9)])
    for rank in workers:
        join.begun(worker(rank), jobs_pb2.Begun(number=7, calls=3))
    for rank in workers:
        join.reached(worker(rank), jobs_pb2.Reached(number=7))
    return join


def kind(join: Join, rank: int) -> str | None:
    result = join.instruction(worker(rank))
    return None if result is None else result.WhichOneof("what")


def test_lowest_rank_is_donor_until_it_leaves() -> None:
    join = in_order(0, 1)
    assert [kind(join, 0), kind(join, 1), kind(join, 9)] == ["donate", "boundary", None]
    assert join.owing == {worker(0): "to give its state"}
    join.left(worker(0))
    assert kind(join, 1) == "donate"
    pages = Pages(b"x" * 10)
    stale = jobs_pb2.Donated(number=7, page=pages.page(0))
    join.donated(worker(1), stale)  # of the donation before
    assert kind(join, 9) is None
    join.donated(worker(1), jobs_pb2.Donated(number=8, page=pages.page(0)))
    assert kind(join, 9) == "restore"
    assert join.owing == {worker(9): "to take page 0 of the state"}
    assert join.taking == {worker(9)}
    join.restored(worker(9), jobs_pb2.Restored(number=8, page=0))
    assert join.settled


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        ({"size": 0}, "its state has 0 B"),
        ({"size": 2**40}, "its state has 1099511627776 B, allowed are 1 to"),
        ({"size": 2**63}, "its state has 9223372036854775808 B, allowed are 1 to"),
        ({"size": 2**64 - 1}, "its state has 18446744073709551615 B, allowed are 1 to"),
        ({"sha256": b"short"}, "its state has 10 B"),
        ({"data": b"y"}, "page 0 of its state has 1 B, not 10"),
    ],
)
def test_invalid_page_fails_its_donor_only(spoil: dict[str, object], says: str) -> None:
    join = in_order(0, 1)
    page = Pages(b"x" * 10).page(0)
    for field, value in spoil.items():
        setattr(page, field, value)
    join.donated(worker(0), jobs_pb2.Donated(number=7, page=page))
    assert [kind(join, 0), kind(join, 1), kind(join, 9)] == ["boundary", "donate", None]
    join.donated(worker(1), jobs_pb2.Donated(number=8, unable="RuntimeError: not me"))
    assert says in join.failure
    assert join.failure.endswith("worker 1: RuntimeError: not me")


def test_join_ends_without_joiners() -> None:
    join = in_order(0)
    join.left(worker(9))
    assert join.failure == "those who wanted to join do not any more"


def test_states_survive_transfer() -> None:
    arrays = {
        "weights": np.arange(12, dtype=np.float32).reshape(3, 4).T,
        "step": np.array(7),
        "none": np.zeros((0, 3), "<f8"),
        "mask": np.array([True, False]),
    }
    result = decode(encode(State(41, b"exponents", arrays)))
    assert (result.calls, result.exponents, list(result.arrays)) == (41, b"exponents", list(arrays))
    for name, array in arrays.items():
        assert result.arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(result.arrays[name], array)
        assert result.arrays[name].flags.writeable


def test_invalid_state_is_rejected() -> None:
    with pytest.raises(StateError, match="names is an array of object"):
        encode(State(1, b"", {"names": np.array([object()])}))
    with pytest.raises(StateError, match="are no state"):
        decode(b"\xff" * 9)
    with pytest.raises(StateError, match="only numbers can be sent"):
        encode(State(1, b"", {"named": np.zeros(2, [("a", "<f4")])}))
    for kind, shape, data in (
        ("O", (1,), bytes(8)),
        ("x", (), b""),
        ("", (1,), bytes(8)),
        ("V8", (1,), bytes(8)),
        ("<f4,<f4", (1,), bytes(8)),
        ("(2,)<f4", (1,), bytes(8)),
        ("<f3", (1,), bytes(3)),
        ("<f" + "4" * 10**6, (1,), bytes(4)),
        ("<f4", (3,), bytes(8)),
        ("<f4", (), b""),
        ("<f4", (1,), bytes(3)),
        ("<f4", (1 << 32, 1 << 32), b""),  # their product is 0 in 64 bits
        ("<f4", (0, (1 << 64) - 1), b""),
        ("<f4", (1,) * 100, bytes(4)),
    ):
        message = jobs_pb2.State(
            arrays=[jobs_pb2.Array(name="a", type=kind, shape=shape, data=data)]
        )
        with pytest.raises(StateError, match="array 'a'"):
            decode(message.SerializeToString())


def test_pages_that_were_spoiled_or_mixed_are_refused() -> None:
    data = np.random.default_rng(1).bytes(PAGE_BYTES + 100)
    pages, other = Pages(data), Pages(data[:-1] + b"?")
    collector = Collector()
    assert collector.take(pages.page(0)) is None
    assert collector.take(pages.page(0)) is None  # begins again
    with pytest.raises(StateError, match="page 1"):
        collector.take(other.page(1))
    assert collector.take(pages.page(1)) == data
    assert collector.take(pages.page(1)) == data  # once more
    with pytest.raises(StateError, match="have no page 2"):
        collector.take(pages.page(2))
    bad = pages.page(1)
    bad.data = bytes(100)
    collector.take(pages.page(0))
    with pytest.raises(StateError, match="hash is not the one"):
        collector.take(bad)
