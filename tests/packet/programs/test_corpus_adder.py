# SPDX-License-Identifier: Apache-2.0
"""Tests lanes in 2048-bit registers against integer sums."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from switch.pipeline import Pipeline
from tests.p4 import corpus

LANES = 256
CLAIM, ADD = 0, 1
lane = st.one_of(
    st.integers(-(1 << 31), (1 << 31) - 1),
    st.sampled_from([0, 1, -1, (1 << 31) - 1, -(1 << 31), 1 << 30, -(1 << 30)]),
)


@pytest.fixture(scope="module")
def adder() -> Pipeline:
    return corpus("adder")


def frame(op: int, slot: int, lanes: list[int]) -> bytes:
    head = bytes(12) + b"\x88\xb5" + struct.pack(">BBH", op, 0, slot)
    return head + struct.pack(f">{LANES}i", *lanes)


def wrapped(value: int) -> int:
    return (value + (1 << 31)) % (1 << 32) - (1 << 31)


@settings(max_examples=50, deadline=None)
@given(
    a=st.lists(lane, min_size=16, max_size=16),
    b=st.lists(lane, min_size=16, max_size=16),
    slot=st.integers(0, 255),
)
def test_sum_and_overflow(adder: Pipeline, a: list[int], b: list[int], slot: int) -> None:
    one, other = a * 16, (b * 16)[3:] + b[:3]  # every pair of neighbours meets in some lane
    adder.inject(1, frame(CLAIM, slot, one))
    [(port, out)] = adder.inject(1, frame(ADD, slot, other))
    sums = [x + y for x, y in zip(one, other, strict=True)]
    assert port == 1
    assert list(struct.unpack(f">{LANES}i", out[18:])) == [wrapped(one) for one in sums]
    assert out[15] == any(wrapped(one) != one for one in sums)


def test_slots_are_separate_and_readable(adder: Pipeline) -> None:
    adder.inject(1, frame(CLAIM, 3, [3] * LANES))
    adder.inject(1, frame(CLAIM, 4, [-4] * LANES))
    adder.inject(1, frame(ADD, 3, [10] * LANES))
    expected = int.from_bytes(struct.pack(">64i", *[13] * 64), "big")
    assert adder.register("IngressPipe.block2.cells", 3) == expected
    other = int.from_bytes(struct.pack(">64i", *[-4] * 64), "big")
    assert adder.register("IngressPipe.block0.cells", 4) == other
    adder.set_register("IngressPipe.block0.cells", 4, 0)
    [(_, out)] = adder.inject(1, frame(ADD, 4, [0] * LANES))
    assert struct.unpack(">256i", out[18:]) == (0,) * 64 + (-4,) * 192


def test_out_of_range_slot_changes_nothing(adder: Pipeline) -> None:
    before = adder.stats()["out_of_range"]
    lanes = list(range(LANES))
    [(_, out)] = adder.inject(1, frame(CLAIM, 256, lanes))
    assert list(struct.unpack(">256i", out[18:])) == lanes
    assert adder.stats()["out_of_range"] == before + 4


@pytest.mark.parametrize("length", [0, 1, 13, 14, 17, 18, 273, 274, 1041])
def test_short_packets_are_dropped_by_the_program(adder: Pipeline, length: int) -> None:
    assert adder.inject(1, frame(CLAIM, 1, [1] * LANES)[:length]) == []


def test_payload_behind_the_blocks_stays(adder: Pipeline) -> None:
    sent = frame(CLAIM, 9, list(range(LANES))) + b"behind"
    assert adder.inject(2, sent) == [(2, sent)]
