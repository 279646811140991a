# SPDX-License-Identifier: Apache-2.0
"""Tests that slices move level, and no more of them than have to."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.planning.balancing.levelling import levelled, scaled

SIZES = st.lists(st.integers(1, 8), min_size=1, max_size=120)


def loads(owners: Sequence[int], chunks: Sequence[int], servers: Sequence[int]) -> list[int]:
    """Returns the load of each server; the others have none."""
    assert set(owners) <= set(servers)
    return [
        sum(n for at, n in zip(owners, chunks, strict=True) if at == server) for server in servers
    ]


def moved(before: Sequence[int], after: Sequence[int]) -> int:
    return sum(a != b for a, b in zip(before, after, strict=True))


@given(SIZES, st.integers(1, 6), st.data())
def test_levelled_loads_differ_by_at_most_a_slice(
    chunks: list[int], count: int, data: st.DataObject
) -> None:
    owners = [data.draw(st.integers(0, count + 1)) for _ in chunks]
    found = levelled(owners, chunks, dict.fromkeys(range(count), 1.0))
    each = loads(found, chunks, dict.fromkeys(range(count), 1.0))
    assert max(each) - min(each) <= max(chunks)
    assert levelled(found, chunks, dict.fromkeys(range(count), 1.0)) == found


@given(st.lists(st.floats(0.1, 10), min_size=2, max_size=6), st.integers(0, 400))
def test_loads_are_in_proportion_to_what_servers_are_worth(worth: list[float], most: int) -> None:
    owners, chunks = [one % len(worth) for one in range(300)], [1, 2, 3] * 100
    servers = dict(enumerate(worth))
    found = levelled(owners, chunks, servers)
    for server, load in enumerate(loads(found, chunks, range(len(worth)))):
        assert load == pytest.approx(max(1, 600 * worth[server] / sum(worth)), abs=3)
    few = levelled(owners, chunks, servers, most)
    assert sum(n for a, b, n in zip(owners, few, chunks, strict=True) if a != b) <= most


@given(st.integers(1, 5), st.integers(1, 3), st.integers(1, 40))
def test_spares_get_equal_shares_and_nothing_else_moves(had: int, spares: int, each: int) -> None:
    """Of equal slices, as many move as the spares are to have, taken from all alike."""
    owners = [one % had for one in range(each * had)]
    chunks = [8] * len(owners)
    found = scaled(owners, chunks, range(had + spares), range(had, had + spares))
    counts = [n // 8 for n in loads(found, chunks, range(had + spares))]
    assert max(counts) - min(counts) <= 1
    assert moved(owners, found) == sum(counts[had:])


@given(SIZES, st.integers(2, 6), st.data())
def test_all_slices_of_a_server_go_to_the_others_and_no_others_move(
    chunks: list[int], count: int, data: st.DataObject
) -> None:
    owners = levelled([0] * len(chunks), chunks, dict.fromkeys(range(count), 1.0))
    away = data.draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=count - 1))
    rest = [server for server in range(count) if server not in away]
    found = scaled(owners, chunks, rest, [])
    assert moved(owners, found) == sum(owner in away for owner in owners)
    each = loads(found, chunks, rest)
    assert max(each) - min(each) <= max(chunks)


def test_a_spare_takes_the_place_of_another_server() -> None:
    owners, chunks = [0, 1, 2] * 10, [4] * 30
    found = scaled(owners, chunks, [0, 1, 3], [3])
    assert found == tuple(3 if owner == 2 else owner for owner in owners)


def test_a_share_is_taken_in_proportion() -> None:
    """A server that has half as much, perhaps as it is slow, gives half as much."""
    owners, chunks = [0] * 40 + [1] * 20, [8] * 60
    found = scaled(owners, chunks, [0, 1, 2], [2])
    assert loads(found, chunks, [0, 1, 2]) == [8 * 27, 8 * 13, 8 * 20]
    assert moved(owners, found) == 20


def test_what_moves_is_from_all_over_the_keys() -> None:
    owners = [one % 4 for one in range(400)]
    found = scaled(owners, [8] * 400, range(5), [4])
    taken = [one for one, server in enumerate(found) if server == 4]
    assert len(taken) == 80
    gaps = [b - a for a, b in itertools.pairwise(taken)]
    assert max(gaps) <= 20
