# SPDX-License-Identifier: Apache-2.0
"""Progress of running jobs, on a terminal or as lines elsewhere; and plain tables."""

from __future__ import annotations

import io
import math
import time
from types import TracebackType
from typing import Any

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.status import Status
from rich.table import Table
from rich.text import Text

from topologies.model.units import time_text

Message = dict[str, Any]
_LINE_SECONDS = 1.0
_WAITING_SECONDS = 5.0
_WITHIN_SECONDS = 10.0
_STATES = {"starting": "starting workers", "checking": "training again without a network"}
_BAR_WIDTH, _LEAST_BAR_WIDTH = 30, 8
_GAP = 2  # between columns
_FEW_ROWS = 3  # up to here, rows are printed as blocks rather than in split tables
# Wider than any output: without a terminal, lines are neither wrapped nor cut.
ENDLESS = 10_000


def show(console: Console, what: RenderableType = "") -> None:
    """Prints; without a terminal, lines are not wrapped and have no trailing blanks."""
    if console.is_terminal:
        console.print(what)
        return
    for line in _lines(what):
        console.print(Text(line), soft_wrap=True)


def _lines(what: RenderableType) -> list[str]:
    """Renders without a limit of width."""
    text = io.StringIO()
    Console(file=text, width=ENDLESS, color_system=None, highlight=False).print(what)
    return [line.rstrip() for line in text.getvalue().splitlines()]


def fits(console: Console, what: RenderableType) -> bool:
    """Tells whether the console is wide enough to show it without cutting or wrapping."""
    return not console.is_terminal or max(map(cell_len, _lines(what))) <= console.width


class View:
    """Shows the progress of jobs from a testbed's events. A context manager."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._jobs: dict[str, Message] = {}
        self._printed: dict[str, tuple[float, str]] = {}
        self._live: Live | None = None
        self._faults: set[int] = set()

    def __enter__(self) -> View:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def note(self, text: str) -> None:
        """Prints a line above the progress."""
        self._console.print(Text(text), soft_wrap=True)

    def event(self, message: Message) -> None:
        """Updates a job's state from an event and shows it."""
        if message["event"] == "fault":  # sent once for each job it affects
            if message["number"] not in self._faults:
                self._faults.add(message["number"])
                self.note(message["text"])
            return
        job = self._jobs.setdefault(message["job"], {})
        if message["event"] == "progress":  # counted within an iteration that is over now
            job.pop("iterations_done", None)
        job.update(message)
        if not self._console.is_terminal:
            self._line(message["job"], job)
            return
        if self._live is None:
            self._live = Live(console=self._console, refresh_per_second=8)
            self._live.start()
        self._live.update(self.picture())

    def _line(self, name: str, job: Message) -> None:
        then, state = self._printed.get(name, (0.0, ""))
        now = time.monotonic()
        measured = job["event"] == "progress"
        if measured and now - then < _LINE_SECONDS and job["iteration"] < job["iterations"]:
            return
        waits = job["event"] == "waiting"
        if waits and state == "waiting" and now - then < _WAITING_SECONDS:
            return
        within = job["event"] == "within"
        if within and now - then < _WITHIN_SECONDS:
            return
        if not (measured or waits or within) and job["event"] == state:
            return
        self._printed[name] = (now, job["event"])
        if measured:
            known = [f"{title} {text}" for title, text in _figures(job).items() if text != "-"]
            text = ", ".join([f"{name}: iteration {job['iteration']}/{job['iterations']}", *known])
        else:
            text = f"{name}: {_state(job) or job['event']}"
        self._console.print(Text(text), soft_wrap=True)

    def picture(self) -> RenderableType:
        """Renders bars and figures of all jobs within the console's width, and why jobs wait."""
        titles = list(_figures({}))
        rows = [
            (name, f"{math.floor(_done(job))}/{job.get('iterations', '-')}", _figures(job))
            for name, job in self._jobs.items()
        ]
        names = max(cell_len(name) for name in ["job", *self._jobs])
        iterations = max(len(text) for text in ["iteration", *(row[1] for row in rows)])

        def room() -> int:
            """Returns the width left for the bar."""
            figures = (max(len(t), *(len(row[2][t]) for row in rows)) + _GAP for t in titles)
            return self._console.width - names - iterations - 2 * _GAP - sum(figures)

        for least in ("passes", "chunks/s", "in network", "accuracy"):
            if room() < _LEAST_BAR_WIDTH:
                titles.remove(least)
        width = max(_LEAST_BAR_WIDTH, min(_BAR_WIDTH, room()))
        table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0))
        for title in ["job", "", "iteration", *titles]:
            left = title in ("job", "")
            table.add_column(title, justify="left" if left else "right", no_wrap=True)
        for name, iteration, figures in rows:
            job = self._jobs[name]
            bar = ProgressBar(job.get("iterations") or 1, _done(job), width=width)
            table.add_row(name, bar, iteration, *(figures[title] for title in titles))
        states = ((name, _state(job)) for name, job in self._jobs.items())
        notes = [Text(f"{name}: {state}", style="dim") for name, state in states if state]
        return Group(table, *notes)


