# SPDX-License-Identifier: Apache-2.0
"""Bar charts of a report's packets per second: SVG, and text for a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.etree import ElementTree

from benchmarks.common import LEAST_BUSY, Message

_WIDTH, _ROW, _LEFT, _RIGHT, _TOP, _BOTTOM = 720.0, 24.0, 190.0, 110.0, 30.0, 24.0
_NOTE = 18.0  # height of the footnote
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


def shown(report: Message) -> list[Message]:
    """Returns the rows that count packets, the fastest first."""
    rows = [one for one in report["rows"] if one["mode"] != "tcp"]
    return sorted(rows, key=lambda one: -one["per_second"]["median"])


def text(report: Message) -> list[str]:
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


def svg(report: Message) -> str:
    """Returns an SVG: a bar per median, with a thin line from lowest to highest."""
    rows = shown(report)
    note = any(one["busy"] < LEAST_BUSY for one in rows)
    height = _TOP + _ROW * len(rows) + _BOTTOM + (_NOTE if note else 0)
    picture = ElementTree.Element(
        "svg",
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "viewBox": f"0 0 {_WIDTH:g} {height:g}",
            "font-family": "sans-serif",
            "font-size": "12",
            "role": "img",
            "aria-label": "packets received per second of each switch",
        },
    )
    title = "packets received per second, logarithmic, one core of each switch"
    _write(picture, 4, 16, title, "start")
    if rows:
        _bars(picture, rows, _span(rows), height - (_NOTE if note else 0))
    if note:
        _write(
            picture,
            4,
            height - 6,
            f"* not valid: busy for less than {LEAST_BUSY:.0%} of the time",
            "start",
        )
    return ElementTree.tostring(picture, encoding="unicode")


def _bars(
    picture: ElementTree.Element, rows: Sequence[Message], span: tuple[int, int], height: float
) -> None:
    def across(rate: float) -> float:
        return _LEFT + _part(rate, span) * (_WIDTH - _LEFT - _RIGHT)

    for power in range(span[0], span[1] + 1):
        at = across(10.0**power)
        _add(picture, "line", x1=at, x2=at, y1=_TOP, y2=height - _BOTTOM, stroke="#dddddd")
        _write(picture, at, height - 8, f"{10**power:,}", "middle")
    for number, one in enumerate(rows):
        y, spread = _TOP + _ROW * number, one["per_second"]
        colour = _COLOURS[one["mode"]] if one["busy"] >= LEAST_BUSY else _INVALID
        end = across(spread["median"])
        _add(picture, "rect", x=_LEFT, y=y + 4, width=end - _LEFT, height=_ROW - 8, fill=colour)
        low, high, middle = across(spread["low"]), across(spread["high"]), y + _ROW / 2
        _add(picture, "line", x1=low, x2=high, y1=middle, y2=middle, stroke="#333333")
        _write(picture, _LEFT - 6, y + 16, _name(one), "end")
        _write(picture, max(high, end) + 6, y + 16, f"{spread['median']:,.0f}", "start")


def _name(row: Message) -> str:
    mark = "" if row["busy"] >= LEAST_BUSY else " *"
    return f"{row['contender']} {row['mode']}{mark}"


def _span(rows: Sequence[Message]) -> tuple[int, int]:
    """Returns the exponents of the powers of ten around all rates."""
    lows = [one["per_second"]["low"] for one in rows]
    highs = [one["per_second"]["high"] for one in rows]
    low = math.floor(math.log10(min(lows)))
    return low, max(low + 1, math.ceil(math.log10(max(highs))))


def _part(rate: float, span: tuple[int, int]) -> float:
    return (math.log10(rate) - span[0]) / (span[1] - span[0])


def _add(parent: ElementTree.Element, tag: str, **given: float | str) -> None:
    values = {k: v if isinstance(v, str) else f"{v:.1f}" for k, v in given.items()}
    ElementTree.SubElement(parent, tag, values)


def _write(parent: ElementTree.Element, x: float, y: float, text: str, anchor: str) -> None:
    place = {"x": f"{x:.1f}", "y": f"{y:.1f}", "text-anchor": anchor}
    ElementTree.SubElement(parent, "text", place).text = text
