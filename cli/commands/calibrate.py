# SPDX-License-Identifier: Apache-2.0
"""``rackhub calibrate``: measures host costs of this machine for virtual time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from benchmarks.common import LEAST_BUSY, Seconds
from cli.display.tables import show
from cli.files import OUTPUT
from cli.options import console_for, print_json, say, with_json
from topologies.model.units import time_text

if TYPE_CHECKING:
    from benchmarks.calibration import Measurements


@click.command(short_help="Measure what hosts cost, for virtual time.")
@click.option(
    "--seconds", type=Seconds(), default=1.0, show_default=True, help="Of each of 6 turns a round."
)
@click.option("--rounds", type=click.IntRange(1, 100), default=3, show_default=True)
@click.option(
    "--within",
    type=Seconds(),
    default=60.0,
    show_default=True,
    help="Seconds of all: leaves rounds out, but one, where the machine is slow.",
)
@click.option(
    "--output",
    type=OUTPUT,
    metavar="FILE",
    help="Write the group of fields there, too.",
)
@with_json
def calibrate(
    seconds: float, rounds: int, within: float, output: Path | None, as_json: bool
) -> None:
    """Measure what packets cost hosts and servers on this machine, as the `costs` of a topology
    file, for runs with --clock virtual.

    A worker and a server each have a core, and their peers another one. On a machine that others
    use at the same time the figures are less certain; a warning says so.
    """
    # Takes half a second to import.
    from benchmarks.calibration import calibrate as measure

    found = measure(seconds, rounds, within, say)
    if output is not None:
        output.write_text(found.snippet())
    if as_json:
        print_json(found.message())
    else:
        _explain(found.found)
        click.echo(found.snippet(), nl=False)
    if not found.found["valid"]:
        say(
            f"warning: a core was busy for less than {LEAST_BUSY:.0%} of the time, waiting or for"
            " other processes; measure again when the machine has nothing else to do"
        )


def _explain(found: Measurements) -> None:
    console = console_for(stderr=True)
    for one in found["worker"]:
        took = one["seconds_per_chunk"]
        show(
            console,
            f"a worker's core, chunks of {one['chunk_bytes']:,} bytes:"
            f" {time_text(took['median'])} each ({time_text(took['low'])} to"
            f" {time_text(took['high'])}), a frame each way",
        )
    server = found["server"]
    show(
        console,
        f"a server's core, chunks of {server['chunk_bytes']:,} bytes of {server['workers']}"
        f" workers: {server['chunks_per_second']['median']:,.0f}/s"
        f" ({server['chunks_per_second']['low']:,.0f} to"
        f" {server['chunks_per_second']['high']:,.0f})\n",
    )