def _done(job: Message) -> float:
    """Returns the iterations done, including the fraction of the current one if it is known."""
    return max(float(job.get("iteration", 0)), float(job.get("iterations_done", 0)))


def _state(job: Message) -> str:
    """Describes what a job is doing, as far as its figures do not show it."""
    if job["event"] in ("within", "progress") and "iterations_done" in job:
        return within(job)
    if job["event"] == "waiting":
        whose = " of virtual time" if job.get("virtual") else ""
        return f"waiting for {job['seconds']:.0f} s{whose}: {job['why']}"
    return _STATES.get(job["event"], "")


def within(progress: Message, of: str = "chunks") -> str:
    """Describes the progress of the current iteration.

    Args:
        progress: The last `within` event.
        of: The unit of its fraction.
    """
    done, iterations = progress["iterations_done"], progress["iterations"]
    number = math.floor(done)
    text = f"iteration {number + 1} of {iterations}"
    if "virtual_seconds" not in progress:
        return text
    left = progress["left_seconds"]
    end = "" if left is None else f", about {time_text(max(left, 1.0), 2)} left"
    return (
        f"{text}: {math.floor(100 * (done - number))} % of its {of}, at"
        f" {time_text(progress['virtual_seconds'], 4)} of virtual time;"
        f" {time_text(progress['wall_seconds'], 2)} so far{end}"
    )


class Meanwhile:
    """Shows progress in one line: on a terminal it changes and disappears at the end, elsewhere a
    line is printed every 10 s. A context manager."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status: Status | None = None
        self._printed = time.monotonic()

    def __enter__(self) -> Meanwhile:
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def tell(self, text: str) -> None:
        """Shows a text in place of the last one."""
        if self._console.is_terminal:
            if self._status is None:
                self._status = self._console.status("")
                self._status.start()
            self._status.update(Text(text))
            return
        now = time.monotonic()
        if now - self._printed >= _WITHIN_SECONDS:
            self._printed = now
            self._console.print(Text(f"    {text}"), soft_wrap=True)


def _figures(job: Message) -> dict[str, str]:
    def value(name: str, form: str, factor: float = 1, unit: str = "") -> str:
        known = job.get(name)
        return format(known * factor, form) + unit if known is not None else "-"

    learns = job.get("loss") is not None  # else there is no data set
    return {
        "passes": value("passes", ".1f") if learns else "-",
        "loss": value("loss", ".4f"),
        "accuracy": value("accuracy", ".3f"),
        "chunks/s": value("chunks_per_second", ",.0f"),
        "in network": value("share_in_network", ".1f", 100, " %"),
    }


def plain_table(first: str, *others: str) -> Table:
    """Returns a table without rules; the first column is left-aligned, the others right."""
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    table.add_column(first, overflow="fold")
    for title in others:
        table.add_column(title, justify="right", overflow="fold")
    return table


def show_rows(console: Console, rows: list[Message], columns: dict[str, str]) -> None:
    """Prints rows as a table, without the columns that have no value.

    A table that is too wide is split into several, each with the first column; if that does not
    help, each row is printed as a block.

    Args:
        columns: Titles by field.
    """
    titles = {name: title for name, title in columns.items() if any(_cell(r, name) for r in rows)}
    if not titles:
        show(console, _table(rows, columns))
        return
    tables = _split(console, rows, titles)
    for number, table in enumerate(tables):
        if number:
            show(console)
        show(console, table)
    if tables:
        return
    for number, row in enumerate(rows):
        block = plain_table("", "")
        block.show_header = False
        for name, title in titles.items():
            if _cell(row, name):
                block.add_row(title, Text(_cell(row, name), overflow="fold"))
        block.columns[1].justify = "left"
        if number:
            show(console)
        show(console, block)


def _table(rows: list[Message], titles: dict[str, str]) -> Table:
    table = plain_table(*titles.values())
    for column in table.columns:
        column.justify = "left"
    for row in rows:
        table.add_row(*(Text(_cell(row, name)) for name in titles))
    return table


def _split(console: Console, rows: list[Message], titles: dict[str, str]) -> list[Table]:
    """Splits columns into tables that fit, each with the first; returns none if one cannot fit.

    Later tables leave out rows that are empty in their columns.
    """
    first, *others = titles
    tables: list[Table] = []
    while others or not tables:
        fitting = len(others)
        while True:
            names = [first, *others[:fitting]]
            filled = [row for row in rows if not tables or any(_cell(row, n) for n in names[1:])]
            table = _table(filled, {name: titles[name] for name in names})
            if fits(console, table):
                break
            fitting -= 1
            if fitting < 1 or len(rows) < _FEW_ROWS:  # few rows read better as blocks
                return []
        tables.append(table)
        others = others[fitting:]
    return tables


def _cell(row: Message, name: str) -> str:
    value = row.get(name)
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "" if value is None else _short(value)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
