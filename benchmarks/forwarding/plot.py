# SPDX-License-Identifier: Apache-2.0
"""Bar charts of a report's packets per second: a plot, and text for a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from benchmarks.common import LEAST_BUSY
from observability import pictures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from benchmarks.forwarding.results import ModeRates, Report

_TEXT_BAR = 40
_COLOURS = {
    "gso": "#4477aa",
    "plain": "#ccbb44",
    "router_64_1": "#228833",
    "router_64_10000": "#66aa77",
    "router_1400_1": "#aa3377",
    "router_1400_10000": "#cc88aa",
}
_INVALID = "#bbbbbb"  # the contender was not busy


def shown(report: Report) -> list[ModeRates]:
    """Returns the rows that count packets, the fastest first."""
    rows = [one for one in report["rows"] if one["mode"] != "tcp"]
    return sorted(rows, key=lambda one: -one["per_second"]["median"])


def text(report: Report) -> list[str]:
    """Returns lines of bars on a logarithmic scale from the power of ten below the slowest."""
    rows = shown(report)
    if not rows:
        return []
    span = _span(rows)
    names = [_name(one) for one in rows]
    width = max(map(len, names))
    lines = ["packets received per second, logarithmic"]
    for name, one in zip(names, rows, strict=True):
        rate = one["per_second"]["median"]
        bar = "#" * max(1, round(_TEXT_BAR * _part(rate, span)))
        lines.append(f"{name.ljust(width)}  {bar} {rate:,.0f}")
    return lines


def figure(report: Report) -> Figure:
    """Returns a plot: a bar per median, with a thin line from lowest to highest."""
    rows = shown(report)
    names = [_name(one) for one in rows]
    rates = [one["per_second"] for one in rows]
    colours = [_COLOURS[one["mode"]] if one["busy"] >= LEAST_BUSY else _INVALID for one in rows]
    with pictures.style():
        drawing = pictures.new_figure(8, 0.9 + 0.26 * len(rows))
        axes = drawing.subplots()
        axes.set_title(
            "packets received per second, logarithmic, one core of each switch", loc="left"
        )
        if rows:
            places = range(len(rows))
            low, high = _span(rows)
            axes.barh(places, [one["median"] for one in rates], 0.7, color=colours, log=True)
            axes.hlines(
                places, [one["low"] for one in rates], [one["high"] for one in rates],
                color="#333333", linewidth=0.8,
            )  # fmt: skip
            for place, one in zip(places, rates, strict=True):
                end = max(one["median"], one["high"]), place
                text = f"{one['median']:,.0f}"
                axes.annotate(text, end, (5, 0), textcoords="offset points", va="center")
            axes.set_yticks(places, names)
            axes.invert_yaxis()
            axes.tick_params("y", length=0)
            axes.set_xlim(10.0**low, 10.0 ** (high + 0.3))
            axes.grid(axis="x")
            pictures.label_ticks(axes.xaxis, [10.0**power for power in range(low, high + 1)])
        if any(one["busy"] < LEAST_BUSY for one in rows):
            note = f"* not valid: busy for less than {LEAST_BUSY:.0%} of the time"
            axes.set_xlabel(note, loc="left")
    return drawing


def _name(row: ModeRates) -> str:
    mark = "" if row["busy"] >= LEAST_BUSY else " *"
    return f"{row['contender']} {row['mode']}{mark}"


def _span(rows: Sequence[ModeRates]) -> tuple[int, int]:
    """Returns the exponents of the powers of ten around all rates."""
    lows = [one["per_second"]["low"] for one in rows]
    highs = [one["per_second"]["high"] for one in rows]
    low = math.floor(math.log10(min(lows)))
    return low, max(low + 1, math.ceil(math.log10(max(highs))))


def _part(rate: float, span: tuple[int, int]) -> float:
    return (math.log10(rate) - span[0]) / (span[1] - span[0])
