# SPDX-License-Identifier: Apache-2.0
"""``rackhub bench virtual``: measures what a run in virtual time costs per packet-hop."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import click
from rich.console import Console

from benchmarks.common import Schedule
from cli.display.tables import Row, show, show_rows
from cli.options import console_for, print_json, say, with_json
from topologies.model.units import time_text

if TYPE_CHECKING:
    from benchmarks.exchanges import ExchangeCost
    from benchmarks.hops import NetworkCost

_KINDS = ("payload", "headers")
_TITLES = {
    "payload": "chunks of 1 KiB, summed",
    "headers": "headers only, as long on the wire",
    "resnet50": "ResNet-50, chunks of 8 KiB, summed",
}
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
@click.option(
    "--exchange-chunks",
    type=click.IntRange(1, 10**6),
    default=16_000,
    show_default=True,
    help="Of each worker in a round with hosts.",
)
@click.option(
    "--exchange-window",
    type=click.IntRange(1, _MOST),
    default=1024,
    show_default=True,
    help="Chunks of a worker in flight with hosts, a power of two.",
)
@click.option(
    "--resnet/--no-resnet",
    default=True,
    show_default=True,
    help="Also an iteration of ResNet-50's gradients in chunks of 8 KiB, which takes 3 GB.",
)
@click.option("--rounds", type=click.IntRange(1, 1000), default=5, show_default=True)
@with_json
def virtual(
    windows: tuple[int, ...],
    chunks: int,
    exchange_chunks: int,
    exchange_window: int,
    resnet: bool,
    rounds: int,
    as_json: bool,
) -> None:
    """Measure what a run in virtual time costs: packet-hops (a packet over one link and through the
    node at its end) per second of CPU time.

    First of the network alone: four workers around a switch that sums, which send frames that lie
    ready. Then with hosts: clients of eight workers in two racks, with all of their code, at 10
    Gbit/s; and how long an iteration of ResNet-50's gradients takes.
    """
    # Takes half a second to import.
    from benchmarks import exchanges, hops

    if exchange_window & (exchange_window - 1):
        what = f"{exchange_window} is not a power of two"
        raise click.BadParameter(what, param_hint="--exchange-window")
    kinds = (*_KINDS, "resnet50") if resnet else _KINDS
    schedule = Schedule(len(_KINDS) * len(windows) + len(kinds), math.inf, say)

    def of_network(kind: str, window: int) -> NetworkCost:
        schedule.turn(f"the network, {_TITLES[kind]}, window {window}")
        return hops.measure(kind, chunks, window, rounds)

    def of_hosts(kind: str) -> ExchangeCost:
        schedule.turn(f"hosts, {_TITLES[kind]}")
        return exchanges.measure(kind, exchange_chunks, exchange_window, rounds)

    found = [of_network(kind, window) for kind in _KINDS for window in windows]
    with_hosts = [of_hosts(kind) for kind in kinds]
    if as_json:
        print_json({"network": found, "exchanges": with_hosts})
    else:
        _show(found)
        _show_exchanges(with_hosts)


def _show(found: list[NetworkCost]) -> None:
    console = console_for()
    columns = {
        "chunks": "", "window": "window", "rate": "packet-hops/s", "spread": "lowest to highest",
        "time": "time of each",
    }  # fmt: skip
    show_rows(console, [_row(one) for one in found], columns)
    for one in found:
        show(console)
        title = f"{_TITLES[one['chunks']]}, window {one['window']}"
        _show_profile(console, title, one["profile"])


def _show_exchanges(found: list[ExchangeCost]) -> None:
    console = console_for()
    show(console)
    columns = {
        "what": "with hosts", "window": "window", "hops": "packet-hops", "rate": "packet-hops/s",
        "spread": "lowest to highest", "first": "first contact", "seconds": "CPU time",
        "wall": "by the clock",
    }  # fmt: skip
    show_rows(console, [_exchange(one) for one in found], columns)
    for one in found:
        show(console)
        _show_profile(console, _TITLES[one["what"]] + " with hosts", one["profile"])


def _exchange(one: ExchangeCost) -> Row:
    rate = one["packet_hops_per_second"]
    return {
        "what": _TITLES[one["what"]],
        "window": one["window"],
        "hops": f"{one['packet_hops']:,}",
        "rate": f"{rate['median']:,.0f}",
        "spread": f"{rate['low']:,.0f} to {rate['high']:,.0f}",
        "first": f"{one['first_packet_hops_per_second']:,.0f}",
        "seconds": time_text(one["cpu_seconds"]["median"]),
        "wall": time_text(one["wall_seconds"]["median"]),
    }


def _show_profile(console: Console, title: str, profile: dict[str, float]) -> None:
    rows = [
        {"stage": stage, "share": f"{share:.0%}"}
        for stage, share in profile.items()
        if share >= 0.005
    ]
    show_rows(console, rows, {"stage": title, "share": "of its time"})


def _row(one: NetworkCost) -> Row:
    rate = one["packet_hops_per_second"]
    return {
        "chunks": _TITLES[one["chunks"]],
        "window": one["window"],
        "rate": f"{rate['median']:,.0f}",
        "spread": f"{rate['low']:,.0f} to {rate['high']:,.0f}",
        "time": time_text(one["microseconds"]["median"] / 1e6),
    }
