# SPDX-License-Identifier: Apache-2.0
"""The page's sections and plots."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from experiments.across_racks import predicted
from experiments.across_racks.figures import (
    compared,
    crossovers,
    gain,
    overhead,
    pipelined,
    time,
    varied_gain,
)
from experiments.across_racks.jobs import (
    BOX,
    BOX_RACKS,
    FLAT,
    MODELS,
    RING,
    SWITCHED,
    VARIED,
    VARIED_OVER,
    box_oversubscriptions,
    model_racks,
    oversubscriptions,
    racks,
    size,
    weak,
)
from experiments.common.declaration import Plot, Results, Section, Table
from experiments.common.plots import curve, panels, start, ticks
from experiments.common.sensitivity import FACTORS, Varied, sensitivity
from topologies.model.units import size_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["sections"]

_OF_TWO = ("planned", "faster", "plan says")


def sections(results: Results) -> Sequence[Section]:
    """Returns the page's sections."""
    found = [_runs(results), _ways(results), _boxes(results)]
    return [*found, *([] if results.quick else [_models(results), _assumed(results)])]


def _runs(results: Results) -> Section:
    amount = size_text(size(results.quick))
    return Section(
        "What is run",
        [
            f"Racks of four workers and a box, one server, under one core; {amount} of gradients,"
            " 10 Gbit/s links of workers, an uplink as fast as a rack's workers together (1:1), or"
            f" a half or a fourth of it; a box's link is like {BOX} of workers, as a PBox has ten,"
            " unless it says otherwise. All in virtual time. Flat, and with switches, sums are jobs"
            " (`placement: cs`, `tree: tor` with all boxes, `inc`); boxes are the"
            " collectives of [compare](../explanation/baselines.md), over TCP, and every value of"
            " their sums is checked. Schedules of boxes are verified before they run: every rack's"
            " values are in every sum once, and every sum is complete at one box. With"
            f" `{SWITCHED}` boxes push each key, a piece of 64 KiB at most, to the core switch as"
            " soon as they have their rack's sum of it, as workers do in jobs; each box would take"
            " the optimizer's step for its own rack's parameters, once for every chunk, of a sum"
            " that is complete at the core. Chunks of that have no payload here, as those of jobs;"
            " `rackhub compare` and tests check its sums.",
            "*bandwidth alone* is a closed form of w workers in each of r racks, links of rate B of"
            " workers, P of boxes and U up from a rack, and M bytes. Flat: max(2M(wr - 1) / (wr B),"
            " 2wM(r - 1) / (r U)). Two levels, pipelined by chunk: max(M / B, wM / P,"
            " 2M(r - 1) / (r min(U, P))), and where the core sums for boxes max(M / B, (w + 1) M /"
            " P, M / U). The planner adds what it leaves out: a box's link carries"
            " its rack's w copies and the exchange, (w + 2(r - 1) / r) M / P, and the latency of"
            " stages.",
        ],
    )


def _ways(results: Results) -> Section:
    quick = results.quick
    rows = []
    for count in racks(quick):
        for over in oversubscriptions(quick):
            times = [f"{1e3 * time(results, way, count, over):.2f}" for way in compared(quick)]
            flat, two = pipelined(count, over, BOX)
            chosen = predicted.choice(count, over, BOX, size(quick))
            plan = f"{chosen.levels}: {chosen.flat.seconds / chosen.two_level.seconds:.2f}"
            ratios = f"{gain(results, count, over):.2f}", f"{flat / two:.2f}", plan
            rows.append((str(count), f"{over}:1", *times, *ratios))
    names = [f"`{way}` ms" for way in compared(quick)]
    return Section(
        "Flat, boxes, switches",
        [
            Plot(
                "ways",
                "Time of a sum over the oversubscription of racks.",
                partial(_draw_ways, results),
            ),
            Table(
                ("racks", "uplinks", *names, f"`{FLAT}` / `{RING}`", "bandwidth alone", "plan"),
                rows,
            ),
            "*plan* is the number of levels that `rackhub plan` chooses without sums in switches,"
            " and the ratio that it predicts. A box makes the core carry one copy for each rack"
            " instead of one for each worker, and keeps workers' links at one copy each way. Where"
            " the core sums for boxes, one copy goes up from a rack in place of 2 (r - 1) / r, in"
            " one stage in place of the many of a ring. ToRs do all of it without a box.",
        ],
    )


def _boxes(results: Results) -> Section:
    quick = results.quick
    rows = []
    for box in weak(quick):
        for over in box_oversubscriptions(quick):
            flat = time(results, FLAT, BOX_RACKS, over)
            chosen = predicted.choice(BOX_RACKS, over, box, size(quick))
            assert chosen.core_switch is not None
            cells = [f"{1e3 * flat:.2f}", f"{1e3 * chosen.flat.seconds:.2f}"]
            for way, found, levels in (
                (RING, chosen.two_level, chosen.levels),
                (SWITCHED, chosen.core_switch, chosen.core_switch_levels),
            ):
                two = time(results, way, BOX_RACKS, over, box)
                cells += [f"{1e3 * two:.2f}", f"{1e3 * found.seconds:.2f}"]
                cells += ["two" if two < flat else "one", "two" if levels == 2 else "one"]
            rows.append((f"{box} x", f"{over}:1", *cells))
    weakest = predicted.choice(BOX_RACKS, oversubscriptions(quick)[0], weak(quick)[0], size(quick))
    (measured, planned), (switched, expected) = (
        crossovers(results, weak(quick)[0], way) for way in (RING, SWITCHED)
    )
    each = [text for way in (RING, SWITCHED) for text in (f"`{way}` ms", *_OF_TWO)]
    return Section(
        "Where two levels pay",
        [
            Plot(
                "boxes",
                f"Time of a sum of {BOX_RACKS} racks, flat and with boxes of different links.",
                partial(_draw_boxes, results),
            ),
            Table(("box's link", "uplinks", f"`{FLAT}` ms", "planned", *each), rows),
            f"A box's link that is like {weak(quick)[0]} of workers has all copies of its rack to"
            f" carry, so two levels pay only from {measured:.2f}:1 on (planned: {planned:.2f}:1);"
            f" where the core sums for boxes, from {switched:.2f}:1 on (planned: {expected:.2f}:1)."
            f" `rackhub plan` says for 1:1: *{weakest.why}*",
        ],
    )


def _assumed(results: Results) -> Section:
    assumed = [
        ("delay of a link, one way", "1 us", "assumed"),
        ("queues", "1 MiB", "assumed; windows of streams are shares of them"),
        ("gradients", size_text(size(quick=False)), "assumed"),
        ("window of jobs", "256 chunks of 8 KiB", "assumed; more than links need"),
        ("a box's link", f"like {BOX} of workers", "recalled: a PBox has ten"),
        ("time of computing", "16 and 161 ms", "recalled, of which two thirds are assumed to be"
         " the backward pass"),
    ]  # fmt: skip
    varied = [
        Varied(text, way, partial(varied_gain, results, name, way))
        for name, text in VARIED.items()
        for way in (RING, SWITCHED)
    ]
    model = MODELS[0]
    half, twice = (f"{overhead(results, model, BOX_RACKS, factor):.2f}" for factor in FACTORS)
    return Section(
        "What is assumed",
        [
            "No paper gives these, so each is halved and doubled.",
            Table(("parameter", "value", "from"), assumed, text=True),
            *sensitivity(
                f"Gain of two levels, {BOX_RACKS} racks, {VARIED_OVER}:1, with a parameter halved"
                " and doubled.",
                f"{FLAT} over two levels (times)",
                varied,
            ),
            f"{BOX_RACKS} racks make an iteration of {model.title} longer by {half} % with half the"
            f" time of computing, {overhead(results, model, BOX_RACKS):.2f} % as assumed, and"
            f" {twice} % with twice that time.",
        ],
    )


