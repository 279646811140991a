# SPDX-License-Identifier: Apache-2.0
"""``rackhub status --live``: shows a running testbed from the snapshots that metrics use, too."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from cli.display.tables import ENDLESS
from observability import control
from observability.control import SupervisorGoneError
from observability.messages.live import JobSnapshot, ServerSnapshot, Snapshot, SwitchSnapshot
from observability.messages.servers import ServerTimes
from observability.record import RunDirectory
from topologies.model.units import rate_text, size_text

Row = TypeVar("Row", bound=Mapping[str, object])
Node = TypeVar("Node", SwitchSnapshot, ServerSnapshot)
PERIOD_SECONDS = 1.0
_GAP, _BAR_WIDTH, _LEAST_BAR_WIDTH = 2, 20, 6

# Outcomes (protocol.outcomes) by table column. All others are drops, except `overflowed` and
# `impaired`, which are counted in addition to a packet's outcome.
_CONTRIBUTIONS = ("claimed", "added")
_SUMS = ("partial_sent", "completed")
_RETRANSMITTED = ("replayed", "resent")
_PASSED = ("forwarded", "result_down")
_QUERIES = ("query_answered", "query_passed_up")
_NO_DROPS = frozenset(
    [*_CONTRIBUTIONS, *_SUMS, *_RETRANSMITTED, *_QUERIES, *_PASSED, "overflowed", "impaired"]
)


@dataclass(frozen=True)
class Column(Generic[Row]):
    """A table column: title and cell function. Without room, those of least `worth` are dropped."""

    title: str
    value: Callable[[Row], str]
    worth: int = 9
    left: bool = False


class Growth(Generic[Node]):
    """Rates of nodes' counters since an earlier snapshot; without one, the counters themselves.

    Args:
        before: The nodes in the earlier snapshot.
        seconds: Time since then.
    """

    def __init__(self, before: Sequence[Node] | None, seconds: float) -> None:
        self.per_second = before is not None
        self._seconds = seconds
        self._before: dict[str, Node] = {one["name"]: one for one in before or ()}

    @property
    def unit(self) -> str:
        """The unit as a suffix of titles."""
        return "/s" if self.per_second else ""

    def of(self, one: Node, count: Callable[[Node], float | None]) -> float | None:
        """Returns a node's rate; None if it did not answer or its counter was reset."""
        now = count(one)
        if not self.per_second or now is None:
            return now
        earlier = self._before.get(one["name"])
        then = count(earlier) if earlier is not None else None
        return None if then is None or now < then else (now - then) / self._seconds


def picture(snapshot: Snapshot, before: Snapshot | None, width: int) -> RenderableType:
    """Renders tables of jobs, switches and servers, within ``width`` columns if possible.

    Args:
        before: An earlier snapshot, to show rates; None shows the counters themselves.
    """
    seconds = 1.0 if before is None else snapshot["monotonic"] - before["monotonic"]
    switches = Growth(None if before is None else before["switches"], seconds)
    servers = Growth(None if before is None else before["servers"], seconds)
    facts = f"{snapshot['topology']} on {snapshot['target']}, {snapshot['clock']}"
    up = time.strftime("%H:%M:%S", time.gmtime(snapshot["seconds_up"]))
    parts: list[RenderableType] = [Text.assemble((snapshot["name"], "bold"), f"  {facts}, up {up}")]
    if not snapshot["controller"]:
        text = "the controller is down: slots held by jobs, and their plans, are unknown"
        parts.append(Text(text, style="yellow"))
    parts.append(Text())
    if snapshot["jobs"]:
        parts.append(_jobs(snapshot["jobs"], width, bar=before is not None))
        parts += [
            Text(f"{job['job']}: {job['reason']}", style="dim")
            for job in snapshot["jobs"]
            if job["reason"]
        ]
    else:
        parts.append(Text("no job has been submitted", style="dim"))
    parts += [Text(), _table(snapshot["switches"], _switch_columns(switches), width)]
    if snapshot["servers"]:
        parts += [Text(), _table(snapshot["servers"], _server_columns(servers), width)]
    for job in snapshot["jobs"]:
        if job["servers"]:
            title = f"servers of {job['job']}, smoothed over its rounds"
            parts += [Text(), Text(title, style="dim")]
            parts.append(_table(job["servers"], SERVER_TIMES, width))
    return Group(*parts)


