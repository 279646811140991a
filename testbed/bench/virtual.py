# SPDX-License-Identifier: Apache-2.0
"""``rackhub bench virtual``: what a run in virtual time costs, by packet-hops."""

from __future__ import annotations

import click

from testbed.bench.common import Message
from testbed.cli.options import console_for, print_json, with_json
from testbed.cli.view import show, show_rows

_KINDS = ("payload", "headers")
_TITLES = {"payload": "chunks of 1 KiB, summed", "headers": "headers only, as long on the wire"}
# Each worker owns twice its window of the switch's 8,192 slots.
_MOST = 4096


@click.command("virtual", short_help="What runs in virtual time cost per packet.")
@click.option(
    "--window", "windows", type=click.IntRange(1, _MOST), multiple=True, default=(64, 256),
    show_default=True, help="Chunks of a worker in flight, so packets of a train; repeatable.",
)  # fmt: skip
@click.option(
    "--chunks", type=click.IntRange(1, 10**6), default=10_000, show_default=True,
    help="Of each worker in a round.",
)  # fmt: skip
@click.option("--rounds", type=click.IntRange(1, 1000), default=5, show_default=True)
@with_json
def virtual(windows: tuple[int, ...], chunks: int, rounds: int, as_json: bool) -> None:
    """Measure what the network and the switch of a run in virtual time cost: packet-hops (a packet
    over one link and through the node at its end) per second of CPU time, of four workers around a
    switch that sums. Workers send frames that lie ready, so hosts are hardly part of it."""
    # What is measured takes half a second to import, which other commands need not wait for.
    from testbed.bench import hops

    found = [hops.measure(kind, chunks, window, rounds) for kind in _KINDS for window in windows]
    if as_json:
        print_json({"network": found})
    else:
        _show(found)


def _show(found: list[Message]) -> None:
    console = console_for()
    columns = {
        "chunks": "", "window": "window", "rate": "packet-hops/s", "spread": "lowest to highest",
        "time": "µs each",
    }  # fmt: skip
    show_rows(console, [_row(one) for one in found], columns)
    for one in found:
        show(console)
        title = f"{_TITLES[one['chunks']]}, window {one['window']}"
        rows = [
            {"stage": stage, "share": f"{share:.0%}"}
            for stage, share in one["profile"].items()
            if share >= 0.005
        ]
        show_rows(console, rows, {"stage": title, "share": "of its time"})


def _row(told: Message) -> Message:
    rate = told["packet_hops_per_second"]
    return {
        "chunks": _TITLES[told["chunks"]],
        "window": told["window"],
        "rate": f"{rate['median']:,.0f}",
        "spread": f"{rate['low']:,.0f} to {rate['high']:,.0f}",
        "time": f"{told['microseconds']['median']:.2f}",
    }
