# SPDX-License-Identifier: Apache-2.0
"""Types of pydantic fields that are rates, sizes, times and fractions.

``Rate`` is an int in bit/s ("20 Mbit/s"), ``Size`` an int in bytes ("128 KiB"), ``Time`` a float in
seconds ("5 ms"), ``Fraction`` a float from 0 to 1 ("1 %"). A plain number is in that unit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BeforeValidator

from topologies.model.units import FRACTIONS, RATES, SIZES, TIMES, quantity

_SHARE = '"1 %" or 0.01'


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
    """Builds the validator of a rate in bit/s."""
    return BeforeValidator(_between(RATES, '"20 Mbit/s"', low, high, whole=True))


def size(low: str, high: str) -> BeforeValidator:
    """Builds the validator of a size in bytes."""
    return BeforeValidator(_between(SIZES, '"128 KiB"', low, high, whole=True))


def duration(low: str, high: str, example: str = "5 ms") -> BeforeValidator:
    """Builds the validator of a time in seconds."""
    return BeforeValidator(_between(TIMES, f'"{example}"', low, high, whole=False))


def fraction(most: str = "100 %") -> BeforeValidator:
    """Builds the validator of a fraction, 0 to 1.

    most: the limit in error texts; other validators refuse values between it and 1.
    """

    def convert(value: Any) -> Any:
        if value is None:
            return None
        number = quantity(value, FRACTIONS, _SHARE)
        if number > 1:
            text = f"allowed: 0 to {quantity(most, FRACTIONS, _SHARE):g}, which is {most}"
            if number <= 100 and "%" not in str(value):
                text += f"; {number:g} percent are written {number:g} % or {number / 100:g}"
            raise ValueError(f"{value!r:.90} is out of range; {text}")
        return number

    return BeforeValidator(convert)


Rate = Annotated[int, rate("1 kbit/s", "1 Tbit/s")]
Size = Annotated[int, size("0 B", "4 GiB")]
Time = Annotated[float, duration("0 s", "60 s")]
Fraction = Annotated[float, fraction()]