def rows_of(rows: Sequence[Row], columns: Sequence[Column[Row]], console: Console) -> Table:
    """Renders rows as the live view does; all columns where there is no terminal."""
    return _table(rows, columns, console.width if console.is_terminal else ENDLESS)


def watch(console: Console, run: RunDirectory) -> None:
    """Shows a testbed until Ctrl-C or until it is down, then restores the terminal.

    Raises:
        ControlError: The supervisor does not answer.
    """
    before: Snapshot | None = None
    snapshot = control.snapshot(run)
    try:
        with (
            suppress(KeyboardInterrupt),
            Live(console=console, auto_refresh=False, screen=True) as live,
        ):
            while True:
                live.update(picture(snapshot, before, console.width), refresh=True)
                time.sleep(PERIOD_SECONDS)
                before, snapshot = snapshot, control.snapshot(run)
    except SupervisorGoneError as error:
        if error.stuck:
            raise
        why = run.failure.partition("\n")[0]
        text = f"{run.name} is down: {why}" if why else f"{run.name} is down"
        console.print(Text(text), soft_wrap=True)


# --- tables ---


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:,.3g} ms"


def _rate(per_second: float | None) -> str:
    return "-" if per_second is None else rate_text(8 * per_second)


SERVER_TIMES: list[Column[ServerTimes]] = [
    Column("server", lambda one: one["server"], left=True),
    Column("sums", lambda one: _number(one["sums"], ",.0f"), 3),
    Column("waiting", lambda one: _ms(one["waiting"])),
    Column("handling", lambda one: _ms(one["handling"])),
    Column("propagation", lambda one: _ms(one["propagation"]), 8),
    Column("until read", lambda one: _ms(one["queueing"]), 4),
    Column("optimizer", lambda one: _ms(one["optimizer"]), 2),
    Column("queue", lambda one: _number(one["holding"], ",.3g"), 6),
    Column("summing", lambda one: _number(one["summing"], ",.0f"), 1),
    Column("received", lambda one: _rate(one["received_per_second"]), 5),
    Column("sent", lambda one: _rate(one["sent_per_second"]), 5),
    Column("blame", lambda one: _percent(one["blame"]), 7),
    Column("", lambda one: "straggles" if one["straggles"] else "", 8, left=True),
]
"""Columns of what was measured of servers."""


def _jobs(jobs: Sequence[JobSnapshot], width: int, *, bar: bool) -> Table:
    columns: list[Column[JobSnapshot]] = [
        Column("job", lambda job: str(job["job"]), left=True),
        Column("state", lambda job: str(job["state"] or "-"), left=True),
        Column("iteration", _iteration),
        Column("loss", lambda job: _number(job["loss"], ".4f"), 8),
        Column("accuracy", lambda job: _number(job["accuracy"], ".3f"), 6),
        Column("chunks/s", lambda job: _number(job["chunks_per_second"], ",.0f"), 5),
        Column("in network", lambda job: _percent(job["share_in_network"], ".1f"), 7),
        Column("workers", _workers, 3),
        Column("tree", lambda job: str(job["tree"] or "-"), 1, left=True),
        Column("plan epoch", lambda job: _number(job["plan_epoch"], "d"), 2),
    ]

    def done(job: JobSnapshot) -> tuple[float, float]:
        return job["iteration"] or 0, job["iterations"] or 0

    return _table(jobs, columns, width, done if bar else None)


def _iteration(job: JobSnapshot) -> str:
    return "-" if job["iteration"] is None else f"{job['iteration']}/{job['iterations']}"


def _workers(job: JobSnapshot) -> str:
    present, all_of_them = job["present"], job["workers"]
    return f"{all_of_them}" if present is None else f"{present} of {all_of_them}"


