# SPDX-License-Identifier: Apache-2.0
"""Rates, sizes, times and fractions as people write them, for use as pydantic field types.

``Rate`` is an int in bit/s ("20 Mbit/s"), ``Size`` an int in bytes ("128 KiB"), ``Time`` a float in
seconds ("5 ms"), ``Fraction`` a float from 0 to 1 ("1 %"). A plain number is in that unit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BeforeValidator

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


def quantity(value: object, units: dict[str, float], example: str) -> float:
    """A number, or number and unit, in the base unit; ``ValueError`` says what is accepted."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        number = float(value)
    else:
        match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
        if match is None or match[2] not in {**units, "": 1.0}:
            raise ValueError(f"{value!r:.90} is not understood; write it like {example}")
        number = float(match[1]) * {"": 1.0, **units}[match[2]]
    if not math.isfinite(number):
        raise ValueError(f"{value!r:.90} is not a finite number; write it like {example}")
    if number < 0:
        raise ValueError(f"{value!r:.90} is negative; write it like {example}")
    return number


def _between(
    units: dict[str, float], example: str, low: str, high: str, whole: bool
) -> Callable[[Any], Any]:
    least, most = quantity(low, units, example), quantity(high, units, example)

    def convert(value: Any) -> Any:
        if value is None:
            return None
        number = quantity(value, units, example)
        if not least <= number <= most:
            raise ValueError(f"{value!r:.90} is out of range; allowed: {low} to {high}")
        return round(number) if whole else number

    return convert


def rate(low: str, high: str) -> BeforeValidator:
    """Validator for a rate in bit/s."""
    return BeforeValidator(_between(RATES, '"20 Mbit/s"', low, high, whole=True))


def size(low: str, high: str) -> BeforeValidator:
    """Validator for a size in bytes."""
    return BeforeValidator(_between(SIZES, '"128 KiB"', low, high, whole=True))


def duration(low: str, high: str, example: str = "5 ms") -> BeforeValidator:
    """Validator for a time in seconds."""
    return BeforeValidator(_between(TIMES, f'"{example}"', low, high, whole=False))


Rate = Annotated[int, rate("1 kbit/s", "1 Tbit/s")]
Size = Annotated[int, size("0 B", "4 GiB")]
Time = Annotated[float, duration("0 s", "60 s")]
Fraction = Annotated[
    float, BeforeValidator(_between(FRACTIONS, '"1 %" or 0.01', "0", "1", whole=False))
]
