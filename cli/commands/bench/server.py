# SPDX-License-Identifier: Apache-2.0
"""``rackhub bench server``: compares a server's core with one that only adds what it receives."""

from __future__ import annotations

import click

from benchmarks.common import LEAST_BUSY, Bandwidth, Seconds, memory_bandwidth, pinned, two_cores
from benchmarks.server_core import CORES, Core, CoreRates, Options, ServerReport, run
from cli.display.tables import Row, show, show_rows
from cli.options import console_for, print_json, with_json
from protocol.optimizer_plan import MOMENTUM, NAMES, NESTEROV, OptimizerPlan
from protocol.server_pipelines import AGGREGATION, OPTIMIZER


class _Report(ServerReport):
    """The printed result."""

    memory_gb_per_second: Bandwidth
    """Of the server's core."""


@click.command("server", short_help="What one core of a server does per second.")
@click.option("--workers", type=click.IntRange(1, 32), default=8, show_default=True)
@click.option(
    "--lanes", type=click.Choice(["256", "2048"]), default="256", show_default=True,
    help="Of a chunk: 1 KiB or 8 KiB.",
)  # fmt: skip
@click.option(
    "--optimizer", type=click.Choice(["none", *NAMES]), default="none", show_default=True,
    help="That the server runs.",
)  # fmt: skip
@click.option(
    "--ablate", type=click.Choice([AGGREGATION, OPTIMIZER]), multiple=True,
    help="Leave a part of its work out, to see what it costs.",
)  # fmt: skip
@click.option("--rounds", type=click.IntRange(1, 1000), default=7, show_default=True)
@click.option(
    "--seconds", type=Seconds(), default=0.5, show_default=True,
    help="Of each turn: four in a round.",
)  # fmt: skip
@with_json
@click.pass_context
def server(
    context: click.Context,
    workers: int,
    lanes: str,
    optimizer: str,
    ablate: tuple[str, ...],
    rounds: int,
    seconds: float,
    as_json: bool,
) -> None:
    """Measure what a server's core does: its state machine, tall and wide, sending every result to
    every worker, against a process that receives the same and adds it to an array, and one that
    sends it back as it came."""
    plan = None
    if optimizer != "none":
        plan = OptimizerPlan(optimizer, 0.01, 0.9 if optimizer in (MOMENTUM, NESTEROV) else 0.0)
    elif OPTIMIZER in ablate:
        raise click.UsageError("--ablate optimizer needs an --optimizer to leave out")
    measured = run(Options(workers, int(lanes), plan, ablate, rounds, seconds))
    with pinned(two_cores()[0]):
        found: _Report = {**measured, "memory_gb_per_second": memory_bandwidth()}
    if as_json:
        print_json(found)
    else:
        _show(found)
    context.exit(0 if found["valid"] else 1)


def _show(found: _Report) -> None:
    console = console_for()
    rows = [_row(name, found[name], 4 * found["lanes"]) for name in CORES]
    columns = {
        "what": "", "rate": "chunks/s", "spread": "lowest to highest", "bytes": "GB/s in",
        "busy": "core busy", "kernel": "in the kernel", "others": "others on it",
    }  # fmt: skip
    show_rows(console, rows, columns)
    show(console)
    for ratio, text in (
        (found["server_to_adder"], "server (tall) to adder"),
        (found["server_to_echo"], "server (tall) to echo"),
        (found["echo_to_adder"], "echo to adder"),
        (found["tall_to_wide"], "tall to wide"),
    ):
        spread = f"({ratio['low']:.2f} to {ratio['high']:.2f})"
        show(console, f"{text:24}{ratio['median']:.2f} {spread}")
    memory = found["memory_gb_per_second"]
    show(console, f"{'memory':24}copy {memory['copy']:.1f}, add {memory['add']:.1f} GB/s")
    if not found["valid"]:
        text = "not valid: a core was busy for less than"
        show(console, f"{text} {LEAST_BUSY:.0%} of its time, so it was not the bottleneck")


def _row(name: Core, one: CoreRates, chunk_bytes: int) -> Row:
    rate = one["chunks_per_second"]
    return {
        "what": name,
        "rate": f"{rate['median']:,.0f}",
        "spread": f"{rate['low']:,.0f} to {rate['high']:,.0f}",
        "bytes": f"{rate['median'] * chunk_bytes / 1e9:.2f}",
        "busy": f"{one['busy']:.0%}",
        "kernel": f"{one['kernel']['median']:.0%}",
        "others": f"{one['others']:.0%}",
    }
