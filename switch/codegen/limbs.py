# SPDX-License-Identifier: Apache-2.0
"""Finds how many 64-bit limbs a value takes, which of its bits can be set, and so whether a sum
carries.

Sums of operands whose limbs have clear top bits, as masked lanes have, cannot carry from limb to
limb: they become loops that compile to vector code.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

from switch.codegen.layout import LIMB, limbs, words_of
from switch.program import expressions as ex
from switch.program.value_ranges import value_range

FULL_LIMB = (1 << LIMB) - 1


def literal(value: int) -> str:
    """Returns a limb as a C constant of 64 bits (without the suffix `~` and `<<` would work on
    32)."""
    return f"0x{value & FULL_LIMB:x}ull" if value & FULL_LIMB > 9 else f"{value & FULL_LIMB}ull"


@cache
def possible_ones(expression: ex.Data) -> int:
    """Returns the bits that may be set in the value, -1 (all) if it may be negative."""
    low, high = value_range(expression)
    if low < 0:
        return -1
    widest = (1 << high.bit_length()) - 1
    if isinstance(expression, ex.Const):
        return expression.value
    if isinstance(expression, ex.Binary):
        left, right = possible_ones(expression.left), possible_ones(expression.right)
        if expression.op == "&":
            return left & right
        if expression.op in ("|", "^"):
            return left | right
        if expression.op in ("<<", ">>") and isinstance(expression.right, ex.Const):
            by = expression.right.value
            return left << by if expression.op == "<<" else left >> by
    return widest


def unmasked(e: ex.Binary, count: int) -> ex.Data | None:
    """Returns the operand of a bitwise and whose mask covers every bit that the operand may have in
    its first `count` limbs, else None."""
    everything = (1 << (LIMB * count)) - 1
    for one, mask in ((e.left, e.right), (e.right, e.left)):
        ones = possible_ones(one)
        if isinstance(mask, ex.Const) and ones >= 0 and not ones & ~mask.value & everything:
            return one
    return None


def natural_limbs(expression: ex.Data) -> tuple[int, bool]:
    """Returns (limbs that hold every value of the expression, whether they are signed)."""
    low, high = value_range(expression)
    if low >= 0:
        return max(limbs(high.bit_length()), 1), False
    return limbs(max(high.bit_length(), (~low).bit_length()) + 1), True


def carries(left: ex.Data, right: ex.Data, count: int) -> bool:
    """Returns True if a sum's carry can cross from one limb to the next."""
    one, other = possible_ones(left), possible_ones(right)
    if one < 0 or other < 0:
        return True
    pairs = zip(words_of(one, count), words_of(other, count), strict=True)
    return any(a + b > FULL_LIMB for a, b in list(pairs)[:-1])


@dataclass
class Stream:
    """Limb i of a value: the C expression `limb` (in terms of i), after the statements `body`.

    array: C name of an array that holds the value, if there is one
    """

    limb: str
    body: list[str] = field(default_factory=list)
    array: str | None = None
