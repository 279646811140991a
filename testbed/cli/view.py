# SPDX-License-Identifier: Apache-2.0
"""What a person sees of a run: a live view on a terminal, plain lines elsewhere, and tables."""

from __future__ import annotations

import io
import statistics
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from types import TracebackType
from typing import Any

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

Message = dict[str, Any]
_LINE_SECONDS = 1.0
_WAITING_SECONDS = 5.0
_STATES = {"starting": "starting workers", "checking": "training again without a network"}
_BAR_WIDTH, _LEAST_BAR_WIDTH = 30, 8
_GAP = 2  # between columns
_FEW_ROWS = 3  # for which nobody has to look along a column
MOST_LINK_ROWS = 40  # what a reader takes in, and a terminal has
# Wider than anything that is printed: where no terminal is, nobody wraps or cuts.
ENDLESS = 10_000


def count(number: int, one: str, many: str = "") -> str:
    """A number of things in words: 1 server, 2 servers, 2 switches."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def show(console: Console, what: RenderableType = "") -> None:
    """Prints; where there is no terminal, lines as long as they are and without trailing blanks."""
    if console.is_terminal:
        console.print(what)
        return
    for line in _lines(what):
        console.print(Text(line), soft_wrap=True)


def _lines(what: RenderableType) -> list[str]:
    """What is printed where there is room for all of it."""
    text = io.StringIO()
    Console(file=text, width=ENDLESS, color_system=None, highlight=False).print(what)
    return [line.rstrip() for line in text.getvalue().splitlines()]


def _fits(console: Console, what: RenderableType) -> bool:
    return not console.is_terminal or max(map(cell_len, _lines(what))) <= console.width


class View:
    """Follows jobs; a context manager. ``event`` takes what a testbed tells of its jobs."""

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
        """A line that stays."""
        self._console.print(Text(text), soft_wrap=True)

    def event(self, message: Message) -> None:
        """Shows the state of a job as an event changes it."""
        if message["event"] == "fault":  # told once for each job that it meets
            if message["number"] not in self._faults:
                self._faults.add(message["number"])
                self.note(message["text"])
            return
        job = self._jobs.setdefault(message["job"], {})
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
        if not (measured or waits) and job["event"] == state:
            return
        self._printed[name] = (now, job["event"])
        if measured:
            known = [f"{title} {told}" for title, told in _figures(job).items() if told != "-"]
            text = ", ".join([f"{name}: iteration {job['iteration']}/{job['iterations']}", *known])
        else:
            text = f"{name}: {_state(job) or job['event']}"
        self._console.print(Text(text), soft_wrap=True)

    def picture(self) -> RenderableType:
        """Bars and figures of all jobs, no wider than the console; below, what jobs wait for."""
        titles = list(_figures({}))
        rows = [
            (name, f"{job.get('iteration', 0)}/{job.get('iterations', '-')}", _figures(job))
            for name, job in self._jobs.items()
        ]
        names = max(cell_len(name) for name in ["job", *self._jobs])
        iterations = max(len(text) for text in ["iteration", *(row[1] for row in rows)])

        def room() -> int:
            """What is left for the bar."""
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
            bar = ProgressBar(job.get("iterations") or 1, job.get("iteration", 0), width=width)
            table.add_row(name, bar, iteration, *(figures[title] for title in titles))
        states = ((name, _state(job)) for name, job in self._jobs.items())
        notes = [Text(f"{name}: {state}", style="dim") for name, state in states if state]
        return Group(table, *notes)


def _state(job: Message) -> str:
    """What a job does that its figures do not say."""
    if job["event"] == "waiting":
        return f"waiting for {job['seconds']:.0f} s: {job['why']}"
    return _STATES.get(job["event"], "")


def _figures(job: Message) -> dict[str, str]:
    def value(name: str, form: str, factor: float = 1, unit: str = "") -> str:
        known = job.get(name)
        return format(known * factor, form) + unit if known is not None else "-"

    return {
        "passes": value("passes", ".1f"),
        "loss": value("loss", ".4f"),
        "accuracy": value("accuracy", ".3f"),
        "chunks/s": value("chunks_per_second", ",.0f"),
        "in network": value("share_in_network", ".1f", 100, " %"),
    }


def show_results(console: Console, jobs: Sequence[Message], links: list[Message]) -> None:
    """The tables at the end: figures of jobs that are done, and what links carried meanwhile."""
    together = _results(jobs)
    apart = [_results([job]) for job in jobs]
    for table in [together] if _fits(console, together) else apart:
        show(console)
        show(console, table)
    bound = [job["machine"] for job in jobs if job["machine"]["cpu_bound"]]
    if bound:
        text = "The CPU was the bottleneck: times are this machine's, not the network's."
        why = "; ".join(bound[0].get("cpu_bound_by", ()))
        show(console, Text(f"{text[:-1]} ({why})." if why else text, style="yellow"))
    for job in jobs:
        if job["matches_reference"] is None:
            text = (
                f"{job['job']}: whether its weights are right is not known: {job['no_reference']}."
            )
            show(console, Text(text, style="yellow"))
    show(console)
    show(console, link_table(links))
    for why in sorted({row["unknown"] for row in links if row["bytes"] is None}):
        show(console, Text(f"unknown: {why}.", style="dim"))
    meanwhile = sorted({name for job in jobs for name in job["alongside"]} - _names(jobs))
    if meanwhile:
        show(
            console, Text(f"These include what {', '.join(meanwhile)} sent meanwhile.", style="dim")
        )
    direct = sum(job["chunks"]["in_float32"] for job in jobs)
    if direct:
        text = (
            f"{count(direct, 'chunk')} did not fit fixed point and went to servers in float32:"
            " these bytes are beyond what is expected."
        )
        show(console, Text(text, style="dim"))


def _names(jobs: Iterable[Message]) -> set[str]:
    return {job["job"] for job in jobs}


def _results(jobs: Sequence[Message]) -> Table:
    table = _plain("", *(job["job"] for job in jobs))
    rows: list[tuple[str, list[str]]] = [
        ("topology", [f"{job['topology']}, {count(job['racks'], 'rack')}" for job in jobs]),
        ("workers, servers", [f"{job['workers']}, {job['servers']}" for job in jobs]),
        ("target, clock", [f"{job['target']}, {job['clock']}" for job in jobs]),
        ("iterations", [f"{job['iterations']:,}" for job in jobs]),
        *_averaged(jobs),
        *_apart(jobs),
        ("time per iteration", [_milliseconds(job["seconds_per_iteration"]) for job in jobs]),
        *([("CPU busy", [_busy(job["machine"]) for job in jobs])] if _measured(jobs) else []),
        *_learned(jobs),
        ("matches reference", [_yes(job["matches_reference"]) for job in jobs]),
        ("chunks summed by switches", [_chunks(job, "aggregated_in_network") for job in jobs]),
        ("chunks by servers alone", [_chunks(job, "served_by_server") for job in jobs]),
        ("packets sent again", [_chunks(job, "retransmitted") for job in jobs]),
    ]
    for title, values in rows:
        table.add_row(title, *values)
    return table


def _learned(jobs: Sequence[Message]) -> list[tuple[str, list[str]]]:
    """Rows of what models are worth, where one has learned anything."""
    if all(job["test_accuracy"] is None for job in jobs):
        return []
    told = [
        ("-", "-")
        if job["test_accuracy"] is None
        else (
            f"{job['test_accuracy']:.4f}",
            f"{job['test_loss']:.4f} ({job['test_bits']:.3f} bits)",
        )
        for job in jobs
    ]
    return [("test accuracy", [one for one, _ in told]), ("test loss", [two for _, two in told])]


def _averaged(jobs: Sequence[Message]) -> list[tuple[str, list[str]]]:
    """A row of how many workers were in the sums, where that changed: 8, 7, 8."""
    runs = [[str(n) for n, _ in groupby(job.get("workers_per_iteration", ()))] for job in jobs]
    return [("averaged over", [", ".join(one) for one in runs])] if any(r[1:] for r in runs) else []


def _apart(jobs: Sequence[Message]) -> list[tuple[str, list[str]]]:
    """A row of how far ahead of the slowest worker others were, where they do not wait for it."""
    seen = [job.get("staleness_seen") for job in jobs]
    told = [f"{one['max']}, mean {one['mean']:.2f}" if one else "" for one in seen]
    return [("gradients ahead", told)] if any(told) else []


def _measured(jobs: Sequence[Message]) -> bool:
    """Whether how busy the machine was says anything: in virtual time it does not."""
    return all("cpu_busy" in job["machine"] for job in jobs)


def _busy(machine: Message) -> str:
    share = f"{100 * machine['cpu_busy']:.0f} %"
    return f"[yellow]{share}[/]" if machine["cpu_bound"] else share


def sending_ends(links: Sequence[Message]) -> list[str]:
    """Who sends on each: the node, or its interface where several links join the same two."""
    pairs = Counter((row["from"], row["to"]) for row in links)
    return [row["interface" if pairs[row["from"], row["to"]] > 1 else "from"] for row in links]


def link_table(links: list[Message]) -> Table:
    """Bytes per link direction beside what they should be; a rack's hosts share a row.

    Where that would be a table longer than `MOST_LINK_ROWS`, racks share rows, too.
    """
    known = all(row["expected_bytes"] is not None and row["bytes"] is not None for row in links)
    table = _plain("link", "MB", *(("expected", "difference") if known else ()))
    for names, group in _grouped(links):
        told = [row["bytes"] / 1e6 for row in group if row["bytes"] is not None]
        carried = _range(told) if told else "unknown"
        if not known:
            table.add_row(names, carried)
            continue
        wanted = [row["expected_bytes"] for row in group]
        expected = _range([one / 1e6 for one in wanted])
        worst = max(group, key=lambda row: abs(row["bytes"] - row["expected_bytes"]))
        table.add_row(names, carried, expected, deviation(worst))
    return table


def _grouped(links: list[Message]) -> list[tuple[str, list[Message]]]:
    rows = _alike(links, folded=("w", "s"))
    return rows if len(rows) <= MOST_LINK_ROWS else _alike(links, folded=("w", "s", "tor", "core"))


def _alike(links: list[Message], folded: tuple[str, ...]) -> list[tuple[str, list[Message]]]:
    """Links with a name each, together where ends differ only in numbers of `folded` kinds."""
    groups: dict[tuple[str, ...], list[Message]] = {}
    named = []
    for row, sender in zip(links, sending_ends(links), strict=True):
        kinds = [(name, name.rstrip("0123456789")) for name in (row["from"], row["to"])]
        ends = tuple(f"{kind}*" if kind in folded else name for name, kind in kinds)
        if sender != row["from"]:
            ends = sender, row["to"]
        groups.setdefault(ends, []).append({**row, "from": sender})
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
    percent = f"{(carried - wanted) / wanted * 100:+.2f} %" if wanted else ""
    return percent if percent.strip("+-0. %") else f"{carried - wanted:+,} B"


def _range(values: list[float]) -> str:
    low, high = f"{min(values):.3f}", f"{max(values):.3f}"
    return low if low == high else f"{low}..{high}"


def _milliseconds(seconds: list[float]) -> str:
    return f"{statistics.median(seconds) * 1e3:.1f} ms (median)"


def _yes(matches: bool | None) -> str:
    if matches is None:
        return "[yellow]not known[/]"  # a line below the tables says why
    return "[green]yes, bit by bit[/]" if matches else "[bold red]NO[/]"


def _chunks(job: Message, which: str) -> str:
    known = job["chunks"][which]
    return "unknown" if known is None else f"{known:,}"


def _plain(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    table.add_column(first, overflow="fold")
    for title in others:
        table.add_column(title, justify="right", overflow="fold")
    return table


def show_rows(console: Console, rows: list[Message], columns: dict[str, str]) -> None:
    """Rows as a table; where that is too wide, as several of some columns each, the first in all of
    them, or else one row below the other. columns: field -> title.

    Columns without any value are left out.
    """
    titles = {name: title for name, title in columns.items() if any(_cell(r, name) for r in rows)}
    if not titles:
        show(console, _of(rows, columns))
        return
    tables = _split(console, rows, titles)
    for number, table in enumerate(tables):
        if number:
            show(console)
        show(console, table)
    if tables:
        return
    for number, row in enumerate(rows):
        block = _plain("", "")
        block.show_header = False
        for name, title in titles.items():
            if _cell(row, name):
                block.add_row(title, Text(_cell(row, name), overflow="fold"))
        block.columns[1].justify = "left"
        if number:
            show(console)
        show(console, block)


def _of(rows: list[Message], titles: dict[str, str]) -> Table:
    table = _plain(*titles.values())
    for column in table.columns:
        column.justify = "left"
    for row in rows:
        table.add_row(*(Text(_cell(row, name)) for name in titles))
    return table


def _split(console: Console, rows: list[Message], titles: dict[str, str]) -> list[Table]:
    """As many columns in a table as fit beside the first; none if one of them does not."""
    first, *others = titles
    tables: list[Table] = []
    while others or not tables:
        fitting = len(others)
        while True:
            names = [first, *others[:fitting]]
            table = _of(rows, {name: titles[name] for name in names})
            if _fits(console, table):
                break
            fitting -= 1
            if fitting < 1 or len(rows) < _FEW_ROWS:  # of which each is better read in whole
                return []
        tables.append(table)
        others = others[fitting:]
    return tables


def show_faults(console: Console, faults: list[Message]) -> None:
    """What happened, and how long the job took to go on."""
    columns = {
        "at": "at (s)", "node": "node", "what": "fault", "seconds": "went on after (s)",
        "rejoined_after": "back after (s)",
        "epochs": "epoch", "aggregating": "slots aggregating", "partial": "slots partial",
        "resent_packets": "packets again", "resent_bytes": "bytes again",
    }  # fmt: skip
    if all(row.get("rejoined_after") is None for row in faults):
        del columns["rejoined_after"]
    rows = [{**row, "epochs": f"{row['epoch_before']} to {row['epoch_after']}"} for row in faults]
    show_rows(console, rows, columns)


def show_plans(console: Console, plans: list[Message]) -> None:
    """Where a job's sums were completed, from plan to plan."""
    columns = {
        "epoch": "epoch", "tree": "tree", "roots": "sums end at",
        "by_switch": "completed at a switch", "by_server": "at a server",
    }  # fmt: skip
    show_rows(console, plans, columns)


def _cell(row: Message, name: str) -> str:
    value = row.get(name)
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "" if value is None else _short(value)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
