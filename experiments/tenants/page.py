# SPDX-License-Identifier: Apache-2.0
"""The sections of the experiment's page, and its plot."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from experiments.common.declaration import Plot, Results, Section, Table
from experiments.common.plots import curve, start, ticks
from experiments.tenants.figures import fairness, slowdowns
from experiments.tenants.jobs import HUBS, LINE_RATE, counts
from observability import pictures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["sections"]


def sections(results: Results) -> Sequence[Section]:
    """Returns the sections."""
    model = "a job of 8 MB" if results.quick else "AlexNet, 203 MB, 16 ms of computing (recalled)"
    return [
        Section(
            "What is run",
            [
                f"Up to eight jobs of two workers each in one rack, each worker with a link of"
                f" {LINE_RATE} Gbit/s, in virtual time; {model}. The hub is a PBox, a server with"
                " ten links and a process at each, which all jobs use (`placement: ncs`), or the"
                " rack's switch, which sums for all of them (`inc`). Servers' processing takes no"
                " time here, so only links are shared. Jobs begin at the same time and compute for"
                " as long, which is the worst case for what they share.",
                "Eight jobs bring 160 Gbit/s. Ten links of 56 Gbit/s take that; ten links of"
                " 10 Gbit/s are full from five jobs on. At a switch each worker's link is its own,"
                " and jobs share slots alone, which a job's window takes for itself.",
            ],
        ),
        Section(
            "Slow-down",
            [
                Plot(
                    "slowdown",
                    "Time of an iteration of the slowest job, over that of one job alone. Dotted:"
                    " what the hub's links need.",
                    partial(_draw, results),
                ),
                Table(
                    ("hub", "jobs", "ms alone", "fastest", "slowest", "links need", "Jain's index"),
                    _rows(results),
                ),
            ],
        ),
    ]


def _rows(results: Results) -> list[list[str]]:
    rows = []
    for hub in HUBS:
        (alone,) = results.get("seconds", hub=hub.name, jobs=1)
        for jobs in counts(results.quick):
            slower = slowdowns(results, hub, jobs)
            cells = [hub.title, str(jobs), f"{1e3 * alone:.1f}"]
            cells += [f"{min(slower):.3f}", f"{max(slower):.3f}", f"{hub.slowdown(jobs):.2f}"]
            rows.append([*cells, f"{fairness(results, hub, jobs):.4f}"])
    return rows


def _draw(results: Results) -> Figure:
    figure, axes = start(3.2)
    shown = counts(results.quick)
    for number, hub in enumerate(HUBS):
        colour = pictures.COLOURS[number]
        every = range(1, shown[-1] + 1)
        axes.plot(every, [hub.slowdown(n) for n in every], ":", color=colour, linewidth=1)
        points = [(float(n), max(slowdowns(results, hub, n))) for n in shown]
        curve(axes, number, points, hub.title)
    axes.set(xlabel="jobs", ylabel="slow-down of the slowest", ylim=(0, None))
    ticks(axes, shown, lambda n: f"{n:g}")
    axes.legend(loc="lower left")
    return figure
