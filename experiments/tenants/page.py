# SPDX-License-Identifier: Apache-2.0
"""The sections of the experiment's page, and its plot."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from experiments.common.declaration import Plot, Results, Section, Table
from experiments.common.plots import curve, start, ticks
from experiments.common.sensitivity import Varied, sensitivity
from experiments.tenants.figures import fairness, slowdowns, varied_slowdown
from experiments.tenants.jobs import HUBS, LINE_RATE, VARIED, counts
from observability import pictures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["sections"]


def sections(results: Results) -> Sequence[Section]:
    """Returns the sections."""
    found = [_setting(results), _slowdown(results)]
    return found if results.quick else [*found, _assumed(results)]


def _setting(results: Results) -> Section:
    model = "a job of 8 MB" if results.quick else "AlexNet, 203 MB, 16 ms of computing (recalled)"
    return Section(
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
    )


def _slowdown(results: Results) -> Section:
    return Section(
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
    )


def _assumed(results: Results) -> Section:
    rows = [
        ("time of computing", "16 ms an iteration of AlexNet", "recalled from PHub, unverified"),
        ("links of a PBox", "10", "recalled; the artifact has 10 queue pairs"),
        ("bytes of a chunk", "32 kB, two packets", "artifact of PHub: 32 KiB"),
        ("window", "512 packets of 16 kB", "assumed"),
        ("packets that a host gets at a time", "200 us", "assumed"),
        ("delay of a link", "10 us", "assumed"),
    ]
    varied = [
        Varied(hub.title, text, partial(varied_slowdown, results, hub, name))
        for hub in HUBS
        for name, text in VARIED.items()
    ]
    return Section(
        "What is assumed",
        [
            Table(("parameter", "value", "from"), rows, text=True),
            *sensitivity(
                f"Slow-down of the slowest of {counts(results.quick)[-1]} jobs with a parameter"
                " halved and doubled: jobs of 8 MB, with as much computing for their bytes.",
                "slow-down (times)",
                varied,
            ),
            "These jobs slow each other down less than AlexNet's above where the hub's links are"
            " too narrow; what counts here is how far a parameter moves the figure.",
        ],
    )


def _rows(results: Results) -> list[list[str]]:
    rows = []
    for hub in HUBS:
        (alone,) = results.get("seconds", of="jobs", hub=hub.name, jobs=1)
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
    axes.plot([], [], ":", color="#7f7f7f", linewidth=1, label="what the hub's links need")
    axes.set(xlabel="jobs", ylabel="slow-down of the slowest (times)", ylim=(0, None))
    ticks(axes, shown, lambda n: f"{n:g}")
    axes.legend(loc="lower left")
    return figure
