# SPDX-License-Identifier: Apache-2.0
"""Expressions of a BMv2 program as a tree, and their parser (JSON_format.md, "expression").

Data expressions are integers, Boolean expressions are truth values; BMv2 converts between them
only explicitly (`d2b`, `b2d`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

# A JSON object or value, as json.load gives it.
Json = Any


@dataclass(frozen=True)
class Field:
    """A field of a header type. width: in bits, of a varbit field the most it may have; signed:
    two's complement."""

    name: str
    width: int
    signed: bool
    varbit: bool = False


@dataclass(frozen=True)
class HeaderRef:
    """A header instance by name, e.g. `ipv4` or `labels[0]`."""

    name: str


@dataclass(frozen=True)
class StackElement:
    """`stack[index]` with an index known only at run time."""

    stack: str
    index: Data


@dataclass(frozen=True)
class StackLast:
    """The last element of a stack that was extracted (`stack.last`)."""

    stack: str


@dataclass(frozen=True)
class HeaderChoice:
    """`condition ? true : false` between two headers of one type."""

    condition: Boolean
    true: HeaderExpression
    false: HeaderExpression


HeaderExpression = HeaderRef | StackElement | StackLast | HeaderChoice


@dataclass(frozen=True)
class Const:
    """A constant."""

    value: int


@dataclass(frozen=True)
class FieldValue:
    """A field's value; `width` in bits, signed fields in two's complement."""

    header: HeaderExpression
    field: str
    width: int
    signed: bool


@dataclass(frozen=True)
class VarbitField:
    """A varbit field, which can be assigned, compared and summed, but not computed with."""

    header: HeaderExpression
    field: str


@dataclass(frozen=True)
class ValidBit:
    """The hidden field `$valid$`: 1 if the header is valid, else 0."""

    header: HeaderExpression


@dataclass(frozen=True)
class Parameter:
    """Run-time data of the table entry (or of the default entry) that called the action."""

    index: int
    width: int


@dataclass(frozen=True)
class Lookahead:
    """`width` bits at `offset` bits after the parser's position, without consuming them."""

    offset: int
    width: int


@dataclass(frozen=True)
class Unary:
    """A bitwise complement. op: `~`."""

    op: str
    operand: Data


@dataclass(frozen=True)
class Binary:
    """An operation. op: + - * / % << >> & | ^, or two_comp_mod, sat_cast, usat_cast (right: width
    in bits)."""

    op: str
    left: Data
    right: Data


@dataclass(frozen=True)
class Choice:
    """`condition ? true : false` between two integers."""

    condition: Boolean
    true: Data
    false: Data


@dataclass(frozen=True)
class BoolToData:
    """1 or 0 for a truth value (`b2d`)."""

    operand: Boolean


@dataclass(frozen=True)
class StackSize:
    """The elements of a stack in use (`size_stack`) or, with `last`, the last one's index
    (`last_stack_index`)."""

    stack: str
    last: bool


@dataclass(frozen=True)
class BoolConst:
    """A constant truth value."""

    value: bool


@dataclass(frozen=True)
class Compare:
    """A comparison of integers. op: == != < <= > >=."""

    op: str
    left: Data
    right: Data


@dataclass(frozen=True)
class CompareHeaders:
    """A comparison of headers. op: == !=; equal = both invalid, or both valid with equal fields
    (P4-16, 8.17)."""

    op: str
    left: HeaderExpression
    right: HeaderExpression


@dataclass(frozen=True)
class CompareVarbits:
    """A comparison of varbit fields. op: == !=; as in BMv2, by their values: leading zeros do not
    count."""

    op: str
    left: VarbitField
    right: VarbitField


@dataclass(frozen=True)
class CompareBooleans:
    """A comparison of truth values. op: == !=."""

    op: str
    left: Boolean
    right: Boolean


