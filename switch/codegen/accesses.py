# SPDX-License-Identifier: Apache-2.0
"""Collects what parts of a program read and write: fields, headers and header stacks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, is_dataclass
from typing import Any

from switch.program import expressions as ex
from switch.program.model import ObjectName, Primitive

Place = tuple[str, str]  # header instance, field


@dataclass
class Uses:
    """Fields and headers in use. whole: headers used other than by one field."""

    read: set[Place] = field(default_factory=set)
    written: set[Place] = field(default_factory=set)
    whole: set[str] = field(default_factory=set)
    stacks: set[str] = field(default_factory=set)

    def headers(self) -> set[str]:
        return {header for header, _ in self.read | self.written} | self.whole

    def places(self) -> set[Place]:
        return self.read | self.written


def mentions(thing: object) -> Iterator[object]:
    """Yields every expression and object name within a part of the program, itself included."""
    left: list[Any] = [thing]  # the next one last
    while left:
        one = left.pop()
        if isinstance(one, (tuple, list)):
            left += reversed(one)
        elif is_dataclass(one):
            yield one
            if not (isinstance(one, ex.FieldValue) and isinstance(one.header, ex.HeaderRef)):
                left += [getattr(one, name) for name in reversed(one.__dataclass_fields__)]


def note(uses: Uses, things: Iterable[object], written: bool = False) -> None:
    """Adds the uses of these things, as reads or as writes."""
    for one in mentions(list(things)):
        if isinstance(one, ex.FieldValue) and isinstance(one.header, ex.HeaderRef):
            (uses.written if written else uses.read).add((one.header.name, one.field))
        elif isinstance(one, ex.HeaderRef):
            uses.whole.add(one.name)
        elif isinstance(one, (ex.StackElement, ex.StackLast, ex.StackSize)):
            uses.stacks.add(one.stack)
        elif isinstance(one, ObjectName) and one.kind in ("header_stack", "header_union_stack"):
            uses.stacks.add(one.name)


# Operations that write their first operand, a field, and read the others.
WRITES_FIRST = {
    "assign", "modify_field", "register_read", "modify_field_with_hash_based_offset",
    "modify_field_rng_uniform",
}  # fmt: skip

# Operations that copy whole headers; all of these are among the operands.
COPIES_HEADERS = {"assign_header", "copy_header", "assign_union", "assign_union_stack"}


def note_primitive(uses: Uses, one: Primitive) -> None:
    if one.op in WRITES_FIRST:
        note(uses, one.operands[:1], written=True)
        note(uses, one.operands[1:])
    else:
        note(uses, one.operands)


def uses_of(things: Iterable[object]) -> Uses:
    """Returns what these things read."""
    uses = Uses()
    note(uses, things)
    return uses


def uses_of_statements(statements: Iterable[Primitive]) -> Uses:
    uses = Uses()
    for one in statements:
        note_primitive(uses, one)
    return uses
