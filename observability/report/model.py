# SPDX-License-Identifier: Apache-2.0
"""The variables of the report's template (``page.html``)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from observability.messages.report import ChartData, ChartLine, ReportData
from observability.report.charts import Axis, Line, Mark, Point, chart


@dataclass(frozen=True)
class Chart:
    """A chart with its caption.

    about: for screen readers.
    legend: names of its lines; empty if none is needed.
    """

    title: str
    about: str
    lines: Sequence[Line]
    x: Axis
    y: Axis
    marks: Sequence[Mark]
    height: float = 220.0
    legend: Sequence[str] = ()
    note: str = ""

    @property
    def svg(self) -> str:
        """The drawing."""
        return chart(self.about, self.lines, self.x, self.y, self.marks, self.height)

    def data(self) -> ChartData:
        """Returns what it shows."""
        lines = [ChartLine(name=line.name, points=_known(line.points)) for line in self.lines]
        return {"title": self.title, "x": self.x.title, "y": self.y.title, "lines": lines}


def _known(points: Sequence[Point]) -> list[Point]:
    """Returns points without what JSON has no word for: infinity, and what is no number."""
    return [(x, y if y is not None and math.isfinite(y) else None) for x, y in points]


@dataclass(frozen=True)
class ReportContext:
    """The variables of the template.

    data: what it shows.
    facts: the same in words: nodes, target, clock, start.
    drawing: SVG of the topology with its loads; empty if that is unknown.
    classes: names of the classes of load.
    others_left_out, slots_left_out: number of jobs and switches that are not shown.
    lost: why counters of links are unknown.
    slots_never: switches in which no job held slots.
    machine: titles and values.
    """

    data: ReportData
    facts: list[str]
    drawing: str
    classes: list[str]
    others_left_out: int
    lost: list[str]
    undrawable: str
    curves: list[Chart]
    slots: list[Chart]
    slots_left_out: int
    slots_never: list[str]
    servers: list[Chart]
    machine: list[tuple[str, str]]
