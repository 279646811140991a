# SPDX-License-Identifier: Apache-2.0
"""Tests that all workers change to a chunk map in the same round, at whatever speed they are."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import pytest

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
        self._say()

    def complete(self) -> None:
        """Completes its oldest round."""
        self.barrier.complete()
        self._say()

    def _say(self) -> None:
        self.leaving += [one.remapped for one in self.barrier.take_answers()]


@pytest.mark.parametrize("seed", range(20))
def test_a_round_has_one_map(seed: int) -> None:
    """Changes follow one another as soon as the job service has all answers, or get lost with
    it."""
    for number in range(50):
        _changes(random.Random(50 * seed + number))


def _changes(draw: random.Random) -> None:
    """Workers begin rounds up to `lead` apart, as one needs the others' contributions."""
    world, lead, changes = draw.randint(1, 3), draw.randint(1, 3), draw.randint(1, 4)
    haste = draw.random()  # how often a round begins before a message arrives
    drains = draw.random() < 0.5
    workers = [Worker(rank) for rank in range(world)]
    places = [worker.place for worker in workers]
    holds: tuple = ()
    since = 0
    remaps: list[Remap] = []
    owning: list[Membership] = []
    told = {}

    def tell() -> None:
        for place in (*places, *SERVERS):
            instruction = remaps[-1].instruction(place)
            if instruction is None or told.get(place) is instruction:
                continue
            told[place] = instruction
            if place.role is Role.WORKER:
                workers[place.rank].coming.append(instruction)
                continue
            owning.append(place)
            # What a chunk's next server gets for it is then of the map at hand, or of the next.
            assert not drains or all(one.barrier.completed >= since - 1 for one in workers)

    def change() -> None:
        number = len(remaps) + 1
        moved = ((number, 0),)
        remaps.append(Remap(1, number, moved, places, SERVERS, before=holds, drains=drains))
        tell()

    def away() -> None:
        """Another job service takes over, which knows the map that holds but not the change."""
        for worker in workers:
            worker.coming.clear()
            worker.leaving.clear()
        owning.clear()
        change()

    def answer(place: Membership, remapped: jobs_pb2.Remapped) -> None:
        nonlocal holds, since
        remap = remaps[-1]
        remap.answer(place, remapped)
        if remap.holds:
            holds, since = remap.moved, remap.from_round
        tell()

    def messages() -> list[Callable[[], object]]:
        found: list[Callable[[], object]] = [one.obey for one in workers if one.coming]
        found += [
            lambda one=one: answer(one.place, one.leaving.pop(0)) for one in workers if one.leaving
        ]
        if owning:
            found.append(lambda: answer(owning.pop(), jobs_pb2.Remapped(number=len(remaps))))
        return found

    def rounds() -> list[Callable[[], object]]:
        slowest = min(one.barrier.begun for one in workers)
        found: list[Callable[[], object]] = [
            partial(worker.begin, slowest, lead)
            for worker in workers
            if worker.barrier.open and worker.barrier.begun < slowest + lead
        ]
        return found + [one.complete for one in workers if one.barrier.completed < slowest]

    change()
    for _ in range(draw.randint(0, 150)):
        now, later = messages(), rounds()
        if len(remaps) < changes and (remaps[-1].settled or draw.random() < 0.1):
            now.append(change if remaps[-1].settled else away)
        if later and (not now or draw.random() < haste):
            draw.choice(later)()
        elif now:
            draw.choice(now)()
    for _ in range(1000):
        if not remaps[-1].settled:
            draw.choice(messages() or rounds())()
    assert remaps[-1].settled
    for _ in range(2 * AHEAD + lead):
        for worker in workers:
            assert worker.begin(-100, 1000), "held back for ever"
    rounds = min(len(worker.maps) for worker in workers)
    for number in range(rounds):
        assert len({worker.maps[number] for worker in workers}) == 1
    assert workers[0].maps[-1] == holds


def test_a_map_after_a_failed_attempt_to_join_finds_rounds_open() -> None:
    barrier = RoundBarrier()
    assert barrier.begin()
    barrier.on_boundary(jobs_pb2.Boundary(number=1, until=1))
    assert not barrier.begin()
    barrier.on_remap(jobs_pb2.Remap(number=7))
    assert barrier.begin()


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
    with pytest.raises(JobError, match="is changing; try again"):
        table.remap(job, (), "before members run the plan")
    for place in job.members:
        table.heartbeat(job.nonce, place.role, place.rank, job.epoch)
    with pytest.raises(JobError, match=text):
        table.remap(job, moved, "a test")
