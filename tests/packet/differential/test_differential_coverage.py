# SPDX-License-Identifier: GPL-2.0-only
"""Tests that every supported feature is in a program compared with BMv2."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from itertools import takewhile
from typing import Any, get_args

import pytest

from switch.codegen.hashes_and_checksums import ALGORITHMS
from switch.codegen.primitives import PRIMITIVES
from switch.loader import parse_program
from switch.program import expressions as ex
from switch.program.model import ParserOperation, Program
from tests.p4 import HERE
from tests.packet.differential.cases import cases

# Not compared, and why.
EXCLUDED = {
    "primitive modify_field_rng_uniform": "random",
}
MATCHES = ("exact", "lpm", "ternary", "range")
FORMS = [
    *(f"table by {kind}" for kind in MATCHES),
    *(f"field by {kind}" for kind in MATCHES),
    *(f"const entry by {kind}" for kind in MATCHES),
    "field by whether a header is valid", "field under a mask", "field of more than 64 bits",
    "signed field", "table without key", "several fields", "direct counter", "counter",
    "default action with arguments", "const default action", "next by hit or miss",
    "next by action", "action with arguments", "checksum verified", "checksum updated",
    "checksum on a condition", "calculation with a header", "calculation with a payload",
    "calculation with a constant", "calculation with fields", "field list of several fields",
    "transition with a mask", "transition by a value set", "transition always",
    "state with several keys", "state in a loop",
    "varbit field", "varbit field that begins within a byte",
    "stack of headers with a varbit field", "calculation with a varbit field",
    "header union", "stack of header unions", "calculation with a varbit field and a payload",
    "varbits ==", "varbits !=", "action profile of one table", "action profile of several tables",
    "selector",
    "stack", "register of up to 64 bits", "register of more than 64 bits",
    "meter of packets", "meter of bytes", "direct meter of packets", "direct meter of bytes",
    "digest", "table whose entries age",
]  # fmt: skip


def nodes(value: Any) -> Iterator[Any]:
    """A value, and all that it is made of."""
    yield value
    if dataclasses.is_dataclass(value):
        for one in dataclasses.fields(value):
            yield from nodes(getattr(value, one.name))
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from nodes(one)
    elif isinstance(value, tuple):
        for one in value:
            yield from nodes(one)


def supported() -> set[str]:
    """From the target's own lists: a new primitive, operator or kind of node is one more here."""
    kinds = (*get_args(ex.Data), *get_args(ex.Boolean), *get_args(ex.HeaderExpression))
    found = {f"expression {one.__name__}" for one in kinds}
    found |= {f"operator {op}" for op in ex.ARITHMETIC | ex.COMPARISONS | {"~", "and", "or"}}
    found |= {f"headers {op}" for op in ("==", "!=")} | {f"truths {op}" for op in ("==", "!=")}
    found |= {"size of a stack", "last index of a stack"}
    found |= {f"primitive {one}" for one in PRIMITIVES}
    found |= {f"hash {one}" for one in ALGORITHMS}
    found |= {f"parser {one.__name__}" for one in get_args(ParserOperation)}
    return found | set(FORMS)


def used(program: Program) -> Iterator[str]:
    for one in nodes(program):
        name = type(one).__name__
        if isinstance(one, ex.Data | ex.Boolean | ex.HeaderExpression):
            yield f"expression {name}"
        if isinstance(one, (ex.Unary, ex.Binary, ex.Compare, ex.Logic)):
            yield f"operator {one.op}"
        elif isinstance(one, ex.CompareHeaders):
            yield f"headers {one.op}"
        elif isinstance(one, ex.CompareVarbits):
            yield f"varbits {one.op}"
        elif isinstance(one, ex.CompareBooleans):
            yield f"truths {one.op}"
        elif isinstance(one, ex.StackSize):
            yield "last index of a stack" if one.last else "size of a stack"
        elif name == "Primitive":
            yield f"primitive {one.op}"
        elif name == "Stack":
            yield "stack"
    yield from _of_parser(program)
    yield from _of_tables(program)
    yield from _of_objects(program)


def _of_parser(program: Program) -> Iterator[str]:
    for state in program.parser_states.values():
        for operation in state.operations:
            yield f"parser {type(operation).__name__}"
        if len(state.key) > 1:
            yield "state with several keys"
        for transition in state.transitions:
            if transition.always:
                yield "transition always"
            elif transition.value_set is not None:
                yield "transition by a value set"
            elif transition.mask is not None:
                yield "transition with a mask"
            if transition.state == state.name:
                yield "state in a loop"