@dataclass(frozen=True)
class Logic:
    """A conjunction or disjunction. op: and, or. BMv2 evaluates both sides, which makes no
    difference without side effects."""

    op: str
    left: Boolean
    right: Boolean


@dataclass(frozen=True)
class Not:
    """A negation."""

    operand: Boolean


@dataclass(frozen=True)
class DataToBool:
    """True unless an integer is 0 (`d2b`)."""

    operand: Data


@dataclass(frozen=True)
class Valid:
    """True if a header is valid."""

    header: HeaderExpression


Data = (
    Const
    | FieldValue
    | ValidBit
    | Parameter
    | Lookahead
    | Unary
    | Binary
    | Choice
    | BoolToData
    | StackSize
)
Boolean = (
    BoolConst
    | Compare
    | CompareHeaders
    | CompareVarbits
    | CompareBooleans
    | Logic
    | Not
    | DataToBool
    | Valid
)
ARITHMETIC = frozenset(
    ["+", "-", "*", "/", "%", "<<", ">>", "&", "|", "^", "two_comp_mod", "sat_cast", "usat_cast"]
)
COMPARISONS = frozenset(["==", "!=", "<", "<=", ">", ">="])


class Refused(Exception):  # noqa: N818 (says what happened)
    """An unsupported expression construct; the loader adds the source position."""


@dataclass(frozen=True)
class Scope:
    """Resolves the names in an expression.

    field: (header, position or name) -> field of a header instance
    stack_field: (stack, position or name) -> field of a stack's elements
    parameters: widths of the enclosing action's parameters
    unions: headers of header unions
    """

    field: Callable[[str, int | str], Field]
    stack_field: Callable[[str, int | str], Field]
    parameters: tuple[int, ...] = ()
    unions: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)


def hex_value(text: str) -> int:
    """Parses `0x1f`, `1f` or `-0x03` of the JSON."""
    negative = text.startswith("-")
    value = int(text.removeprefix("-"), 16)
    return -value if negative else value


def parse_data(node: Json, scope: Scope) -> Data:
    """Parses a JSON type-value object as an integer expression. Raises Refused."""
    result = parse_any(node, scope)
    if isinstance(result, VarbitField):
        raise Refused(f"varbit field '{result.field}' in arithmetic")
    if isinstance(result, Boolean | HeaderExpression):
        raise Refused(f"a value where {type(result).__name__} stands")
    return result


def parse_boolean(node: Json, scope: Scope) -> Boolean:
    """Parses a JSON type-value object as a truth value. Raises Refused."""
    result = parse_any(node, scope)
    if not isinstance(result, Boolean):
        raise Refused(f"a Boolean where {type(result).__name__} stands")
    return result


def parse_header(node: Json, scope: Scope) -> HeaderExpression:
    """Parses a JSON type-value object as a header. Raises Refused."""
    result = parse_any(node, scope)
    if not isinstance(result, HeaderExpression):
        raise Refused(f"a header where {type(result).__name__} stands")
    return result


def parse_any(node: Json, scope: Scope) -> Data | Boolean | HeaderExpression | VarbitField:
    """Parses a JSON type-value object as an expression of any kind. Raises Refused."""
    kind, value = node["type"], node["value"]
    if kind == "expression":
        if "op" in value:
            return _parse_operation(value, scope)
        return parse_any(value, scope)
    if kind == "hexstr":
        return Const(hex_value(value))
    if kind == "bool":
        return BoolConst(bool(value))
    if kind == "field":
        header, field = value
        if isinstance(header, dict):  # an element of a stack at a run-time index
            if field != "$valid$":
                raise Refused(f"field '{field}' of an expression")
            return ValidBit(parse_header({"type": "expression", "value": header}, scope))
        if field == "$valid$":
            return ValidBit(HeaderRef(header))
        return _field_of(HeaderRef(header), scope.field(header, field))
    if kind == "stack_field":
        stack, field = value
        return _field_of(StackLast(stack), scope.stack_field(stack, field))
    if kind in ("runtime_data", "local"):
        return Parameter(value, scope.parameters[value])
    if kind == "lookahead":
        return Lookahead(value[0], value[1])
    if kind == "header":
        return HeaderRef(value)
    raise Refused(f"operand type '{kind}'")


