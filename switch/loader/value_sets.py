# SPDX-License-Identifier: Apache-2.0
"""Reads parser value sets as tables without actions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from switch.program import expressions as ex
from switch.program.errors import ProgramError
from switch.program.model import KeyField, ParserState, Table
from switch.program.parser_keys import MOST_RANGE_BITS, width_of, widths


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
    return Table(name, "range", (*parts, *ranges), size, state.source)
