# SPDX-License-Identifier: Apache-2.0
"""Widths of the parts of a parser's key."""

from __future__ import annotations

from switch import expressions as ex

# The widest part that may have ranges in a value set.
MOST_RANGE_BITS = 64


def width_of(value: ex.Data) -> int:
    """Returns the bits of a part of a parser's key."""
    if isinstance(value, (ex.FieldValue, ex.Lookahead, ex.Parameter)):
        return value.width
    if isinstance(value, (ex.ValidBit, ex.BoolToData)):
        return 1
    return 32
