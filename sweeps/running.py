# SPDX-License-Identifier: Apache-2.0
"""A sweep from its file to its tables and plot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from observability import pictures
from observability.record import shown
from specs.p4program import make_ready
from specs.sweepfile import SweepFile, SweepFileError, load
from sweeps import curves, effects, plot, table
from sweeps.conduct import Crew, State, conduct
from sweeps.execution import Outcome
from sweeps.store import Store
from sweeps.trials import Trial, trials
from testbed.program import compile_once


def check(path: Path, say: Callable[[str], None]) -> tuple[SweepFile, list[Trial]]:
    """Reads a sweep file; returns it with its trials, which can all run.

    Args:
        say: Takes notes on axes that change nothing.

    Raises:
        SweepFileError, DataPlaneError
    """
    found = load(path)
    make_ready(say=say)
    _check_plot(found)
    listed = trials(found)
    for text in effects.before(found.axes, listed):
        say(f"note: {text}")
    return found, listed


def carry_out(
    file: SweepFile,
    listed: Sequence[Trial],
    store: Store,
    crew: Callable[[], Crew],
    tell: Callable[[State, Trial, Outcome, str], None],
) -> tuple[State, list[table.Row]]:
    """Runs the trials that are not done; returns the state, and a row for each that is over.

    Args:
        crew, tell: As of ``conduct``.
    """
    for program in sorted({one.program for one in listed}):
        compile_once(program)
    state = conduct(store, listed, crew, tell)
    results = ((one, store.result(one)) for one in listed)
    return state, [table.row(one, file.axes, done) for one, done in results if done is not None]


def write(
    file: SweepFile,
    store: Store,
    drawing: Path | None,
    rows: list[table.Row],
    say: Callable[[str], None],
) -> str:
    """Writes tables and plots; returns why there is no plot, or an empty string.

    Args:
        drawing: A further file for the plot.
        say: Takes notes, and the paths of what is written.
    """
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


def _check_plot(file: SweepFile) -> None:
    y = file.spec.plot.y
    if y not in table.columns():
        allowed = ", ".join(name for name in table.columns() if name.endswith(("_s", "_bytes")))
        text = f"{y!r} is no column of the results; such are {allowed}"
        raise SweepFileError([file.document.problem(("plot", "y"), text)])
