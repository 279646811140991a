# SPDX-License-Identifier: Apache-2.0
"""Formats the results of ``rackhub why`` and ``rackhub trace``."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cli.display.live import SERVER_TIMES, rows_of
from cli.display.tables import show, show_rows
from observability.messages.servers import JobServers, ServerTimes
from observability.messages.waiting import JobExplanation, NodeState, WorkerState
from observability.trace_report import HopRow, TraceReport
from observability.why import heading, sentences
from observability.wording import count

_UNFINISHED = (
    "The run is still going, or was killed: the end of each port's capture is not written, so the"
    " last packets may be missing here, and those marked as not arrived may have arrived."
)
_MOST_KEYS = 12
_LONG_NS = 10_000_000  # from which times are in milliseconds


def show_why(console: Console, found: JobExplanation) -> None:
    """Prints why a job waits: the reason, then the nodes of late chunks, then workers.

    Args:
        found: The answer to the supervisor's ``why`` query.
    """
    if found["state"] != "running":
        why = f": {found['reason']}" if found["reason"] and not found["waits"] else ""
        is_ = "has" if found["state"] == "failed" else "is"
        show(console, Text(f"{found['job']} {is_} {found['state']}{why}"))
    if found["state"] == "running" or found["waits"]:
        show(console, Text(sentences(found["job"], found)[0]))
    for chunk in found["chunks"]:
        if not chunk["late"]:
            continue
        show(console)
        show(console, Text(heading(chunk)))
        rows = [
            {
                "node": row["node"],
                "phase": row["stuck"] or row["phase"] or "not heard of",
                "for": _seconds(row["seconds"]),
                "missing": row["missing"],
                "in": row["in"],
                "heard": _heard(row),
            }
            for row in chunk["nodes"]
        ]
        columns = {"node": "node", "phase": "phase", "for": "for", "missing": "missing",
                   "in": "in", "heard": "reported to"}  # fmt: skip
        if rows:
            show_rows(console, rows, columns)
    if found["workers"] and (found["waits"] or found["state"] == "starting"):
        show(console)
        workers = [{**dict(row), "last": _sent(row)} for row in found["workers"]]
        columns = {"worker": "worker", "iteration": "iteration", "says": "what it does",
                   "last": "sent last of this chunk"}  # fmt: skip
        show_rows(console, workers, columns)


def show_servers(console: Console, found: JobServers) -> None:
    """Prints what was measured of a job's servers, and the keys that workers waited for most."""
    rounds = max((one["rounds"] for one in found["server_times"]), default=0)
    text = (
        f"{found['job']} is {found['state']}; its servers, smoothed over {count(rounds, 'round')}"
    )
    show(console, Text(text))
    show(console, rows_of(found["server_times"], SERVER_TIMES, console))
    late = [one["server"] for one in found["server_times"] if one["straggles"]]
    for server in late:
        one = next(one for one in found["server_times"] if one["server"] == server)
        show(console, Text(f"{server} straggles: {_where(one, found['server_times'])}"))
    keys = [one for one in found["key_times"] if one["blamed"]]
    if not keys:
        return
    show(console)
    show(console, Text("Keys that workers waited for, by their chunks at these servers:"))
    keys.sort(key=lambda one: -(one["blamed"] or 0.0))
    rows = [
        {
            "key": one["key"],
            "chunks": one["chunks"],
            "servers": [f"{server} ({n})" for server, n in one["servers"].items()],
            "blamed": f"{1000 * (one['blamed'] or 0.0):.3g} ms a round",
        }
        for one in keys[:_MOST_KEYS]
    ]
    columns = {"key": "key", "chunks": "chunks", "servers": "at", "blamed": "waited for"}
    show_rows(console, rows, columns)
    if len(keys) > _MOST_KEYS:
        show(console, Text(f"{len(keys) - _MOST_KEYS} more keys are left out; --json has them."))


def _where(one: ServerTimes, servers: Sequence[ServerTimes]) -> str:
    """Says whether a server or the path to it takes longer than the median's."""
    at, on_path = (
        (one[name] or 0.0) - statistics.median(other[name] or 0.0 for other in servers)
        for name in ("handling", "propagation")
    )
    if one["handling"] is None:
        return "it has not reported its own times"
    # Virtual times are exact to the picosecond, of which differences of means leave some.
    more = [f"{1000 * (one if abs(one) >= 1e-9 else 0.0):+.3g} ms" for one in (at, on_path)]
    return f"{more[0]} at the server, {more[1]} on the way, beside the median server"


def show_trace(console: Console, job: str, chunk: int, found: TraceReport) -> None:
    """Prints the hops of a chunk's packets, as ``observability.trace_report.read`` returns them."""
    if not found["whole"]:
        show(console, Text(_UNFINISHED, style="yellow"))
        show(console)
    for number, one in enumerate(found["rounds"]):
        if number:
            show(console)
        kind = "exponent round" if one["exponents"] else "sum"
        kind += " (headers only, as long on the wire)" if one["headers_only"] else ""
        show(
            console,
            Text(
                f"chunk {chunk} of {job}, iteration {one['iteration']} of {found['iterations']}"
                f" captured: {kind}, stream {one['stream']}, seq {one['seq']},"
                f" plan epoch {one['epoch']}"
                f"{_begun(one['hops'][0], found['clock'])}"
            ),
        )
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        unit, times = _times([hop["after_ns"] for hop in one["hops"]])
        table.add_column(unit, justify="right", no_wrap=True)
        table.add_column("link", no_wrap=True)
        table.add_column("bytes", justify="right", no_wrap=True)
        table.add_column("packet", overflow="fold")
        for time, hop in zip(times, one["hops"], strict=True):
            note = f"; {hop['note']}" if hop["note"] else ""
            what = Text(f"{hop['what']}{note}")
            link = Text(f"{hop['from']} > {hop['to']}")
            table.add_row(time, link, f"{hop['bytes']:,}", what)
        show(console, table)


def _begun(hop: HopRow, clock: str | None) -> str:
    """Formats the start time in virtual time, the clock of logs, series and traces as well."""
    if clock != "virtual":
        return ""
    return f", from {hop['time_ns'] / 1e9:.9f} s on"


def _times(nanoseconds: Sequence[int]) -> tuple[str, list[str]]:
    """Returns a unit and the times in it, as precise as the captures: BMv2's are in microseconds.

    nanoseconds: ascending.
    """
    unit, size, digits = ("us", 1_000, 3) if nanoseconds[-1] < _LONG_NS else ("ms", 1_000_000, 6)
    coarse = not any(time % 1_000 for time in nanoseconds)
    return unit, [f"{time / size:,.{digits - 3 * coarse}f}" for time in nanoseconds]


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} s"


def _heard(row: NodeState) -> str:
    return "" if row["heard"] is None else f"{row['told']} {row['heard']:.1f} s ago"


def _sent(row: WorkerState) -> str:
    if row["last"] is None or row["sent"] is None:
        return ""
    times = f", {row['sent']} times" if row["last"] == "CONTRIBUTE" and row["sent"] > 1 else ""
    return f"{row['last']} {row['ago']:.1f} s ago{times}"