def _of_tables(program: Program) -> Iterator[str]:
    for table in program.tables.values():
        if not table.key:
            yield "table without key"
            if table.default_is_const:
                continue  # a statement that p4c wraps in a table
        yield f"table by {table.match}"
        if table.profile is not None:
            users = [one for one in program.tables.values() if one.profile == table.profile]
            yield f"action profile of {'one table' if len(users) == 1 else 'several tables'}"
            if program.profiles[table.profile].selector is not None:
                yield "selector"
        if len(table.key) > 1:
            yield "several fields"
        if table.with_counters:
            yield "direct counter"
        if table.ages:
            yield "table whose entries age"
        if table.default_args:
            yield "default action with arguments"
        if table.default_is_const:
            yield "const default action"
        yield "next by hit or miss" if table.by_hit else "table"
        if len(set(table.next_by_action.values())) > 1:
            yield "next by action"
        for field in table.key:
            yield f"field by {field.match}"
            if isinstance(field.value, ex.ValidBit):
                yield "field by whether a header is valid"
            if field.mask is not None:
                yield "field under a mask"
            if field.width > 64:
                yield "field of more than 64 bits"
            if isinstance(field.value, ex.FieldValue) and field.value.signed:
                yield "signed field"
        for _ in table.entries:
            yield from (f"const entry by {field.match}" for field in table.key)


def _of_objects(program: Program) -> Iterator[str]:
    if program.unions:
        yield "header union"
    if program.union_stacks:
        yield "stack of header unions"
    for header in program.headers.values():
        if header.type.varbit is not None:
            yield "varbit field" if header.stack is None else "stack of headers with a varbit field"
            before = takewhile(lambda one: not one.varbit, header.type.fields)
            if sum(one.width for one in before) % 8:
                yield "varbit field that begins within a byte"
    if any(one.parameters for one in program.actions.values()):
        yield "action with arguments"
    for counter in program.counters.values():
        yield "direct counter" if counter.binding else "counter"
    for meter in program.meters.values():
        yield f"{'direct meter' if meter.binding else 'meter'} of {meter.tokens}"
    for _ in program.learn_lists:
        yield "digest"
    for register in program.registers.values():
        yield f"register of {'up to' if register.width <= 64 else 'more than'} 64 bits"
    for one in program.field_lists.values():
        if len(one.elements) > 1:
            yield "field list of several fields"
    for calculation in program.calculations.values():
        yield f"hash {calculation.algorithm}"
        inputs = calculation.inputs
        if any(part.payload for part in inputs) and any(part.varbit for part in inputs):
            yield "calculation with a varbit field and a payload"
        for part in calculation.inputs:
            if part.header is not None:
                yield "calculation with a header"
            elif part.payload:
                yield "calculation with a payload"
            elif part.varbit is not None:
                yield "calculation with a varbit field"
            elif isinstance(part.value, ex.Const):
                yield "calculation with a constant"
            else:
                yield "calculation with fields"
    for checksum in program.checksums:
        if checksum.verify:
            yield "checksum verified"
        if checksum.update:
            yield "checksum updated"
        if checksum.condition is not None:
            yield "checksum on a condition"


def test_every_supported_feature_is_compared() -> None:
    programs = {one.program_sha256: one.program for one in cases().values()}
    compared = {what for text in programs.values() for what in used(parse_program(text))}
    assert sorted(supported() - compared - set(EXCLUDED)) == []
    assert not compared & set(EXCLUDED)


def origins(node: Any) -> Iterator[dict[str, Any]]:
    """Where p4c says that what is in a JSON stands in the source."""
    if isinstance(node, dict):
        if "source_info" in node:
            yield node["source_info"]
        for one in node.values():
            yield from origins(one)
    elif isinstance(node, list):
        for one in node:
            yield from origins(one)


@pytest.mark.parametrize("name", sorted(one.stem for one in HERE.glob("*.p4")))
def test_committed_builds_match_sources(name: str) -> None:
    """As far as can be checked without p4c: every line that the JSON quotes is in its place."""
    lines = (HERE / f"{name}.p4").read_text().splitlines()
    quoted = 0
    for one in origins(json.loads((HERE / f"{name}.json").read_text())):
        if one["filename"].endswith(f"{name}.p4"):
            fragment = one["source_fragment"].replace('\\"', '"').strip(" .")
            assert fragment.splitlines()[0] in lines[one["line"] - 1], f"{name}.p4:{one['line']}"
            quoted += 1
    assert quoted
