# SPDX-License-Identifier: Apache-2.0
"""Writes trace files for ui.perfetto.dev and chrome://tracing.

The format is Google's "Trace Event Format", as a JSON array: durations (`B` and `E`), arrows
between them (`s` and `f`), counters (`C`) and metadata (`M`). Times are microseconds with six
decimals, that is, picoseconds. Both viewers read gzip files (RFC 1952), too.
"""

from __future__ import annotations

import gzip
import io
import json
from collections import Counter
from pathlib import Path
from typing import IO, Any

from simulation.errors import TraceFileError

_MICROSECOND = 10**6  # ps
_LEVEL = 6  # of gzip
_ROOM = 1 << 20  # buffered bytes of events
_WRITTEN = 1 << 16  # write from so many bytes on, and whole events only, in case the run is killed


class TraceFile:
    """Writes events in the order of their times; as gzip if the file's name ends in `.gz`.

    Each event has a time `at` (ps); simultaneous ones are ordered by process, thread and the order
    of calls. `flush` writes all events before a time, so memory holds younger ones only. The file
    always ends with a whole event, so that viewers open the file of a killed run, too; only the
    closing bracket may be missing. Raises TraceFileError if it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._waiting: list[tuple[int, int, str, int, str]] = []
        self._told: Counter[tuple[int, str]] = Counter()
        self._separator = "[\n"
        self._unwritten = 0
        try:
            self._raw = path.open("wb", _ROOM)
        except OSError as error:
            raise TraceFileError(f"--trace {path}: cannot be written: {error.strerror}") from error
        out: Any = self._raw
        if path.suffix == ".gz":  # without time and name, for reproducible files
            out = gzip.GzipFile("", "wb", _LEVEL, self._raw, mtime=0)
        self._file: IO[str] = io.TextIOWrapper(out, "ascii", newline="\n")

    def __enter__(self) -> TraceFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def waiting(self) -> int:
        """Number of events that are not written yet."""
        return len(self._waiting)

    @property
    def closed(self) -> bool:
        """True if the file is complete."""
        return self._file.closed

    def process(self, pid: int, name: str, label: str) -> None:
        """Names a process, before any other event; viewers sort processes by number."""
        for what, value in (
            ("process_name", {"name": name}),
            ("process_labels", {"labels": label}),
            ("process_sort_index", {"sort_index": pid}),
        ):
            self._tell(-1, pid, "", {"ph": "M", "pid": pid, "name": what, "args": value})

    def thread(self, at: int, pid: int, tid: int, name: str) -> None:
        """Names a thread of a process; viewers sort threads by number."""
        for what, value in (
            ("thread_name", {"name": name}),
            ("thread_sort_index", {"sort_index": tid}),
        ):
            event = {"ph": "M", "pid": pid, "tid": tid, "name": what, "args": value}
            self._tell(at, pid, str(tid), event)

    def span(
        self, at: int, pid: int, tid: int, name: str, kind: str, began: int, ended: int, number: int
    ) -> None:
        """Adds a span of a thread in an iteration; a thread's spans are in order and not nested."""
        where = {"pid": pid, "tid": tid}
        what = {"name": name, "cat": kind, "args": {"iteration": number}}
        self._tell(at, pid, str(tid), {"ph": "B", **where, **what}, began)
        self._tell(at, pid, str(tid), {"ph": "E", **where}, ended)

    def arrow(self, at: int, pid: int, name: str, number: int, *ends: tuple[int, int]) -> None:
        """Adds an arrow between spans of two threads of a process, by their begin times.

        number: unique. Both spans, one of which has the same time, are added before.
        """
        for phase, (tid, began) in zip(("s", "f"), ends, strict=True):
            event = {"pid": pid, "tid": tid, "name": name, "cat": "arrow", "id": number}
            bound = {"bp": "e"} if phase == "f" else {}  # to the span that encloses it
            self._tell(at, pid, str(tid), {"ph": phase, **event, **bound}, began)

    def counter(self, at: int, pid: int, name: str, time: int, unit: str, value: float) -> None:
        """Sets a counter of a process from a time on."""
        event = {"ph": "C", "pid": pid, "name": name, "args": {unit: value}}
        self._tell(at, pid, name, event, time)

    def flush(self, until: int) -> None:
        """Writes all events before a time; no earlier one may be added later."""
        due = sorted(one for one in self._waiting if one[0] < until)
        self._waiting = [one for one in self._waiting if one[0] >= until]
        if not due:
            return
        try:
            self._unwritten += self._file.write(self._separator + ",\n".join(one[4] for one in due))
            if self._unwritten >= _WRITTEN:
                self._unwritten = 0
                self._file.flush()
        except OSError as error:
            raise TraceFileError(f"{self.path}: cannot be written: {error.strerror}") from error
        self._separator = ",\n"

    def close(self) -> None:
        """Writes the remaining events and the end of the file."""
        if self._file.closed:
            return
        with self._raw, self._file:
            self.flush(1 << 64)
            self._file.write("\n]\n" if self._separator != "[\n" else "[]\n")

    def _tell(
        self, at: int, pid: int, track: str, event: dict[str, object], time: int | None = None
    ) -> None:
        text = json.dumps(event, separators=(",", ":"))
        if time is not None:  # floats are too coarse for picoseconds
            whole, rest = divmod(time, _MICROSECOND)
            text = f'{text[:-1]},"ts":{whole}.{rest:06d}}}'
        self._told[pid, track] += 1
        self._waiting.append((at, pid, track, self._told[pid, track], text))
