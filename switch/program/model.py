# SPDX-License-Identifier: Apache-2.0
"""A compiled P4 program: p4c's BMv2 JSON (format 2.x, JSON_format.md) as typed, checked data.

`switch.loader` reads it. Constructs that the target cannot execute raise UnsupportedConstruct
there, before anything is generated, with their name and position in the P4 source. Names are the
full names of the JSON, which are those of the p4info ("Ingress.routes").
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Union

from switch.program.errors import Source
from switch.program.expressions import (
    Boolean,
    Data,
    Field,
    FieldValue,
    HeaderExpression,
    VarbitField,
)


@dataclass(frozen=True)
class HeaderType:
    """A header type: fields in wire order, at most one of them varbit. bits: total of the
    others."""

    name: str
    fields: tuple[Field, ...]

    @property
    def bits(self) -> int:
        return sum(one.width for one in self.fields if not one.varbit)

    @property
    def varbit(self) -> Field | None:
        return next((one for one in self.fields if one.varbit), None)


@dataclass(frozen=True)
class Header:
    """A header instance.

    metadata: always valid, zeroed at first, never on the wire
    stack, index: its position if it is an element of a header stack
    """

    name: str
    type: HeaderType
    metadata: bool
    stack: str | None = None
    index: int = 0


@dataclass(frozen=True)
class Stack:
    """A header stack. headers: names of its elements."""

    name: str
    type: HeaderType
    headers: tuple[str, ...]


@dataclass(frozen=True)
class UnionStack:
    """A stack of header unions of one type, by name."""

    name: str
    unions: tuple[str, ...]


@dataclass(frozen=True)
class FieldList:
    """Metadata, as (header, field) pairs, that a clone, resubmitted or recirculated packet
    keeps."""

    id: int
    elements: tuple[tuple[str, str], ...]


# Operations of actions (and of parser states, beside extract, set and verify). An operand is an
# expression, or names an object of the program.
Operand = Union[Data, Boolean, HeaderExpression, VarbitField, "ObjectName", "MessageParameters"]


@dataclass(frozen=True)
class ObjectName:
    """A reference to an object. kind: `register_array`, `counter_array`, `calculation`,
    `header_stack`, `header_union`, `header_union_stack`, `string`."""

    kind: str
    name: str


@dataclass(frozen=True)
class MessageParameters:
    """The values of a log_msg."""

    values: tuple[Data, ...]


@dataclass(frozen=True)
class Primitive:
    """A statement. op: BMv2's name of the primitive; operands: as the primitive takes them."""

    op: str
    operands: tuple[Operand, ...]
    source: Source | None


@dataclass(frozen=True)
class ActionParameter:
    """A parameter of an action. width: in bits."""

    name: str
    width: int


@dataclass(frozen=True)
class Action:
    """An action. Several may share a name (one copy per table that uses it); ids differ."""

    id: int
    name: str
    parameters: tuple[ActionParameter, ...]
    primitives: tuple[Primitive, ...]
    source: Source | None


@dataclass(frozen=True)
class Extract:
    """Extracts a header.

    header: the instance, or None
    stack: the stack whose next element is extracted, or None
    bits: of the header's varbit field, None without one
    choices: if `stack` is a stack of unions, the header of each of its elements to extract to
    """

    header: str | None
    stack: str | None
    bits: Data | None = None
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Set:
    """Assigns a value to a field or metadata."""

    target: Data
    value: Data


@dataclass(frozen=True)
class Verify:
    """Ends parsing with an error unless a condition holds."""

    condition: Boolean
    error: Data


@dataclass(frozen=True)
class Advance:
    """Skips bits of the packet."""

    bits: Data


ParserOperation = Extract | Set | Verify | Advance | Primitive


@dataclass(frozen=True)
class Transition:
    """A transition, taken if (key & mask) == value.

    value, mask: of the concatenated key parts, each padded to bytes; value None: always taken or,
        with a value_set, if the set contains the key
    state: None ends parsing
    """

    value: int | None
    mask: int | None
    state: str | None
    value_set: str | None = None

    @property
    def always(self) -> bool:
        return self.value is None and self.value_set is None


@dataclass(frozen=True)
class ParserState:
    """A parser state: operations, then the first transition that the key selects."""

    name: str
    operations: tuple[ParserOperation, ...]
    key: tuple[Data, ...]
    transitions: tuple[Transition, ...]
    source: Source | None


@dataclass(frozen=True)
class KeyField:
    """A field of a table's key.

    name: in the control plane
    match: exact, lpm, ternary (also P4's optional) or range
    mask: constant that is ANDed to the field before matching
    """

    name: str
    match: str
    value: Data
    width: int
    mask: int | None


@dataclass(frozen=True)
class Entry:
    """An entry declared in the program. key: as in Pipeline.insert; priority: P4Runtime's."""

    key: tuple[int | tuple[int, int], ...]
    action_id: int
    args: tuple[int, ...]
    priority: int


@dataclass(frozen=True)
class Table:
    """A match-action table.

    match: exact, lpm, ternary or range, as BMv2 looks it up
    ages: times of the last hits are kept
    meter: the direct meter's name
    by_hit: the next node depends on hit or miss (next_on_hit, next_on_miss), else on the action
    next_by_action: next node by action id; None in any of these ends the control
    profile: the action profile whose members its entries name; such a table has no actions of its
        own
    """

    name: str
    match: str
    key: tuple[KeyField, ...]
    max_size: int
    source: Source | None
    action_ids: tuple[int, ...] = ()
    with_counters: bool = False
    ages: bool = False
    meter: str | None = None
    default_action_id: int | None = None
    default_args: tuple[int, ...] = ()
    default_is_const: bool = False
    entries: tuple[Entry, ...] = ()
    entries_are_const: bool = False
    by_hit: bool = False
    next_on_hit: str | None = None
    next_on_miss: str | None = None
    next_by_action: Mapping[int, str | None] = field(default_factory=dict)
    base_default_next: str | None = None
    profile: str | None = None

    @property
    def takes_priority(self) -> bool:
        """True if the control plane gives entries a priority."""
        return self.match in ("ternary", "range")


