# SPDX-License-Identifier: Apache-2.0
"""Reads the parse states of a BMv2 JSON document (JSON_format.md, "parse_states")."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from switch.loader.header_types import source_of
from switch.program import expressions
from switch.program.errors import UnsupportedConstruct
from switch.program.expressions import Boolean, Const, Data, Json
from switch.program.model import (
    Advance,
    Extract,
    Header,
    ParserOperation,
    ParserState,
    Primitive,
    Set,
    Stack,
    Transition,
    UnionStack,
    Verify,
)

# Kinds of the parts of a parser's key.
_KEYS = frozenset(["field", "stack_field", "lookahead", "expression"])


@dataclass(frozen=True)
class StateReader:
    """Reads parse states.

    headers, stacks, unions, union_stacks: those of the program, by name
    members: names of the members of each union, in the order of its type
    data, boolean: read an expression of a JSON object that has source_info
    primitive: reads a primitive, given the widths of its action's parameters
    """

    headers: Mapping[str, Header]
    stacks: Mapping[str, Stack]
    unions: Mapping[str, tuple[str, ...]]
    union_stacks: Mapping[str, UnionStack]
    members: Mapping[str, tuple[str, ...]]
    data: Callable[[Json, Json], Data]
    boolean: Callable[[Json, Json], Boolean]
    primitive: Callable[[Json, tuple[int, ...]], Primitive]

    def state(self, node: Json) -> ParserState:
        """Reads one of `parse_states`. Raises UnsupportedConstruct, ProgramError."""
        key = []
        for part in node["transition_key"]:
            if part["type"] not in _KEYS:
                raise UnsupportedConstruct(
                    f"parser key '{part['type']}' in state '{node['name']}'", source_of(node)
                )
            key.append(self.data(part, node))
        return ParserState(
            node["name"],
            tuple(self._parser_operation(one, node) for one in node["parser_ops"]),
            tuple(key),
            tuple(self._transition(one, node) for one in node["transitions"]),
            source_of(node),
        )

    def _parser_operation(self, node: Json, state: Json) -> ParserOperation:
        op, parameters = node["op"], node["parameters"]
        where = node if "source_info" in node else state
        kinds = ("regular", "stack", "union_stack")
        if op in ("extract", "extract_VL") and parameters[0]["type"] in kinds:
            bits = self.data(parameters[1], where) if op == "extract_VL" else None
            return self._extract(parameters[0]["type"], parameters[0]["value"], bits, where)
        if op == "set":
            return Set(self.data(parameters[0], where), self.data(parameters[1], where))
        if op == "verify":
            return Verify(self.boolean(parameters[0], where), self.data(parameters[1], where))
        if op == "shift":
            return Advance(Const(8 * int(parameters[0])))
        if op == "advance":
            return Advance(self.data(parameters[0], where))
        if op == "primitive":
            return self.primitive({"source_info": where.get("source_info"), **parameters[0]}, ())
        label = f"parser operation '{op}'"
        raise UnsupportedConstruct(f"{label} in state '{state['name']}'", source_of(where))

    def _extract(self, kind: str, value: Json, bits: Data | None, where: Json) -> Extract:
        choices: tuple[str, ...] = ()
        if kind == "union_stack":
            name, member = value
            choices = tuple(
                self.unions[one][self.members[one].index(member)]
                for one in self.union_stacks[name].unions
            )
            header_type = self.headers[choices[0]].type
        else:
            name = value
            header_type = self.stacks[name].type if kind == "stack" else self.headers[name].type
        if (header_type.varbit is None) != (bits is None):
            raise UnsupportedConstruct(f"an extract of '{name}' without a length", source_of(where))
        if kind == "regular":
            return Extract(name, None, bits)
        return Extract(None, name, bits, choices)

    def _transition(self, node: Json, state: Json) -> Transition:
        if node["type"] == "default":
            return Transition(None, None, node["next_state"])
        if node["type"] == "parse_vset" and node["mask"] is None:
            return Transition(None, None, node["next_state"], node["value"])
        if node["type"] != "hexstr":
            raise UnsupportedConstruct(
                f"transition on '{node['type']}' in state '{state['name']}'", source_of(state)
            )
        mask = None if node["mask"] is None else expressions.hex_value(node["mask"])
        return Transition(expressions.hex_value(node["value"]), mask, node["next_state"])
