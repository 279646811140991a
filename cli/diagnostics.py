# SPDX-License-Identifier: Apache-2.0
"""How ``rackhub why`` and ``rackhub trace`` look."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cli.view import show, show_rows
from observability.why import heading, sentences

Message = dict[str, Any]
_UNFINISHED = (
    "The run goes on, or was killed: the end of each port's capture is not written, so of the last"
    " packets some are missing here, and what is said not to have arrived may have."
)
_LONG_NS = 10_000_000  # told in milliseconds


def show_why(console: Console, told: Message) -> None:
    """What an inquiry found: the reason, then the nodes of late chunks, then workers."""
    if told["state"] != "running":
        why = f": {told['reason']}" if told["reason"] and not told["waits"] else ""
        is_ = "has" if told["state"] == "failed" else "is"
        show(console, Text(f"{told['job']} {is_} {told['state']}{why}"))
    if told["state"] == "running" or told["waits"]:
        show(console, Text(sentences(told["job"], told)[0]))
    for chunk in told["chunks"]:
        if not chunk["late"]:
            continue
        show(console)
        show(console, Text(heading(chunk)))
        rows = [{**row, "for": _seconds(row["seconds"]), "heard": _heard(row)} | _phase(row)
                for row in chunk["nodes"]]  # fmt: skip
        columns = {"node": "node", "phase": "phase", "for": "for", "missing": "missing",
                   "in": "in", "heard": "told"}  # fmt: skip
        if rows:
            show_rows(console, rows, columns)
    if told["workers"] and (told["waits"] or told["state"] == "starting"):
        show(console)
        workers = [{**row, "last": _sent(row)} for row in told["workers"]]
        columns = {"worker": "worker", "iteration": "iteration", "says": "what it does",
                   "last": "sent last of this chunk"}  # fmt: skip
        show_rows(console, workers, columns)


def show_trace(console: Console, job: str, chunk: int, told: Message) -> None:
    """What ``observability.trace`` found of one iteration."""
    if not told["whole"]:
        show(console, Text(_UNFINISHED, style="yellow"))
        show(console)
    for number, one in enumerate(told["rounds"]):
        if number:
            show(console)
        kind = "exponent round" if one["exponents"] else "sum"
        kind += " (headers only, as long on the wire)" if one["headers_only"] else ""
        show(
            console,
            Text(
                f"chunk {chunk} of {job}, iteration {one['iteration']} of {told['iterations']}"
                f" captured: {kind}, stream {one['stream']}, seq {one['seq']}, epoch {one['epoch']}"
                f"{_begun(one['hops'][0], told['clock'])}"
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


def _begun(hop: Message, clock: str) -> str:
    """When that was, where others have the same clock: logs, series and traces."""
    if clock != "virtual":
        return ""
    return f", from {hop['time_ns'] / 1e9:.9f} s on"


def _times(nanoseconds: Sequence[int]) -> tuple[str, list[str]]:
    """A unit, and times in it, in order, to the nanosecond, or as far as captures have them."""
    unit, size, digits = ("us", 1_000, 3) if nanoseconds[-1] < _LONG_NS else ("ms", 1_000_000, 6)
    coarse = not any(time % 1_000 for time in nanoseconds)  # BMv2's are in microseconds
    return unit, [f"{time / size:,.{digits - 3 * coarse}f}" for time in nanoseconds]


def _phase(row: Message) -> Message:
    return {"phase": row["stuck"] or row["phase"] or "not heard of"}


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} s"


def _heard(row: Message) -> str:
    return "" if row["told"] is None else f"{row['told']} {row['heard']:.1f} s ago"


def _sent(row: Message) -> str:
    if row["last"] is None:
        return ""
    times = f", {row['sent']} times" if row["last"] == "CONTRIBUTE" and row["sent"] > 1 else ""
    return f"{row['last']} {row['ago']:.1f} s ago{times}"
