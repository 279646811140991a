# SPDX-License-Identifier: Apache-2.0
"""Tests that all workers change to a chunk map in the same round, at whatever speed they are."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.jobs.job import JobError, Membership, Role
from controller.jobs.remapping import AHEAD, Remap
from hosts.worker.round_barrier import RoundBarrier
from protocol import jobs_pb2
from tests.unit.controller.test_jobs import Table, table  # noqa: F401

MOVED = ((1, 0),)
SERVERS = [Membership(Role.SERVER, rank) for rank in range(2)]


class Worker:
    """One worker's rounds, its chunk map in each, and instructions and answers on their way."""

    def __init__(self, rank: int) -> None:
        self.place = Membership(Role.WORKER, rank)
        self.barrier = RoundBarrier()
        self.maps: list[tuple] = []  # by round
        self.coming: list[jobs_pb2.Instruction] = []
        self.leaving: list[jobs_pb2.Remapped] = []
        self._map: tuple = ()

    def begin(self, slowest: int, lead: int) -> bool:
        """Begins a round if it may, and is not so many rounds ahead of the slowest worker."""
        if self.barrier.begun - slowest >= lead or not self.barrier.begin():
            return False
        moved = self.barrier.maps.take(self.barrier.begun)
        self._map = self._map if moved is None else moved
        self.maps.append(self._map)
        return True

    def obey(self) -> None:
        self.barrier.on_remap(self.coming.pop(0).remap)
        self.leaving += [one.remapped for one in self.barrier.take_answers()]


@settings(deadline=None, max_examples=300)
@given(st.data(), st.integers(1, 4), st.integers(1, 3))
def test_a_round_has_one_map(data: st.DataObject, world: int, lead: int) -> None:
    """Workers begin rounds up to `lead` apart, as one needs the others' contributions."""
    workers = [Worker(rank) for rank in range(world)]
    remap = Remap(1, 1, MOVED, [worker.place for worker in workers], SERVERS)
    told = {}

    def tell() -> None:
        for worker in workers:
            instruction = remap.instruction(worker.place)
            if instruction is not None and told.get(worker.place) is not instruction:
                told[worker.place] = instruction
                worker.coming.append(instruction)

    owning = list(SERVERS)
    for _ in range(data.draw(st.integers(0, 60))):
        worker = data.draw(st.sampled_from(workers))
        match data.draw(st.sampled_from(("begin", "obey", "answer", "own"))):
            case "begin":
                worker.begin(min(one.barrier.begun for one in workers), lead)
            case "obey" if worker.coming:
                worker.obey()
            case "answer" if worker.leaving:
                remap.answer(worker.place, worker.leaving.pop(0))
                tell()
            case "own" if owning:
                remap.answer(owning.pop(), jobs_pb2.Remapped(number=1))
                tell()
    for place in owning:
        remap.answer(place, jobs_pb2.Remapped(number=1))
        tell()
    while any(worker.coming or worker.leaving for worker in workers):
        for worker in workers:
            while worker.coming:
                worker.obey()
            while worker.leaving:
                remap.answer(worker.place, worker.leaving.pop(0))
                tell()
    assert remap.settled
    for _ in range(2 * AHEAD + lead):
        for worker in workers:
            assert worker.begin(-100, 1000), "held back for ever"
    rounds = min(len(worker.maps) for worker in workers)
    for number in range(rounds):
        assert len({worker.maps[number] for worker in workers}) == 1
    assert (workers[0].maps[-1] == MOVED) is remap.holds


def test_without_haste_the_map_holds_and_nobody_waits() -> None:
    worker = Worker(0)
    remap = Remap(1, 7, MOVED, [worker.place], SERVERS[:1])
    remap.answer(SERVERS[0], jobs_pb2.Remapped(number=7))
    for begins in (True, False, False):
        worker.coming.append(remap.instruction(worker.place))
        worker.obey()
        remap.answer(worker.place, worker.leaving.pop())
        assert not begins or worker.begin(0, 10)
    assert remap.settled
    assert remap.holds
    # Asked before its first round, it begins that one meanwhile.
    for _ in range(3):
        assert worker.begin(0, 10)
    assert worker.maps == [(), MOVED, MOVED, MOVED]


@pytest.mark.parametrize(
    ("moved", "text"),
    [(((9, 0),), "slice 9 cannot go to server 0"), (((0, 2),), "slice 0 cannot go to server 2")],
)
def test_impossible_maps_are_refused(table: Table, moved: tuple, text: str) -> None:  # noqa: F811
    job = table.running()
    with pytest.raises(JobError, match=text):
        table.remap(job, moved, "a test")
