# SPDX-License-Identifier: Apache-2.0
"""Checks and converts match keys and actions of table entries by the P4Info (P4Runtime spec, "Match
Format" and "Action Specification").

A key is a tuple with one element per field, in the program's order, as `Pipeline.insert` takes it:
exact: value; lpm: (value, prefix length); ternary and optional: (value, mask); range: (low, high).
Every entry has exactly one such key, since "don't care" has one form only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from google.rpc import code_pb2

from switch.p4runtime.entities.checks import by_id
from switch.p4runtime.errors import (
    P4RuntimeError,
    invalid_argument,
    permission_denied,
    unimplemented,
)
from switch.p4runtime.p4info.schema import (
    EXACT,
    LPM,
    OPTIONAL,
    RANGE,
    TERNARY,
    Action,
    Field,
    MatchField,
    Schema,
    Table,
    ValueSet,
)
from switch.p4runtime.p4info.values import decode_unsigned, encode_unsigned
from switch.p4runtime.stubs import p4runtime_pb2

Keyed: TypeAlias = Table | ValueSet
KeyElement: TypeAlias = int | tuple[int, int]
Key: TypeAlias = tuple[KeyElement, ...]


def _ones(width: int) -> int:
    return (1 << width) - 1


def _value(data: bytes, width: int, what: str) -> int:
    """Decodes as decode_unsigned, but a bad value of a key or parameter is INVALID_ARGUMENT, as the
    sections on both say and BMv2 does."""
    try:
        return decode_unsigned(data, width, what)
    except P4RuntimeError as error:
        raise P4RuntimeError(code_pb2.INVALID_ARGUMENT, error.message) from None


def _check_number(field: Field, what: str) -> None:
    if field.text:
        raise unimplemented(
            f"{what} is a string translated by @p4runtime_translation; this target has numbers only"
        )


def dont_care(field: MatchField) -> KeyElement | None:
    """Returns the key element of an omitted field, None if it must not be omitted (exact)."""
    if field.kind == EXACT:
        return None
    return (0, _ones(field.width)) if field.kind == RANGE else (0, 0)


def decode_key(table: Keyed, matches: Iterable[p4runtime_pb2.FieldMatch]) -> Key:
    """Decodes an entry's key. Raises INVALID_ARGUMENT naming the field and the rule it breaks."""
    key = []
    for field, match in by_id(table.name, "field", "field_id", matches, table.fields):
        if match is not None:
            key.append(_decode_field(table, field, match))
            continue
        default = dont_care(field)
        if default is None:
            raise invalid_argument(
                f"{table.name}: exact field {field.name} (field_id {field.id}) is missing"
            )
        key.append(default)
    return tuple(key)


def _decode_field(table: Keyed, field: MatchField, match: p4runtime_pb2.FieldMatch) -> KeyElement:
    what = f"{table.name}.{field.name}"
    _check_number(field, what)
    kind = match.WhichOneof("field_match_type")
    if kind != field.kind:
        raise invalid_argument(f"{what} is an {field.kind} match, not {kind or 'an unset one'}")
    if kind == EXACT:
        return _value(match.exact.value, field.width, what)
    if kind == OPTIONAL:
        return (_value(match.optional.value, field.width, what), _ones(field.width))
    if kind == LPM:
        return _decode_lpm(field, match.lpm, what)
    if kind == TERNARY:
        value = _value(match.ternary.value, field.width, f"value of {what}")
        mask = _value(match.ternary.mask, field.width, f"mask of {what}")
        if mask == 0:
            raise invalid_argument(f"{what}: leave the field out instead of giving mask 0")
        if value & ~mask:
            raise invalid_argument(f"{what}: value 0x{value:x} has bits outside mask 0x{mask:x}")
        return (value, mask)
    low = _value(match.range.low, field.width, f"low of {what}")
    high = _value(match.range.high, field.width, f"high of {what}")
    if low > high:
        raise invalid_argument(f"{what}: low {low} is above high {high}")
    if (low, high) == (0, _ones(field.width)):
        raise invalid_argument(f"{what}: leave the field out instead of giving the full range")
    return (low, high)


