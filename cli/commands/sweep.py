# SPDX-License-Identifier: Apache-2.0
"""``rackhub sweep``: a matrix of runs in virtual time."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from cli.display.tables import show, show_rows
from cli.files import FILE, PICTURE
from cli.options import console_for, print_json, say, with_json
from observability import pictures
from observability.record import shown
from observability.wording import count
from specs.p4program import make_ready
from specs.sweepfile import SweepFile, SweepFileError, load
from sweeps import curves, effects, plot, table
from sweeps.cluster import RayCrew
from sweeps.conduct import AGAIN, Crew, State, conduct, pending
from sweeps.errors import SweepError
from sweeps.execution import Outcome
from sweeps.local import LocalCrew
from sweeps.store import DONE, FAILED, Store, default_folder, opened
from sweeps.trials import Trial, trials
from sweeps.wording import axis_name, value_text
from testbed.program import compile_once
from topologies.model.units import size_text, time_text

_MINUTE = 60.0
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
    found = load(file)
    make_ready(say=say)
    _check_plot(found)
    listed = trials(found)
    for text in effects.before(found.axes, listed):
        say(f"note: {text}")
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
        for program in sorted({one.program for one in listed}):
            compile_once(program)

        view = _View(console_for(stderr=True), store, listed)

        def crew() -> Crew:
            if address is not None:
                return RayCrew(address, jobs, say=view.say)
            return LocalCrew(jobs or len(os.sched_getaffinity(0)), store.logs)

        try:
            with view:
                state = conduct(store, listed, crew, view.take)
        except KeyboardInterrupt:
            say("what is done is kept: the same command goes on")
            raise
        results = ((one, store.result(one)) for one in listed)
        rows = [table.row(one, found.axes, done) for one, done in results if done is not None]
        undrawn = _write(found, store, drawing, rows)
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


def _check_plot(file: SweepFile) -> None:
    y = file.spec.plot.y
    if y not in table.columns():
        allowed = ", ".join(name for name in table.columns() if name.endswith(("_s", "_bytes")))
        text = f"{y!r} is no column of the results; such are {allowed}"
        raise SweepFileError([file.document.problem(("plot", "y"), text)])


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


def _write(file: SweepFile, store: Store, drawing: Path | None, rows: list[table.Row]) -> str:
    """Writes tables and plots; returns why there is no plot, or an empty string."""
    table.write_csv(store.csv, rows)
    written = [store.csv]
    if table.can_write_parquet():
        table.write_parquet(store.parquet, rows)
        written.append(store.parquet)
    found = curves.figure(file.axes, file.spec.plot, rows)
    if isinstance(found, str):
        say(f"no plot: {found}")
    else:
        about = f"{found.y.title} of sweep {file.spec.name} over {found.x.title}"
        drawn = plot.draw(found)
        for note in found.notes:
            say(f"plot: {note}")
        for path in (store.plot, *([drawing] if drawing is not None else [])):
            pictures.write(path, drawn, about)
            written.append(path)
    for path in written:
        say(shown(path.resolve()))
    return found if isinstance(found, str) else ""


def _left(seconds: float | None) -> str:
    if not seconds:  # unknown yet, or finished
        return ""
    if seconds < _MINUTE:
        return f", about {seconds:.0f} s left"
    hours, minutes = divmod(round(seconds / _MINUTE), 60)
    return f", about {f'{hours} h ' if hours else ''}{minutes} min left"


class _View:
    """Shows progress: a bar with the time left on a terminal, a line per trial elsewhere."""

    def __init__(self, console: Console, store: Store, listed: Sequence[Trial]) -> None:
        self.say: Callable[[str], None] = lambda text: console.print(
            text, soft_wrap=True, markup=False
        )
        before = len(listed) - len(pending(store, listed))
        self.say(
            f"{count(len(listed), 'trial')}, {before:,} of them done before\n"
            f"{shown(store.path.resolve())}"
        )
        self._bar = Progress(
            TextColumn("trials"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.description}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._terminal = console.is_terminal
        self._task = self._bar.add_task("", total=len(listed), completed=before)

    def __enter__(self) -> _View:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def take(self, state: State, trial: Trial, outcome: Outcome, became: str) -> None:
        """Reports the outcome of a trial. became: its state."""
        failed = f", {state.failed:,} failed" if state.failed else ""
        left = _left(state.left)
        self._bar.update(
            self._task, completed=state.over, description=(failed + left).removeprefix(", ")
        )
        if became in (FAILED, AGAIN):
            what = "failed" if became == FAILED else "failed, and is tried again"
            self.say(f"trial {trial.id} ({trial.label}) {what}: {outcome.error}")
        if not self._terminal and became != AGAIN:
            done = f"{state.over:,}/{state.trials:,} trials{failed}{left}"
            self.say(f"{done}: {trial.label or trial.id}, {outcome.seconds:.1f} s")
