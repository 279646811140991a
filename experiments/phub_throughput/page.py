# SPDX-License-Identifier: Apache-2.0
"""The sections of the experiment's page, and its plots."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from experiments.common.declaration import Block, Plot, Results, Section, Table
from experiments.common.phub import (
    COPY_NS,
    MXNET,
    MXNET_IB,
    PBOX,
    PSHARD,
    RATES,
    SUM_RATE,
    SWITCHES,
    SYSTEMS,
    WORKERS,
)
from experiments.common.plots import panels
from experiments.common.sensitivity import Varied, sensitivity
from experiments.phub_throughput.figures import (
    TRAFFIC,
    gain,
    in_sequence,
    models,
    plan_errors,
    rates,
    seconds,
    varied_gain,
)
from experiments.phub_throughput.jobs import VARIED
from observability import pictures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["sections"]

_PARAMETERS = {
    "computing": "time of computing",
    "copies": "time of copies",
    "sums": "time of sums",
}


def sections(results: Results) -> Sequence[Section]:
    """Returns the sections."""
    found = [_setting(), _throughput(results), _parts(results)]
    return found if results.quick else [*found, _assumed(results)]


def _setting() -> Section:
    rows = [(one.name, one.meaning, f"`{one.placement}`") for one in SYSTEMS]
    return Section(
        "What is run",
        [
            f"{WORKERS} workers in a rack, links of 10 and of 56 Gbit/s, in virtual time. An"
            " iteration lasts from the end of a forward pass to the end of the next, so that"
            " gradients are exchanged during backward and forward passes; throughput is its"
            " inverse.",
            Table(("system", "", "placement"), rows, text=True),
            "PHub and PShard cut keys into slices of 8,000 parameters (32 kB, two packets; PHub:"
            " 8,192), each of which a server answers when it is complete. MXNet has whole keys;"
            " a key of more than 10^6 parameters has a part at each server (`schedule: {order:"
            " fifo, slice: whole, assign: hashed, release: slice}`). Copies take time of a host's"
            " processor for each byte sent or received, and sums of a server's for each byte"
            " received: both from the poster's breakdown of one model, and the same for all. PHub"
            " has neither: its network cards read and write gradients in place, and its cores"
            " sum at the rate of links.",
            "All run, three iterations each; the model of"
            " [`rackhub plan`](../explanation/planning.md) predicted each, and alone computed what"
            " is [varied](#what-is-assumed).",
        ],
    )


def _throughput(results: Results) -> Section:
    rows = []
    for model in models(results):
        for rate in rates(results):
            times = [seconds(results, model, rate, one) for one in SYSTEMS]
            rows.append(
                (
                    model.title,
                    str(rate),
                    *(f"{1e3 * one:.0f}" for one in times),
                    *(f"{WORKERS * model.batch / one:.0f}" for one in (times[0], times[3])),
                )
            )
    errors = plan_errors(results)
    stated = ", ".join(
        f"{name} {100 * min(found):+.1f} to {100 * max(found):+.1f} %"
        for name, found in errors.items()
    )
    return Section(
        "Throughput",
        [
            Plot(
                "gain",
                "Throughput over stock MXNet, 8 workers. Bars: here; stars: published, of PHub.",
                partial(_draw_gains, results),
            ),
            Table(
                (
                    *("model", "Gbit/s", *(f"{one.name} ms" for one in SYSTEMS)),
                    *("PHub examples a second", "MXNet"),
                ),
                rows,
            ),
            f"The plan's errors: {stated}.",
        ],
    )


def _parts(results: Results) -> Section:
    rows, serial = [], []
    rate = RATES[0]
    for model in models(results):
        traffic = gain(results, model, rate, PSHARD)
        software = gain(results, model, rate, MXNET, PSHARD)
        published = model.over_mxnet / model.shard_over_mxnet
        copies = gain(results, model, rate, MXNET, MXNET_IB)
        rows.append(
            (
                model.title,
                *(f"{traffic:.2f}", f"{published:.2f}"),
                *(f"{software:.2f}", f"{model.shard_over_mxnet:.2f}"),
                f"{copies:.2f}",
                f"{gain(results, model, rate, SWITCHES):.2f}",
            )
        )
        fast = seconds(results, model, rate, PBOX)
        serial.append(
            (
                model.title,
                *(
                    text
                    for system, published in ((MXNET_IB, model.over_ib), (MXNET, model.over_mxnet))
                    for text in (
                        f"{gain(results, model, rate, system):.2f}",
                        f"{in_sequence(model, rate, system) / fast:.2f}",
                        f"{published:g}",
                    )
                ),
            )
        )
    return Section(
        "How much is traffic, how much software",
        [
            Plot(
                "parts",
                "PHub's gain over stock MXNet at 10 Gbit/s as a product: software (PShard over"
                " MXNet, with the same traffic), times traffic (PHub over PShard, with the same"
                " software). Upper bars: here; lower, fainter: published.",
                partial(_draw_parts, results),
            ),
            Table(
                (
                    *("model", "traffic", "published", "software", "published"),
                    *("of which copies", "PHub over switches"),
                ),
                rows,
            ),
            f"With servers at workers a link carries 2 (N - 1) / N = {TRAFFIC:.2f} times the"
            " gradients each way, with a PBox, or with a switch that sums, once. So traffic alone"
            f" can give at most {TRAFFIC:.2f}; published are up to 2.06 (AlexNet), which"
            " traffic does not explain. Where computing hides what PShard transfers, PHub gains"
            " nothing. Software is what copies, sums and whole keys cost.",
            "Here computing, transfers, copies and sums of MXNet overlap. The same parts one after"
            " another, as in the poster's breakdown, give more. Published gains over MXNet IB lie"
            " between the two or next to them, those over stock MXNet near the latter or above:",
            Table(
                (
                    *("PHub over", "MXNet IB", "in sequence", "published"),
                    *("MXNet", "in sequence", "published"),
                ),
                serial,
            ),
            "A switch that sums gives what a PBox gives, without its ten links: a worker's link"
            " carries the same bytes.",
        ],
    )


def _assumed(results: Results) -> Section:
    rows = [
        ("time of computing", "16 to 386 ms, by model", "recalled from the paper, unverified"),
        (
            "copies",
            f"{COPY_NS:.2f} ns a byte, each way",
            "poster: 0.75 s of an iteration of ResNet-269 with MXNet (read off)",
        ),
        (
            "sums",
            f"{SUM_RATE:.1f} Gbit/s of a server",
            "poster: 0.34 s of the same (read off)",
        ),
        ("chunks of PHub", "32 KiB", "artifact"),
        ("parts of whole keys", "above 10^6 parameters", "artifact: MXNet's default, 4 MiB"),
        ("links of a PBox", "10", "recalled; the artifact has 10 queue pairs"),
        ("delay of a link, each way", "10 us", "assumed"),
        ("packets that a host gets at a time", "64", "assumed; 0.8 ms at 10 Gbit/s"),
    ]
    varied = [
        Varied(model.title, text, partial(varied_gain, results, model, name), model.over_mxnet)
        for model in VARIED
        for name, text in _PARAMETERS.items()
    ]
    blocks: list[Block] = [
        "Nothing is tuned to a gain. Delays and packets at a time are halved and doubled where"
        " [nothing is computed](zero-compute.md#what-is-assumed), which they matter for most.",
        Table(("parameter", "value", "from"), rows, text=True),
        *sensitivity(
            "PHub's throughput over stock MXNet at 10 Gbit/s with a parameter halved and doubled"
            " (planned); dotted: published.",
            "PHub over MXNet (times)",
            varied,
        ),
        "The poster's breakdown also has 0.11 s of synchronisation for ResNet-269 and 0.02 s of"
        " the optimizer, which are left out, and its parts follow each other, where here each"
        " has a processor of its own and they overlap. The published gains are nearer to those in"
        " sequence (above), which is most of what ours lack. At 56 Gbit/s a real PBox is bound by"
        " caches and PCIe, which are not modelled, so that ours gains more there.",
    ]
    return Section("What is assumed", blocks)


def _draw_gains(results: Results) -> Figure:
    figure, axes = panels(len(rates(results)), 1, 2.6 * len(rates(results)), sharex=True)
    shown = models(results)
    for one, rate in zip(axes, rates(results), strict=True):
        for number, system in enumerate((PBOX, PSHARD, MXNET_IB, SWITCHES)):
            for place, model in enumerate(shown):
                one.bar(
                    place + 0.2 * (number - 1.5),
                    gain(results, model, rate, MXNET, system), 0.18,
                    color=pictures.COLOURS[number],
                    label=system.name if not place else None,
                )  # fmt: skip
        published = [m.over_mxnet if rate == RATES[0] else m.over_mxnet_56 for m in shown]
        one.plot(
            [place - 0.3 for place in range(len(shown))], published, "*", color="#000000",
            markersize=10, markeredgecolor="white", label="PHub, published",
        )  # fmt: skip
        one.axhline(1, color="#7f7f7f", linewidth=1, linestyle=":")
        one.set_title(f"{rate} Gbit/s", loc="left")
        one.set(ylabel="throughput over MXNet", ylim=(0, None))
    axes[-1].set_xticks(range(len(shown)), [m.title for m in shown], rotation=20, ha="right")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=5)
    return figure


def _draw_parts(results: Results) -> Figure:
    from matplotlib import ticker

    shown = models(results)
    figure, (axes,) = panels(1, 1, 0.5 + 0.42 * max(4, len(shown)))
    rate = RATES[0]
    for place, model in enumerate(shown):
        ours = (gain(results, model, rate, MXNET, PSHARD), gain(results, model, rate, PSHARD))
        paper = (model.shard_over_mxnet, model.over_mxnet / model.shard_over_mxnet)
        for row, (software, traffic) in enumerate((ours, paper)):
            at, alpha = place + 0.4 * (row - 0.5), 0.45 if row else 1
            labels = (None, None) if place or row else ("software", "traffic")
            axes.barh(
                at, software - 1, 0.36, 1, color=pictures.COLOURS[0], alpha=alpha, label=labels[0]
            )
            axes.barh(
                at, software * traffic - software, 0.36, software, color=pictures.COLOURS[1],
                alpha=alpha, label=labels[1],
            )  # fmt: skip
            axes.text(
                software * traffic * 1.02, at, f"{software * traffic:.1f}", va="center", fontsize=8
            )
    axes.barh([0], [0], color="#7f7f7f", alpha=0.45, label="published (fainter)")
    axes.set_xscale("log")
    axes.set_xlim(1, 4.8)
    axes.xaxis.set_major_locator(ticker.FixedLocator([1, 1.5, 2, 3, 4]))
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(ticker.NullLocator())
    axes.set_yticks(range(len(shown)), [model.title for model in shown])
    axes.invert_yaxis()
    axes.grid(visible=False)
    axes.set_xlabel("throughput over stock MXNet (times, logarithmic)")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure
