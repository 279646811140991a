# SPDX-License-Identifier: Apache-2.0
"""Writes and reads the time series of a run, ``series.jsonl`` in its directory.

Each line is a JSON object with ``t``, seconds since the testbed was started:

- ``{"t", "job", "state"}``: a job runs, or is over (done, failed, stopped); when it begins to run,
  also ``number``, which identifies its packets;
- ``{"t", "job", "first", "ended", "loss", "accuracy"}``: iterations from number ``first`` on that
  all workers have completed: when the last worker ended each, and the mean loss; ``accuracy`` by
  iteration, where it was measured;
- ``{"t", "switches", "servers"}``: slots of each switch that jobs hold, and lower bounds of those
  in AGGREGATING and PARTIAL; bytes of each server's links. Unknown values are None.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from observability.progress import Iteration

log = logging.getLogger("series")

FILE = "series.jsonl"
Message = dict[str, Any]
_SWITCH = ("held", "aggregating", "partial")
_SERVER = ("received_bytes", "sent_bytes")


class SeriesWriter:
    """Writes the series of a run; after an error it logs that and stops writing.

    clock: in seconds. Times count from the construction and are rounded to ``places``.
    """

    def __init__(
        self, path: Path, clock: Callable[[], float] = time.monotonic, places: int = 4
    ) -> None:
        self.started = clock()
        self._clock, self._places = clock, places
        self._path = path
        self._broken = False

    def state(self, job: str, state: str, number: int | None = None) -> None:
        """Writes a job's new state, and its number if it has one."""
        known = {} if number is None else {"number": number}
        self._write(self._clock(), {"job": job, "state": state, **known})

    def iterations(self, job: str, done: Sequence[Iteration]) -> None:
        """Writes iterations that all workers of a job have completed."""
        if not done:
            return
        known = {one.number: one.accuracy for one in done if one.accuracy is not None}
        row = {
            "job": job,
            "first": done[0].number,
            "ended": [round(one.ended - self.started, self._places) for one in done],
            "loss": [None if one.loss is None else float(f"{one.loss:.6g}") for one in done],
            "accuracy": known,
        }
        self._write(self._clock(), row)

    def sample(self, snapshot: Message) -> None:
        """Writes a snapshot of the testbed (``emulation.jobs.snapshot``)."""
        row = {
            "switches": {
                one["name"]: {name: one["slots"][name] for name in _SWITCH}
                for one in snapshot["switches"]
            },
            "servers": {
                one["name"]: {name: one[name] for name in _SERVER} for one in snapshot["servers"]
            },
        }
        self._write(snapshot["monotonic"], row)

    def _write(self, when: float, row: Message) -> None:
        if self._broken:
            return
        try:
            with self._path.open("a") as file:
                file.write(
                    json.dumps({"t": round(when - self.started, self._places), **row}) + "\n"
                )
        except OSError as error:
            self._broken = True
            log.error("%s: cannot be written, the series ends here: %s", self._path, error)


@dataclass
class Curve:
    """A job over time.

    states: times and states.
    number: identifies its packets.
    iterations: completed ones; ``ended`` is in seconds since the testbed's start.
    """

    states: list[tuple[float, str]] = field(default_factory=list)
    number: int | None = None
    iterations: list[Iteration] = field(default_factory=list)

    @property
    def began(self) -> float | None:
        """Time at which it began to run; None if it did not."""
        return next((t for t, state in self.states if state == "running"), None)


@dataclass(frozen=True)
class Sample:
    """Slots of switches and bytes of servers at a time, by name; fields as in the file."""

    t: float
    switches: dict[str, dict[str, int | None]]
    servers: dict[str, dict[str, int | None]]


@dataclass
class Series:
    """The time series of a run; jobs are in the order in which they ran."""

    jobs: dict[str, Curve] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)

    @property
    def began(self) -> float | None:
        """Time at which the first job ran, the origin of faults' times; None if none did."""
        return min((c.began for c in self.jobs.values() if c.began is not None), default=None)

    @property
    def spans(self) -> list[tuple[float, float]]:
        """Begin and end of each job's training, up to its last iteration."""
        return [
            (curve.began, curve.iterations[-1].ended)
            for curve in self.jobs.values()
            if curve.began is not None and curve.iterations
        ]


def covered(spans: Iterable[tuple[float, float]]) -> float | None:
    """Returns the total length of the union of these spans, in seconds; None if it is empty."""
    total, reached = 0.0, float("-inf")
    for began, ended in sorted(spans):
        total += max(0.0, ended - max(began, reached))
        reached = max(reached, ended)
    return total or None


def read(path: Path) -> Series:
    """Reads a run's series as far as it was written; empty if there is none. Raises ``OSError``."""
    series = Series()
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return series
    for line in lines:
        if not line.endswith(b"\n"):
            break  # still being written, or the writer was killed
        row = json.loads(line)
        if "switches" in row:
            series.samples.append(Sample(row["t"], row["switches"], row["servers"]))
            continue
        curve = series.jobs.setdefault(row["job"], Curve())
        if "state" in row:
            curve.states.append((row["t"], row["state"]))
            curve.number = row.get("number", curve.number)
            continue
        done = zip(row["ended"], row["loss"], strict=True)
        for number, (ended, loss) in enumerate(done, row["first"]):
            accuracy = row["accuracy"].get(str(number))
            curve.iterations.append(Iteration(number, ended, loss, accuracy))
    return series
