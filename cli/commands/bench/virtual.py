# SPDX-License-Identifier: Apache-2.0
"""``rackhub bench virtual``: measures what a run in virtual time costs per packet-hop."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource
from rich.console import Console

from benchmarks.common import Schedule
from cli.display.tables import Row, show, show_rows
from cli.options import console_for, print_json, say, with_json
from topologies.model.units import time_text

if TYPE_CHECKING:
    from benchmarks.common import Spread
    from benchmarks.exchanges import ExchangeCost
    from benchmarks.hops import NetworkCost
    from benchmarks.ns3 import Ns3Comparison

_KINDS = ("payload", "headers")
_UNLIKE = ("priorities", "slow")
_TITLES = {
    "payload": "chunks of 1 KiB, summed",
    "headers": "headers only, as long on the wire",
    "priorities": "headers only, strict priorities on all links",
    "slow": "a link of 5 Gbit/s among 20 of 10 Gbit/s, chunks of 8 KiB",
    "resnet50": "ResNet-50, chunks of 8 KiB, summed",
}
_NS3 = {"udp": "ns-3: UDP, IPv4, static routes", "devices": "ns-3: its links alone"}
_NOT_OF_NS3 = {"windows": "--window", "chunks": "--chunks", "resnet": "--resnet"}
_ONLY_EXCHANGES = "give --exchange-window and --exchange-chunks"
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
@click.option(
    "--ns3", "beside_ns3", is_flag=True,
    help="Instead, eight workers beside the simulator ns-3 (Debian: libns3-dev), which sends as"
    " many packets over the same links but sums nothing, in turns. Its program is compiled at its"
    " first use.",
)  # fmt: skip
@with_json
@click.pass_context
def virtual(
    context: click.Context,
    windows: tuple[int, ...],
    chunks: int,
    exchange_chunks: int,
    exchange_window: int,
    resnet: bool,
    rounds: int,
    beside_ns3: bool,
    as_json: bool,
) -> None:
    """Measure what a run in virtual time costs: packet-hops (a packet over one link and through the
    node at its end) per second of CPU time.

    First of the network alone: four workers around a switch that sums, which send frames that lie
    ready. Then with hosts: clients of eight workers in two racks, with all of their code, at 10
    Gbit/s, also with strict priorities; sixteen workers in four racks, one of which has half the
    rate; and how long an iteration of ResNet-50's gradients takes.
    """
    # Takes half a second to import.
    from benchmarks import exchanges, hops

    if exchange_window & (exchange_window - 1):
        what = f"{exchange_window} is not a power of two"
        raise click.BadParameter(what, param_hint="--exchange-window")
    if beside_ns3:
        for name, option in _NOT_OF_NS3.items():
            given = context.get_parameter_source(name) is not ParameterSource.DEFAULT
            if given and context.params[name]:
                raise click.UsageError(f"--ns3 does not go with {option}: {_ONLY_EXCHANGES}")
        _compare_with_ns3(exchange_chunks, exchange_window, rounds, as_json)
        return
    kinds = (*_KINDS, *_UNLIKE, *(["resnet50"] if resnet else []))
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


def _compare_with_ns3(chunks: int, window: int, rounds: int, as_json: bool) -> None:
    from benchmarks import ns3

    titles = _NS3 | {kind: f"rackhub: {_TITLES[kind]}" for kind in ns3.OURS}
    schedule = Schedule(rounds * len(titles), math.inf, say)
    found = ns3.measure(chunks, window, rounds, lambda one: schedule.turn(titles[one]))
    if as_json:
        print_json({"ns3": found})
    else:
        _show_beside_ns3(found, titles)


def _show_beside_ns3(found: Ns3Comparison, titles: dict[str, str]) -> None:
    def row(one: str, rate: Spread) -> Row:
        ratios = found["ratios"].get(one, {})
        return {
            "what": titles[one],
            "rate": f"{rate['median']:,.0f}",
            "spread": f"{rate['low']:,.0f} to {rate['high']:,.0f}",
        } | {
            way: f"{ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})"
            for way, ratio in ratios.items()
        }

    columns = {
        "what": f"{found['packet_hops']:,} packet-hops, ns-3 {found['version']}",
        "rate": "packet-hops/s", "spread": "lowest to highest", "udp": "times ns-3's UDP",
        "devices": "times ns-3's links",
    }  # fmt: skip
    rates = found["packet_hops_per_second"].items()
    show_rows(console_for(), [row(*one) for one in rates], columns)


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
