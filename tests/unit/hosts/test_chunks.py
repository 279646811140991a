# SPDX-License-Identifier: Apache-2.0
"""Tests chunking of tensors, the order of sending, and optimizers."""

from __future__ import annotations

import ctypes
import warnings
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hosts.data.chunks import Layout
from hosts.data.submissions import Scattered, Submission
from hosts.data.tensors import DTYPES, Tensors, dtype_of
from hosts.optimizers import Optimizer
from hosts.server.conflict_free_batches import waves
from hosts.worker.chunk_queues import ENTRY, Queues, shared
from hosts.worker.slots import Submissions
from protocol.optimizer_plan import OptimizerPlan


@given(st.lists(st.integers(1, 50), max_size=6), st.integers(1, 16))
@settings(max_examples=60, deadline=None)
def test_tensors_survive_and_no_chunk_spans_two_keys(sizes: list[int], lanes: int) -> None:
    layout = Layout(sizes, lanes)
    seen: list[int] = []
    for key, size in enumerate(sizes):
        tensor = np.arange(1, size + 1, dtype=np.float32)
        chunks = layout.pack(key, tensor)
        indices = layout.chunks_of(key)
        assert len(chunks) == len(indices)
        seen += indices.tolist()
        for index, chunk in zip(indices, chunks, strict=True):
            assert (chunk[layout.lanes_of[index] :] == 0).all()
            assert (chunk[: layout.lanes_of[index]] != 0).all()
        assert (layout.unpack(key, chunks) == tensor).all()
    assert seen == list(range(layout.chunks))


@pytest.mark.filterwarnings("ignore:the matrix subclass")
@given(st.lists(st.integers(1, 50), min_size=1, max_size=6), st.integers(1, 16))
@settings(max_examples=60, deadline=None)
def test_values_where_they_are_are_those_of_copies(sizes: list[int], lanes: int) -> None:
    """Also of tensors that are not contiguous, zeros behind those that do not fill a chunk, and
    after the tensors have changed if they were copied before."""
    tensors = Tensors({str(key): size for key, size in enumerate(sizes)}, lanes)
    values = {
        str(key): np.arange(2 * size, dtype=np.float32)[:: 1 + key % 2][:size]
        for key, size in enumerate(sizes)
    }
    values["0"] = np.matrix(values["0"]).T  # whose rows have two dimensions
    *_, copies, sums = tensors.pack(values)
    *_, places, others = tensors.pack(values, copy=False)
    assert isinstance(places, Scattered)
    assert copies is sums
    assert sums.shape == others.shape == (len(places), lanes)
    found = [ctypes.string_at(at, 4 * lanes) for at in places.rows.tolist()]
    assert b"".join(found) == sums.tobytes()
    one = Submission(places, others)
    one.own()
    for value in values.values():
        value[:] = -1
    assert one.values.tobytes() == sums.tobytes()
    with pytest.raises(ValueError, match="do not come into"):
        Submission(places, others[1:])


def test_shapes_come_back_and_wrong_ones_are_refused() -> None:
    layout = Layout([6], 4)
    tensor = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert (layout.unpack(0, layout.pack(0, tensor), (2, 3)) == tensor).all()
    with pytest.raises(ValueError, match="6 float32"):
        layout.pack(0, tensor.astype(np.float64))
    with pytest.raises(ValueError, match="6 float32"):
        layout.pack(0, tensor[:, :2])
    with pytest.raises(ValueError, match="2 chunks of 4"):
        layout.unpack(0, np.zeros((1, 4), np.float32))
    with pytest.raises(ValueError, match="at least one"):
        Layout([3, 0], 4)


@pytest.mark.parametrize("name", DTYPES)
def test_gradients_of_any_type_go_in_as_the_float32_that_they_are(name: str) -> None:
    dtype = dtype_of(name)
    least = np.finfo(np.float16).smallest_subnormal
    given = np.array([[1.0, -0.0, 3.140625], [np.inf, 65504.0, least]], np.float32).astype(dtype)
    tensors = Tensors({"w": given, "n": 2}, 4)
    warned = pytest.warns(UserWarning, match="^n: ") if name == "float64" else nullcontext()
    with warned:
        names, selected, packed, _ = tensors.pack({"n": np.ones(2, dtype), "w": given})
    assert (names, selected.chunks.tolist(), packed.dtype) == (["w", "n"], [0, 1, 2], np.float32)
    assert packed.reshape(-1)[:6].tolist() == [float(one) for one in given.reshape(-1)]
    sums = tensors.unpack(names, {"w": given, "n": np.ones(2, dtype)}, packed, np.ones(3, int))
    assert (sums["w"].dtype, sums["w"].shape) == (np.float32, (2, 3))


