# SPDX-License-Identifier: Apache-2.0
"""``rackhub bench switch``: compares what one core of each switch forwards on the same links."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.text import Text

from benchmarks.common import LEAST_BUSY
from benchmarks.forwarding import plot
from benchmarks.forwarding.traffic import Mode
from cli.display.tables import Row, show, show_rows
from cli.files import PICTURE
from cli.options import console_for, print_json, say, with_json
from observability import pictures

if TYPE_CHECKING:
    from benchmarks.forwarding.results import ModeRates, RatioFacts, Report

_CONTENDERS = (
    "null", "embedded", "bmv2", "bmv2_lanes", "bmv2_bare", "bmv2_bare_lanes", "linux", "ovs",
)  # fmt: skip
_ROUTER_MODES: tuple[Mode, ...] = (
    "router_64_1", "router_64_10000", "router_1400_1", "router_1400_10000",
)  # fmt: skip
_MODES: dict[str, tuple[Mode, ...]] = {
    "gso": ("gso",),
    "plain": ("plain",),
    "tcp": ("tcp",),
    "router": _ROUTER_MODES,
    **{mode: (mode,) for mode in _ROUTER_MODES},
}


@click.command("switch", short_help="What one core of a switch forwards per second.")
@click.option(
    "--contender", "contenders", type=click.Choice(_CONTENDERS), multiple=True,
    help="Measure these only; repeatable. [default: all that are installed]",
)  # fmt: skip
@click.option(
    "--mode", "modes", type=click.Choice(list(_MODES)), multiple=True,
    default=("gso", "plain", "tcp", "router"), show_default="all",
    help="Whole GSO frames, one packet a frame, TCP, or a plain IPv4 router: frames of 64 or 1400"
    " bytes, one flow at each port or 10000, router for all four; repeatable.",
)  # fmt: skip
@click.option("--rounds", type=click.IntRange(1, 1000), default=5, show_default=True)
@click.option(
    "--seconds", type=click.FloatRange(0.01, 60), default=1.0, show_default=True,
    help="Of each turn.",
)  # fmt: skip
@click.option(
    "--links-only", is_flag=True, help="Leave out what is measured without links: programs in"
    " process, tables, compilation.",
)  # fmt: skip
@click.option(
    "--plot", "picture", type=PICTURE,
    help="Write the packets per second as a bar chart (.svg, .png or .pdf).",
)  # fmt: skip
@with_json
@click.pass_context
def switch(
    context: click.Context,
    contenders: tuple[str, ...],
    modes: tuple[str, ...],
    rounds: int,
    seconds: float,
    links_only: bool,
    picture: Path | None,
    as_json: bool,
) -> None:
    """Measure what switches forward: the embedded target, BMv2 where it is installed, and one that
    does nothing but receive and send, in turns on the same links, each pinned to one core. As IPv4
    routers they are beside Linux's own forwarding and, where it is installed, Open vSwitch."""
    # Takes half a second to import.
    from benchmarks.forwarding import results

    def follow(number: int, what: str, rate: float) -> None:
        if sys.stderr.isatty():
            say(f"round {number + 1}: {what} {rate:,.0f}/s")

    wanted = list(dict.fromkeys(one for mode in modes for one in _MODES[mode]))
    found = results.report(results.measure(contenders, wanted, rounds, seconds, follow))
    if not links_only:
        found = results.in_process(found, rounds, seconds / 4)
    if picture is not None:
        pictures.write(picture, plot.figure(found), "packets received per second of each switch")
    if as_json:
        print_json(found)
    else:
        _show(found)
    context.exit(0 if found["valid"] else 1)


def _show(found: Report) -> None:
    console = console_for()
    rows = [_row(one) for one in found["rows"]]
    columns = {
        "what": "", "rate": "received/s", "spread": "lowest to highest", "core": "by its own time",
        "busy": "busy", "there": "but for others", "load": "load busy", "lost": "lost",
    }  # fmt: skip
    show_rows(console, rows, columns)
    show(console)
    for line in plot.text(found):
        show(console, Text(line))
    show(console)
    if found["in_process"]:
        rows = [
            {"what": name, "rate": f"{rate:,.0f}"} for name, rate in found["in_process"].items()
        ]
        show_rows(console, rows, {"what": "in process", "rate": "packets/s of CPU time"})
        show(console)
    show_rows(
        console,
        [_ratio(one) for one in found["ratios"]],
        {"what": "ratio", "received": "received", "spread": "", "core": "by own time",
         "thread": "by busiest thread", "asked": "asked", "holds": ""},
    )  # fmt: skip
    if not found["valid"]:
        show(
            console,
            f"\n* not valid: it was busy for less than {LEAST_BUSY:.0%} of the time. Where it is so"
            "\nbut for others, other processes had its core or the load's, and its figures by its"
            "\nown time stand; else the load was the bottleneck.",
        )


def _row(one: ModeRates) -> Row:
    rate, unit = one["per_second"], " B" if one["mode"] == "tcp" else ""
    mark = "" if one["busy"] >= LEAST_BUSY else " *"
    return {
        "what": f"{one['contender']} {one['mode']}{mark}",
        "rate": f"{rate['median']:,.0f}{unit}",
        "spread": f"{rate['low']:,.0f} to {rate['high']:,.0f}",
        "core": f"{one['per_second_of_core']['median']:,.0f}{unit}",
        "busy": f"{one['busy']:.0%}",
        "there": f"{one['busy_but_for_others']:.0%}",
        "load": f"{one['load_busy']:.0%}",
        "lost": f"{one['lost']:,}",
    }


def _ratio(one: RatioFacts) -> Row:
    received = one["received"]
    return {
        "what": one["ratio"] + ("" if one["valid"] else " *"),
        "received": f"{received['median']:.2f}" if received else "",
        "spread": f"({received['low']:.2f} to {received['high']:.2f})" if received else "",
        "core": f"{one['of_core']['median']:.2f}",
        "thread": f"{one['of_thread']['median']:.2f}" if one["of_thread"] else "",
        "asked": one["asked"] or "",
        "holds": "not reached" if one["holds"] is False else "",
    }
