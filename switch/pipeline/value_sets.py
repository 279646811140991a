# SPDX-License-Identifier: Apache-2.0
"""Writes the members of parser value sets, which are tables without actions."""

from __future__ import annotations

from collections.abc import Iterable

from switch.pipeline.keys import c_words, pack_key
from switch.pipeline.pipeline import Pipeline
from switch.program.parser_keys import MOST_RANGE_BITS, widths

# A member: for each part of the key a value and a mask, or a range of values.
Member = tuple[tuple[int, int] | range, ...]


class ValueSetState:
    """The members of one value set of a running pipeline."""

    def __init__(self, pipeline: Pipeline, name: str) -> None:
        """Raises KeyError if the program has no such set."""
        self._pipeline = pipeline
        self._table = pipeline.program.value_sets[name]
        self._layout = pipeline.layout.tables[name]
        self._index = pipeline.layout.table_index[name]
        self._handles: dict[Member, int] = {}

    @property
    def members(self) -> tuple[Member, ...]:
        """The present members."""
        return tuple(self._handles)

    def replace(self, members: Iterable[Member]) -> None:
        """Replaces the members; those that remain are never missing meanwhile.

        Raises ValueError (more than the program declares, or values that do not fit), MemoryError
        (only some are present then).
        """
        wanted = dict.fromkeys(members)
        if len(wanted) > self._table.max_size:
            raise ValueError(f"value set '{self._table.name}' takes {self._table.max_size} members")
        packed = {one: pack_key(self._table, self._layout, self._key(one)) for one in wanted}
        for one in [one for one in self._handles if one not in wanted]:
            handle = self._handles.pop(one)
            self._pipeline.native.sw_table_delete(self._pipeline.handle, self._index, handle)
        for one, key in packed.items():
            if one not in self._handles:
                handle = self._pipeline.native.sw_table_insert(
                    self._pipeline.handle, self._index, c_words(key.value), c_words(key.mask),
                    c_words(key.low), c_words(key.high), 0, 0, c_words([]),
                )  # fmt: skip
                self._pipeline.raise_for(
                    min(handle, 0), f"member of value set '{self._table.name}'"
                )
                self._handles[one] = handle

    def _key(self, member: Member) -> list[tuple[int, int]]:
        """Returns the key of a member's entry: value and mask of each part, then the ranges."""
        values, ranges = [], []
        for one, width in zip(member, widths(self._table), strict=True):
            everything = (0, (1 << width) - 1)
            values.append((0, 0) if isinstance(one, range) else one)
            if width <= MOST_RANGE_BITS:
                ranges.append((one.start, one.stop - 1) if isinstance(one, range) else everything)
            elif isinstance(one, range):
                raise ValueError(f"value set '{self._table.name}': a range of {width} bits")
        return [*values, *ranges]
