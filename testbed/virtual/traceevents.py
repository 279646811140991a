# SPDX-License-Identifier: Apache-2.0
"""A file of trace events, as ui.perfetto.dev and chrome://tracing open it.

The format is Google's "Trace Event Format", as a JSON array: durations (`B` and `E`), counters
(`C`) and metadata (`M`). Times there are microseconds; picoseconds are six decimals of them.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import IO

from testbed.virtual.errors import TraceFileError

_MICROSECOND = 10**6  # ps


class TraceFile:
    """Events in the order of when they are settled, whatever order they are told in.

    Each is told with a time `at` (ps): the file has those of one time by process, thread and the
    order in which these told them. `flush` writes what nothing can come before any more, so memory
    holds what is younger. Raises TraceFileError if it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._waiting: list[tuple[int, int, str, int, str]] = []
        self._told: Counter[tuple[int, str]] = Counter()
        self._separator = "[\n"
        try:
            self._file: IO[str] = path.open("w", encoding="ascii", newline="\n")
        except OSError as error:
            raise TraceFileError(f"--trace {path}: cannot be written: {error.strerror}") from error

    def __enter__(self) -> TraceFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def waiting(self) -> int:
        """How many events were told and not written."""
        return len(self._waiting)

    @property
    def closed(self) -> bool:
        """Whether it is written."""
        return self._file.closed

    def process(self, pid: int, name: str, label: str, order: int) -> None:
        """What a process is called, and its place among the others; before anything else."""
        for what, value in (
            ("process_name", {"name": name}),
            ("process_labels", {"labels": label}),
            ("process_sort_index", {"sort_index": order}),
        ):
            self._tell(-1, pid, "", {"ph": "M", "pid": pid, "name": what, "args": value})

    def thread(self, at: int, pid: int, tid: int, name: str) -> None:
        """What a thread of a process is called; the lower its number, the higher its place."""
        for what, value in (
            ("thread_name", {"name": name}),
            ("thread_sort_index", {"sort_index": tid}),
        ):
            event = {"ph": "M", "pid": pid, "tid": tid, "name": what, "args": value}
            self._tell(at, pid, str(tid), event)

    def span(
        self, at: int, pid: int, tid: int, name: str, kind: str, began: int, ended: int, number: int
    ) -> None:
        """Something that a thread did from one time to another, in an iteration of that number; a
        thread's are told in their order, and none has others in it."""
        event = {"pid": pid, "tid": tid, "name": name, "cat": kind, "args": {"iteration": number}}
        self._tell(at, pid, str(tid), {"ph": "B", **event}, began)
        self._tell(at, pid, str(tid), {"ph": "E", **event}, ended)

    def counter(self, at: int, pid: int, name: str, time: int, unit: str, value: float) -> None:
        """A number that a process has from a time on."""
        event = {"ph": "C", "pid": pid, "name": name, "args": {unit: value}}
        self._tell(at, pid, name, event, time)

    def flush(self, until: int) -> None:
        """Writes all events of times before this; later ones are not told any more."""
        due = sorted(one for one in self._waiting if one[0] < until)
        self._waiting = [one for one in self._waiting if one[0] >= until]
        if not due:
            return
        try:
            self._file.write(self._separator + ",\n".join(one[4] for one in due))
        except OSError as error:
            raise TraceFileError(f"{self.path}: cannot be written: {error.strerror}") from error
        self._separator = ",\n"

    def close(self) -> None:
        """Writes the rest, and the end."""
        if self._file.closed:
            return
        with self._file:
            self.flush(1 << 64)
            self._file.write("\n]\n" if self._separator != "[\n" else "[]\n")

    def _tell(
        self, at: int, pid: int, track: str, event: dict[str, object], time: int | None = None
    ) -> None:
        text = json.dumps(event, separators=(",", ":"))
        if time is not None:  # which no float holds to the picosecond
            whole, rest = divmod(time, _MICROSECOND)
            text = f'{text[:-1]},"ts":{whole}.{rest:06d}}}'
        self._told[pid, track] += 1
        self._waiting.append((at, pid, track, self._told[pid, track], text))
