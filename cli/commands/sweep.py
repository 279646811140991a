# SPDX-License-Identifier: Apache-2.0
"""``rackhub sweep``: a matrix of runs in virtual time."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import click
from rich.text import Text

from cli.display.tables import show, show_rows
from cli.files import FILE, PICTURE
from cli.options import console_for, print_json, say, with_json
from observability.record import shown
from observability.wording import count
from specs.sweepfile import SweepFile
from sweeps import effects, table
from sweeps.cluster import RayCrew
from sweeps.conduct import Crew, pending
from sweeps.errors import SweepError
from sweeps.local import LocalCrew
from sweeps.progress_view import SweepView
from sweeps.running import carry_out, check, write
from sweeps.store import DONE, Store, default_folder, opened
from sweeps.trials import Trial
from sweeps.wording import axis_name, value_text
from topologies.model.units import size_text, time_text

_MOST_SHOWN = 20  # trials in the table
_DIGITS = 4


@click.command(short_help="Run a matrix of jobs in virtual time.")
@click.argument("file", type=FILE)
@click.option("--jobs", type=click.IntRange(1, 1024), help="Trials at a time. [default: all CPUs]")
@click.option("--ray", "address", metavar="ADDRESS", help="Run them on this Ray cluster.")
@click.option(
    "--to",
    "folder",
    type=click.Path(path_type=Path),
    help="Where results are kept. [default: runs/sweeps/NAME]",
)
@click.option(
    "--plot", "drawing", type=PICTURE, help="Draw it into this file, too (.svg, .png or .pdf)."
)
@click.option("--dry-run", is_flag=True, help="List the trials, and run none.")
@with_json
def sweep(
    file: Path,
    jobs: int | None,
    address: str | None,
    folder: Path | None,
    drawing: Path | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Run a job on a topology in virtual time for every combination of values in FILE.

    What is done is kept: the same command goes on where it was stopped. A trial that fails is tried
    once more. Exit status 0 means that all trials are done and their weights match the reference.
    """
    found, listed = check(file, say)
    path = folder or default_folder(found.spec.name)
    if dry_run:
        _list(found, listed, Store(path), as_json)
        return
    if not table.can_write_parquet():
        say(
            "no results.parquet: pyarrow is not installed (pip install 'rackhub[sweep]');"
            " the same command writes it then, and runs nothing again"
        )
    with opened(path) as store:
        view = SweepView(console_for(stderr=True), store, listed)

        def crew() -> Crew:
            if address is not None:
                return RayCrew(address, jobs, say=view.say)
            return LocalCrew(jobs or len(os.sched_getaffinity(0)), store.logs)

        try:
            with view:
                state, rows = carry_out(found, listed, store, crew, view.take)
        except KeyboardInterrupt:
            say("what is done is kept: the same command goes on")
            raise
        undrawn = write(found, store, drawing, rows, say)
    for text in effects.equal(found.axes, rows):
        say(f"note: {text}")
    if as_json:
        print_json({"sweep": found.spec.name, "folder": str(path.resolve()), "trials": rows})
    else:
        _show(found, listed, rows, store.csv.resolve())
    if state.failed:
        raise SweepError(
            f"{count(state.failed, 'trial')} of {state.trials:,} failed, each tried twice; their"
            f" logs are in {shown(path.resolve())}/trials/*/result.json"
        )
    if drawing is not None and undrawn:
        raise SweepError(f"--plot {drawing}: no plot: {undrawn}")


def _list(file: SweepFile, listed: Sequence[Trial], store: Store, as_json: bool) -> None:
    todo = {one.id for one in pending(store, listed)}
    rows = [{"trial": one.id, "done": one.id not in todo, "values": one.values} for one in listed]
    if as_json:
        print_json({"sweep": file.spec.name, "folder": str(store.path.resolve()), "trials": rows})
        return
    table_rows = [
        {"trial": one.id, "done": "no" if one.id in todo else "yes", **_values(file, one)}
        for one in listed
    ]
    show_rows(console_for(), table_rows, {"trial": "trial", "done": "done", **_titles(file)})


def _titles(file: SweepFile) -> dict[str, str]:
    """Returns titles of the axes that have several values, by path."""
    return {axis.path: axis_name(axis) for axis in file.axes if len(axis.values) > 1}


def _values(file: SweepFile, trial: Trial) -> dict[str, str]:
    """Formats a trial's values on the axes that have several, by path."""
    return {
        axis.path: value_text(axis, table.plain(trial.measures[axis.path]))
        for axis in file.axes
        if len(axis.values) > 1
    }


def _show(file: SweepFile, listed: Sequence[Trial], rows: list[table.Row], whole: Path) -> None:
    """Prints the results of the first trials as a table.

    whole: path of the CSV file with all of them.
    """
    console = console_for()
    cells = [
        {
            "trial": one.id,
            **_values(file, one),
            "iteration": _figure(time_text, row["iteration_median_s"]),
            "longest": _figure(
                time_text, row["iteration_longest_s"], unless=row["iteration_median_s"]
            ),
            "busiest": _figure(size_text, row["busiest_link_bytes"]),
            "again": f"{row['packets_sent_again']:,}" if row["packets_sent_again"] else "",
            "state": "" if row["state"] == DONE else row["state"],
        }
        for one, row in list(zip(listed, rows, strict=True))[:_MOST_SHOWN]
    ]
    columns = {
        "trial": "trial", **_titles(file), "iteration": "iteration", "longest": "longest",
        "busiest": "busiest link", "again": "retransmitted", "state": "state",
    }  # fmt: skip
    show(console)
    show_rows(console, cells, columns)
    if len(rows) > _MOST_SHOWN:
        more = count(len(rows) - _MOST_SHOWN, "more trial")
        show(console, Text(f"... and {more}; all of them, with all figures, are in {shown(whole)}"))


def _figure(
    text: Callable[[float, int], str], value: float | None, unless: float | None = None
) -> str:
    """Formats a value; empty if it is unknown or equal to `unless`."""
    return "" if value in (None, unless) else text(value, _DIGITS)