def _decode_lpm(field: MatchField, lpm: p4runtime_pb2.FieldMatch.LPM, what: str) -> KeyElement:
    length = int(lpm.prefix_len)
    if length == 0:
        raise invalid_argument(f"{what}: leave the field out instead of giving prefix length 0")
    if not 0 < length <= field.width:
        raise invalid_argument(f"{what}: prefix length {length} is not in 1..{field.width}")
    value = _value(lpm.value, field.width, what)
    if value & _ones(field.width - length):
        raise invalid_argument(f"{what}: value 0x{value:x} has bits below prefix length {length}")
    return (value, length)


def encode_key(table: Keyed, key: Key) -> list[p4runtime_pb2.FieldMatch]:
    """Returns a key's FieldMatch messages, canonical: without the fields that match anything."""
    matches = []
    for field, element in zip(table.fields, key, strict=False):  # the default entry has no key
        if element == dont_care(field):
            continue
        match = p4runtime_pb2.FieldMatch(field_id=field.id)
        if isinstance(element, int):
            match.exact.value = encode_unsigned(element)
        elif field.kind == LPM:
            match.lpm.value = encode_unsigned(element[0])
            match.lpm.prefix_len = element[1]
        elif field.kind == TERNARY:
            match.ternary.value = encode_unsigned(element[0])
            match.ternary.mask = encode_unsigned(element[1])
        elif field.kind == RANGE:
            match.range.low = encode_unsigned(element[0])
            match.range.high = encode_unsigned(element[1])
        else:
            match.optional.value = encode_unsigned(element[0])
        matches.append(match)
    return matches


def decode_action(
    schema: Schema, table: Table, message: p4runtime_pb2.TableAction, default: bool
) -> tuple[Action, tuple[int, ...]]:
    """Returns the action of an entry (or default entry) and its arguments in the program's order.

    Raises INVALID_ARGUMENT (not the table's, wrong parameters) or PERMISSION_DENIED (the program
    allows it only as default, or only in entries).
    """
    kind = message.WhichOneof("type")
    if kind != "action":
        raise invalid_argument(f"{table.name} takes a direct action, not {kind or 'an unset one'}")
    allowed = table.allowed.get(message.action.action_id)
    if allowed is None:
        names = ", ".join(schema.actions[i].name for i in table.allowed)
        raise invalid_argument(
            f"{table.name} has no action with id {message.action.action_id} (it has: {names})"
        )
    action = schema.actions[message.action.action_id]
    in_entries, as_default = allowed
    if default and not as_default:
        raise permission_denied(f"{table.name}: {action.name} is for entries (@tableonly)")
    if not default and not in_entries:
        raise permission_denied(f"{table.name}: {action.name} is for the default (@defaultonly)")
    return action, decode_params(action, message.action.params)


def decode_params(action: Action, params: Iterable[p4runtime_pb2.Action.Param]) -> tuple[int, ...]:
    """Returns arguments in the program's order. Raises INVALID_ARGUMENT with the parameter's
    name."""
    arguments = []
    for declared, given in by_id(action.name, "parameter", "param_id", params, action.params):
        if given is None:
            raise invalid_argument(
                f"{action.name}: parameter {declared.name} (param_id {declared.id}) is missing"
            )
        _check_number(declared, f"{action.name}.{declared.name}")
        arguments.append(_value(given.value, declared.width, f"{action.name}.{declared.name}"))
    return tuple(arguments)


def encode_action(action: Action, arguments: Sequence[int]) -> p4runtime_pb2.TableAction:
    """Returns a TableAction with canonical bytestrings."""
    message = p4runtime_pb2.TableAction()
    message.action.action_id = action.id
    for param, argument in zip(action.params, arguments, strict=True):
        message.action.params.add(param_id=param.id, value=encode_unsigned(argument))
    return message
