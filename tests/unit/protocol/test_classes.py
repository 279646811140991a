# SPDX-License-Identifier: Apache-2.0
"""Tests how keys are divided into classes of urgency, and slices assigned to servers."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.assignment.classes import classes_of
from protocol.partition import parts, servers_of, shares
from protocol.propagation import Propagation

COUNTS = st.lists(st.integers(1, 60), min_size=1, max_size=9)


@settings(deadline=None)
@given(COUNTS, st.integers(1, 5))
def test_classes_are_as_equal_as_keys_in_order_allow(counts: list[int], classes: int) -> None:
    found = classes_of(counts, classes).tolist()
    used = min(classes, len(counts))
    assert found[0] == classes - 1
    assert all(a - b in (0, 1) for a, b in pairwise(found))
    assert len(set(found)) == used

    def squares(cuts: tuple[int, ...]) -> int:
        return sum(sum(counts[a:b]) ** 2 for a, b in pairwise((0, *cuts, len(counts))))

    least = min(squares(cuts) for cuts in combinations(range(1, len(counts)), used - 1))
    lengths = np.bincount(np.array(found), weights=counts)
    assert int((lengths**2).sum()) == least


def test_many_keys_are_divided_in_order() -> None:
    counts = [1 + number % 7 for number in range(3000)]
    found = classes_of(counts, 16)
    assert (np.diff(found) <= 0).all()
    lengths = np.bincount(found, weights=counts)
    assert len(lengths) == 16
    assert lengths.max() <= 1.1 * lengths.mean()


def test_a_huge_key_does_not_take_the_classes_of_others() -> None:
    """As with VGG-19, whose fc6 has 71 % of the parameters."""
    found = classes_of([10, 10, 10, 10, 1000, 10, 10], 6).tolist()
    assert found.count(found[4]) == 1
    assert len(set(found)) == 6


@settings(deadline=None)
@given(COUNTS, st.integers(1, 7), st.integers(1, 4), st.integers(1, 3), st.integers(1, 5))
@pytest.mark.parametrize("assign", ["balanced", "hashed", "keys"])
def test_streams_lead_to_the_chunks_server_in_its_class(
    assign: str, counts: list[int], most: int, servers: int, turns: int, classes: int
) -> None:
    own = servers * turns
    way = Propagation("priority", classes=classes, assign=assign)
    where = shares(tuple(counts), most, servers, own * classes, way)
    chunks = np.arange(sum(counts))
    streams = where.stream_of(chunks)
    assert (streams // own == where.classes.repeat(counts)).all()
    for chunk, stream in zip(chunks.tolist(), streams.tolist(), strict=True):
        assert where.server_of(chunk) in servers_of(stream % own, own, servers)


@settings(deadline=None)
@given(COUNTS, st.integers(1, 30), st.integers(1, 5))
def test_whole_keys_are_cut_only_where_they_are_long(
    counts: list[int], most: int, servers: int
) -> None:
    cut = parts(counts, most, servers)
    assert np.bincount(cut[:, 0], weights=cut[:, 2]).tolist() == counts
    for key, count in enumerate(counts):
        lengths = cut[cut[:, 0] == key][:, 2]
        assert len(lengths) == 1 if count <= most else lengths.max() - 1 <= count / servers


def test_mxnet_assigns_whole_keys_by_a_hash_and_parts_in_turns() -> None:
    """kvstore_dist.h: a key below the bound goes to server (key * 9973) mod S, a longer one has a
    part at each server, from the first on."""
    way = Propagation(parts=True, assign="hashed")
    where = shares((2, 9, 3, 1), 4, 3, 3, way)
    ends = [0, 2, 11, 14]
    assert [int(where.server_of(first)) for first in ends] == [0, 0, 2 * 9973 % 3, 3 * 9973 % 3]
    assert where.server_of(np.arange(2, 11)).tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"classes": 0}, "0 classes; allowed: 1 to 128"),
        ({"classes": 129}, "129 classes"),
        ({"assign": "x"}, "assignment 'x' is none of balanced, hashed, keys"),
        ({"release": "x"}, "release 'x' is none of chunk, slice"),
        ({"credit": -1}, "a credit of -1 bytes"),
    ],
)
def test_impossible_ways_are_refused(fields: dict, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Propagation(**fields)


def test_messages_keep_all_fields() -> None:
    way = Propagation("credit", 5, True, True, "hashed", "slice", 77)
    assert Propagation.from_message(way.to_message()) == way
    assert Propagation.from_message(Propagation().to_message()) == Propagation()
