# SPDX-License-Identifier: Apache-2.0
"""Tests that slot ranges never overlap, are aligned, and are released whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.planning.slots import SlotBudget, SlotsExhaustedError


@given(st.integers(1, 3000), st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=60))
def test_runs_never_overlap_and_come_back_whole(total: int, steps: list[tuple[bool, int]]) -> None:
    budget = SlotBudget("tor0", total)
    held: dict[int, int] = {}
    for take, number in steps:
        if take or not held:
            size = 1 << number
            if budget.largest < size:
                with pytest.raises(SlotsExhaustedError):
                    budget.allocate(size)
                continue
            start = budget.allocate(size)
            assert start % size == 0
            assert start + size <= total
            assert all(start + size <= s or s + n <= start for s, n in held.items())
            held[start] = size
        else:
            start = sorted(held)[number % len(held)]
            del held[start]
            budget.free(start)
        assert budget.used == sum(held.values())
    # Whoever knows the runs held can take them up again, in any order.
    again = SlotBudget("tor0", total)
    for start, size in sorted(held.items(), key=lambda item: item[0] % 7):
        again.claim(start, size)
        with pytest.raises(ValueError, match="are not free"):
            again.claim(start, size)
    assert (again.used, again.largest) == (budget.used, budget.largest)
    for start in held:
        budget.free(start)
        again.free(start)
    assert budget.used == again.used == 0
    assert again.largest == budget.largest
    # As new: the largest aligned run of the whole is free again.
    assert budget.largest == SlotBudget("tor0", total).largest


def test_a_refusal_says_what_would_fit() -> None:
    budget = SlotBudget("tor1", 64)
    budget.allocate(32)
    budget.allocate(16)
    with pytest.raises(SlotsExhaustedError) as caught:
        budget.allocate(32)
    assert str(caught.value) == (
        "tor1 has no run of 32 free slots (window 16): 16 of 64 are free;"
        " the largest free run is 16, which fits a window of 8"
    )


def test_freeing_what_is_not_held_is_an_error() -> None:
    budget = SlotBudget("tor0", 8)
    with pytest.raises(KeyError):
        budget.free(0)
