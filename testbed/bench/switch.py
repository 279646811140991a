# SPDX-License-Identifier: Apache-2.0
"""``rackhub bench switch``: what one core of each switch forwards, on the same links."""

from __future__ import annotations

import math
import sys

import click
from rich.text import Text

from testbed.bench.common import LEAST_BUSY, Message
from testbed.bench.forwarding.traffic import Mode
from testbed.cli.options import console_for, print_json, say, with_json
from testbed.cli.view import show, show_rows

_CONTENDERS = ("null", "embedded", "bmv2", "bmv2_lanes", "bmv2_bare", "bmv2_bare_lanes")
_MODES: tuple[Mode, ...] = ("gso", "plain", "tcp")
_BAR = 40


@click.command("switch", short_help="What one core of a switch forwards per second.")
@click.option(
    "--contender", "contenders", type=click.Choice(_CONTENDERS), multiple=True,
    help="Measure these only; repeatable. [default: all that are installed]",
)  # fmt: skip
@click.option(
    "--mode", "modes", type=click.Choice(_MODES), multiple=True, default=_MODES,
    show_default="all", help="Whole GSO frames, one packet a frame, or TCP; repeatable.",
)  # fmt: skip
@click.option("--rounds", type=click.IntRange(1, 1000), default=5, show_default=True)
@click.option(
    "--seconds", type=click.FloatRange(0.01, 60), default=1.0, show_default=True,
    help="Of each turn.",
)  # fmt: skip
@with_json
@click.pass_context
def switch(
    context: click.Context,
    contenders: tuple[str, ...],
    modes: tuple[Mode, ...],
    rounds: int,
    seconds: float,
    as_json: bool,
) -> None:
    """Measure what switches forward: the embedded target, BMv2 where it is installed, and one that
    does nothing but receive and send, in turns on the same links, each pinned to one core."""
    # These take half a second to import, which other commands need not wait for.
    from testbed.bench.forwarding import measuring

    def follow(number: int, what: str, rate: float) -> None:
        if sys.stderr.isatty():
            say(f"round {number + 1}: {what} {rate:,.0f}/s")

    found = measuring.report(measuring.measure(contenders, modes, rounds, seconds, follow))
    if as_json:
        print_json(found)
    else:
        _show(found)
    context.exit(0 if found["valid"] else 1)


def _show(found: Message) -> None:
    console = console_for()
    rows = [_row(one) for one in found["rows"]]
    columns = {
        "what": "", "rate": "received/s", "spread": "lowest to highest", "core": "by its own time",
        "busy": "busy", "there": "but for others", "lost": "lost",
    }  # fmt: skip
    show_rows(console, rows, columns)
    show(console)
    _plot([one for one in found["rows"] if one["mode"] != "tcp"])
    show(console)
    show_rows(
        console,
        [_ratio(one) for one in found["ratios"]],
        {"what": "ratio", "received": "received", "spread": "", "core": "by own time",
         "asked": "asked", "holds": ""},
    )  # fmt: skip
    if not found["valid"]:
        show(
            console,
            f"\n* NOT VALID: it was busy for less than {LEAST_BUSY:.0%} of the time. Where it is so"
            "\nbut for others, other processes had its core, and what it did by its own time stands;"
            "\nelse the load was the bottleneck.",
        )


def _row(told: Message) -> Message:
    rate, unit = told["per_second"], " B" if told["mode"] == "tcp" else ""
    mark = "" if told["busy"] >= LEAST_BUSY else " *"
    return {
        "what": f"{told['contender']} {told['mode']}{mark}",
        "rate": f"{rate['median']:,.0f}{unit}",
        "spread": f"{rate['low']:,.0f} to {rate['high']:,.0f}",
        "core": f"{told['per_second_of_core']['median']:,.0f}{unit}",
        "busy": f"{told['busy']:.0%}",
        "there": f"{told['busy_but_for_others']:.0%}",
        "lost": f"{told['lost']:,}",
    }


def _ratio(told: Message) -> Message:
    received = told["received"]
    return {
        "what": told["ratio"],
        "received": f"{received['median']:.2f}",
        "spread": f"({received['low']:.2f} to {received['high']:.2f})",
        "core": f"{told['of_core']['median']:.2f}",
        "asked": told["asked"],
        "holds": "" if told["holds"] else "not reached",
    }


def _plot(rows: list[Message]) -> None:
    """Bars of packets per second, on a logarithmic scale from a tenth of the lowest."""
    console = console_for()
    if not rows:
        return
    rates = [one["per_second"]["median"] for one in rows]
    low, high = math.log10(min(rates)) - 1, math.log10(max(rates))
    width = max(len(f"{one['contender']} {one['mode']}") for one in rows)
    show(console, "packets received per second, logarithmic")
    for one, rate in zip(rows, rates, strict=True):
        name = f"{one['contender']} {one['mode']}".ljust(width)
        bar = "#" * max(1, round(_BAR * (math.log10(rate) - low) / (high - low)))
        show(console, Text(f"{name}  {bar} {rate:,.0f}"))
