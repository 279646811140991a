# SPDX-License-Identifier: Apache-2.0
"""Tests packing of table keys into words."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from switch.codegen.layout import TableLayout, key_places, limbs, words_of
from switch.program.expressions import Const
from switch.program.model import KeyField, Table

widths = st.lists(st.sampled_from([1, 4, 8, 9, 16, 31, 32, 48, 63, 64, 65, 128, 200]), max_size=8)


def table(sizes: list[int]) -> Table:
    key = tuple(KeyField(f"k{i}", "exact", Const(0), size, None) for i, size in enumerate(sizes))
    return Table("t", "exact", key, 1, None)


@given(widths, st.data())
def test_packed_fields_do_not_overlap(sizes: list[int], data: st.DataObject) -> None:
    one = table(sizes)
    places, words, ranges = key_places(one.key)
    layout = TableLayout(places, words, ranges, 0)
    assert ranges == 0
    values = [data.draw(st.integers(0, (1 << size) - 1)) for size in sizes]
    packed = layout.pack(one, values)
    assert len(packed) == words
    assert all(0 <= word < 1 << 64 for word in packed)
    for place, size, value in zip(places, sizes, values, strict=True):
        got = sum(packed[place.word + i] << (64 * i) for i in range(limbs(size)))
        assert got >> place.shift & ((1 << size) - 1) == value
    total = sum(layout.pack(one, [(1 << size) - 1 for size in sizes])[i].bit_count()
                for i in range(words))  # fmt: skip
    assert total == sum(sizes)


@given(st.integers(-(1 << 200), 1 << 200), st.integers(1, 5))
def test_words_are_the_value_modulo_their_size(value: int, count: int) -> None:
    words = words_of(value, count)
    assert sum(word << (64 * i) for i, word in enumerate(words)) == value % (1 << (64 * count))
