# SPDX-License-Identifier: Apache-2.0
"""Places a program's headers, metadata, table keys and action arguments in the generated C.

A packet's context is one C struct: pointers to framed headers (usage.py), metadata instances,
headers, header stacks, transient fields, in this order. Local fields are in another struct that
only the controls' functions have. A field of up to 64 bits is the smallest unsigned integer that
holds it, a wider one an array of 64-bit limbs, least significant first. Signed fields are stored as
the bits that they have on the wire.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from switch.codegen.usage import Usage
from switch.program.expressions import Field
from switch.program.model import Action, Header, HeaderType, KeyField, Program, Table

LIMB = 64
LASTS = 8  # last keys that a table of egress keeps, by port: a power of two
MOST_MOVES = 8  # wide fields of headers: inlining the moves of more slows the compiler down


def limbs(width: int) -> int:
    """Returns the number of 64-bit words that hold `width` bits."""
    return (width + LIMB - 1) // LIMB


def words_of(value: int, count: int) -> list[int]:
    """Returns a value's `count` limbs, least significant first (modulo 2^(64 count))."""
    return [(value >> (LIMB * i)) & ((1 << LIMB) - 1) for i in range(count)]


def identifier(name: str) -> str:
    """Returns a name of the program as part of a C identifier, for readers of the generated
    code."""
    return re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")


def c_type(width: int) -> str:
    """Returns the smallest C integer type that holds `width` bits."""
    for size in (8, 16, 32, 64):
        if width <= size:
            return f"uint{size}_t"
    raise ValueError(f"no integer type of {width} bits")


def field_name(position: int, one: Field) -> str:
    """Returns the C name of a struct's member."""
    return f"f{position}_{identifier(one.name)}"


@dataclass(frozen=True)
class KeyPlace:
    """The place of a key field in a lookup key: from bit `shift` of `word`, or the range word
    `range_index` behind the words."""

    word: int
    shift: int
    range_index: int | None = None


@dataclass(frozen=True)
class TableLayout:
    """The layout of a key in 64-bit words; fields of up to 64 bits share words."""

    places: tuple[KeyPlace, ...]
    words: int
    ranges: int
    arg_words: int

    def pack(self, table: Table, values: Sequence[int]) -> list[int]:
        """Packs one value per key field into words; range fields contribute nothing."""
        words = [0] * self.words
        for place, key, value in zip(self.places, table.key, values, strict=True):
            if place.range_index is not None:
                continue
            for i, word in enumerate(words_of(value, limbs(key.width))):
                words[place.word + i] |= word << place.shift
        return words


def key_places(key: Sequence[KeyField]) -> tuple[tuple[KeyPlace, ...], int, int]:
    """Returns (place of each field, key words, range fields)."""
    places: list[KeyPlace] = []
    word, used, ranges = 0, 0, 0
    for one in key:
        if one.match == "range":
            places.append(KeyPlace(0, 0, ranges))
            ranges += 1
            continue
        if used and used + one.width > LIMB:
            word, used = word + 1, 0
        places.append(KeyPlace(word, used))
        used += one.width
        if used > LIMB:
            word, used = word + limbs(one.width), 0
    return tuple(places), word + (1 if used else 0), ranges


def argument_offsets(action: Action) -> tuple[list[int], int]:
    """Returns the word at which each parameter of an action begins, and the total of words."""
    offsets, end = [], 0
    for one in action.parameters:
        offsets.append(end)
        end += limbs(one.width)
    return offsets, end


def argument_words(action: Action, args: Sequence[int], words: int | None = None) -> list[int]:
    """Returns an action's arguments in `words` words; None: as many as it needs."""
    offsets, needed = argument_offsets(action)
    packed = [0] * (needed if words is None else words)
    for one, at, value in zip(action.parameters, offsets, args, strict=True):
        packed[at : at + limbs(one.width)] = words_of(value, limbs(one.width))
    return packed


