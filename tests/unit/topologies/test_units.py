# SPDX-License-Identifier: Apache-2.0
"""Tests that printed quantities can be read back."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from topologies.model.units import RATES, SIZES, TIMES, quantity, rate_text, size_text, time_text

LONG = {"min": 60.0, "h": 3600.0, "d": 86400.0}  # printed, and not parsed
POWERS = st.floats(-9, 17).map(lambda power: 10.0**power)


def test_units_are_natural() -> None:
    assert [rate_text(bits) for bits in (10e9, 2.5e6, 999.6e6)] == [
        "10 Gbit/s",
        "2.5 Mbit/s",
        "1 Gbit/s",
    ]
    assert [size_text(count) for count in (97e6, 0, 999, 104_035_200, 2e18)] == [
        "97 MB",
        "0 B",
        "999 B",
        "104 MB",
        "2,000 PB",
    ]
    times = (0.34184, 341.8, 0.9996, 59.96, 1e-6, 7200, 0, 1.5e-9)
    assert [time_text(one) for one in times] == [
        "342 ms", "5.7 min", "1 s", "1 min", "1 us", "2 h", "0 s", "1.5 ns",
    ]  # fmt: skip
    assert rate_text(25.78125e9, 4) == "25.78 Gbit/s"


@given(POWERS, st.integers(1, 9))
def test_quantities_round_trip(value: float, digits: int) -> None:
    known = {**SIZES, "PB": 1e15}
    for text, units in (
        (rate_text(value, digits), RATES),
        (size_text(value, digits), known),
        (time_text(value, digits), TIMES | LONG),
    ):
        result = quantity(text.replace(",", ""), units, "")
        assert math.isclose(result, value, rel_tol=0.5000001 * 10 ** (1 - digits)), text
