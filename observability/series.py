# SPDX-License-Identifier: Apache-2.0
"""What a run was like over time: ``series.jsonl`` of its directory, written while it goes on.

A JSON object a line, each with ``t``, seconds since the testbed was started:

- ``{"t", "job", "state"}``: a job runs, or is over (done, failed, stopped); when it begins to run,
  also ``number``, by which its packets are known;
- ``{"t", "job", "first", "ended", "loss", "accuracy"}``: iterations from number ``first`` on that
  all workers have done: when the last of them ended each, and the mean loss; ``accuracy`` has the
  iterations that it was measured at;
- ``{"t", "switches", "servers"}``: slots of each switch that jobs hold, and how many of them were
  AGGREGATING and PARTIAL at least; bytes of each server's links. None where nobody could tell.
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
    """Writes the series of a run. Where it cannot, it says so in the log, and leaves it.

    clock: in seconds, which it counts from now on, to so many places.
    """

    def __init__(
        self, path: Path, clock: Callable[[], float] = time.monotonic, places: int = 4
    ) -> None:
        self.started = clock()
        self._clock, self._places = clock, places
        self._path = path
        self._broken = False

    def state(self, job: str, state: str, number: int | None = None) -> None:
        """A job has come to another state. number: its, where it has one."""
        known = {} if number is None else {"number": number}
        self._write(self._clock(), {"job": job, "state": state, **known})

    def iterations(self, job: str, done: Sequence[Iteration]) -> None:
        """A job's workers have all done these."""
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
        """The testbed as it was (``emulation.jobs.snapshot``) just now."""
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
            log.error("%s is not written any more: %s", self._path, error)


@dataclass
class Curve:
    """A job over time: its states, and its iterations, whose ``ended`` are seconds since the start
    of the testbed."""

    states: list[tuple[float, str]] = field(default_factory=list)
    number: int | None = None  # of its packets
    iterations: list[Iteration] = field(default_factory=list)

    @property
    def began(self) -> float | None:
        """When it ran; None if it did not."""
        return next((t for t, state in self.states if state == "running"), None)


@dataclass(frozen=True)
class Sample:
    """Slots of switches and bytes of servers at a time, by name; see the head of this file."""

    t: float
    switches: dict[str, dict[str, int | None]]
    servers: dict[str, dict[str, int | None]]


@dataclass
class Series:
    """All of it. Jobs in the order in which they ran."""

    jobs: dict[str, Curve] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)

    @property
    def began(self) -> float | None:
        """When the first job ran, which the times of faults count from; None if none did."""
        return min((c.began for c in self.jobs.values() if c.began is not None), default=None)

    @property
    def spans(self) -> list[tuple[float, float]]:
        """When each job trained, from when it ran to its last iteration."""
        return [
            (curve.began, curve.iterations[-1].ended)
            for curve in self.jobs.values()
            if curve.began is not None and curve.iterations
        ]


def covered(spans: Iterable[tuple[float, float]]) -> float | None:
    """For how many seconds there was at least one of these; None if there is none."""
    total, reached = 0.0, float("-inf")
    for began, ended in sorted(spans):
        total += max(0.0, ended - max(began, reached))
        reached = max(reached, ended)
    return total or None


def read(path: Path) -> Series:
    """A run's series, as far as it was written; empty if there is none. OSError."""
    series = Series()
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return series
    for line in lines:
        if not line.endswith(b"\n"):
            break  # still being written, or whoever wrote it was killed
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
