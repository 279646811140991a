# SPDX-License-Identifier: Apache-2.0
"""Draws a comparison as an SVG bar chart: time and bytes, with each closed form as a line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from xml.etree import ElementTree

from topologies.model.units import size_text, time_text

Message = dict[str, Any]
_WIDTH, _ROW, _LEFT, _RIGHT, _TOP, _GAP = 660.0, 22.0, 130.0, 180.0, 44.0, 34.0
_COLOURS = {"in-network": "#1d6fb8"}
_BASELINE = "#c2500b"
_PANELS = (
    ("time of an iteration", "seconds", "closed_form_seconds", time_text),
    ("bytes on the busiest link of a host", "host_bytes", "closed_form_host_bytes", size_text),
    ("on the busiest link between switches", "core_bytes", "closed_form_core_bytes", size_text),
)


def draw(facts: Message, rows: Sequence[Message]) -> str:
    """Returns an SVG of the facts and rows that ``rackhub compare --json`` prints."""
    panels = [one for one in _PANELS if any(row[one[1]] or row[one[2]] for row in rows)]
    tall = _ROW * len(rows) + _GAP
    height = _TOP + tall * len(panels)
    picture = ElementTree.Element(
        "svg",
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "viewBox": f"0 0 {_WIDTH:g} {height:g}",
            "font-family": "system-ui, DejaVu Sans, sans-serif",
            "font-size": "12",
            "role": "img",
            "aria-label": "time and bytes of sums in the network and of baselines",
        },
    )
    _add(picture, "rect", x=0, y=0, width=_WIDTH, height=height, fill="#ffffff")
    clock = "virtual time" if facts["clock"] == "virtual" else f"emulated on {facts['target']}"
    many = facts["iterations"]
    measured = f"medians of {many}" if many > 1 else "one iteration"
    title = (
        f"{facts['topology']}: {facts['workers']} workers sum {size_text(facts['bytes'])}, {clock},"
        f" {measured}; black lines: closed form"
    )
    _write(picture, 8, 18, title, "start", "#222222")
    for number, panel in enumerate(panels):
        _panel(picture, rows, panel, _TOP + tall * number)
    return ElementTree.tostring(picture, encoding="unicode") + "\n"


def _panel(
    picture: ElementTree.Element,
    rows: Sequence[Message],
    panel: tuple[str, str, str, Callable[[float], str]],
    top: float,
) -> None:
    title, field, ideal, form = panel
    most = max(max(row[field], row[ideal]) for row in rows)
    scale = (_WIDTH - _LEFT - _RIGHT) / most
    _write(picture, _LEFT, top, title, "start", "#56637a")
    for number, row in enumerate(rows):
        y = top + 6 + _ROW * number
        colour = _COLOURS.get(row["name"], _BASELINE)
        wide, line = row[field] * scale, _LEFT + row[ideal] * scale
        _add(picture, "rect", x=_LEFT, y=y + 3, width=wide, height=_ROW - 6, fill=colour)
        _add(picture, "line", x1=line, x2=line, y1=y, y2=y + _ROW, stroke="#222222")
        _write(picture, _LEFT - 6, y + 15, row["name"], "end", "#222222")
        text = form(row[field])
        if row[ideal] and field == "seconds":
            text += f", {row['ratio']:.3f} x line"
        end = max(_LEFT + wide, line)
        _write(picture, end + 6, y + 15, text, "start", "#222222")


def _add(parent: ElementTree.Element, tag: str, **given: float | str) -> None:
    values = {k: v if isinstance(v, str) else f"{v:.1f}" for k, v in given.items()}
    ElementTree.SubElement(parent, tag, values)


def _write(
    parent: ElementTree.Element, x: float, y: float, text: str, anchor: str, colour: str
) -> None:
    place = {"x": f"{x:.1f}", "y": f"{y:.1f}", "text-anchor": anchor, "fill": colour}
    ElementTree.SubElement(parent, "text", place).text = text