def _switch_columns(growth: Growth[SwitchSnapshot]) -> list[Column[SwitchSnapshot]]:
    def counted(title: str, names: Sequence[str], worth: int) -> Column[SwitchSnapshot]:
        def total(one: SwitchSnapshot) -> float | None:
            known = one["outcomes"]
            return None if known is None else sum(known[name] for name in names)

        def value(one: SwitchSnapshot) -> str:
            return _number(growth.of(one, total), ",.0f")

        return Column(title + growth.unit, value, worth)

    def dropped(one: SwitchSnapshot) -> float | None:
        known = one["outcomes"]
        return None if known is None else sum(n for k, n in known.items() if k not in _NO_DROPS)

    return [
        Column("switch", _name, left=True),
        Column("slots held", lambda one: _of(one["slots"]["held"], one["slots"]["total"])),
        Column("aggregating", lambda one: _number(one["slots"]["aggregating"], ",d"), 8),
        Column("partial", lambda one: _number(one["slots"]["partial"], ",d"), 7),
        counted("contributions", _CONTRIBUTIONS, 5),
        counted("sums", _SUMS, 8),
        counted("forwarded", ("forwarded",), 3),
        counted("retransmitted", _RETRANSMITTED, 6),
        counted("queries", _QUERIES, 2),
        Column(
            "dropped" + growth.unit,
            lambda one: _number(growth.of(one, dropped), ",.0f"),
            6,
        ),
        Column(*_cpu(growth)),
    ]


def _server_columns(growth: Growth[ServerSnapshot]) -> list[Column[ServerSnapshot]]:
    def load(grown: float | None, rate: int) -> str:
        if grown is None or not growth.per_second:
            return "-" if grown is None else size_text(grown)
        return f"{rate_text(8 * grown)} ({_percent(8 * grown / rate)} of the link)"

    def received(one: ServerSnapshot) -> str:
        return load(growth.of(one, lambda it: it["received_bytes"]), one["receive_rate"])

    def sent(one: ServerSnapshot) -> str:
        return load(growth.of(one, lambda it: it["sent_bytes"]), one["send_rate"])

    return [
        Column("server", _name, left=True),
        Column("received", received),
        Column("sent", sent),
        Column(*_cpu(growth)),
    ]


def _cpu(growth: Growth[Node]) -> tuple[str, Callable[[Node], str], int]:
    """Returns title, cell function and worth of the column of CPU use."""

    def value(one: Node) -> str:
        used = growth.of(one, lambda it: it["cpu_seconds"])
        return _percent(used) if growth.per_second else _number(used, ",.1f")

    return "CPU" if growth.per_second else "CPU s", value, 4


def _name(one: SwitchSnapshot | ServerSnapshot) -> str:
    name = one["name"]
    if one["up"]:
        return name
    processes = cast(ServerSnapshot, one)["processes"] if "processes" in one else ()
    down = [process["name"] for process in processes if not process["up"]]
    which = "" if down in ([], [name]) else f"{', '.join(down)} "
    return f"{name} ({which}down)"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _percent(share: float | None, form: str = ".0f") -> str:
    return "-" if share is None else f"{format(100 * share, form)} %"


def _of(part: int | None, whole: int | None) -> str:
    return "-" if part is None else f"{part:,} of {whole:,}"


def _table(
    rows: Sequence[Row],
    columns: Sequence[Column[Row]],
    width: int,
    bar: Callable[[Row], tuple[float, float]] | None = None,
) -> Table:
    """Renders rows, without the least important columns if ``width`` requires it.

    Args:
        bar: Returns a row's (done, total); its bar is drawn if there is room.
    """
    cells = {c.title: [c.value(row) for row in rows] for c in columns}
    chosen = list(columns)

    def room() -> int:
        """Returns the width left for the bar."""
        widths = (max(map(len, [c.title, *cells[c.title]])) + _GAP for c in chosen)
        return width - sum(widths) + (0 if bar is not None else _GAP)

    while room() < 0 and len(chosen) > 1:
        chosen.remove(min(chosen, key=lambda column: column.worth))
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    long = min(_BAR_WIDTH, room() - _GAP)
    barred = bar is not None and long >= _LEAST_BAR_WIDTH
    for column in chosen:
        table.add_column(column.title, justify="left" if column.left else "right", no_wrap=True)
    if barred:
        table.add_column("", no_wrap=True)
    for number, row in enumerate(rows):
        shown: list[RenderableType] = [Text(cells[c.title][number]) for c in chosen]
        if barred and bar is not None:
            done, total = bar(row)
            shown.append(ProgressBar(total or 1, done, width=long))
        table.add_row(*shown, style="red" if row.get("up") is False else None)
    return table
