# SPDX-License-Identifier: Apache-2.0
"""Tests that slices are balanced over servers deterministically."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.assignment.balanced import partition
from protocol.partition import servers_of, shares, slices
from protocol.propagation import Propagation

# VGG-19 (Simonyan and Zisserman, 2015, table 1, column E): channels of its 3x3 convolutions, then
# the fully connected layers; weights and biases are keys of their own.
CHANNELS = [3, 64, 64, 128, 128, 256, 256, 256, 256, 512, 512, 512, 512, 512, 512, 512, 512]
CONNECTED = [512 * 7 * 7, 4096, 4096, 1000]
VGG_19 = [
    size
    for weights, biases in (
        *((9 * a * b, b) for a, b in pairwise(CHANNELS)),
        *((a * b, b) for a, b in pairwise(CONNECTED)),
    )
    for size in (weights, biases)
]
LANES = 256


def imbalance(loads: np.ndarray, assigned: np.ndarray, bins: int) -> float:
    """The most loaded bin's load over the mean of all; 1.0 is perfect."""
    sums = np.bincount(assigned, weights=np.asarray(loads, np.float64), minlength=bins)
    return float(sums.max() * bins / sums.sum())


def chunks(elements: int) -> int:
    return -(-elements // LANES)


def test_vgg_19_over_ten_bins() -> None:
    assert sum(VGG_19) == 143_667_240  # the paper's 144 million
    whole = np.array([a + b for a, b in zip(VGG_19[::2], VGG_19[1::2], strict=True)])
    assert imbalance(whole, partition(whole, 10), 10) == pytest.approx(7.15, abs=0.005)
    cut = slices([chunks(size) for size in VGG_19], 32)[:, 2]
    assert imbalance(cut, partition(cut, 10), 10) <= 1.01


def test_a_key_stays_whole_however_it_is_cut() -> None:
    counts = tuple(chunks(size) for size in VGG_19)
    cut = slices(counts, 128)
    where = shares(counts, 128, 10, 10, Propagation(assign="keys"))
    for key in range(len(counts)):
        assert len(set(where.owners[cut[:, 0] == key].tolist())) == 1
    loads = np.bincount(where.owners, weights=where.lengths, minlength=10)
    assert loads.max() * 10 / loads.sum() == pytest.approx(7.15, abs=0.005)


@settings(deadline=None)
@given(st.lists(st.integers(1, 40), max_size=8), st.integers(1, 9))
def test_slices_cover_every_chunk_once_in_order(counts: list[int], most: int) -> None:
    made = slices(counts, most)
    covered = [c for _, first, n in made.tolist() for c in range(first, first + n)]
    assert covered == list(range(sum(counts)))
    owner = [key for key, count in enumerate(counts) for _ in range(count)]
    for key, first, n in made.tolist():
        assert 1 <= n <= most
        assert {owner[c] for c in range(first, first + n)} == {key}


@settings(deadline=None)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=7), st.integers(1, 3))
def test_it_is_within_grahams_bound_of_the_best(loads: list[int], bins: int) -> None:
    def worst(assigned: tuple[int, ...] | np.ndarray) -> float:
        return float(np.bincount(assigned, weights=loads, minlength=bins).max())

    best = min(worst(assigned) for assigned in product(range(bins), repeat=len(loads)))
    assert worst(partition(loads, bins)) <= best * (4 / 3 - 1 / (3 * bins)) + 1e-9


def test_equal_loads_go_in_order_and_to_the_lowest_bin() -> None:
    assert partition([5, 5, 5, 5], 3).tolist() == [0, 1, 2, 0]
    assert partition([1, 9, 1], 2).tolist() == [1, 0, 1]


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), max_size=30), st.integers(1, 7))
def test_item_goes_to_least_loaded_bin(loads: list[int], bins: int) -> None:
    sums = [0] * bins
    assigned = partition(loads, bins).tolist()
    for index in sorted(range(len(loads)), key=lambda index: -loads[index]):
        assert assigned[index] == sums.index(min(sums))
        sums[assigned[index]] += loads[index]


@pytest.mark.parametrize(("counts", "most"), [([0], 4), ([3], 0)])
def test_what_cannot_be_cut_is_an_error(counts: list[int], most: int) -> None:
    with pytest.raises(ValueError, match="slices of"):
        slices(counts, most)
    with pytest.raises(ValueError, match="over 0 bins"):
        partition(counts, 0)


@pytest.mark.parametrize("moved", [((2, 0),), ((1, 1), (1 << 32, 0)), ((0, 2),)])
def test_a_map_of_what_is_not_there_is_an_error(moved: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(ValueError, match="of 2 slices and 2 servers"):
        shares((1, 1), 1, 2, 2, moved=moved)


@settings(deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.integers(1, 7), st.integers(1, 9))
def test_a_stream_leads_to_the_servers_of_its_chunks(
    counts: list[int], servers: int, streams: int
) -> None:
    where = shares(tuple(counts), 3, servers, streams)
    chunks = np.arange(sum(counts))
    leads = [servers_of(stream, streams, servers) for stream in range(streams)]
    assert {server for ranks in leads for server in ranks} == set(range(servers))
    for stream, server in zip(where.stream_of(chunks), where.server_of(chunks), strict=True):
        assert server in leads[stream]
    by_chunk = np.zeros((servers, streams), np.int64)
    np.add.at(by_chunk, (where.server_of(chunks), where.stream_of(chunks)), 1)
    assert where.together().tolist() == by_chunk.tolist()
    assert where.server_of(len(chunks)) == where.stream_of(1 << 31) == -1


def test_slices_of_a_server_take_turns_in_its_streams() -> None:
    where = shares((8,), 1, 2, 4)
    assert where.server_of(np.arange(8)).tolist() == [0, 1] * 4
    assert where.stream_of(np.arange(8)).tolist() == [0, 1, 2, 3] * 2
