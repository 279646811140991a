# SPDX-License-Identifier: Apache-2.0
"""What a person sees of a run: a live view on a terminal, plain lines elsewhere, and tables."""

from __future__ import annotations

import time
from collections.abc import Iterable
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

Message = dict[str, Any]
_LINE_SECONDS = 1.0
_WAITING_SECONDS = 5.0
_STATES = {"starting": "starting workers", "checking": "training again without a network"}


class View:
    """Follows jobs; a context manager. ``event`` takes what a testbed tells of its jobs."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._jobs: dict[str, Message] = {}
        self._printed: dict[str, tuple[float, str]] = {}
        self._live = Live(console=console, refresh_per_second=8, transient=True)

    def __enter__(self) -> View:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._live.stop()

    def note(self, text: str) -> None:
        """A line that stays."""
        self._console.print(Text(text), soft_wrap=True)

    def event(self, message: Message) -> None:
        """Shows the state of a job as an event changes it."""
        job = self._jobs.setdefault(message["job"], {})
        job.update(message)
        if self._console.is_terminal:
            self._live.update(self._table())
        else:
            self._line(message["job"], job)

    def _line(self, name: str, job: Message) -> None:
        then, state = self._printed.get(name, (0.0, ""))
        now = time.monotonic()
        measured = job["event"] == "progress"
        if measured and now - then < _LINE_SECONDS and job["iteration"] < job["iterations"]:
            return
        waits = job["event"] == "waiting"
        if waits and state == "waiting" and now - then < _WAITING_SECONDS:
            return
        if not (measured or waits) and job["event"] == state:
            return
        self._printed[name] = (now, job["event"])
        if measured:
            columns = ", ".join(f"{title} {value}" for title, value in _figures(job))
            text = f"{name}: iteration {job['iteration']}/{job['iterations']}, {columns}"
        elif waits:
            text = f"{name}: {_waiting(job)}"
        else:
            text = f"{name}: {_STATES.get(job['event'], job['event'])}"
        self._console.print(Text(text), soft_wrap=True)

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        titles = ["job", "", "iteration", *(title for title, _ in _figures({}))]
        for title in titles:
            table.add_column(title, justify="left" if title in ("job", "") else "right")
        for name, job in self._jobs.items():
            state = _waiting(job) if job["event"] == "waiting" else _STATES.get(job["event"])
            done, of = job.get("iteration", 0), job.get("iterations", 0)
            bar = Text(state, style="dim") if state else ProgressBar(of or 1, done, width=30)
            figures = [value for _, value in _figures(job)]
            table.add_row(name, bar, f"{done}/{of}" if of else "", *figures)
        return table


def _waiting(job: Message) -> str:
    return f"waiting for {job['seconds']:.0f} s: {job['why']}"


def _figures(job: Message) -> list[tuple[str, str]]:
    def value(name: str, form: str, factor: float = 1) -> str:
        known = job.get(name)
        return format(known * factor, form) if known is not None else "-"

    return [
        ("epoch", value("epoch", ".1f")),
        ("loss", value("loss", ".4f")),
        ("accuracy", value("accuracy", ".3f")),
        ("chunks/s", value("chunks_per_second", ",.0f")),
        ("in network", value("share_in_network", ".1f", 100) + " %"),
    ]


def results(summary: Message) -> Iterable[Table]:
    """The tables at the end of a run."""
    jobs = summary["jobs"]
    table = _plain("", *(job["job"] for job in jobs))
    rows: list[tuple[str, list[str]]] = [
        ("topology", [f"{job['topology']}, {job['racks']} racks" for job in jobs]),
        ("workers, servers", [f"{job['workers']}, {job['servers']}" for job in jobs]),
        ("target, clock", [f"{job['target']}, {job['clock']}" for job in jobs]),
        ("iterations", [f"{job['iterations']:,}" for job in jobs]),
        ("time per iteration", [_milliseconds(job["seconds_per_iteration"]) for job in jobs]),
        ("test accuracy", [f"{job['test_accuracy']:.4f}" for job in jobs]),
        ("matches reference", [_yes(job["matches_reference"]) for job in jobs]),
        ("chunks in network", [f"{_chunks(job, 'aggregated_in_network'):,}" for job in jobs]),
        ("chunks by server", [f"{_chunks(job, 'served_by_server'):,}" for job in jobs]),
        ("packets sent again", [f"{_chunks(job, 'retransmitted'):,}" for job in jobs]),
    ]
    for title, values in rows:
        table.add_row(title, *values)
    yield table
    yield link_table(summary["links"])


def link_table(links: list[Message]) -> Table:
    """Bytes per link direction beside what they should be; a rack's hosts share a row."""
    known = all(row["expected_bytes"] is not None for row in links)
    table = _plain("link", "MB", *(("expected", "difference") if known else ()))
    for names, group in _grouped(links):
        carried = _range([row["bytes"] / 1e6 for row in group])
        if not known:
            table.add_row(names, carried)
            continue
        wanted = [row["expected_bytes"] for row in group]
        expected = _range([one / 1e6 for one in wanted])
        table.add_row(names, carried, expected, max((deviation(r) for r in group), key=_size))
    return table


def _grouped(links: list[Message]) -> list[tuple[str, list[Message]]]:
    groups: dict[tuple[str, str], list[Message]] = {}
    for row in links:
        ends = tuple(
            name if name.startswith(("tor", "core")) else name.rstrip("0123456789") + "*"
            for name in (row["from"], row["to"])
        )
        groups.setdefault((ends[0], ends[1]), []).append(row)
    named = []
    for rows in groups.values():
        senders, receivers = (_run([row[end] for row in rows]) for end in ("from", "to"))
        named.append((f"{senders} to {receivers}", rows))
    return named


def _run(names: list[str]) -> str:
    unique = list(dict.fromkeys(names))
    return unique[0] if len(unique) == 1 else f"{unique[0]}..{unique[-1]}"


def deviation(row: Message) -> str:
    """How far a link's bytes are from what was expected, as text."""
    carried, wanted = row["bytes"], row["expected_bytes"]
    if carried == wanted:
        return "0 %"
    return f"{(carried - wanted) / wanted * 100:+.2f} %" if wanted else f"{carried:+,} B"


def _size(text: str) -> float:
    number = abs(float(text.split()[0].replace(",", "")))
    return number * 1e9 if text.endswith("B") else number


def _range(values: list[float]) -> str:
    low, high = f"{min(values):.3f}", f"{max(values):.3f}"
    return low if low == high else f"{low}..{high}"


def _milliseconds(seconds: list[float]) -> str:
    ordered = sorted(seconds)
    return f"{ordered[len(ordered) // 2] * 1e3:.1f} ms (median)"


def _yes(matches: bool) -> str:
    return "[green]yes, bit by bit[/]" if matches else "[bold red]NO[/]"


def _chunks(job: Message, which: str) -> int:
    return int(job["chunks"][which])


def _plain(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column(first)
    for title in others:
        table.add_column(title, justify="right")
    return table


def rows_table(rows: list[Message], columns: dict[str, str]) -> Table:
    """Rows as a table; columns: field -> title."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for title in columns.values():
        table.add_column(title)
    for row in rows:
        values = (row.get(name) for name in columns)
        table.add_row(*("" if value is None else _short(value) for value in values))
    return table


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
