# SPDX-License-Identifier: Apache-2.0
"""Tests participation records of sums and the reference that follows them."""

from __future__ import annotations

import json

import numpy as np

from specs.jobfile import parse
from specs.jobspec import JobSpec
from workloads import reference
from workloads import trainer as training
from workloads.attendance import Attendance, Entry, ParticipationLog, entries, entry_of
from workloads.models import Parameters

ALL: Entry = (((0, 1, 2), None),)
TWO: Entry = (((0, 2), None),)
MIXED: Entry = (((0, 1, 2), (0, 3)), ((0, 2), (1, 2)))


def passed(report: dict[str, object]) -> dict[str, object]:
    """As it comes out of a process."""
    answer: dict[str, object] = json.loads(json.dumps(report))
    return answer


def test_entries_say_who_is_in_which_chunks() -> None:
    members = {3: (0, 1, 2), 2: (0, 2)}
    assert entry_of([np.array([3, 3]), np.array([3, 3])], members) == ALL
    assert entry_of([np.array([3, 2, 2]), np.array([3])], members) == MIXED


def test_iteration_is_reported_after_next_completes() -> None:
    """What a worker that dies alone has is not what the others then make."""
    participation, attendance = ParticipationLog(), Attendance()
    for entry in (ALL, ALL, MIXED):
        participation.note(entry)
    attendance.take(0, passed(participation.tell()))
    assert attendance.counts() == [3, 3]
    participation.note(TWO)
    participation.note(TWO)
    attendance.take(0, passed(participation.tell()))
    assert attendance.spans() == [(1, 2, ALL), (3, 3, MIXED), (4, 4, TWO)]
    attendance.take(0, passed(participation.tell(all_of_it=True)))
    assert attendance.counts() == [3, 3, 2, 2, 2]
    assert list(entries(json.loads(json.dumps(attendance.spans())), 5)) == [
        ALL, ALL, MIXED, TWO, TWO,
    ]  # fmt: skip
    assert [attendance.absent(rank) for rank in range(3)] == [False, True, False]


def test_a_report_does_not_grow_with_the_number_of_workers() -> None:
    """All of a job's workers send one each."""
    participation, attendance = ParticipationLog(), Attendance()
    all_but_one = (*range(17), *range(18, 4000))
    participation.note(((all_but_one, None),))
    report = passed(participation.tell(all_of_it=True))
    assert len(json.dumps(report)) < 200
    attendance.take(0, report)
    assert attendance.spans() == [(1, 1, ((all_but_one, None),))]


def test_rejoined_worker_reports_own_iterations() -> None:
    attendance = Attendance()
    first, back = ParticipationLog(), ParticipationLog(before=3)
    for entry in (ALL, TWO, TWO):
        first.note(entry)
    attendance.take(0, passed(first.tell(all_of_it=True)))
    attendance.begin(1)
    back.note(ALL)
    attendance.take(1, passed(back.tell(all_of_it=True)))
    assert attendance.spans() == [(1, 1, ALL), (2, 3, TWO), (4, 4, ALL)]


def test_unknown_participation_is_reported() -> None:
    attendance = Attendance()
    assert "in iteration 1 is left, so who else took part is unknown" in attendance.unknown(2, 3)
    participation = ParticipationLog()
    participation.note(ALL)
    participation.note(TWO)
    attendance.take(0, passed(participation.tell(all_of_it=True)))
    assert attendance.unknown(2, 3) == ""
    assert "iteration 3" in attendance.unknown(3, 3)
    assert "lost in the first iteration" in attendance.unknown(2, 4)


def job(**fields: object) -> JobSpec:
    given = {"name": "x", "iterations": 12, "hidden": [16], "batch": 60, **fields}
    return parse(json.dumps(given)).spec


def by_hand(spec: JobSpec, attendance: list[Entry]) -> str:
    """What workers themselves come to, one of whom dies in iteration 4 and is back in the 9th."""
    world = 3
    replicas = [training.Replica(spec, rank, world) for rank in range(world)]
    means = reference.Means([v.size for v in replicas[0].parameters.values()], 256, world)
    for number, entry in enumerate(attendance):
        if number == 8:
            replicas[1] = training.Replica(spec, 1, world)
            state: Parameters = {name: one.copy() for name, one in replicas[0].state().items()}
            replicas[1].resume(number, state)
        there = sorted({rank for ranks, _ in entry for rank in ranks})
        gradients = {rank: replicas[rank].gradients()[1] for rank in there}
        result = means(gradients, entry)
        final = sorted(set.intersection(*(set(ranks) for ranks, _ in entry)))
        for rank in final:
            replicas[rank].apply(result)
    assert len({training.digest(replica.parameters) for replica in replicas}) == 1
    return training.digest(replicas[0].parameters)


def test_the_reference_takes_the_steps_of_workers_that_come_and_go() -> None:
    spec = job()
    chunks = 4 + 1 + 1 + 1
    part = tuple(range(chunks))
    mixed: Entry = (((0, 1, 2), part[:3]), ((0, 2), part[3:]))
    attendance = [ALL] * 3 + [mixed] + [TWO] * 4 + [ALL] * 4
    result = reference.train(spec, 3, 256, attendance)
    assert training.digest(result.parameters) == by_hand(spec, attendance)
    undisturbed = reference.train(spec, 3, 256)
    assert training.digest(undisturbed.parameters) != training.digest(result.parameters)
    assert 0 < result.worst_error <= 1
