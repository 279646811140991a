# SPDX-License-Identifier: Apache-2.0
"""Reads the parse states of a BMv2 JSON document (JSON_format.md, "parse_states")."""

from __future__ import annotations

from switch.loader.header_types import source_of
from switch.loader.reader import Reader
from switch.program import expressions
from switch.program.errors import UnsupportedConstruct
from switch.program.expressions import Const, Data, Json
from switch.program.model import (
    Advance,
    Extract,
    ParserOperation,
    ParserState,
    Set,
    Transition,
    Verify,
)

# Kinds of the parts of a parser's key.
_KEYS = frozenset(["field", "stack_field", "lookahead", "expression"])


def read_state(reader: Reader, node: Json) -> ParserState:
    """Reads one of `parse_states`. Raises UnsupportedConstruct, ProgramError."""
    key = []
    for part in node["transition_key"]:
        if part["type"] not in _KEYS:
            raise UnsupportedConstruct(
                f"parser key '{part['type']}' in state '{node['name']}'", source_of(node)
            )
        key.append(reader.data(part, node))
    return ParserState(
        node["name"],
        tuple(_operation(reader, one, node) for one in node["parser_ops"]),
        tuple(key),
        tuple(_transition(one, node) for one in node["transitions"]),
        source_of(node),
    )


def _operation(reader: Reader, node: Json, state: Json) -> ParserOperation:
    op, parameters = node["op"], node["parameters"]
    where = node if "source_info" in node else state
    kinds = ("regular", "stack", "union_stack")
    if op in ("extract", "extract_VL") and parameters[0]["type"] in kinds:
        bits = reader.data(parameters[1], where) if op == "extract_VL" else None
        return _extract(reader, parameters[0]["type"], parameters[0]["value"], bits, where)
    if op == "set":
        return Set(reader.data(parameters[0], where), reader.data(parameters[1], where))
    if op == "verify":
        return Verify(reader.boolean(parameters[0], where), reader.data(parameters[1], where))
    if op == "shift":
        return Advance(Const(8 * int(parameters[0])))
    if op == "advance":
        return Advance(reader.data(parameters[0], where))
    if op == "primitive":
        return reader.primitive({"source_info": where.get("source_info"), **parameters[0]})
    label = f"parser operation '{op}'"
    raise UnsupportedConstruct(f"{label} in state '{state['name']}'", source_of(where))


def _extract(reader: Reader, kind: str, value: Json, bits: Data | None, where: Json) -> Extract:
    choices: tuple[str, ...] = ()
    if kind == "union_stack":
        name, member = value
        choices = tuple(
            reader.unions[one][reader.members[one].index(member)]
            for one in reader.union_stacks[name].unions
        )
        header_type = reader.headers[choices[0]].type
    else:
        name = value
        header_type = reader.stacks[name].type if kind == "stack" else reader.headers[name].type
    if (header_type.varbit is None) != (bits is None):
        raise UnsupportedConstruct(f"an extract of '{name}' without a length", source_of(where))
    if kind == "regular":
        return Extract(name, None, bits)
    return Extract(None, name, bits, choices)


def _transition(node: Json, state: Json) -> Transition:
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
