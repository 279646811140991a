# SPDX-License-Identifier: Apache-2.0
"""Converts names, table keys and action arguments to the runtime's numbers and words; errors name
the field."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Union

from switch.codegen.layout import TableLayout, argument_words
from switch.program.model import Action, KeyField, Table

# One element of a table key, in the order of the table's key fields:
#   exact              value
#   lpm                (value, prefix length)
#   ternary, optional  (value, mask); mask 0 = don't care
#   range              (low, high), both included
KeyElement = Union[int, "tuple[int, int]"]


@dataclass(frozen=True)
class Reference:
    """Refers an entry of a table with an action profile to a member or, if `group`, a group by its
    number."""

    number: int
    group: bool = False


@dataclass(frozen=True)
class PackedKey:
    """Words for sw_table_insert. prefix: the lpm field's prefix length, 0 without one."""

    value: list[int]
    mask: list[int]
    low: list[int]
    high: list[int]
    prefix: int


def c_words(values: Sequence[int]) -> ctypes.Array[ctypes.c_uint64]:
    """Returns an array for C, which is never empty."""
    return (ctypes.c_uint64 * max(len(values), 1))(*values)


def position(positions: Mapping[str, int], name: str, kind: str) -> int:
    """Returns the number of an object in C. Raises a KeyError that lists the known names."""
    if name not in positions:
        names = ", ".join(sorted(positions)) or "none"
        raise KeyError(f"the program has no {kind} '{name}'; it has: {names}")
    return positions[name]


def check_range(what: str, value: int, width: int) -> None:
    """Raises ValueError unless 0 <= value < 2^width."""
    if not 0 <= value < 1 << width:
        raise ValueError(f"{what}: {value:#x} does not fit in {width} bits")


def pack_key(table: Table, layout: TableLayout, key: Sequence[KeyElement]) -> PackedKey:
    """Packs a key. Raises ValueError for a wrong number or kind of elements, or values that do not
    fit."""
    if len(key) != len(table.key):
        names = ", ".join(f"{one.name} ({one.match})" for one in table.key) or "none"
        raise ValueError(
            f"table '{table.name}' has {len(table.key)} key fields, not {len(key)}: {names}"
        )
    values, masks, low, high, prefix = [], [], [], [], 0
    for field, element in zip(table.key, key, strict=True):
        first, second = _element(table, field, element)
        if field.match == "range":
            low.append(first)
            high.append(second)
            values.append(0)
            masks.append(0)
            continue
        if field.match == "lpm":
            prefix = second
            second = ((1 << second) - 1) << (field.width - second)
        if field.mask is not None:
            second &= field.mask  # BMv2 truncates entries as it truncates packets' values
        values.append(first & second)
        masks.append(second)
    return PackedKey(layout.pack(table, values), layout.pack(table, masks), low, high, prefix)


def _element(table: Table, field: KeyField, element: KeyElement) -> tuple[int, int]:
    """Checks an element; returns (value, mask), (value, prefix length) or (low, high)."""
    what = f"table '{table.name}', field '{field.name}' ({field.match})"
    full = (1 << field.width) - 1
    if isinstance(element, int):
        if field.match != "exact":
            raise ValueError(f"{what}: needs a pair, not {element}")
        check_range(what, element, field.width)
        return element, full
    if field.match == "exact":
        raise ValueError(f"{what}: needs one value, not a pair")
    first, second = element
    check_range(what, first, field.width)
    if field.match == "lpm":
        if not 0 <= second <= field.width:
            raise ValueError(f"{what}: prefix length {second} is not in 0 .. {field.width}")
        return first, second
    check_range(what, second, field.width)
    if field.match == "range" and first > second:
        raise ValueError(f"{what}: {first} .. {second} is empty")
    return first, second


def pack_arguments(action: Action, count: int, args: Sequence[int]) -> list[int]:
    """Packs an action's arguments into `count` words. Raises ValueError (wrong number, too
    large)."""
    if len(args) != len(action.parameters):
        names = ", ".join(f"{one.name}:{one.width}" for one in action.parameters) or "none"
        raise ValueError(
            f"action '{action.name}' takes {len(action.parameters)} arguments ({names}), "
            f"not {len(args)}"
        )
    for one, value in zip(action.parameters, args, strict=True):
        check_range(f"action '{action.name}', argument '{one.name}'", value, one.width)
    return argument_words(action, args, count)
