# SPDX-License-Identifier: Apache-2.0
"""``rackhub bench worker``: measures a worker's stages one by one, and together on one core."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from typing_extensions import TypedDict

from benchmarks.common import (
    LEAST_BUSY,
    Bandwidth,
    MachineFacts,
    Seconds,
    machine,
    memory_bandwidth,
    pin,
    two_cores,
)
from cli.display.tables import Row, show, show_rows
from cli.options import console_for, print_json, with_json

if TYPE_CHECKING:
    from benchmarks.stages import Stage
    from benchmarks.throughput import WorkerRates

_TARGET = 100_000  # chunks/s of one core
_WINDOW = 1024


class _Share(TypedDict):
    """A stage's part of a whole worker."""

    stage: str
    """Name of the stage."""
    share: float
    """Share of CPU time, 0 to 1."""
    seconds_per_chunk: float
    """CPU seconds per chunk."""


class _Report(TypedDict):
    """The printed result."""

    machine: MachineFacts
    """Where it was measured."""
    lanes: int
    """Elements of a chunk."""
    window: int
    """Chunks in flight."""
    gso: bool
    """True if several datagrams were sent and received a call."""
    elements: int
    """Elements of the tensor."""
    memory: Bandwidth
    """Of the worker's core."""
    stages: list[Stage]
    """Each stage by itself."""
    whole: WorkerRates
    """All of it on one core."""
    target: int
    """Chunks per second that one core should reach."""
    profile: list[_Share]
    """Where the whole worker's time went, the largest share first."""


@click.command("worker", short_help="What one core of a worker does per second.")
@click.option(
    "--seconds",
    type=Seconds(),
    default=6.0,
    show_default=True,
    help="Of measuring, for each of three parts: all stages together, the whole worker, and the"
    " same with a profile. So it takes three times that, and a little for making ready.",
)
@click.option(
    "--lanes",
    type=click.Choice(["256", "2048"]),
    default="256",
    show_default=True,
    help="Of a chunk: 1 KiB, or 8 KiB as in the jumbo build.",
)
@click.option(
    "--size",
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    help="MiB of the tensor that is summed again and again.",
)
@click.option(
    "--window",
    type=click.IntRange(min=1, max=1 << 15),
    help=f"Chunks in flight, a power of two. [default: what the sockets hold, up to {_WINDOW}]",
)
@click.option("--no-gso", "plain", is_flag=True, help="Send and receive one datagram a call.")
@with_json
def worker(
    seconds: float, lanes: str, size: int, window: int | None, plain: bool, as_json: bool
) -> None:  # fmt: skip
    """Measure what one core of a worker does per second.

    First each stage by itself, beside copying the same gradients in memory; then a whole worker as
    it trains, on one core, with a process on another core that answers it as the root of its job;
    then the same once more with a profile. Exit status 1 if the worker's core was not busy, so that
    something else limited the figure.
    """
    # Takes half a second to import.
    from benchmarks import throughput
    from benchmarks.stages import stages

    if window is not None and window & (window - 1):
        raise click.BadParameter(f"{window} is not a power of two", param_hint="--window")
    width = int(lanes)
    measured, other = two_cores()
    pin(measured)
    flight = window or throughput.largest_window(width, _WINDOW)
    memory = memory_bandwidth()
    parts = stages(width, flight, plain, seconds)
    elements = (size << 20) // 4
    with throughput.worker(elements, width, flight, plain, other) as one:
        whole = one.run(seconds)
        profile = one.profile(seconds, other)
    computed = sum(profile.values())
    report: _Report = {
        "machine": machine(),
        "lanes": width,
        "window": flight,
        "gso": not plain,
        "elements": elements,
        "memory": memory,
        "stages": parts,
        "whole": whole.message(4 * width),
        "target": _TARGET,
        "profile": [
            {"stage": stage, "share": taken / computed, "seconds_per_chunk": taken}
            for stage, taken in profile.items()
        ],
    }
    if as_json:
        print_json(report)
    else:
        _show(report)
    if not whole.valid:
        raise click.exceptions.Exit(1)


def _show(report: _Report) -> None:
    console, memory = console_for(), report["memory"]
    chunk = f"chunks of {4 * report['lanes']:,} bytes, {report['window']:,} in flight"
    show(console, f"{report['machine']['cpu']}; {chunk}{'' if report['gso'] else ', without GSO'}")
    show(console, f"memory: copy {memory['copy']:.1f} GB/s, add {memory['add']:.1f} GB/s moved\n")
    rows = [_stage(one) for one in report["stages"]]
    columns = {"stage": "stage by itself", "gb": "GB/s", "rate": "chunks/s", "took": "us a chunk"}
    show_rows(console, rows, columns)
    whole = report["whole"]
    show(
        console,
        f"\nall of it on one core: {whole['chunks_per_second']:,.0f} chunks/s,"
        f" {whole['gb_per_second']:.2f} GB/s of gradients",
    )
    show(
        console,
        f"the core was busy {whole['busy']:.1%} of the time; {whole['datagrams_per_send']:.0f}"
        f" datagrams a send, {whole['datagrams_per_receive']:.0f} a receive;"
        f" {whole['sent_again']} retransmitted",
    )
    if not whole["valid"]:
        show(
            console,
            f"not valid: a core that is busy less than {LEAST_BUSY:.0%} waits, for its root or for"
            " other processes on it; end those and measure again",
        )
    show(console)
    show_rows(
        console,
        [_share(one) for one in report["profile"]],
        {"stage": "of it", "share": "CPU time", "took": "us a chunk"},
    )


def _stage(one: Stage) -> Row:
    spread, gb, rate = one["seconds_per_chunk"], one["gb_per_second"], one["chunks_per_second"]
    return {
        "stage": one["stage"],
        "gb": "-" if gb is None else f"{gb:.2f}",
        "rate": "-" if rate is None else f"{rate:,.0f}",
        "took": f"{1e6 * spread['median']:.2f} ({1e6 * spread['low']:.2f}"
        f" to {1e6 * spread['high']:.2f})",
    }


def _share(one: _Share) -> Row:
    took = f"{1e6 * one['seconds_per_chunk']:.2f}"
    return {"stage": one["stage"], "share": f"{one['share']:.1%}", "took": took}