def _field_of(header: HeaderExpression, field: Field) -> FieldValue | VarbitField:
    if field.varbit:
        return VarbitField(header, field.name)
    return FieldValue(header, field.name, field.width, field.signed)


def _parse_operation(value: Json, scope: Scope) -> Data | Boolean | HeaderExpression | VarbitField:
    op, left, right = value["op"], value.get("left"), value.get("right")
    if op in ARITHMETIC:
        return Binary(op, parse_data(left, scope), parse_data(right, scope))
    if op in COMPARISONS:
        return _comparison(op, parse_any(left, scope), parse_any(right, scope))
    if op in ("and", "or"):
        return Logic(op, parse_boolean(left, scope), parse_boolean(right, scope))
    if op == "not":
        return Not(parse_boolean(right, scope))
    if op == "~":
        return Unary(op, parse_data(right, scope))
    if op == "d2b":
        return DataToBool(parse_data(right, scope))
    if op == "b2d":
        return BoolToData(parse_boolean(right, scope))
    if op == "?":
        return _choice(
            parse_boolean(value["cond"], scope), parse_any(left, scope), parse_any(right, scope)
        )
    if op == "valid":
        return Valid(parse_header(right, scope))
    if op == "valid_union":
        found: Boolean = BoolConst(False)
        if right["type"] != "header_union":
            raise Refused(f"operand type '{right['type']}' as a header union")
        for one in scope.unions[right["value"]]:
            found = Logic("or", found, Valid(HeaderRef(one)))
        return found
    if op == "dereference_header_stack":
        index = parse_data(right, scope)
        if isinstance(index, Const):
            return HeaderRef(f"{left['value']}[{index.value}]")
        return StackElement(left["value"], index)
    if op == "access_field":
        return _access(parse_header(left, scope), right, scope)
    if op in ("last_stack_index", "size_stack"):
        operand = right if right is not None else left
        return StackSize(operand["value"], op == "last_stack_index")
    raise Refused(f"operator '{op}'")


def _choice(condition: Boolean, true: Any, false: Any) -> Data | Boolean | HeaderExpression:
    if isinstance(true, Boolean) and isinstance(false, Boolean):
        return Logic("or", Logic("and", condition, true), Logic("and", Not(condition), false))
    if isinstance(true, HeaderExpression) and isinstance(false, HeaderExpression):
        return HeaderChoice(condition, true, false)
    for side in (true, false):
        if not isinstance(side, Data):
            raise Refused(f"operator '?' between {type(true).__name__}, {type(false).__name__}")
    return Choice(condition, true, false)


def _comparison(op: str, left: Any, right: Any) -> Boolean:
    if (
        isinstance(left, HeaderExpression)
        and isinstance(right, HeaderExpression)
        and op in ("==", "!=")
    ):
        return CompareHeaders(op, left, right)
    if isinstance(left, Boolean) and isinstance(right, Boolean) and op in ("==", "!="):
        return CompareBooleans(op, left, right)
    if isinstance(left, VarbitField) and isinstance(right, VarbitField) and op in ("==", "!="):
        return CompareVarbits(op, left, right)
    for side in (left, right):
        if not isinstance(side, Data):
            raise Refused(f"operator '{op}' between {type(left).__name__}, {type(right).__name__}")
    return Compare(op, left, right)


def _access(header: HeaderExpression, position: int, scope: Scope) -> FieldValue | VarbitField:
    one = header
    while isinstance(one, HeaderChoice):
        one = one.true  # both are of one type
    if isinstance(one, HeaderRef):
        return _field_of(header, scope.field(one.name, position))
    return _field_of(header, scope.stack_field(one.stack, position))
