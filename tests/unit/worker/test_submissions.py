# SPDX-License-Identifier: Apache-2.0
"""Tests what chunks get at their submission: numbers, exponents, and where their means go."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hosts.data.submissions import Scattered
from hosts.optimizers import mean_of
from hosts.worker.transport import WorkerTransport
from protocol.exponents import Exponents
from protocol.header import Array
from protocol.payloads import chunk_exponents
from protocol.plan import Address, StreamPlan, WorkerPlan
from tests.unit.worker.lone_worker import SERVER, lone, results_of

LANES = 4


def pending(transport: WorkerTransport) -> Array:
    """Entries of the first stream."""
    return transport._queues.pending(0)


def test_scattered_values_of_another_number_of_chunks_are_refused() -> None:
    values = np.ones((4, LANES), np.float32)
    rows = values.ctypes.data + 4 * LANES * np.arange(4, dtype=np.uint64)
    transport, sums = lone(), np.empty((4, LANES), np.float32)
    for given_rows, into in [(rows[:2], sums), (rows[:2], sums[:2]), (rows, None)]:
        with pytest.raises(ValueError, match="values of 4 chunks, and memory"):
            transport.submit(np.arange(4), Scattered(given_rows, (values,)), np.full(4, 4), into)
    assert transport.submit(np.arange(4), Scattered(rows, (values,)), np.full(4, 4), sums) == 0


@given(st.lists(st.lists(st.integers(0, 2**32 - 1), min_size=LANES, max_size=LANES), min_size=1))
@settings(max_examples=200, deadline=None)
def test_exponents_and_flags_are_those_of_the_reference(bits: list[list[int]]) -> None:
    """Any bits: NaNs, infinities, subnormal numbers, zeros of both signs."""
    values = np.array(bits[:64], np.uint32).view(np.float32)
    transport = lone()
    transport.submit(np.arange(len(values)), values, np.full(len(values), LANES))
    entries = pending(transport)
    data = entries[~entries["exponent_round"]]
    own, flags = chunk_exponents(values)
    assert data["own"].tolist() == own.tolist()
    assert data["unfit"].tolist() == flags.tolist()
    assert entries["own"][entries["exponent_round"]].tolist() == own.tolist()
    assert not entries["unfit"][entries["exponent_round"]].any()


@pytest.mark.parametrize(
    "value", [0.0, 1.0, 2.0**-149, 2.0**-127, 2.0**-126, 3.4e38, np.inf, np.nan, 2.0**127]
)
def test_exponents_at_the_ends_of_float32_are_those_of_the_reference(value: float) -> None:
    values = np.array([[0.5, -value, value, 0.0], [value] * LANES], np.float32)
    transport = lone()
    transport.submit([0, 1], values, [LANES] * 2)
    own, flags = chunk_exponents(values)
    assert pending(transport)["own"].tolist() == np.repeat(own, 2).tolist()
    assert pending(transport)["unfit"][1::2].tolist() == flags.tolist()


@given(
    st.lists(st.floats(-(2.0**120), 2.0**120, width=32), min_size=LANES, max_size=LANES),
    st.integers(1, 9),
)
@settings(max_examples=200, deadline=None)
def test_means_are_sums_divided_in_double_precision(values: list[float], world: int) -> None:
    given = np.array([values], np.float32)
    sums, means = np.empty_like(given), np.empty_like(given)
    for into, averages in ((sums, False), (means, True)):
        transport = lone(world=world)
        transport.submit([0], given, [LANES], into, averages=averages)
        while not transport.idle:
            batch, _ = transport.poll(0.0)
            assert batch is not None
            transport.on_packets(0.0, results_of(batch, world))
    with np.errstate(invalid="ignore"):
        expected = mean_of(sums, np.array([world]))
    np.testing.assert_array_equal(means, expected)
    assert np.signbit(means).tolist() == np.signbit(expected).tolist()


def two_streams(changes: dict[str, object]) -> WorkerTransport:
    """One of two servers, each of which has half of eight chunks by slices of one."""
    plan = WorkerPlan(
        job=1, epoch=1, world=2, lanes=LANES, rank=0, chunks_per_slice=1, counts=(8,),
        streams=(StreamPlan(0, 7, 0, 4), StreamPlan(1, 7, 0, 4)),
        servers=(Address(*SERVER), Address(SERVER[0] + 1, SERVER[1])), **changes,
    )  # fmt: skip
    return WorkerTransport(plan, Exponents(8, 2))


def test_chunks_of_calls_that_come_again_get_the_numbers_of_new_ones() -> None:
    """The same arrays, if nobody can write to them, are looked at once."""
    again, fresh = two_streams({}), two_streams({})
    chunks, lanes = np.array([6, 1, 4, 3]), np.full(4, LANES)
    for array in (chunks, lanes):
        array.flags.writeable = False
    values = np.arange(16, dtype=np.float32).reshape(4, LANES)
    for _ in range(3):
        assert again.submit(chunks, values, lanes) == fresh.submit(
            chunks.tolist(), values, lanes.tolist()
        )
    for stream in range(2):
        numbers = again._queues.pending(stream)
        assert len(numbers) == 2 + 3 * 2
        assert numbers.tolist() == fresh._queues.pending(stream).tolist()
        assert numbers["round"].tolist() == [0, 0, 0, 0, 1, 1, 2, 2]
    assert sorted(again._calls) != []
    assert not fresh._calls


def test_arrays_that_may_change_are_read_at_each_call() -> None:
    transport = lone()
    chunks = np.array([0, 1])
    for first in (0, 2, 4):
        chunks[:] = first, first + 1
        transport.submit(chunks, np.ones((2, LANES), np.float32), np.full(2, LANES))
    assert pending(transport)["chunk"][::2].tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("chunks", "message"),
    [([0, 64], r"in 0\.\.63"), ([-1, 0], r"in 0\.\.63"), ([2, 1, 2], "appears twice")],
)
def test_unknown_and_repeated_chunks_are_refused_with_nothing_begun(
    chunks: list[int], message: str
) -> None:
    transport = lone()
    values = np.ones((len(chunks), LANES), np.float32)
    with pytest.raises(ValueError, match=message):
        transport.submit(chunks, values, np.full(len(chunks), LANES))
    assert transport.idle
    assert transport.submit([0], values[:1], [LANES]) == 0
    assert pending(transport)["round"].tolist() == [0, 0]
