# SPDX-License-Identifier: Apache-2.0
"""Defines the ``rackhub bench`` group; each module holds one of its commands."""

from __future__ import annotations

import click

from cli.commands.bench.server import server
from cli.commands.bench.switch import switch
from cli.commands.bench.virtual import virtual
from cli.commands.bench.worker import worker


@click.group("bench", short_help="Measure what hosts and switches do on this machine.")
def bench() -> None:
    """Measure what hosts and switches do on this machine.

    docs/results/benchmarks.md explains the figures.

    Exit status 1: a figure is not valid, because something else was the bottleneck.
    """


for command in (server, switch, virtual, worker):
    bench.add_command(command)