@dataclass
class Layout:
    """Names and places of everything in one program's C. traced: the code traces packets."""

    program: Program
    traced: bool = False
    types: dict[str, str] = field(default_factory=dict)
    paths: dict[str, str] = field(default_factory=dict)
    stacks: dict[str, str] = field(default_factory=dict)
    table_index: dict[str, int] = field(default_factory=dict)
    register_index: dict[str, int] = field(default_factory=dict)
    counter_index: dict[str, int] = field(default_factory=dict)
    meter_index: dict[str, int] = field(default_factory=dict)
    digest_index: dict[str, int] = field(default_factory=dict)
    tables: dict[str, TableLayout] = field(default_factory=dict)
    profile_index: dict[str, int] = field(default_factory=dict)
    profile_words: dict[str, int] = field(default_factory=dict)
    # Numbers of members' actions, by name: tables have copies of an action with ids of their own.
    member_actions: dict[str, dict[str, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        program = self.program
        for header in program.headers.values():
            name = header.type.name
            self.types.setdefault(name, f"struct type{len(self.types)}_{identifier(name)}")
        for i, header in enumerate(program.headers.values()):
            if header.stack is None:
                kind = "m" if header.metadata else "h"
                self.paths[header.name] = f"c->{kind}{i}_{identifier(header.name)}"
        for i, stack in enumerate(program.stacks.values()):
            path = self.stacks[stack.name] = f"c->s{i}_{identifier(stack.name)}"
            for j, name in enumerate(stack.headers):
                self.paths[name] = f"{path}.e[{j}]"
        for i, name in enumerate(program.union_stacks):
            self.stacks[name] = f"c->us{i}_{identifier(name)}"
        self.table_index = {
            name: i for i, name in enumerate([*program.tables, *program.value_sets])
        }
        self.register_index = {name: i for i, name in enumerate(program.registers)}
        self.counter_index = {name: i for i, name in enumerate(program.counters)}
        # Direct meters are stored with their table.
        arrays = [one.name for one in program.meters.values() if one.binding is None]
        self.meter_index = {name: i for i, name in enumerate(arrays)}
        digests = dict.fromkeys(one.name for one in program.learn_lists.values())
        self.digest_index = {name: i for i, name in enumerate(digests)}
        tables = {**program.tables, **program.value_sets}
        self.tables = {name: self._table(one) for name, one in tables.items()}
        for name in program.profiles:
            actions = program.profile_actions(name)
            self.profile_index[name] = len(self.profile_index)
            self.profile_words[name] = max((argument_offsets(one)[1] for one in actions), default=0)
            self.member_actions[name] = {
                one: i for i, one in enumerate(dict.fromkeys(action.name for action in actions))
            }

    @cached_property
    def usage(self) -> Usage:
        """The parts of the program that are used: generated code leaves out the others.

        Only generating it needs them, so they are found when first asked for.
        """
        return Usage(self.program)

    @property
    def move(self) -> str:
        """Returns the suffix of the functions (runtime/bytes.h) that move wide fields between
        bytes and limbs: inlined everywhere, or called where uses are so many that calling is no
        slower."""
        wide = sum(
            one.width > LIMB
            for header in self.program.headers.values()
            if not header.metadata
            for one in header.type.fields
        )
        return "_apart" if wide > MOST_MOVES else ""

    def _table(self, table: Table) -> TableLayout:
        places, words, ranges = key_places(table.key)
        if table.profile is not None:
            return TableLayout(places, words, ranges, 1)  # the number of a member or group
        arguments = [argument_offsets(self.program.actions[one])[1] for one in table.action_ids]
        return TableLayout(places, words, ranges, max(arguments, default=0))

    def pending(self, header: str, name: str) -> int | None:
        """Returns the number (1..) by which the runtime knows an idle checksum (usage.py), else
        None."""
        if name not in self.usage.idle_checksums.get(header, ()):
            return None
        places = [(one, each) for one, found in self.usage.idle_checksums.items() for each in found]
        return 1 + sorted(places).index((header, name))

    def member(self, header_type: HeaderType, name: str) -> str:
        """Returns the C name of a field within its header's struct."""
        for position, one in enumerate(header_type.fields):
            if one.name == name:
                return field_name(position, one)
        raise KeyError(f"header type '{header_type.name}' has no field '{name}'")

    def field_path(self, header: Header, name: str) -> str:
        if (header.name, name) in self.usage.transient:
            return self._transient_path(header, name)
        if (header.name, name) in self.usage.local:
            return self._transient_path(header, name).replace("c->", "l->", 1)
        return f"{self.paths[header.name]}.{self.member(header.type, name)}"

    def framed_path(self, name: str) -> str:
        """Returns a C lvalue: where in the frame a framed header (usage.py) still is, or NULL."""
        return f"{self.paths[name]}_framed"

    def load_framed(self, name: str) -> str:
        """Returns the statement that moves a framed header into the context."""
        header, at = self.program.headers[name], self.framed_path(name)
        one = header.type.fields[0]
        load = (
            f"load_limbs{self.move}({self.field_path(header, one.name)}, {limbs(one.width)}, {at});"
        )
        return f"if ({at}) {{ {load} {at} = 0; }}"

    def _transient_path(self, header: Header, name: str) -> str:
        """Returns the path of a transient field, which lies behind everything that is cleared and
        copied."""
        return f"{self.paths[header.name]}_{self.member(header.type, name)}"

    def declarations(self) -> list[str]:
        """Returns the structs: one per header type, then struct program_context."""
        lines = []
        seen = set()
        for header in self.program.headers.values():
            if header.type.name in seen:
                continue
            seen.add(header.type.name)
            lines += self._type(header)
        lines += ["struct program_context {", "    struct sw_state state;"]
        for name in sorted(self.usage.framed):
            lines.append(f"    const uint8_t *{self.framed_path(name).removeprefix('c->')};")
        for header in self.program.headers.values():
            if header.stack is None and header.metadata:
                lines.append(self._instance(header))
        lines.append("    uint8_t end_of_metadata[0];")
        for header in self.program.headers.values():
            if header.stack is None and not header.metadata:
                lines.append(self._instance(header))
        for stack in self.program.stacks.values():
            # One spare element stands for all indices out of range.
            lines.append(
                f"    struct {{ uint32_t next; {self.types[stack.type.name]} "
                f"e[{len(stack.headers) + 1}]; }} {self.stacks[stack.name].removeprefix('c->')};"
            )
        # The headers of a stack of unions are separate instances.
        for name in self.program.union_stacks:
            lines.append(
                f"    struct {{ uint32_t next; }} {self.stacks[name].removeprefix('c->')};"
            )
        for header in self.program.headers.values():
            for one in header.type.fields:
                if (header.name, one.name) in self.usage.transient:
                    name = self._transient_path(header, one.name).removeprefix("c->")
                    lines.append(self._member(name, one.width))
        lines += ["};", "struct program_lasts {", "    uint8_t none;"]
        for table in self.program.tables.values():
            if table.key:
                index, layout = self.table_index[table.name], self.tables[table.name]
                words = layout.words + layout.ranges
                lines.append("    struct { uint64_t epoch; struct sw_entry *entry; ")
                many = f"[{LASTS}]" if table.name in self.program.egress.tables else ""
                lines.append(f"             uint64_t key[{words}]; }} t{index}{many};")
        lines += ["};", "struct program_locals {", "    uint8_t none;"]
        for header in self.program.headers.values():
            for one in header.type.fields:
                if (header.name, one.name) in self.usage.local:
                    name = self.field_path(header, one.name).removeprefix("l->")
                    lines.append(self._member(name, one.width))
        return [*lines, "};", ""]

    def _instance(self, header: Header) -> str:
        path = self.paths[header.name].removeprefix("c->")
        return f"    {self.types[header.type.name]} {path};"

    def _type(self, header: Header) -> list[str]:
        lines = [f"{self.types[header.type.name]} {{", "    uint8_t valid, touched;"]
        for position, one in enumerate(header.type.fields):
            if (header.name, one.name) not in self.usage.transient | self.usage.local:
                name = field_name(position, one)
                if one.varbit:
                    room = one.width // 8
                    lines.append(f"    struct {{ uint32_t bytes; uint8_t data[{room}]; }} {name};")
                else:
                    lines.append(self._member(name, one.width))
        return [*lines, "};"]

    @staticmethod
    def _member(name: str, width: int) -> str:
        if width <= LIMB:
            return f"    {c_type(width)} {name};"
        size = limbs(width)
        align = " __attribute__((aligned(32)))" if size % 4 == 0 else ""
        return f"    uint64_t {name}[{size}]{align};"
