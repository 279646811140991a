# SPDX-License-Identifier: Apache-2.0
"""Commands that export runs: HTML reports and Prometheus metrics."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from cli.files import OUTPUT_OR_DASH
from cli.options import on_testbed, print_json, run_names, with_json
from observability import record
from observability.control import ControlError
from observability.record import RunDirectory, RunError, shown


def _endpoint(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[str, int] | None:
    """Parses ``ADDRESS:PORT`` into a pair. Raises ``BadParameter``."""
    if value is None:
        return None
    address, _, port = value.rpartition(":")
    address = address.removeprefix("[").removesuffix("]")
    if not address or not port.isdecimal() or int(port) > 65535:
        raise click.BadParameter(f"{value!r} is not like 127.0.0.1:9464 or [::1]:9464")
    return address, int(port)


@click.command(short_help="Print a testbed's Prometheus metrics, or serve them.")
@on_testbed
@click.option(
    "--listen",
    metavar="ADDRESS:PORT",
    callback=_endpoint,
    help="Serve them over HTTP until Ctrl-C; each scrape queries the testbeds.",
)
def metrics(on: str | None, listen: tuple[str, int] | None) -> None:
    """Print Prometheus metrics of all testbeds that are up, or of the one chosen.

    With --listen 127.0.0.1:9464, Prometheus gets them at http://127.0.0.1:9464/metrics, of testbeds
    that come up later, too. Anyone who can reach that address can read them.
    """
    # Slow imports that no other command needs.
    from prometheus_client import generate_latest, start_http_server

    from observability.metrics import registry

    def chosen() -> Sequence[RunDirectory]:
        live = record.testbeds()
        return live if on is None else [run for run in live if on in (run.name, run.path.name)]

    if listen is None:
        found = [record.find(on)] if on is not None else chosen() or [record.find(None)]
        click.echo(generate_latest(registry(lambda: found)).decode(), nl=False)
        return
    address, port = listen
    try:
        server, thread = start_http_server(port, address, registry(chosen))
    except OSError as error:
        raise ControlError(f"cannot listen at {address}:{port}: {error.strerror}") from error
    host = f"[{address}]" if ":" in address else address
    click.echo(f"http://{host}:{server.server_port}/metrics; Ctrl-C ends it")
    thread.join()


@click.command(short_help="Make a page of a RUN: figures, curves, loads, faults.")
@click.argument("run", default="latest", shell_complete=run_names)
@click.option(
    "-o",
    "--output",
    type=OUTPUT_OR_DASH,
    help="HTML file, - for standard output. [default: report.html in the run's directory]",
)
@with_json
def report(run: str, output: Path | None, as_json: bool) -> None:
    """Make one self-contained HTML file with everything recorded about a RUN.

    RUN is a run directory, its name, the name of its testbed (the newest of that name), or latest.
    --json prints what the file shows instead (docs/reference/report.md).
    """
    from observability.report import collect, make  # slow: loads the templates

    directory = record.known(run)
    if as_json:
        if output is not None:
            raise click.UsageError("--json prints the data, and writes no page; leave --output out")
        print_json(collect(directory))
        return
    page = make(directory)
    if output is not None and str(output) == "-":
        sys.stdout.write(page)
        return
    path = output or directory.path / "report.html"
    try:
        path.write_text(page)
    except OSError as error:
        raise RunError(f"{path}: cannot be written: {error.strerror}") from error
    click.echo(shown(path.resolve()))
