# SPDX-License-Identifier: Apache-2.0
"""Progress of running jobs, on a terminal or as lines elsewhere; and plain tables."""

from __future__ import annotations

import io
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TypeAlias

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.status import Status
from rich.table import Table
from rich.text import Text

from observability.messages.events import Event, ProgressEvent, Within
from topologies.model.units import time_text

Row: TypeAlias = Mapping[str, object]
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


@dataclass
class _Job:
    """The latest events of a job: of any kind, of its progress, and within an iteration since."""

    latest: Event
    progress: ProgressEvent | None = None
    within: Within | None = None

    @property
    def done(self) -> float:
        """Iterations done, including the fraction of the current one if it is known."""
        whole = 0 if self.progress is None else self.progress["iteration"]
        return max(whole, 0.0 if self.within is None else self.within["iterations_done"])

    @property
    def iterations(self) -> int | None:
        """Iterations that it has, if known."""
        known = self.progress or self.within
        return None if known is None else known["iterations"]


class View:
    """Shows the progress of jobs from a testbed's events. A context manager."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._jobs: dict[str, _Job] = {}
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

    def event(self, message: Event) -> None:
        """Updates a job's state from an event and shows it."""
        if message["event"] == "fault":  # sent once for each job it affects
            if message["number"] not in self._faults:
                self._faults.add(message["number"])
                self.note(message["text"])
            return
        job = self._jobs.setdefault(message["job"], _Job(message))
        job.latest = message
        if message["event"] == "progress":
            job.progress, job.within = message, None  # it was within an iteration that is over now
        elif message["event"] == "within":
            job.within = message
        if not self._console.is_terminal:
            self._line(message["job"], job)
            return
        if self._live is None:
            self._live = Live(console=self._console, refresh_per_second=8)
            self._live.start()
        self._live.update(self.picture())

    def _line(self, name: str, job: _Job) -> None:
        then, state = self._printed.get(name, (0.0, ""))
        now, latest = time.monotonic(), job.latest
        kind = latest["event"]
        if latest["event"] == "progress":
            if now - then < _LINE_SECONDS and latest["iteration"] < latest["iterations"]:
                return
            known = [f"{title} {text}" for title, text in _figures(latest).items() if text != "-"]
            done = f"iteration {latest['iteration']}/{latest['iterations']}"
            text = ", ".join([f"{name}: {done}", *known])
        else:
            if kind == "waiting" and state == "waiting" and now - then < _WAITING_SECONDS:
                return
            if kind == "within" and now - then < _WITHIN_SECONDS:
                return
            if kind not in ("waiting", "within") and kind == state:
                return
            text = f"{name}: {_state(job) or kind}"
        self._printed[name] = (now, kind)
        self._console.print(Text(text), soft_wrap=True)

    def picture(self) -> RenderableType:
        """Renders bars and figures of all jobs within the console's width, and why jobs wait."""
        titles = list(_figures(None))
        rows = [
            (name, f"{math.floor(job.done)}/{job.iterations or '-'}", _figures(job.progress))
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
            bar = ProgressBar(job.iterations or 1, job.done, width=width)
            table.add_row(name, bar, iteration, *(figures[title] for title in titles))
        states = ((name, _state(job)) for name, job in self._jobs.items())
        notes = [Text(f"{name}: {state}", style="dim") for name, state in states if state]
        return Group(table, *notes)


def _state(job: _Job) -> str:
    """Describes what a job is doing, as far as its figures do not show it."""
    latest = job.latest
    if latest["event"] == "within":
        return within(latest)
    if latest["event"] == "waiting":
        whose = " of virtual time" if latest.get("virtual") else ""
        return f"waiting for {latest['seconds']:.0f} s{whose}: {latest['why']}"
    return _STATES.get(latest["event"], "")


def within(progress: Within, of: str = "chunks") -> str:
    """Describes the progress of the current iteration.

    Args:
        progress: How far the job is.
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


def _figures(job: ProgressEvent | None) -> dict[str, str]:
    def text(known: float | None, form: str, factor: float = 1, unit: str = "") -> str:
        return format(known * factor, form) + unit if known is not None else "-"

    if job is None:
        return dict.fromkeys(("passes", "loss", "accuracy", "chunks/s", "in network"), "-")
    learns = job.get("loss") is not None  # else there is no data set
    return {
        "passes": text(job.get("passes"), ".1f") if learns else "-",
        "loss": text(job.get("loss"), ".4f"),
        "accuracy": text(job.get("accuracy"), ".3f"),
        "chunks/s": text(job.get("chunks_per_second"), ",.0f"),
        "in network": text(job.get("share_in_network"), ".1f", 100, " %"),
    }


def plain_table(first: str, *others: str) -> Table:
    """Returns a table without rules; the first column is left-aligned, the others right."""
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    table.add_column(first, overflow="fold")
    for title in others:
        table.add_column(title, justify="right", overflow="fold")
    return table


def show_rows(console: Console, rows: Sequence[Row], columns: dict[str, str]) -> None:
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


def _table(rows: Sequence[Row], titles: dict[str, str]) -> Table:
    table = plain_table(*titles.values())
    for column in table.columns:
        column.justify = "left"
    for row in rows:
        table.add_row(*(Text(_cell(row, name)) for name in titles))
    return table


def _split(console: Console, rows: Sequence[Row], titles: dict[str, str]) -> list[Table]:
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


def _cell(row: Row, name: str) -> str:
    value = row.get(name)
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "" if value is None else _short(value)


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
