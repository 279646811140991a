# SPDX-License-Identifier: Apache-2.0
"""Writes and reads the time series of a run, ``series.jsonl`` in its directory.

Each line is a JSON object: ``StateRow``, ``IterationsRow`` or ``SampleRow``.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict, final

from typing_extensions import NotRequired

from observability.messages.jobs import JobState
from observability.messages.live import Snapshot
from observability.progress import Iteration

log = logging.getLogger("series")

FILE = "series.jsonl"


@final
class StateRow(TypedDict):
    """A job runs, or is over (done, failed, stopped)."""

    t: float
    """Seconds since the testbed was started."""
    job: str
    state: JobState
    number: NotRequired[int]
    """Number of the job in packets, when it begins to run."""


@final
class IterationsRow(TypedDict):
    """Iterations that all workers have completed."""

    t: float
    """Seconds since the testbed was started."""
    job: str
    first: int
    """Number of the first of them."""
    ended: list[float]
    """When the last worker ended each, in seconds since the testbed was started."""
    loss: list[float | None]
    """Mean loss of each."""
    accuracy: dict[str, float]
    """Share of the test set, by iteration, where it was measured."""


class SwitchSample(TypedDict):
    """Slots of a switch, None if unknown: held by jobs; in AGGREGATING and PARTIAL at least."""

    held: int | None
    aggregating: int | None
    partial: int | None


class ServerSample(TypedDict):
    """Bytes of a server's links, None if unknown."""

    received_bytes: int | None
    sent_bytes: int | None


@final
class SampleRow(TypedDict):
    """The state of all switches and servers, by name."""

    t: float
    """Seconds since the testbed was started."""
    switches: dict[str, SwitchSample]
    servers: dict[str, ServerSample]


Row = StateRow | IterationsRow | SampleRow


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

    def state(self, job: str, state: JobState, number: int | None = None) -> None:
        """Writes a job's new state, and its number if it has one."""
        row: StateRow = {"t": self._time(self._clock()), "job": job, "state": state}
        if number is not None:
            row["number"] = number
        self._write(row)

    def iterations(self, job: str, done: Sequence[Iteration]) -> None:
        """Writes iterations that all workers of a job have completed."""
        if not done:
            return
        known = {str(one.number): one.accuracy for one in done if one.accuracy is not None}
        self._write(
            {
                "t": self._time(self._clock()),
                "job": job,
                "first": done[0].number,
                "ended": [self._time(one.ended) for one in done],
                "loss": [None if one.loss is None else float(f"{one.loss:.6g}") for one in done],
                "accuracy": known,
            }
        )

    def sample(self, snapshot: Snapshot) -> None:
        """Writes a snapshot of the testbed (``emulation.jobs.snapshot``)."""
        switches: dict[str, SwitchSample] = {}
        for switch in snapshot["switches"]:
            slots = switch["slots"]
            switches[switch["name"]] = {
                "held": slots["held"],
                "aggregating": slots["aggregating"],
                "partial": slots["partial"],
            }
        servers: dict[str, ServerSample] = {
            one["name"]: {
                "received_bytes": one["received_bytes"],
                "sent_bytes": one["sent_bytes"],
            }
            for one in snapshot["servers"]
        }
        t = self._time(snapshot["monotonic"])
        self._write({"t": t, "switches": switches, "servers": servers})

    def _time(self, when: float) -> float:
        return round(when - self.started, self._places)

    def _write(self, row: Row) -> None:
        if self._broken:
            return
        try:
            with self._path.open("a") as file:
                file.write(json.dumps(row) + "\n")
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

    states: list[tuple[float, JobState]] = field(default_factory=list)
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
    switches: dict[str, SwitchSample]
    servers: dict[str, ServerSample]


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
        row: Row = json.loads(line)
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
