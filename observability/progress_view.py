# SPDX-License-Identifier: Apache-2.0
"""Progress of running jobs, on a terminal or as lines elsewhere."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.status import Status
from rich.table import Table
from rich.text import Text

from observability.messages.events import Event, ProgressEvent, Within
from topologies.model.documents import Problem
from topologies.model.units import time_text

_LINE_SECONDS = 1.0
_WAITING_SECONDS = 5.0
_WITHIN_SECONDS = 10.0
_STATES = {"starting": "starting workers", "checking": "checking the results"}
_BAR_WIDTH, _LEAST_BAR_WIDTH = 30, 8
_GAP = 2  # between columns


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

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def note(self, text: str) -> None:
        """Prints a line above the progress."""
        self._console.print(Text(text), soft_wrap=True)

    def warn(self, problem: Problem) -> None:
        """Prints a warning."""
        self.note(f"warning: {problem}")

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
