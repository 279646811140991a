# SPDX-License-Identifier: Apache-2.0
"""Bounds on the values that an integer expression of a BMv2 program can take.

BMv2 computes with integers of unbounded size and truncates a value only where it is stored in a
field (JSON_format.md, "General information"). The bounds let the generated code use as many 64-bit
limbs as give the same result, and no more.
"""

from __future__ import annotations

from switch.program.expressions import (
    BoolToData,
    Choice,
    Const,
    Data,
    FieldValue,
    Lookahead,
    Parameter,
    Refused,
    StackSize,
    Unary,
    ValidBit,
)

# Larger values are refused: no P4 program needs them, and code for them would be too long (a wide
# value shifted by a wide amount).
MAX_BITS = 1 << 16


def value_range(expression: Data) -> tuple[int, int]:
    """Returns bounds on the values of an integer expression: smallest, largest; not always tight.

    Raises Refused if a value can have more than 65536 bits.
    """
    low, high = _range(expression)
    if max(abs(low), abs(high)).bit_length() > MAX_BITS:
        raise Refused(f"an intermediate value of more than {MAX_BITS} bits")
    return low, high


def _range(expression: Data) -> tuple[int, int]:
    if isinstance(expression, Const):
        return expression.value, expression.value
    if isinstance(expression, FieldValue):
        if expression.signed:
            return -(1 << (expression.width - 1)), (1 << (expression.width - 1)) - 1
        return 0, (1 << expression.width) - 1
    if isinstance(expression, (Parameter, Lookahead)):
        return 0, (1 << expression.width) - 1
    if isinstance(expression, (ValidBit, BoolToData)):
        return 0, 1
    if isinstance(expression, StackSize):
        return -1, 1 << 16
    if isinstance(expression, Unary):
        low, high = value_range(expression.operand)
        return ~high, ~low
    if isinstance(expression, Choice):
        one, other = value_range(expression.true), value_range(expression.false)
        return min(one[0], other[0]), max(one[1], other[1])
    left, right = value_range(expression.left), value_range(expression.right)
    return _binary_range(expression.op, left, right)


def _binary_range(op: str, left: tuple[int, int], right: tuple[int, int]) -> tuple[int, int]:
    if op == "+":
        return left[0] + right[0], left[1] + right[1]
    if op == "-":
        return left[0] - right[1], left[1] - right[0]
    if op == "*":
        products = [a * b for a in left for b in right]
        return min(products), max(products)
    if op in ("/", "%"):
        # BMv2 demands left >= 0 and right > 0; anything else yields 0 here.
        largest = max(left[1], 0)
        return 0, largest if op == "/" else min(largest, max(right[1] - 1, 0))
    if op in ("<<", ">>"):
        return _shift_range(op, left, right)
    if op in ("&", "|", "^"):
        return _bitwise_range(op, left, right)
    width = _fixed_width(op, right)
    if op == "usat_cast":
        return 0, (1 << width) - 1
    return -(1 << (width - 1)), (1 << (width - 1)) - 1


def _fixed_width(op: str, right: tuple[int, int]) -> int:
    if right[0] != right[1] or right[0] < 1:
        raise Refused(f"'{op}' to a width that is not constant")
    return right[0]


def _shift_range(op: str, left: tuple[int, int], right: tuple[int, int]) -> tuple[int, int]:
    least, most = max(right[0], 0), max(right[1], 0)
    if op == ">>":
        ends = [value >> min(by, MAX_BITS) for value in left for by in (least, most)]
    else:
        if most + max(abs(left[0]), abs(left[1])).bit_length() > MAX_BITS:
            # The enclosing expression truncates it, or refuses it.
            most = MAX_BITS
            ends = [-(1 << MAX_BITS) if left[0] < 0 else 0, (1 << MAX_BITS) - 1]
            return min(ends), max(ends)
        ends = [value << by for value in left for by in (least, most)]
    return min(ends), max(ends)


def _bitwise_range(op: str, left: tuple[int, int], right: tuple[int, int]) -> tuple[int, int]:
    if op == "&":
        if left[0] >= 0 and right[0] >= 0:
            return 0, min(left[1], right[1])
        if left[0] >= 0 or right[0] >= 0:
            return 0, left[1] if left[0] >= 0 else right[1]
    bits = max(abs(end).bit_length() for end in (*left, *right))
    if left[0] >= 0 and right[0] >= 0:
        return 0, (1 << bits) - 1
    return -(1 << bits), (1 << bits) - 1
