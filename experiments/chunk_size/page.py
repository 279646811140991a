# SPDX-License-Identifier: Apache-2.0
"""The sections of the experiment's page, and its plots."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from experiments.chunk_size.figures import imbalance, line_seconds, rates, seconds, varied_rate
from experiments.chunk_size.jobs import (
    BEST,
    CORES,
    KIB,
    LINK_COUNTS,
    MESSAGE,
    MODEL,
    PUBLISHED,
    RATE,
    TALL,
    VARIED,
    WIDE,
    WINDOW_BYTES,
)
from experiments.common.declaration import Block, Plot, Results, Section, Table
from experiments.common.phub import LINKS, WORKERS
from experiments.common.plots import curve, start, ticks
from experiments.common.sensitivity import Varied, sensitivity

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["sections"]

_BALANCED = ("vgg19", "alexnet", "resnet18-v2", "resnet50-v2")
_SLICES = (
    (0, "whole keys"),
    (4 << 20, "4 MiB"),
    (160_000, "40,000 parameters"),
    (32 << 10, "32 KiB"),
)


def sections(results: Results) -> Sequence[Section]:
    """Returns the sections."""
    found = [_sizes(results), _links(results)]
    if results.quick:
        return found
    return [*found, _cores(results), _elision(results), _assumed(results)]


def _sizes(results: Results) -> Section:
    found = rates(results)
    rows = [
        (
            str(size), f"{rate:.0f}", f"{rate / found[BEST]:.2f}",
            *((str(PUBLISHED[size]), f"{PUBLISHED[size] / PUBLISHED[BEST]:.2f}")
              if size in PUBLISHED else ("", "")),
        )
        for size, rate in found.items()
    ]  # fmt: skip
    text = [
        f"Chunks up to 8 KiB are a packet, longer ones several of 8 KiB. A server's process"
        " answers a chunk when all of it is in from all workers (`release: slice`). A message"
        f" takes {1e6 * MESSAGE:.2f} us of a worker's host each way (`host_per_packet`, shared by"
        " its packets), which is what the published figure for 4 KiB says if nothing else counts;"
        " other sizes follow from it. Below 32 KiB messages bound the"
        " exchange. Above it all workers send the same chunk to the same link of the server at"
        f" about the same time, and what a worker has in flight ({WINDOW_BYTES >> 20} MiB, assumed)"
        " is for fewer links than there are, while a chunk is answered only when all of it is in:"
        " with more or fewer bytes in flight the decline is elsewhere (below). Links have equally"
        " many bytes, within 2 %.",
        "A real PBox makes 765 exchanges a second with 32 KiB where its links could carry 1,200:"
        " caches and PCIe, which are not modelled, bound it. So our curve is flatter at the top,"
        " and its relative figures are lower on the left and higher on the right.",
    ]
    if not results.quick:
        inc = ", ".join(
            f"{WORKERS / row.measures['seconds']:.0f} with {row.values['size']:.3g} KiB"
            for row in results.all(of="switches")
        )
        text.append(
            "Where the switch sums, a chunk is a packet, which is also what a worker's host"
            f" handles: {inc}. Packets of 32 KiB do not exist; so switches cannot have the best"
            " chunk size, and need hosts (or network cards) that send many packets with one"
            " message."
        )
    return Section(
        "Size of chunks",
        [
            f"A PBox with ten links and {WORKERS} workers, {RATE} Gbit/s, ResNet-18's gradients,"
            " nothing computed, in virtual time.",
            Plot(
                "sizes",
                "Exchanges a second of eight workers against the size of chunks, here and"
                " published.",
                partial(_draw_sizes, results),
            ),
            Table(("KiB", "exchanges a second", "of 32 KiB", "published", "of 32 KiB"), rows),
            *text,
        ],
    )


def _links(results: Results) -> Section:
    rows = [
        (
            str(links),
            f"{1e3 * took:.2f}",
            f"{1e3 * line_seconds(links):.2f}",
            f"{WORKERS / took:.0f}",
        )
        for links, took in _by_links(results)
    ]
    return Section(
        "One box with one to ten links",
        [
            Plot(
                "links",
                "Exchanges a second of eight workers against the links of their server.",
                partial(_draw_links, results),
            ),
            Table(("links", "ms", "bytes alone ms", "exchanges a second"), rows),
            "Eight workers fill eight links; ten leave room. With one link a PBox is the"
            " central server of the placement `ncc`, whose link is what everybody waits for.",
        ],
    )


def _by_links(results: Results) -> list[tuple[int, float]]:
    found = [(int(r.values["links"]), r.measures["seconds"]) for r in results.all(of="links")]
    return [*found, (LINKS, seconds(results))]


def _cores(results: Results) -> Section:
    rows = [
        (
            str(row.values["assign"]),
            str(row.values["pipeline"]),
            f"{TALL if row.values['pipeline'] == 'tall' else WIDE:.1f}",
            f"{1e3 * row.measures['seconds']:.2f}",
        )
        for row in results.all(of="cores")
    ]
    table = [
        (
            model,
            *(
                f"{imbalance(model, size, bins):.3f}"
                for bins in (LINKS, LINKS * CORES)
                for size, _ in _SLICES
            ),
        )
        for model in _BALANCED
    ]
    return Section(
        "Cores: balance, tall and wide",
        [
            f"Here cores sum at the rate that [`rackhub bench server`](benchmarks.md#server) has"
            f" measured: {TALL:.1f} Gbit/s tall, where a core adds each copy as it arrives, and"
            f" {WIDE:.1f} wide, where it keeps all copies and adds them at the end. There are"
            f" {LINKS * CORES}, three at each link, and messages cost nothing.",
            Table(("assign", "pipeline", "Gbit/s of a core", "ms an exchange"), rows, text=True),
            "*balanced*: chunks go to the least loaded core; *hashed*: chunks of a key to cores in"
            " turn; *keys*: a key is at one core; the fullest has"
            f" {imbalance(MODEL, 0, LINKS * CORES):.1f} times the mean, and while all send its long"
            " key others idle. Virtual time charges a core for each byte as it arrives, with either"
            " pipeline: what it shows of tall and wide is the cores' rate, not that wide has"
            " nothing to send until the last copy is in.",
            "Bytes at the link, and at the core, with the most, over the mean, *balanced*:",
            Table(
                (
                    "model",
                    *(f"{LINKS} links: {text}" for _, text in _SLICES),
                    *(f"{LINKS * CORES} cores: {text}" for _, text in _SLICES),
                ),
                table,
            ),
        ],
    )


def _elision(results: Results) -> Section:
    rows = []
    for row in results.all(of="elision"):
        size = int(row.values["size"])
        with_, without = seconds(results, size), row.measures["seconds"]
        rows.append(
            (str(size), f"{1e3 * with_:.2f}", f"{1e3 * without:.2f}", f"{without / with_:.2f}")
        )
    return Section(
        "Pull elision",
        [
            "Without it (`server: {ablate: [elision]}`) a server announces a sum, and a worker"
            " asks for it: two headers and a round trip more for each packet, each of which"
            " takes a worker's host as long as a packet of a message.",
            Table(("KiB", "ms", "without elision ms", "ratio"), rows),
        ],
    )


def _assumed(results: Results) -> Section:
    rows = [
        (
            "a message, at a worker's host, each way",
            f"{1e6 * MESSAGE:.2f} us",
            "the poster's figure for chunks of 4 KiB (read off); it is not asserted",
        ),
        ("bytes of a worker in flight", f"{WINDOW_BYTES >> 20} MiB", "assumed; PHub has no window"),
        ("cores at each link", str(CORES), "artifact: 28 threads, ten queue pairs"),
        (
            "rate of a core",
            f"{TALL:.1f} and {WIDE:.1f} Gbit/s",
            "measured by `rackhub bench server` on one machine; only under *Cores*",
        ),
        ("packets that a host gets at a time", "32", "assumed; [varied](zero-compute.md)"),
    ]
    varied = [
        Varied(
            text,
            f"{size} KiB",
            partial(varied_rate, results, of, size),
        )
        for of, text in (("message", "what a message takes"), ("window", "bytes in flight"))
        for size in VARIED[of]
    ]
    blocks: list[Block] = [
        Table(("parameter", "value", "from"), rows, text=True),
        *sensitivity(
            "Exchanges a second, by size of chunks, with what a message takes, and the bytes in"
            " flight, halved and doubled.",
            "exchanges a second",
            varied,
        ),
    ]
    return Section("What is assumed", blocks)


def _text(size: float) -> str:
    return f"{size / KIB:g}M" if size >= KIB else f"{size:g}K"


def _draw_sizes(results: Results) -> Figure:
    figure, axes = start(3.4)
    found = rates(results)
    curve(axes, 0, found.items(), "PBox, here")
    curve(axes, 1, PUBLISHED.items(), "PBox, published (read off)")
    inc = [
        (float(row.values["size"]), WORKERS / row.measures["seconds"])
        for row in results.all(of="switches")
    ]
    if inc:
        curve(axes, 2, inc, "switches, a packet a chunk")
    axes.axvline(BEST, color="#7f7f7f", linewidth=1, linestyle=":")
    axes.axhline(
        WORKERS / line_seconds(), color="#7f7f7f", linewidth=1, linestyle="-.", label="links' bound"
    )
    axes.set(xscale="log", xlabel="size of a chunk (bytes)", ylim=(0, None))
    axes.set_ylabel("exchanges a second")
    ticks(axes, sorted({*found, *PUBLISHED}), _text)
    axes.legend(loc="lower center")
    return figure


def _draw_links(results: Results) -> Figure:
    figure, axes = start(2.8)
    found = [(links, WORKERS / took) for links, took in _by_links(results)]
    curve(axes, 0, found, "PBox")
    shown = range(1, LINKS + 1)
    axes.plot(
        list(shown), [WORKERS / line_seconds(n) for n in shown], ":", color="#7f7f7f",
        label="bytes alone",
    )  # fmt: skip
    axes.set(xlabel="links of the server", ylabel="exchanges a second", ylim=(0, None))
    ticks(axes, (*LINK_COUNTS, LINKS), lambda links: f"{links:g}")
    axes.legend()
    return figure
