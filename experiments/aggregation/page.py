# SPDX-License-Identifier: Apache-2.0
"""The sections of the experiment's page, and its plots."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from experiments.aggregation.figures import (
    BMV2,
    FLAT,
    RATIOS,
    bound,
    goodput,
    knee,
    published_seconds,
    seconds,
    sizes,
    varied,
    windows,
)
from experiments.aggregation.jobs import (
    ALL,
    CHUNK_BYTES,
    DELAYS,
    FEW,
    FEW_CHUNKS,
    INC,
    LEVELS,
    MANY,
    RATE,
    SIZE,
    SLOWER,
    VARIED,
    WORKERS_LINKS,
)
from experiments.aggregation.planned import planned
from experiments.common.collectives import BASELINES
from experiments.common.declaration import Plot, Results, Section, Table
from experiments.common.plots import curve, start, ticks
from experiments.common.sensitivity import Varied, sensitivity
from observability import pictures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["sections"]

_WAYS = (INC, *BASELINES)


def sections(results: Results) -> Sequence[Section]:
    """Returns the sections."""
    return list(_sections(results))


def _sections(results: Results) -> Iterator[Section]:
    size = SIZE / (4 if results.quick else 1)
    yield Section(
        "What is run",
        [
            f"All-reduces of {size / 1e6:g} MB over links of 10 Gbit/s and 1 us in virtual time;"
            f" switches sum in chunks of {CHUNK_BYTES // 1024} KiB. Ring, halving-doubling and"
            " servers (ps: one; sharded-ps: one for each four workers, up to 32 workers) are those"
            " of `rackhub compare`, over its model of TCP. An iteration is the median of those"
            " after the first, which also agrees on exponents."
            " Nothing is fitted.",
        ],
    )
    yield _workers(results)
    yield _windows(results)
    yield _losses(results)
    if published_seconds(results, 1):
        yield _published(results)
    yield _stragglers(results)
    if not results.quick:
        yield _assumed(results)


def _workers(results: Results) -> Section:
    rows = []
    for workers in sizes(results):
        cells = [f"{workers:,}"]
        for way in _WAYS:
            found = list(results.all(of="workers", way=way, workers=workers))
            cells.append(f"{1e3 * found[0].measures['seconds']:.3f}" if found else "-")
        rows.append(cells)
    return Section(
        "Workers",
        [
            Plot(
                "workers",
                "Time of an iteration over workers. Marks: in virtual time. Lines without marks: as"
                " `rackhub plan` predicts it.",
                partial(_draw_workers, results),
            ),
            Table(("workers", *(f"{way} ms" for way in _WAYS)), rows),
            "Each link of the tree carries the gradients once, however many workers there are. A"
            " ring's and halving-doubling's links carry them nearly twice, and the number of steps"
            " grows; a server's link carries them once for each worker that it serves.",
        ],
    )


def _draw_workers(results: Results) -> Figure:
    figure, axes = start(3.6)
    shown = sizes(results)
    for number, way in enumerate(_WAYS):
        times = [(n, 1e3 * t) for n in shown if (t := planned(n, way, results.quick)) is not None]
        colour = pictures.COLOURS[number]
        axes.plot([n for n, _ in times], [t for _, t in times], color=colour, linewidth=0.9)
        rows = results.all(of="workers", way=way)
        points = [(r.values["workers"], 1e3 * r.measures["seconds"]) for r in rows]
        curve(axes, number, ((float(n), t) for n, t in points), way)
    axes.plot([], [], color="#7f7f7f", linewidth=0.9, label="as planned")
    axes.set(xscale="log", yscale="log", xlabel="workers", ylabel="ms per iteration")
    ticks(axes, shown, lambda n: f"{n:,.0f}")
    pictures.label_ticks(axes.yaxis)
    axes.legend(ncols=2)
    return figure


def _windows(results: Results) -> Section:
    rows = []
    for delay in DELAYS:
        for window in windows(results, delay):
            both = (one(results, delay, window) / 1e9 for one in (goodput, bound))
            rows.append((f"{delay * 1e6:g}", str(window), *(f"{one:.2f}" for one in both)))
    knees = "; ".join(
        f"{knee(delay):.1f} chunks with {delay * 1e6:g} us a link"
        for delay in DELAYS
        if windows(results, delay)
    )
    return Section(
        "Windows and slots",
        [
            Plot(
                "windows",
                "Goodput of a worker over its window. Dotted: window over round trip, and what the"
                " line carries. Vertical: rate times round trip.",
                partial(_draw_windows, results),
            ),
            f"Goodput is min(window / round trip, rate), with a round trip of two levels of"
            f" switches: four links, each a frame's time and the delay. The knee is at {knees}."
            " A stream of a window has twice as many slots in each switch of its tree.",
            Table(("us a link", "window", "Gbit/s", "closed form"), rows),
        ],
    )


def _draw_windows(results: Results) -> Figure:
    figure, axes = start(3.2)
    every = sorted({n for delay in DELAYS for n in windows(results, delay)})
    for number, delay in enumerate(DELAYS):
        found = windows(results, delay)
        if not found:
            continue
        fine = [every[0] * 2 ** (n / 8) for n in range(8 * (len(every) + 3))]
        fine = [n for n in fine if n <= every[-1]]
        most = [bound(results, delay, n) / 1e9 for n in fine]
        colour = pictures.COLOURS[number]
        axes.plot(fine, most, ":", color=colour, linewidth=1.2)
        axes.axvline(knee(delay), color=colour, linewidth=0.8, alpha=0.6)
        points = [(float(n), goodput(results, delay, n) / 1e9) for n in found]
        curve(axes, number, points, f"links of {delay * 1e6:g} us")
    axes.plot([], [], ":", color="#7f7f7f", linewidth=1.2, label="closed form")
    axes.plot([], [], "-", color="#7f7f7f", linewidth=0.8, label="rate x round trip")
    axes.set(xscale="log", xlabel="window (chunks in flight)", ylabel="Gbit/s of gradients")
    axes.set_ylim(0, None)
    ticks(axes, every, lambda n: f"{n:.0f}")
    axes.legend(loc="lower right")
    return figure


def _losses(results: Results) -> Section:
    losses = sorted({float(row.values["loss"]) for row in results.all(of="loss")})
    used = sorted({int(row.values["levels"]) for row in results.all(of="loss")})
    rows = []
    for loss in losses:
        cells = [f"{100 * loss:g} %"]
        for levels in used:
            for measure in ("seconds", "longest_s"):
                found = results.get(measure, of="loss", levels=levels, loss=loss)
                cells.append(f"{1e3 * found:.2f}")
        rows.append(cells)
    headings = [f"{what}, levels: {n}" for n in used for what in ("ms", "longest")]
    return Section(
        "Losses",
        [
            Plot(
                "losses",
                "Time of an iteration over the share of packets that every link loses, each way.",
                partial(_draw_losses, results, used, losses),
            ),
            Table(("loss of every link", *headings), rows),
            "Medians, and the longest of eight iterations. Up to 3 % losses are found by results"
            " that overtake them. Beyond 10 % the last chunks of an iteration lose their"
            " retransmissions, too, and wait for timeouts, of which the shortest is 1 ms.",
        ],
    )


def _draw_losses(results: Results, used: Sequence[int], losses: Sequence[float]) -> Figure:
    figure, axes = start(3.2)
    least = min(loss for loss in losses if loss > 0) / 3  # where none is drawn
    for number, levels in enumerate(used):
        points = [
            (loss or least, 1e3 * seconds(results, of="loss", levels=levels, loss=loss))
            for loss in losses
        ]
        curve(axes, number, points, f"{levels} level{'s' * (levels > 1)} of switches")
    axes.set(xscale="log", yscale="log", xlabel="loss of every link", ylabel="ms per iteration")
    ticks(
        axes, [loss or least for loss in losses], lambda x: f"{100 * x:g} %" if x > least else "0"
    )
    pictures.label_ticks(axes.yaxis)
    axes.legend()
    return figure


def _published(results: Results) -> Section:
    rows = []
    for levels in (FLAT, *LEVELS):
        cells = [str(levels) if levels else "a server alone", f"{BMV2[levels]:g}"]
        cells.append(f"{BMV2[levels] / BMV2[1]:.2f}")
        for lossy in (ALL, WORKERS_LINKS):
            found = published_seconds(results, levels, lossy)
            mean = statistics.fmean(found)
            cells.append(f"{mean:.2f} ({min(found):.2f} to {max(found):.2f})")
            cells.append(f"{mean / statistics.fmean(published_seconds(results, 1, lossy)):.2f}")
        real = published_seconds(results, levels, ALL, "emulated")
        cells.append(f"{real[0]:.2f}" if real else "-")
        rows.append(cells)
    return Section(
        "30 % loss, as published of BMv2",
        [
            f"{FEW_CHUNKS} chunks of 1 KiB, two workers, 30 % of packets lost, 20 Mbit/s: means of"
            " five seeds, lowest and highest in brackets; emulated: one seed, on this project's"
            " target. *Rel.* is over one level. Where the published implementation lost packets is"
            " not known: on every link, then more levels cross more lossy links; or at workers,"
            " then they do not, and levels cost nothing here beyond what seeds differ by. Seconds"
            " cannot be compared, as nothing is known of its rates.",
            Table(
                (
                    *("levels", "published s", "rel."),
                    *("lossy everywhere s", "rel.", "lossy at workers s", "rel.", "emulated s"),
                ),
                rows,
            ),
        ],
    )


def _stragglers(results: Results) -> Section:
    shown = [n for n in SLOWER if any(results.all(of="straggler", slower=n))]
    ways = [way for way in _WAYS if any(results.all(of="straggler", way=way))]
    rows = [
        [
            str(n),
            *(f"{1e3 * seconds(results, of='straggler', way=way, slower=n):.2f}" for way in ways),
        ]
        for n in shown
    ]
    return Section(
        "A straggler",
        [
            "One worker's link is slower, both ways. Sums in the network need its gradients once,"
            " and wait for nothing else; in a ring all steps wait for it. A straggler gains what"
            " traffic it is spared.",
            Table(("times slower", *(f"{way} ms" for way in ways)), rows),
        ],
    )


def _assumed(results: Results) -> Section:
    rows = [
        ("rate of a link", f"{RATE / 1e9:g} Gbit/s", "assumed; only counts beside the delay"),
        ("delay of a link", "1 us, and 5 and 20 for windows", "assumed"),
        ("gradients", f"{SIZE / 1e6:g} MB", "assumed"),
        ("bytes of a chunk", f"{CHUNK_BYTES // 1024} KiB", "assumed: a frame of 9,000 bytes"),
        ("window", "256 chunks", "assumed: more than a link needs"),
        ("timeouts", "1 ms at least", "ours; of the published implementation unknown"),
    ]
    ratios = [
        Varied(what, text, partial(varied, results, what, name))
        for what in RATIOS
        for name, text in VARIED.items()
    ]
    return Section(
        "What is assumed",
        [
            Table(("parameter", "value", "from"), rows, text=True),
            *sensitivity(
                f"Ratios of times with a parameter halved and doubled: {MANY} workers over {FEW}, a"
                f" ring over switches with {MANY}, and one link {SLOWER[-1]} times slower over none"
                f" with {FEW}.",
                "ratio (times)",
                ratios,
            ),
        ],
    )
