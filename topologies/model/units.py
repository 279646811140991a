# SPDX-License-Identifier: Apache-2.0
"""Parses and formats rates, sizes, times and fractions.

Fields of files have these as types in ``quantity_fields``.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal

_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
RATES = {
    prefix + unit: factor for prefix, factor in _DECIMAL.items() for unit in ("bit/s", "bps", "b/s")
}
SIZES = {
    **{f"{prefix}B": factor for prefix, factor in _DECIMAL.items()},
    "KiB": 2.0**10,
    "MiB": 2.0**20,
    "GiB": 2.0**30,
}
TIMES = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "ps": 1e-12}
FRACTIONS = {"%": 0.01}

_QUANTITY = re.compile(r"\s*(-?[0-9]+(?:\.[0-9]+)?|-?\.[0-9]+)\s*(\S*)\s*")


# Units for formatting, largest first; times do not use picoseconds.
_TOLD_RATES = ((1e12, "Tbit/s"), (1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s"), (1, "bit/s"))
_TOLD_SIZES = ((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B"))
_TOLD_TIMES = (
    (86400, "d"), (3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"),
)  # fmt: skip


def quantity(value: object, units: dict[str, float], example: str) -> float:
    """Parses a number with an optional unit to the base unit; raises ValueError with an example."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        number = float(value)
    else:
        match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
        if match is None or match[2] not in {**units, "": 1.0}:
            raise ValueError(f"{value!r:.90} is not understood; write it like {example}")
        factor = {"": 1.0, **units}[match[2]]
        number = float(match[1]) * factor
        if math.isfinite(number):  # the float nearest to the decimal text: 1e-06 for 1 us
            number = float(Decimal(match[1]) * Decimal(repr(factor)))
    if not math.isfinite(number):
        raise ValueError(f"{value!r:.90} is not a finite number; write it like {example}")
    if number < 0:
        raise ValueError(f"{value!r:.90} is negative; write it like {example}")
    return number


def rate_text(bits: float, digits: int = 3) -> str:
    """Formats bit/s with `digits` significant digits: 10 Gbit/s."""
    return _text(bits, _TOLD_RATES, digits)


def size_text(count: float, digits: int = 3) -> str:
    """Formats bytes in powers of 1,000: 97 MB."""
    return _text(count, _TOLD_SIZES, digits)


def time_text(seconds: float, digits: int = 3) -> str:
    """Formats seconds: 342 ms, 5.7 min."""
    return _text(seconds, _TOLD_TIMES, digits)


def _text(value: float, units: tuple[tuple[float, str], ...], digits: int) -> str:
    """Formats a value >= 0 in the largest unit in which it is at least 1 after rounding."""
    if not value:
        return f"0 {next(unit for factor, unit in units if factor == 1)}"
    rounded = float(f"{value:.{digits - 1}e}")
    factor, unit = next((one for one in units if rounded >= one[0]), units[-1])
    amount = (max(value, factor) if rounded >= factor else value) / factor
    places = max(0, digits - 1 - math.floor(math.log10(amount)))
    text = f"{amount:,.{places}f}"
    return f"{text.rstrip('0').rstrip('.') if places else text} {unit}"
