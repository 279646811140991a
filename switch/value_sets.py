# SPDX-License-Identifier: Apache-2.0
"""Parser value sets: tables without actions in a program, and their members in a running
pipeline."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from switch import expressions as ex
from switch.errors import ProgramError
from switch.keys import pack_key
from switch.parser_keys import MOST_RANGE_BITS, width_of
from switch.program import KeyField, ParserState, Table

if TYPE_CHECKING:
    from switch.pipeline import Pipeline

# A member: for each part of the key a value and a mask, or a range of values.
Member = tuple[tuple[int, int] | range, ...]


def declared(nodes: Iterable[ex.Json], states: Mapping[str, ParserState]) -> dict[str, Table]:
    """Returns the value sets that parser states use; a set's key is that of these states.

    Raises ProgramError if two states have keys of different widths for one set.
    """
    sizes = {one["name"]: int(one["max_size"]) for one in nodes}
    found: dict[str, Table] = {}
    for state in states.values():
        for transition in state.transitions:
            name = transition.value_set
            if name is None:
                continue
            if name in found and widths(found[name]) != [width_of(part) for part in state.key]:
                raise ProgramError(f"value set '{name}' is looked up by keys of different widths")
            found[name] = _table(name, sizes[name], state)
    return found


def _table(name: str, size: int, state: ParserState) -> Table:
    parts = [
        KeyField(f"key[{i}]", "ternary", part, width_of(part), None)
        for i, part in enumerate(state.key)
    ]
    # Each part twice, as the program does not give the match kind of members.
    ranges = [replace(one, match="range") for one in parts if one.width <= MOST_RANGE_BITS]
    key = (*parts, *ranges)
    return Table(
        name=name,
        match="range",
        key=key,
        action_ids=(),
        max_size=size,
        with_counters=False,
        ages=False,
        meter=None,
        default_action_id=None,
        default_args=(),
        default_is_const=False,
        entries=(),
        entries_are_const=False,
        by_hit=False,
        next_on_hit=None,
        next_on_miss=None,
        next_by_action={},
        base_default_next=None,
        source=state.source,
    )


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
                    self._pipeline.handle, self._index, _words(key.value), _words(key.mask),
                    _words(key.low), _words(key.high), 0, 0, _words([]),
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


def widths(table: Table) -> list[int]:
    """Returns the bits of each part of a value set's key."""
    return [one.width for one in table.key if one.match == "ternary"]


def _words(values: list[int]) -> Any:
    return (ctypes.c_uint64 * max(len(values), 1))(*values)
