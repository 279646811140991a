# SPDX-License-Identifier: Apache-2.0
"""Tests curves, styles and labels of sweep plots."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from observability import pictures
from specs.sweepfile import Axis, PlotSpec
from sweeps import plot
from sweeps.curves import Figure, figure
from sweeps.table import Row, column

Y = "iteration_median_s"


def axis(path: str, *values: Any) -> Axis:
    return Axis(path, values, ("axes", path))


RATE = axis("topology.defaults.rate", 10**8, 10**9, 10**10)
TREE = axis("job.tree", "two-level", "none")
WINDOW = axis("job.window", 16, 64)
QUEUE = axis("topology.defaults.queue_bytes", 1 << 16, 1 << 20)
SEED = axis("job.seed", 1, 2, 3)


def rows(axes: list[Axis], seconds: Callable[[dict[str, Any]], float]) -> list[Row]:
    chosen = [
        {one.path: value for one, value in zip(axes, values, strict=True)}
        for values in itertools.product(*(one.values for one in axes))
    ]
    return [{**{column(a): one[a.path] for a in axes}, Y: seconds(one)} for one in chosen]


def drawn(axes: list[Axis], seconds: Callable[[dict[str, Any]], float]) -> Figure:
    found = figure(axes, PlotSpec(), rows(axes, seconds))
    assert isinstance(found, Figure), found
    return found


def looks(found: Figure) -> list[tuple[Any, tuple[Any, ...]]]:
    """Of each curve: what it is, and colour, dashes, form and filling of marks."""
    with pictures.style():
        lines = [line for axes in plot.draw(found).axes for line in axes.lines]
    return [
        (
            line.get_label(),
            (
                line.get_color(), line.get_linestyle(), line.get_marker(),
                line.get_markerfacecolor(),
            ),
        )
        for line in lines
    ]  # fmt: skip


def texts(found: Figure, folder: Path) -> set[str]:
    """All texts of the plot's SVG."""
    pictures.write(folder / "plot.svg", plot.draw(found))
    svg = ElementTree.parse(folder / "plot.svg")
    return {one.text for one in svg.iter("{http://www.w3.org/2000/svg}text") if one.text}


def test_scales_and_curves_have_titles_and_units(tmp_path: Path) -> None:
    found = drawn([RATE, TREE], lambda one: 8e5 / one[RATE.path] * (1 + (one[TREE.path] == "none")))
    assert found.x.title == "link rate (Gbit/s)"
    assert found.y.title == "time of an iteration, median (ms)"
    # 100 times as long: the lowest third would be invisible on a linear scale.
    assert found.log_x
    assert found.log_y
    assert found.labels == ("tree = two-level", "tree = none")
    (panel,) = found.panels
    first = [(round(x, 9), round(y, 9)) for x, _, y, _ in panel.curves[0].points]
    assert first == [(0.1, 8.0), (1.0, 0.8), (10.0, 0.08)]
    shown = texts(found, tmp_path)
    assert {found.x.title, found.y.title, *found.labels, "0.1", "10"} <= shown
    again = tmp_path / "again.svg"
    pictures.write(again, plot.draw(found))
    assert again.read_bytes() == (tmp_path / "plot.svg").read_bytes()


def test_every_curve_of_a_panel_looks_different() -> None:
    """Twelve in one panel, as a single axis has them; many more in panels of up to eight."""
    windows = axis("job.window", *(2**n for n in range(12)))
    found = drawn([RATE, windows], lambda one: one["job.window"] / one[RATE.path])
    assert len(found.panels) == 1
    seen = looks(found)
    assert len({name for name, _ in seen}) == len({look for _, look in seen}) == 12

    sizes = axis("topology.racks[0].workers", 2, 4, 8)
    axes = [RATE, TREE, windows, sizes]
    found = drawn(
        axes, lambda one: (len(one["job.tree"]) + 0.1 * one["job.window"]) / one[sizes.path]
    )
    seen = looks(found)
    for panel in found.panels:
        inside = [look for name, look in seen if name.startswith(f"{panel.title}, ")]
        assert 1 < len(inside) == len(set(inside)) <= 8
    assert sum(len(panel.curves) for panel in found.panels) == 2 * 12 * 3 == len(seen)


def test_an_axis_without_effect_has_no_curves_of_its_own_and_is_named(tmp_path: Path) -> None:
    found = drawn([RATE, TREE, QUEUE], lambda one: len(one[TREE.path]) / one[RATE.path])
    assert found.labels == ("tree = two-level", "tree = none")
    assert found.notes == ("it does not depend on link queue (64 KiB, 1 MiB)",)
    assert found.notes[0] in texts(found, tmp_path)
    # One that matters somewhere stays.
    found = drawn([RATE, QUEUE], lambda one: (one[RATE.path] > 10**9) * one[QUEUE.path] + 1.0)
    assert found.labels == ("link queue = 64 KiB", "link queue = 1 MiB")


def test_seeds_are_a_median_and_a_band() -> None:
    took = {1: 3.0, 2: 1.0, 3: 1.5}
    found = drawn([RATE, SEED], lambda one: took[one[SEED.path]] * 1e9 / one[RATE.path])
    (curve,) = found.panels[0].curves
    assert curve.points[1] == (1.0, 1.0, 1.5, 3.0)
    assert found.notes == ("lines: medians of 3 seeds; bands: from the lowest to the highest",)
    (axes,) = plot.draw(found).axes
    assert len(axes.collections) == 1
    found = drawn([RATE, SEED], lambda one: 1e9 / one[RATE.path])
    assert found.notes == ("the same with each of 3 seeds",)


def test_where_no_axis_has_numbers_marks_stand_over_names(tmp_path: Path) -> None:
    placement = axis("job.placement", "ncs", "cc")
    found = drawn([TREE, placement], lambda one: 1.0 * len("".join(one.values())))
    assert (found.x.title, found.names) == ("tree", ("two-level", "none"))
    assert [[p[2] for p in curve.points] for curve in found.panels[0].curves] == [
        [12.0, 7.0],
        [11.0, 6.0],
    ]
    assert {"two-level", "none", *found.labels} <= texts(found, tmp_path)
    assert {look[1] for _, look in looks(found)} == {"None"}  # nothing is in between


def test_missing_plot_is_explained() -> None:
    alone = axis("job.tree", "none")
    says = "no axis has several values to plot over"
    assert figure([alone], PlotSpec(), rows([alone], lambda _: 1.0)) == says
    failed = [{**row, Y: None} for row in rows([RATE], lambda _: 1.0)]
    assert "no trial has a number" in str(figure([RATE], PlotSpec(), failed))
    found = figure([RATE], PlotSpec(), [*rows([RATE], lambda _: 1.0)[1:], failed[0]])
    assert isinstance(found, Figure)
    assert found.notes == ("left out: trials without a value that could be drawn, 1",)
