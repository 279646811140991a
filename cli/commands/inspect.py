# SPDX-License-Identifier: Apache-2.0
"""Commands that inspect files, captured packets and switch tables."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

import click
from rich.text import Text

from cli.display.diagnostics import show_trace
from cli.display.tables import show
from cli.files import FILE, JOB, PICTURE
from cli.options import (
    DEFAULT_JOB,
    building,
    clocked,
    console_for,
    node_names,
    on_testbed,
    print_json,
    run_names,
    with_json,
)
from emulation.lifecycle.execution import execute
from observability import pictures, record
from observability.control import ControlError
from observability.record import RunError, shown
from observability.trace import TraceError
from observability.trace_report import read as read_trace
from simulation.running import check_virtually
from specs.paths import ROOT
from testbed import preflight, preflight_report
from testbed.program import program_files, read_program, translate
from testbed.targets import DEVICE_ID, Target, because, choose
from topologies.model.drawing import draw
from topologies.model.spec import load as load_topology
from topologies.model.spec import read as read_topology

# Has an environment of its own: it needs an old protobuf.
SHELL = ROOT / ".venv-shell" / "bin" / "python"


@click.command("trace", short_help="Show what happened to a chunk of a JOB, hop by hop.")
@click.argument("job")
@click.option("--chunk", type=click.IntRange(min=0), required=True, help="Which, from 0.")
@click.option("--iteration", type=click.IntRange(min=1), help="Which; default: the last one.")
@click.option(
    "--run",
    "name",
    metavar="RUN",
    shell_complete=run_names,
    help="Which run: its directory, its name, or that of its testbed. [default: the newest]",
)
@with_json
def trace_command(
    job: str, chunk: int, iteration: int | None, name: str | None, as_json: bool
) -> None:
    """Show what happened to one chunk of a JOB, hop by hop.

    The run, over or not, must have been started with --pcap. Times are those of the capturing
    switch port; what a port has sent, it captured when it left the switch.
    """
    run = record.known(name or "latest")
    newest = "" if name else " (the newest run; --run takes another)"
    try:
        found = read_trace(run, job, chunk, iteration)
    except TraceError as error:
        raise TraceError(f"{error}{newest}") from error
    if as_json:
        print_json(found)
    else:
        console = console_for()
        show(console, Text(f"{shown(run.path)}{newest}\n"))
        show_trace(console, job, chunk, found)


@click.command(short_help="Read a SWITCH's tables and counters (p4runtime-shell).")
@on_testbed
@click.argument("switch", shell_complete=node_names(("switch",)))
def shell(on: str | None, switch: str) -> None:
    """Open a p4runtime-shell on a SWITCH: read its tables, counters and groups.

    The controller stays in charge: what it installed can be read here, not changed. Tables are
    known by their full names, which the Tab key completes, for example:

    \b
        tables                                                  # list them
        table_entry["IngressPipeline.arrival.impairments"].read(print)
        counter_entry["IngressPipeline.outcomes"].read(print)
    """
    if not SHELL.exists():
        raise ControlError(f"no p4runtime-shell at {SHELL}: run {ROOT}/scripts/setup.sh")
    target = record.find(on)
    names = [node.name for node in load_topology(target.facts["topology"]).switches]
    if switch not in names:
        raise ControlError(f"no switch {switch!r} in {target.name}: {', '.join(names)}")
    program = [
        *(str(SHELL), "-m", "p4runtime_sh", "--grpc-addr", f"unix:sockets/{switch}"),
        *("--device-id", str(DEVICE_ID), "--election-id", "0,1"),
    ]
    os.environ.pop("VIRTUAL_ENV", None)  # IPython would import from there
    os.chdir(target.path)
    if os.access(target.sockets / switch, os.W_OK):
        os.execv(program[0], program)
    sys.exit(execute(target, switch, program))


@click.command()
@click.argument("topology", type=FILE)
@click.option(
    "-o", "--output", type=PICTURE, help=".svg, .png or .pdf. [default: SVG to standard output]"
)
def graph(topology: Path, output: Path | None) -> None:
    """Draw a topology; of more than 5,000 hosts, the first racks."""
    drawing = draw(load_topology(topology))
    if output is None:
        click.echo(drawing)
    else:
        try:
            if text := pictures.missing(output):
                raise RunError(f"{output}: {text}")
            pictures.write(output, drawing)
        except OSError as error:
            raise RunError(f"{output}: cannot be written: {error.strerror}") from error
        click.echo(str(output))


class _Validation(preflight_report.CheckFacts):
    """The printed result of a check."""

    target_because: str
    """Why it is this target."""


@click.command(short_help="Check topology and jobs without starting anything.")
@click.argument("topology", type=FILE)
@click.option(
    "--job",
    "jobs",
    type=JOB,
    multiple=True,
    help="Job file, or the name of a shipped one: vgg19; repeatable. [default: digits]",
)
@clocked
@building
@with_json
def validate(
    topology: Path,
    jobs: tuple[Path, ...],
    clock: str,
    target: str,
    program: Path | None,
    p4info: Path | None,
    as_json: bool,
) -> None:
    """Check what `run` with the same options would, without starting anything."""
    wanted = list(jobs) or [DEFAULT_JOB]
    chosen: Target = "embedded"
    reason = "virtual time has no other"
    if clock == "virtual":
        checked, _, _, plane = check_virtually(
            topology,
            wanted,
            partial(click.echo, err=True),
            target=target,
            program=program,
            p4info=p4info,
        )
    else:
        read = read_topology(topology)
        chosen = choose(target)
        reason = because(target, chosen)
        given, info = program_files(program, p4info)
        plane = read_program(given, info)
        if program is not None and chosen == "embedded":
            translate(program)
        checked = preflight.check(read, wanted, plane, chosen)
    if as_json:
        found: _Validation = {**preflight_report.facts(checked, chosen), "target_because": reason}
        print_json(found)
        return
    for warning in checked.warnings:
        click.echo(f"warning: {warning}", err=True)
    for line in preflight_report.describe(checked, plane):
        click.echo(line)
    click.echo(f"planned for target {chosen}: {reason}")