def test_doubles_are_rounded_with_one_warning_and_refused_beyond_float32() -> None:
    tensors = Tensors({"w": 4, "n": 2}, 4)
    given = np.array([0.1, 1e-60, -np.inf, np.nan])
    with pytest.warns(UserWarning, match="^w: float64 is summed as float32") as warned:
        packed = tensors.pack({"w": given, "n": np.ones(2)})[2]
    assert [Path(one.filename) for one in warned] == [Path(__file__)]
    np.testing.assert_array_equal(packed[0], np.array([0.1, 0, -np.inf, np.nan], np.float32))
    most = float(np.finfo(np.float32).max)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # there was one
        packed = tensors.pack({"n": np.array([most, -most])})[2]
    assert packed[0, :2].tolist() == [most, -most]
    with pytest.raises(OverflowError, match=r"^n: 1e\+39 is beyond float32, .* is 3.4e\+38$"):
        tensors.pack({"n": np.array([np.inf, -1e39])})


@given(st.lists(st.one_of(st.integers(0, 9), st.integers(-7, -1)), max_size=30))
@settings(max_examples=60, deadline=None)
def test_a_queue_is_first_in_first_out_whatever_the_pieces(steps: list[int]) -> None:
    """Positive: entries that are pushed; negative: how many are taken at once, as C takes them."""
    queues = Queues(2)
    pushed, taken = 0, 0
    for step in steps:
        if step >= 0:
            entries = np.zeros(step, ENTRY)
            entries["order"] = pushed + np.arange(step)
            queues.push(1, entries)
            pushed += step
        else:
            count = min(-step, pushed - taken)
            queues.table["head"][1] += count
            taken += count
        assert queues.pending(1)["order"].tolist() == list(range(taken, pushed))
    assert not len(queues.pending(0))


def test_workers_that_submit_the_same_share_entries_but_no_changes() -> None:
    def submitted(order: int) -> np.ndarray:
        entries = np.zeros(3, ENTRY)
        entries["order"], entries["server"] = order + np.arange(3), [0, 1, 0]
        entries["chunk"] = [0, 1, 2]
        return shared(entries)

    mine, other = Queues(2), Queues(2)
    for queues in (mine, other):
        queues.push(0, submitted(order=0)[:2])
        queues.push(1, submitted(order=0)[2:])
    assert submitted(order=0) is submitted(order=0)
    assert mine.table["entries"].tolist() == other.table["entries"].tolist()
    mine.redirect(0, np.array([3, 2, 1]))
    mine.push(0, submitted(order=3))
    assert mine.pending(0)["server"].tolist() == [3, 2, 0, 1, 0]
    assert mine.pending(0)["order"].tolist() == [0, 1, 3, 4, 5]
    assert other.pending(0)["server"].tolist() == [0, 1]
    assert other.pending(0)["order"].tolist() == [0, 1]
    assert mine.pending(1)["order"].tolist() == other.pending(1)["order"].tolist() == [2]


@given(st.lists(st.integers(-9, 3), max_size=40))
@settings(max_examples=60, deadline=None)
def test_places_of_submissions_are_theirs_until_all_sums_are_there(steps: list[int]) -> None:
    """0 and above: a submission of one more chunk; negative: one that gets a sum."""
    submissions, there = Submissions(), dict[int, tuple[Submission, int]]()
    for step in steps:
        if step >= 0:
            values = np.zeros((step + 1, 2), np.float32)
            one = Submission(values, np.empty_like(values))
            place = submissions.add(one)
            assert place not in there
            there[place] = one, step + 1
        elif there:
            place = sorted(there)[-step % len(there)]
            one, missing = there.pop(place)
            assert submissions.take(place, 1) is one
            if missing > 1:
                there[place] = one, missing - 1
        for place, (one, missing) in there.items():
            at = one.values.ctypes.data, one.sums.ctypes.data, 0, 0
            assert submissions.table[place].tolist() == at
            assert one.missing == missing


@given(st.lists(st.integers(0, 4), max_size=30))
@settings(max_examples=60, deadline=None)
def test_conflict_free_batches_keep_order_within_slot(slots: list[int]) -> None:
    array = np.array(slots, np.int64)
    seen: dict[int, list[int]] = {}
    for wave in waves(array):
        assert len(set(array[wave].tolist())) == len(wave)
        for index in wave.tolist():
            seen.setdefault(slots[index], []).append(index)
    for slot, indices in seen.items():
        assert indices == [i for i, s in enumerate(slots) if s == slot]
    assert sum(map(len, seen.values())) == len(slots)


def test_momentum_descends_a_quadratic_and_matches_its_closed_form() -> None:
    parameters = [np.array([1.0], np.float32)]
    optimizer = Optimizer(OptimizerPlan("momentum", rate=0.5, momentum=0.5))
    # Gradient g = x: v1 = 1, x1 = 0.5; v2 = 0.5 + 0.5 = 1, x2 = 0; v3 = 0.5 + 0 = 0.5, x3 = -0.25.
    for expected in (0.5, 0.0, -0.25):
        optimizer.step(parameters, [parameters[0].copy()])
        assert parameters[0][0] == expected
    with pytest.raises(ValueError, match="gradient"):
        optimizer.step(parameters, [np.zeros(1)])
    with pytest.raises(ValueError, match="momentum"):
        OptimizerPlan("momentum", rate=0.1, momentum=1.0)