def _models(results: Results) -> Section:
    rows = [
        (
            model.title,
            str(count),
            f"{overhead(results, model, count):.2f}",
            f"{model.published[count]:.1f}",
        )
        for model in MODELS
        for count in model_racks(results.quick)[1:]
    ]
    return Section(
        "Overhead of more racks",
        [
            Plot(
                "overhead",
                f"Longer iterations than with one rack, with `{RING}`.",
                partial(_draw_overhead, results),
            ),
            Table(("model", "racks", "ours %", "published %"), rows),
            "Gradients become known evenly during the backward pass, two thirds of the computing"
            " (16 and 161 ms an iteration, as remembered of the paper); the forward pass begins"
            " when all sums are there. Gradients and times are a sixteenth of the models', which"
            " makes filling and draining the schedule weigh more, not less. The authors had one"
            " rack: a box sent each complete chunk to itself, over its own links, once for each"
            " further rack, and added it up each time; processing at boxes takes no time here,"
            " while a ring between boxes has the latency of its stages.",
        ],
    )


def _draw_ways(results: Results) -> Figure:
    shown = racks(results.quick)
    figure, axes = panels(1, len(shown), 3.4)
    widest = max(oversubscriptions(results.quick))
    most = 1.05e3 * max(time(results, FLAT, count, widest) for count in shown)
    for one, count in zip(axes, shown, strict=True):
        for number, way in enumerate(compared(results.quick)):
            line = [
                (over, 1e3 * time(results, way, count, over))
                for over in oversubscriptions(results.quick)
            ]
            curve(one, number, line, way)
        one.set_title(f"{count} racks", loc="left")
        one.set(xlabel="oversubscription", ylim=(0, most), xscale="log")
        ticks(one, oversubscriptions(results.quick), lambda over: f"{over:g}:1")
    axes[0].set_ylabel("ms per sum")
    axes[0].legend(loc="upper left")
    return figure


def _draw_boxes(results: Results) -> Figure:
    quick = results.quick
    at = box_oversubscriptions(quick)
    figure, panes = panels(1, 2, 3.4)
    flat = [(over, 1e3 * time(results, FLAT, BOX_RACKS, over)) for over in at]
    most = 1.05 * max(ms for _, ms in flat)
    for axes, way in zip(panes, (RING, SWITCHED), strict=True):
        curve(axes, 0, flat, f"flat ({FLAT})")
        for number, box in enumerate(weak(quick), 1):
            line = [(over, 1e3 * time(results, way, BOX_RACKS, over, box)) for over in at]
            curve(axes, number, line, f"box's link {box} x a worker's")
            measured, planned = crossovers(results, box, way)
            if measured > at[0]:
                label = "predicted crossover" if number == 1 else "_nolegend_"
                top = float(np.interp(planned, at, [ms for _, ms in flat]))
                axes.vlines(planned, 0, top, color="#7f7f7f", linewidth=1, label=label)
        axes.set_title(way, loc="left")
        axes.set(xlabel="oversubscription of racks' uplinks", ylim=(0, most))
        ticks(axes, at, lambda over: f"{over:g}:1")
    panes[0].set_ylabel("ms per sum")
    figure.legend(*panes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure


def _draw_overhead(results: Results) -> Figure:
    figure, axes = start(3.2)
    for number, model in enumerate(MODELS):
        ours = [(n, overhead(results, model, n)) for n in model_racks(results.quick)[1:]]
        curve(axes, number, ours, f"{model.title}, ours")
        curve(axes, number, model.published.items(), f"{model.title}, published", fill=False)
    axes.set(xlabel="racks", ylabel="% longer than one rack", ylim=(0, None))
    ticks(axes, (2, 3, 4, 5, 6, 7, 8), lambda count: f"{count:g}")
    axes.legend()
    return figure
