# SPDX-License-Identifier: Apache-2.0
"""Draws the results of a sweep as a standalone SVG. It uses no style sheet, so that every SVG
program renders it alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from xml.etree import ElementTree

from observability.report.charts import LinearScale, LogScale, Scale
from sweeps.curves import Curve, Figure, Panel

__all__ = ["draw"]

# Okabe and Ito, "Color Universal Design" (2008): distinguishable with any kind of colour vision.
# Grey replaces their yellow, which is hard to see on white.
_COLOURS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#7f7f7f",
)  # fmt: skip
_DASHES = ("", "7 3", "2 2", "8 3 2 3")
_MARKS = 5
_INK, _FAINT, _GROUND = "#222222", "#dddddd", "#ffffff"
_FONT = "Helvetica, Arial, DejaVu Sans, sans-serif"
_SIZE, _LETTER = 12.0, 6.1  # font size, and the approximate width of a letter
_WIDTH, _WIDER = 640.0, 860.0  # with up to two panels in a row; with three
_TALL, _LOW = 300.0, 210.0  # heights of a panel's frame, alone and among others
_RIGHT, _TOP, _BOTTOM = 14.0, 12.0, 44.0
_AXIS = 32.0  # for the title of the y scale
_GAP, _TITLE, _LINE, _SAMPLE, _PAD = 18.0, 20.0, 18.0, 30.0, 10.0
_RADIUS = 3.6
_BESIDE = 9.0  # between marks at the same name
_MOST_TICKS = 8  # up to here, scales are labelled with the values themselves


def draw(about: str, figure: Figure) -> str:
    """Returns the SVG. about: its accessible label."""
    columns = 1 if len(figure.panels) == 1 else 2 if len(figure.panels) in (2, 4) else 3
    rows = math.ceil(len(figure.panels) / columns)
    width = _WIDER if columns > 2 else _WIDTH
    title = _TITLE if len(figure.panels) > 1 else 0.0
    margin = _AXIS + _LETTER * max(len(_number(tick)) for tick in _upwards(figure, 1, 0).ticks)
    across = (width - margin - _RIGHT - _GAP * (columns - 1)) / columns
    tall = _TALL if len(figure.panels) == 1 else _LOW
    below = _TOP + rows * (title + tall) + (rows - 1) * _GAP + _BOTTOM
    picture = ElementTree.Element("svg")
    _add(picture, "rect", x=0, y=0, width=width, height=10, fill=_GROUND)
    for number, panel in enumerate(figure.panels):
        row, column = divmod(number, columns)
        left = margin + column * (across + _GAP)
        top = _TOP + title + row * (title + tall + _GAP)
        last = number + columns >= len(figure.panels)
        _panel(picture, figure, panel, (left, top, across, tall), (column == 0, last))
    middle = _TOP + (below - _TOP - _BOTTOM) / 2
    _write(picture, 14, middle, figure.y.title, "middle", turned=True)
    _write(picture, margin + (width - margin - _RIGHT) / 2, below - 8, figure.x.title, "middle")
    ends = _legend(picture, figure, (margin, below, width))
    height = _notes(picture, figure.notes, ends, margin) + 4
    for name, value in {
        "xmlns": "http://www.w3.org/2000/svg",
        "viewBox": f"0 0 {width:g} {height:g}",
        "width": f"{width:g}",
        "height": f"{height:g}",
        "font-family": _FONT,
        "font-size": f"{_SIZE:g}",
        "role": "img",
        "aria-label": about,
    }.items():
        picture.set(name, value)
    picture[0].set("height", f"{height:g}")
    return ElementTree.tostring(picture, encoding="unicode") + "\n"


def _panel(
    picture: ElementTree.Element,
    figure: Figure,
    panel: Panel,
    frame: tuple[float, float, float, float],
    labelled: tuple[bool, bool],
) -> None:
    """Draws a panel.

    Args:
        frame: Left, top, width, height.
        labelled: Whether its y and x scales have numbers.
    """
    left, top, width, height = frame
    right, bottom = left + width, top + height
    # All panels have the same scales, so that they can be compared.
    x_values = sorted(set(figure.values(0)))
    pad = width / (2 * len(figure.names)) if figure.names else _PAD
    ends = left + pad, right - pad
    x: Scale = (
        LogScale(_ends(x_values), *ends) if figure.log_x else LinearScale(_ends(x_values), *ends, 6)
    )
    y = _upwards(figure, bottom, top)
    if len(x_values) <= _MOST_TICKS or figure.names:
        x.ticks = x_values
    for tick in y.ticks:
        _add(picture, "line", x1=left, x2=right, y1=y(tick), y2=y(tick), stroke=_FAINT)
        if labelled[0]:
            _write(picture, left - 7, y(tick) + 4, _number(tick), "end")
    reached = -math.inf
    for tick in x.ticks:
        text = figure.names[int(tick)] if figure.names else _number(tick)
        half = _LETTER * len(text) / 2
        _add(picture, "line", x1=x(tick), x2=x(tick), y1=bottom, y2=bottom + 4, stroke=_INK)
        if labelled[1] and x(tick) - half > reached:
            _write(picture, x(tick), bottom + 17, text, "middle")
            reached = x(tick) + half + 4
    _add(picture, "line", x1=left, x2=right, y1=bottom, y2=bottom, stroke=_INK)
    _add(picture, "line", x1=left, x2=left, y1=top, y2=bottom, stroke=_INK)
    if panel.title:
        _write(picture, left + width / 2, top - 6, panel.title, "middle")

    def across(at: float, number: int) -> float:
        """Returns a point's x; curves' points at the same name are side by side."""
        return x(at) + (_BESIDE * (number - (len(figure.labels) - 1) / 2) if figure.names else 0)

    for curve in panel.curves:
        place = partial(across, number=curve.number)
        _band(picture, curve, place, y, apart=bool(figure.names))
    for curve in panel.curves:
        group = ElementTree.SubElement(picture, "g")
        ElementTree.SubElement(group, "title").text = ", ".join(
            filter(None, [panel.title, figure.labels[curve.number]])
        )
        places = [(across(at, curve.number), y(median)) for at, _, median, _ in curve.points]
        # No lines between names: there is nothing in between.
        _line(group, curve.number, [] if figure.names else places, places)


def _upwards(figure: Figure, bottom: float, top: float) -> Scale:
    values = [*figure.values(1), *figure.values(3)]
    if figure.log_y:
        return LogScale(_ends(values), bottom, top)
    return LinearScale(_ends([0.0, *values]), bottom, top, 5, True)


def _number(tick: float) -> str:
    return f"{tick:,.6g}"


def _ends(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low, low + (abs(low) or 1.0))


def _band(
    picture: ElementTree.Element,
    curve: Curve,
    x: Callable[[float], float],
    y: Scale,
    *,
    apart: bool,
) -> None:
    """Draws the range over seeds. apart: as a line at each point instead of a band."""
    if all(low == high for _, low, _, high in curve.points):
        return
    upper = [(x(at), y(high)) for at, _, _, high in curve.points]
    lower = [(x(at), y(low)) for at, low, _, _ in reversed(curve.points)]
    colour = _COLOURS[curve.number % len(_COLOURS)]
    if apart or len(curve.points) == 1:
        for (at, high), (_, low) in zip(upper, reversed(lower), strict=True):
            _add(picture, "line", x1=at, x2=at, y1=low, y2=high, stroke=colour)
        return
    path = f"M{_path([*upper, *lower])}Z"
    around = ElementTree.SubElement(picture, "path", {"d": path, "fill": colour})
    around.set("fill-opacity", "0.18")


def _line(
    picture: ElementTree.Element,
    number: int,
    places: Sequence[tuple[float, float]],
    marked: Sequence[tuple[float, float]],
) -> None:
    colour = _COLOURS[number % len(_COLOURS)]
    if places:
        drawn = {"d": f"M{_path(places)}", "fill": "none", "stroke": colour, "stroke-width": "1.8"}
        if dashes := _DASHES[(number + number // len(_COLOURS)) % len(_DASHES)]:
            drawn["stroke-dasharray"] = dashes
        ElementTree.SubElement(picture, "path", drawn)
    hollow = number // len(_COLOURS) % 2 == 1
    for x, y in marked:
        _mark(picture, number % _MARKS, x, y, colour, _GROUND if hollow else colour)


def _path(places: Sequence[tuple[float, float]]) -> str:
    return "L".join(f"{x:.1f},{y:.1f}" for x, y in places)


def _mark(
    picture: ElementTree.Element, kind: int, x: float, y: float, colour: str, inside: str
) -> None:
    if kind == 0:
        _add(picture, "circle", cx=x, cy=y, r=_RADIUS, fill=inside, stroke=colour)
        return
    # Corner offsets of a square, a triangle, a diamond and a triangle upside down.
    corners = (
        ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
        ((0, -1.2), (1.1, 0.9), (-1.1, 0.9)),
        ((0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)),
        ((0, 1.2), (1.1, -0.9), (-1.1, -0.9)),
    )[kind - 1]
    path = f"M{_path([(x + _RADIUS * a, y + _RADIUS * b) for a, b in corners])}Z"
    ElementTree.SubElement(picture, "path", {"d": path, "fill": inside, "stroke": colour})


def _legend(
    picture: ElementTree.Element, figure: Figure, place: tuple[float, float, float]
) -> float:
    """Draws the legend in as many columns as fit; returns its bottom.

    place: Its left and top, and the width of the plot.
    """
    left, top, width = place
    labels = figure.labels
    if len(labels) < 2:
        return top
    room = width - left - _RIGHT
    wide = _SAMPLE + 16 + _LETTER * max(map(len, labels))
    columns = max(1, min(len(labels), int(room // wide)))
    rows = math.ceil(len(labels) / columns)
    for number, label in enumerate(labels):
        column, row = divmod(number, rows)
        x, y = left + column * room / columns, top + 14 + _LINE * row
        group = ElementTree.SubElement(picture, "g")
        sample = [] if figure.names else [(x, y), (x + _SAMPLE, y)]
        _line(group, number, sample, [(x + _SAMPLE / 2, y)])
        _write(picture, x + _SAMPLE + 8, y + 4, label, "start")
    return top + 14 + _LINE * rows


def _notes(picture: ElementTree.Element, notes: Sequence[str], top: float, left: float) -> float:
    for number, note in enumerate(notes):
        _write(picture, left, top + 14 + (_LINE - 2) * number, note, "start")
    return top + 10 + (_LINE - 2) * len(notes)


def _add(parent: ElementTree.Element, tag: str, **given: float | str) -> None:
    values = {k: v if isinstance(v, str) else f"{round(v, 1):g}" for k, v in given.items()}
    ElementTree.SubElement(parent, tag, values)


def _write(
    parent: ElementTree.Element,
    x: float,
    y: float,
    text: str,
    anchor: str,
    *,
    turned: bool = False,
) -> None:
    place = {"x": f"{x:.1f}", "y": f"{y:.1f}", "text-anchor": anchor, "fill": _INK}
    if turned:
        place["transform"] = f"rotate(-90 {x:.1f} {y:.1f})"
    ElementTree.SubElement(parent, "text", place).text = text
