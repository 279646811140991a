# SPDX-License-Identifier: Apache-2.0
"""Tests schedules of sums across racks: each contribution counts once, and wrong ones are found."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from planner.collectives.schedule import (
    HALVING_DOUBLING,
    RING,
    SWITCH,
    Do,
    Exchange,
    Operation,
    ScheduleError,
    blocks_at_once,
    in_order,
    most_held,
    verify,
)

EXCHANGES = st.sampled_from([RING, HALVING_DOUBLING, SWITCH])


@settings(deadline=None)
@given(exchange=EXCHANGES, boxes=st.integers(1, 20), blocks=st.integers(1, 6))
def test_every_contribution_counts_once_and_every_sum_is_complete_once(
    exchange: Exchange, boxes: int, blocks: int
) -> None:
    """However many blocks overlap; and no box does anything twice, or in another block's stead.
    Where a switch sums for boxes, each of them completes each part once, and the switch none."""
    exchange.verify(boxes, blocks)
    found = exchange.programs(boxes)
    completed = Counter(
        (place if exchange.switched else 0, one)
        for place, program in enumerate(found)
        for one in in_order(program, blocks)
        if one[1].do is Do.COMPLETE
    )
    assert set(completed.values()) == {1}
    assert {place for place, _ in completed} == {*range(boxes if exchange.switched else 1)}
    assert len(completed) == blocks * exchange.parts(boxes) * (boxes if exchange.switched else 1)
    for program in found[:boxes]:
        gathered = Counter(one for stage in program for one in stage if one.do is Do.GATHER)
        assert sorted(one.part for one in gathered.elements()) == [*range(exchange.parts(boxes))]
        assert most_held(program) <= blocks_at_once(program) * exchange.parts(boxes)


@settings(deadline=None)
@given(exchange=EXCHANGES, boxes=st.integers(1, 20))
def test_closed_form_of_what_boxes_send(exchange: Exchange, boxes: int) -> None:
    """For a power of two each sends and gets 2 (r - 1) / r copies of a block, the least possible
    (Patarasuk and Yuan); one copy if a switch sums."""
    sent = Counter(
        (box, one.box)
        for box, program in enumerate(exchange.programs(boxes))
        for stage in program
        for one in stage
        if one.do is Do.SEND
    )
    assert sent == exchange.pairs(boxes)
    if exchange is SWITCH:
        there = {(box, boxes) for box in range(boxes if boxes > 1 else 0)}
        assert sent == Counter([*there, *((to, source) for source, to in there)])
    elif exchange is RING or boxes & (boxes - 1) == 0:
        for box in range(boxes):
            out = sum(count for (source, _), count in sent.items() if source == box)
            assert out * boxes == 2 * (boxes - 1) * exchange.parts(boxes)


@settings(max_examples=300, deadline=None)
@given(
    exchange=EXCHANGES,
    boxes=st.integers(2, 7),
    seed=st.integers(0, 10_000),
    change=st.sampled_from(["leave out", "repeat", "other part", "take for add", "add for take"]),
)
def test_a_changed_operation_is_found(
    exchange: Exchange, boxes: int, seed: int, change: str
) -> None:
    """Any operation left out, repeated, of another part, or that adds where it should replace."""
    draw = random.Random(seed)
    found, parts = exchange.programs(boxes), exchange.parts(boxes)
    stage = draw.choice([one for program in found for one in program if one])
    place = draw.randrange(len(stage))
    operation = stage[place]
    if change == "leave out":
        del stage[place]
    elif change == "repeat":
        stage.insert(place, operation)
    elif change == "other part":
        stage[place] = operation._replace(part=(operation.part + 1) % parts)
    else:
        old, new = (Do.ADD, Do.TAKE) if change == "take for add" else (Do.TAKE, Do.ADD)
        assume(operation.do is old)
        stage[place] = operation._replace(do=new)
    assume(parts > 1 or change != "other part")
    with pytest.raises(ScheduleError, match=r"box \d+"):
        verify(found, parts, 3, switched=exchange.switched)


def test_boxes_that_wait_for_each_other_are_named() -> None:
    gather, done = Operation(Do.GATHER, 0), Operation(Do.BROADCAST, 0)
    found = [[[gather, Operation(Do.ADD, 0, other), Operation(Do.SEND, 0, other), done]]
             for other in (1, 0)]  # fmt: skip
    with pytest.raises(ScheduleError, match="box 0, block 0, part 0: waits for ever for box 1"):
        verify(found, 1, 1)
