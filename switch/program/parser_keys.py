# SPDX-License-Identifier: Apache-2.0
"""Widths of the parts of a parser's key, and of a value set's."""

from __future__ import annotations

from switch.program import expressions as ex
from switch.program.model import Table

# The widest part that may have ranges in a value set.
MOST_RANGE_BITS = 64


def width_of(value: ex.Data) -> int:
    """Returns the bits of a part of a parser's key."""
    if isinstance(value, (ex.FieldValue, ex.Lookahead, ex.Parameter)):
        return value.width
    if isinstance(value, (ex.ValidBit, ex.BoolToData)):
        return 1
    return 32


def widths(table: Table) -> list[int]:
    """Returns the bits of each part of a value set's key."""
    return [one.width for one in table.key if one.match == "ternary"]