@dataclass(frozen=True)
class ActionProfile:
    """An action profile. selector: the calculation that chooses a group's member, None without
    groups."""

    name: str
    selector: str | None


@dataclass(frozen=True)
class Conditional:
    """A condition between tables: the next node by its outcome."""

    name: str
    condition: Boolean
    true_next: str | None
    false_next: str | None
    source: Source | None


@dataclass(frozen=True)
class Control:
    """`ingress` or `egress`: a graph of tables and conditionals by name."""

    name: str
    first: str | None
    tables: Mapping[str, Table]
    conditionals: Mapping[str, Conditional]

    def successors(self, name: str) -> list[str | None]:
        """Returns the nodes that may follow a table or conditional."""
        if name in self.conditionals:
            return [self.conditionals[name].true_next, self.conditionals[name].false_next]
        table = self.tables[name]
        if table.by_hit:
            return [table.next_on_hit, table.next_on_miss]
        return [*table.next_by_action.values(), table.base_default_next]


@dataclass(frozen=True)
class Counter:
    """A counter array. binding: the table, if it is a direct counter."""

    name: str
    size: int
    binding: str | None


@dataclass(frozen=True)
class Meter:
    """A meter array.

    tokens: "packets" or "bytes"
    binding, target: of a direct meter, its table and the field that gets its color at each hit
    """

    name: str
    size: int
    tokens: str
    binding: str | None
    target: FieldValue | None


@dataclass(frozen=True)
class LearnList:
    """The fields that one digest() sends, read at the end of ingress. name: the digest's."""

    id: int
    name: str
    elements: tuple[FieldValue, ...]
    source: Source | None


@dataclass(frozen=True)
class Register:
    """A register array of `size` cells of `width` bits."""

    name: str
    size: int
    width: int


@dataclass(frozen=True)
class CalculationInput:
    """One input of a calculation: a field value or constant of `width` bits, a whole header, the
    payload, or a varbit field."""

    value: Data | None
    width: int
    header: str | None
    payload: bool
    varbit: VarbitField | None = None


@dataclass(frozen=True)
class Calculation:
    """A calculation. algorithm: crc16, crc32, csum16, xor16, identity, ..."""

    name: str
    algorithm: str
    inputs: tuple[CalculationInput, ...]


@dataclass(frozen=True)
class Checksum:
    """A checksum. header, field: the field that holds it."""

    name: str
    header: str
    field: str
    calculation: str
    verify: bool
    update: bool
    condition: Boolean | None
    source: Source | None


@dataclass(frozen=True, eq=False)  # compared by identity, so that it can be a key
class Program:
    """A whole program. digest: sha256 (hex) of the document, by which the generated code is
    kept."""

    name: str
    digest: str
    headers: Mapping[str, Header]
    stacks: Mapping[str, Stack]
    field_lists: Mapping[int, FieldList]
    errors: Mapping[str, int]
    enums: Mapping[str, Mapping[str, int]]
    parser_states: Mapping[str, ParserState]
    first_state: str | None
    deparse_order: tuple[str, ...]
    deparser_primitives: tuple[Primitive, ...]
    actions: Mapping[int, Action]
    ingress: Control
    egress: Control
    counters: Mapping[str, Counter]
    registers: Mapping[str, Register]
    meters: Mapping[str, Meter]
    learn_lists: Mapping[int, LearnList]
    calculations: Mapping[str, Calculation]
    checksums: tuple[Checksum, ...]
    aliases: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    profiles: Mapping[str, ActionProfile] = field(default_factory=dict)
    # Value sets as tables without actions: a member hits. Numbered after the tables in C.
    value_sets: Mapping[str, Table] = field(default_factory=dict)
    # Headers of each union, at most one of them valid.
    unions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    union_stacks: Mapping[str, UnionStack] = field(default_factory=dict)

    @property
    def tables(self) -> dict[str, Table]:
        """Every table of both controls by name, ingress first; positions number them in C."""
        return {**self.ingress.tables, **self.egress.tables}

    def siblings(self, header: str) -> tuple[str, ...]:
        """Returns the other headers of the union that contains a header."""
        for members in self.unions.values():
            if header in members:
                return tuple(one for one in members if one != header)
        return ()

    def profile_actions(self, profile: str) -> list[Action]:
        """Returns the actions that members may have: those of every table that uses the profile."""
        users = [one for one in self.tables.values() if one.profile == profile]
        return [self.actions[one] for table in users for one in table.action_ids]

    def action_named(self, table: str, action: str) -> Action:
        """Returns a table's action of this name. Raises a KeyError that lists the known ones."""
        choices = [self.actions[one] for one in self.tables[table].action_ids]
        for choice in choices:
            if choice.name == action:
                return choice
        names = ", ".join(sorted(choice.name for choice in choices))
        raise KeyError(f"table '{table}' has no action '{action}'; it has: {names}")


def digest_of(text: bytes) -> str:
    """Returns the sha256 (hex) of a document's text."""
    return hashlib.sha256(text).hexdigest()
