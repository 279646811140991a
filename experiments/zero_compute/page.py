# SPDX-License-Identifier: Apache-2.0
"""The sections of the experiment's page, and its plots."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from experiments.common.declaration import Plot, Results, Section, Table
from experiments.common.phub import LINKS, MXNET, MXNET_IB, PBOX, PSHARD, SWITCHES, WORKERS
from experiments.common.plots import curve, panels, ticks
from experiments.common.sensitivity import Varied, sensitivity
from experiments.zero_compute.figures import (
    PUBLISHED,
    counts,
    exchanges,
    line_seconds,
    seconds,
    software_seconds,
    varied_ratio,
)
from experiments.zero_compute.jobs import COLLECTIVES, COUNTS, MANY, RATE, VARIED
from observability import pictures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["sections"]

_NAMES = (PBOX.name, SWITCHES.name, PSHARD.name, *COLLECTIVES, MXNET_IB.name, MXNET.name)


def sections(results: Results) -> Sequence[Section]:
    """Returns the sections."""
    rows = []
    for name in _NAMES:
        for workers in counts(results, name):
            took = seconds(results, name, workers)
            ran = any(results.all(system=name, workers=workers, of="run"))
            published = str(PUBLISHED[name]) if workers == WORKERS and name in PUBLISHED else ""
            rows.append(
                (
                    name + ("" if ran else ", planned"),
                    str(workers),
                    f"{1e3 * took:.2f}",
                    f"{workers / took:.0f}",
                    published,
                )
            )
    found = [
        Section(
            "What is run",
            [
                "ResNet-18's gradients (46.8 MB), all keys pushed at once, nothing computed; links"
                f" of {RATE} Gbit/s, in virtual time. An exchange is a worker's: with eight"
                " workers there are eight in an iteration, as on the poster. PBox is one server"
                " host with ten links; PShard has a server at each worker; MXNet's copies and sums"
                " take what the [poster's breakdown](phub-throughput.md#what-is-assumed) has; ring"
                " and halving-doubling are those of [`rackhub"
                " compare`](../explanation/baselines.md), whose software costs nothing; switches"
                " sum for up to 32 children each, so above that there are racks of 15 under a"
                " core, for collectives with uplinks of 15 x 56 Gbit/s. A server has at most 32"
                " workers. Collectives of more than eight workers are planned, not run.",
            ],
        ),
        Section(
            "Exchanges a second",
            [
                Plot(
                    "exchanges",
                    "Exchanges a second of all workers together. Left: up to eight workers; stars:"
                    " published. Right: up to 120 (hollow: planned).",
                    partial(_draw, results),
                ),
                Table(
                    ("", "workers", "ms an exchange", "exchanges a second", "published"),
                    rows,
                ),
                f"Bytes alone take {1e3 * line_seconds():.2f} ms on a worker's link. With PHub or"
                " a switch that sums, nothing else does, so eight workers make"
                f" {exchanges(results, PBOX.name, WORKERS):.0f} exchanges a second, where 790"
                f" were published: the prototype used {100 * 790 * line_seconds() / 8:.0f} % of"
                f" its links. A PBox's {LINKS} links carry ten workers; with more an exchange"
                " takes longer in proportion. Switches have a port for each worker."
                " Halving-doubling with 60 and 120 workers, no powers of two, moves gradients"
                " twice (its fold).",
                *_software(results),
            ],
        ),
    ]
    return found if results.quick else [*found, _assumed(results)]


def _assumed(results: Results) -> Section:
    varied = [
        Varied(
            f"over {system.name}",
            text,
            partial(varied_ratio, results, system.name, name),
            PUBLISHED[PBOX.name] / PUBLISHED[system.name],
        )
        for system in (PSHARD, MXNET_IB, MXNET)
        for name, (text, systems) in VARIED.items()
        if system in systems
    ]
    rows = [
        ("copies and sums", "[of MXNet](phub-throughput.md#what-is-assumed)", "poster, read off"),
        ("packets that a host gets at a time", "16", "assumed"),
        ("delay of a link, one way", "10 us", "assumed"),
        ("links of a PBox", f"{LINKS}", "recalled; the artifact has 10 queue pairs"),
    ]
    return Section(
        "What is assumed",
        [
            Table(("parameter", "value", "from"), rows, text=True),
            *sensitivity(
                "Exchanges of PHub over those of others, eight workers, with a parameter halved and"
                " doubled; dotted: published.",
                "exchanges, PHub over it (times)",
                varied,
            ),
        ],
    )


def _software(results: Results) -> list[str]:
    if WORKERS not in counts(results, MXNET_IB.name):
        return []
    enhanced, stock = (1e3 * seconds(results, one.name, WORKERS) for one in (MXNET_IB, MXNET))
    return [
        f"Enhanced MXNet takes {enhanced:.0f} ms, of which its sums alone are"
        f" {1e3 * software_seconds(False):.0f}; published {8e3 / PUBLISHED[MXNET_IB.name]:.0f}."
        f" Stock MXNet takes {stock:.0f} ms, its copies alone"
        f" {1e3 * software_seconds(True):.0f}; published {8e3 / PUBLISHED[MXNET.name]:.0f}. Costs"
        " are of the same poster's other figure and another model, and here all keys are pushed"
        " at once. Ratios to PHub are larger than published, as ours uses its links fully."
    ]


def _draw(results: Results) -> Figure:
    figure, axes = panels(1, 2, 3.6)
    for number, name in enumerate(_NAMES):
        found = [(n, exchanges(results, name, n)) for n in counts(results, name)]
        if not found:
            continue
        few = [point for point in found if point[0] <= WORKERS]
        curve(axes[0], number, few, name)
        if name in PUBLISHED:
            axes[0].plot(
                [WORKERS + (0.45 if number % 2 else 0.9)], [PUBLISHED[name]], "*", markersize=10,
                color=pictures.COLOURS[number], markeredgecolor="white", clip_on=False,
            )  # fmt: skip
        if name in COLLECTIVES:
            ran = [point for point in found if point[0] in COUNTS]
            curve(axes[1], number, found, fill=False)
            curve(axes[1], number, ran)
        elif name not in (MXNET.name, MXNET_IB.name):
            curve(axes[1], number, found)
    axes[0].plot([], [], "*", color="#7f7f7f", markersize=10, label="published")
    axes[0].set(xlabel="workers", ylabel="exchanges a second", ylim=(0, None), xlim=(0.5, 9.1))
    axes[1].set(xlabel="workers (both axes logarithmic)", xscale="log", yscale="log")
    ticks(axes[0], COUNTS, lambda value: f"{value:g}")
    ticks(axes[1], COUNTS + MANY, lambda value: f"{value:g}")
    pictures.label_ticks(axes[1].yaxis)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
    return figure
