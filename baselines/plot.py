# SPDX-License-Identifier: Apache-2.0
"""Draws a comparison as bars: time and bytes, with each closed form as a line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

from baselines.comparison import ComparedRow, ComparisonFacts
from observability import pictures
from topologies.model.units import size_text, time_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Measured: TypeAlias = Literal["seconds", "host_bytes", "core_bytes"]
Ideal: TypeAlias = Literal[
    "closed_form_seconds", "closed_form_host_bytes", "closed_form_core_bytes"
]
_PANELS: tuple[tuple[str, Measured, Ideal, Callable[[float], str]], ...] = (
    ("time of an iteration", "seconds", "closed_form_seconds", time_text),
    ("bytes on the busiest link of a host", "host_bytes", "closed_form_host_bytes", size_text),
    ("on the busiest link between switches", "core_bytes", "closed_form_core_bytes", size_text),
)


def draw(facts: ComparisonFacts, rows: Sequence[ComparedRow]) -> Figure:
    """Returns a plot of the facts and rows that ``rackhub compare --json`` prints."""
    panels = [one for one in _PANELS if any(row[one[1]] or row[one[2]] for row in rows)]
    clock = "virtual time" if facts["clock"] == "virtual" else f"emulated on {facts['target']}"
    many = facts["iterations"]
    measured = f"medians of {many}" if many > 1 else "one iteration"
    with pictures.style():
        figure = pictures.new_figure(7.5, 0.6 + (0.8 + 0.24 * len(rows)) * len(panels))
        figure.suptitle(
            f"{facts['topology']}: {facts['workers']} workers sum {size_text(facts['bytes'])},"
            f" {clock}, {measured}; black lines: closed form"
        )
        for axes, panel in zip(
            figure.subplots(len(panels), squeeze=False)[:, 0], panels, strict=True
        ):
            _panel(axes, rows, *panel)
    return figure


def _panel(
    axes: Axes,
    rows: Sequence[ComparedRow],
    title: str,
    field: Measured,
    ideal: Ideal,
    form: Callable[[float], str],
) -> None:
    places = range(len(rows))
    first, baseline = pictures.COLOURS[:2]
    colours = [first if row["name"] == "in-network" else baseline for row in rows]
    axes.barh(places, [row[field] for row in rows], 0.7, color=colours)
    for place, row in zip(places, rows, strict=True):
        axes.vlines(row[ideal], place - 0.5, place + 0.5, color="black", linewidth=1.2)
        text = form(row[field])
        if row[ideal] and field == "seconds":
            text += f", {row['ratio']:.3f} x line"
        end = max(row[field], row[ideal]), place
        axes.annotate(text, end, (5, 0), textcoords="offset points", va="center")
    axes.set_yticks(places, [row["name"] for row in rows])
    axes.invert_yaxis()
    axes.tick_params("y", length=0)
    axes.set_title(title, loc="left")
    axes.margins(x=0.25, y=0.02)
    axes.xaxis.set_major_formatter(lambda value, _: form(value))
    axes.grid(axis="x")
