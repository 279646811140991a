# SPDX-License-Identifier: Apache-2.0
"""Reads what everything else in a document refers to, header types, headers, stacks and unions, and
the expressions and statements that do."""

from __future__ import annotations

from itertools import chain

from switch.codegen.primitives import PRIMITIVES
from switch.loader.header_types import header_type, source_of
from switch.program import expressions
from switch.program.errors import ProgramError, UnsupportedConstruct, refused_at
from switch.program.expressions import Data, Field, HeaderRef, Json, Scope
from switch.program.model import (
    Header,
    HeaderType,
    MessageParameters,
    ObjectName,
    Operand,
    Primitive,
    Stack,
    UnionStack,
)
from switch.program.value_ranges import value_range

_OBJECTS = frozenset(
    ["register_array", "counter_array", "calculation", "header_stack", "header_union",
     "header_union_stack", "string", "meter_array"]
)  # fmt: skip


class Reader:
    """Reads one document's expressions and statements. Methods raise ProgramError,
    UnsupportedConstruct.

    headers, stacks, unions, union_stacks: of the program, by name
    members: names of the members of each union, in the order of its type
    """

    def __init__(self, document: Json, name: str) -> None:
        self._name = name
        types = {one["name"]: header_type(one) for one in document["header_types"]}
        self.stacks, in_stack = _stacks(document, types)
        names = {one["id"]: one["name"] for one in document["headers"]}
        self.unions = {
            one["name"]: tuple(names[header] for header in one["header_ids"])
            for one in document.get("header_unions", [])
        }
        unions = {one["id"]: one["name"] for one in document.get("header_unions", [])}
        self.union_stacks = {
            one["name"]: UnionStack(one["name"], tuple(unions[i] for i in one["header_union_ids"]))
            for one in document.get("header_union_stacks", [])
        }
        members = {
            one["name"]: tuple(name for name, _ in one["headers"])
            for one in document.get("header_union_types", [])
        }
        self.members = {
            one["name"]: members[one["union_type"]] for one in document.get("header_unions", [])
        }
        self.headers = {
            one["name"]: Header(
                one["name"],
                types[one["header_type"]],
                one["metadata"],
                *in_stack.get(one["id"], (None, 0)),
            )
            for one in document["headers"]
        }

    def scope(self, parameters: tuple[int, ...] = ()) -> Scope:
        """Returns the names in expressions of an action with parameters of these widths."""
        return Scope(self._field, self._stack_field, parameters, self.unions)

    def _field(self, header: str, which: int | str) -> Field:
        return self._one_field(f"header '{header}'", self.headers[header].type, which)

    def _stack_field(self, stack: str, which: int | str) -> Field:
        names = [one.name for one in self.stacks[stack].type.fields]
        if which == "last" and which not in names:  # BMv2 aborts at it
            raise expressions.Refused(f"the header '{stack}.last' as a whole")
        return self._one_field(f"header stack '{stack}'", self.stacks[stack].type, which)

    def _one_field(self, of: str, header_type: HeaderType, which: int | str) -> Field:
        for position, one in enumerate(header_type.fields):
            if which in (position, one.name):
                return one
        raise ProgramError(f"{self._name}: {of} has no field '{which}'")

    def data(self, node: Json, where: Json) -> Data:
        """Reads an integer expression. where: the object with its source_info."""
        with refused_at(source_of(where)):
            value = expressions.parse_data(node, self.scope())
            value_range(value)
            return value

    def boolean(self, node: Json, where: Json) -> expressions.Boolean:
        """Reads a truth value. where: the object with its source_info."""
        with refused_at(source_of(where)):
            return expressions.parse_boolean(node, self.scope())

    def primitive(self, node: Json, widths: tuple[int, ...] = ()) -> Primitive:
        """Reads a statement. widths: of the parameters of its action."""
        if node["op"] not in PRIMITIVES:
            raise UnsupportedConstruct(f"primitive '{node['op']}'", source_of(node))
        with refused_at(source_of(node)):
            operands = tuple(self._operand(one, widths) for one in node["parameters"])
        if node["op"] in ("assign_union", "assign_union_stack"):
            operands += tuple(chain.from_iterable(zip(*map(self._members, operands), strict=True)))
        return Primitive(node["op"], operands, source_of(node))

    def _members(self, operand: Operand) -> list[HeaderRef]:
        """Returns the headers of a union or of a stack of unions."""
        assert isinstance(operand, ObjectName)
        stack = self.union_stacks.get(operand.name)
        unions = stack.unions if stack else (operand.name,)
        return [HeaderRef(header) for union in unions for header in self.unions[union]]

    def _operand(self, node: Json, widths: tuple[int, ...]) -> Operand:
        kind, value = node["type"], node["value"]
        if kind in _OBJECTS:
            return ObjectName(kind, value)
        if kind == "header":
            return HeaderRef(value)
        scope = self.scope(widths)
        if kind == "parameters_vector":
            return MessageParameters(tuple(expressions.parse_data(one, scope) for one in value))
        operand = expressions.parse_any(node, scope)
        if isinstance(operand, expressions.Data):
            value_range(operand)
        return operand


def _stacks(
    document: Json, types: dict[str, HeaderType]
) -> tuple[dict[str, Stack], dict[int, tuple[str, int]]]:
    """Returns the header stacks by name, and stack and index of each element by its id."""
    names = {one["id"]: one["name"] for one in document["headers"]}
    stacks, places = {}, {}
    for one in document.get("header_stacks", []):
        members = tuple(names[header] for header in one["header_ids"])
        stacks[one["name"]] = Stack(one["name"], types[one["header_type"]], members)
        for index, header in enumerate(one["header_ids"]):
            places[header] = (one["name"], index)
    return stacks, places
