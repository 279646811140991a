# SPDX-License-Identifier: Apache-2.0
"""The results of a sweep as a drawing: a column over an axis, a curve for each combination of the
others. Over seeds the median is drawn."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from xml.etree import ElementTree

from testbed.records.report.charts import WIDTH, Line, chart
from testbed.records.report.charts import Axis as Scale
from testbed.sweeps.sweepfile import Axis, PlotSpec
from testbed.sweeps.table import Row, column

_HEIGHT, _LINE = 220.0, 16.0
# Of the report's style sheet, light: a drawing of its own has no page around it.
_COLOURS = (
    "#1d6fb8", "#c2500b", "#13805a", "#9b4f96", "#8a6d00", "#2a8fa8", "#b3315f", "#5b5f6b",
)  # fmt: skip
MOST_CURVES = 24
_STYLE = """
.chart { background: #fff; font-family: system-ui, "DejaVu Sans", sans-serif; }
.chart text { font-size: 11px; fill: #56637a; }
.chart .end { text-anchor: end; } .chart .middle { text-anchor: middle; }
.gridline { stroke: #d8dee7; } .axis { stroke: #56637a; }
.line .curve { fill: none; stroke-width: 1.6; stroke-linejoin: round; }
"""


def drawable(axes: Sequence[Axis], spec: PlotSpec, rows: Sequence[Row]) -> tuple[Axis | None, str]:
    """The axis to plot over; None: and why there is nothing to draw."""
    named = [axis for axis in axes if spec.x in (None, axis.path)]
    fit = [axis for axis in named if _numbers(column(axis), rows)]
    fit.sort(key=lambda axis: axis.of_seeds)  # only if there is no other
    if not fit:
        return None, f"{spec.x or 'no axis'} has numbers to plot over"
    points = _points(column(fit[0]), spec, rows)
    if not points:
        return None, f"no trial has a number for {spec.y} that such an axis can show"
    return fit[0], ""


def _numbers(name: str, rows: Sequence[Row]) -> bool:
    return all(_is_number(row[name]) for row in rows) and len({row[name] for row in rows}) > 1


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _points(x: str, spec: PlotSpec, rows: Sequence[Row]) -> list[Row]:
    def shown(name: str, value: object) -> bool:
        positive = isinstance(value, (int, float)) and value > 0
        return _is_number(value) and (positive or name not in spec.log)

    return [row for row in rows if shown("x", row[x]) and shown("y", row.get(spec.y))]


def draw(name: str, axes: Sequence[Axis], over: Axis, spec: PlotSpec, rows: Sequence[Row]) -> str:
    """SVG of its own. over: of ``drawable``."""
    x = column(over)
    others = [a for a in axes if a is not over and not a.of_seeds and len(a.values) > 1]
    curves: dict[str, dict[float, list[float]]] = {}
    for row in _points(x, spec, rows):
        label = ", ".join(f"{column(axis)} {row[column(axis)]}" for axis in others)
        curves.setdefault(label, {}).setdefault(row[x], []).append(row[spec.y])
    left_out = len(curves) - MOST_CURVES
    lines = [
        Line(
            label or spec.y,
            [(at, statistics.median(values)) for at, values in sorted(points.items())],
            style=number % len(_COLOURS),
            dots=True,
        )
        for number, (label, points) in enumerate(list(curves.items())[:MOST_CURVES])
    ]
    text = chart(
        f"{spec.y} of sweep {name} over {x}",
        lines,
        Scale(x, log="x" in spec.log),
        Scale(spec.y, None if "y" in spec.log else 0.0, log="y" in spec.log),
        height=_HEIGHT,
    )
    svg = ElementTree.fromstring(text)
    legend = [line.name for line in lines] if others else []
    legend += [f"... and {left_out} more, in the table"] if left_out > 0 else []
    height = _HEIGHT + 6 + _LINE * len(legend)
    svg.set("xmlns", "http://www.w3.org/2000/svg")
    svg.set("viewBox", f"0 0 {WIDTH:g} {height:g}")
    for number, label in enumerate(legend):
        y = _HEIGHT + 6 + _LINE * number
        if number < len(lines):
            place = {"x1": "46", "x2": "66", "y1": f"{y + 7:g}", "y2": f"{y + 7:g}"}
            colour = {"stroke": _COLOURS[lines[number].style], "stroke-width": "2"}
            ElementTree.SubElement(svg, "line", {**place, **colour})
        ElementTree.SubElement(svg, "text", {"x": "72", "y": f"{y + 11:g}"}).text = label
    style = ElementTree.Element("style")
    style.text = _STYLE + "\n".join(
        f".s{n} .curve {{ stroke: {colour}; }} .s{n} .dot {{ fill: {colour}; }}"
        for n, colour in enumerate(_COLOURS)
    )
    svg.insert(0, style)
    return ElementTree.tostring(svg, encoding="unicode") + "\n"
