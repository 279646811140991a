# SPDX-License-Identifier: Apache-2.0
"""Reads the data of a run from its directory, and from the testbed itself if that is up."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from observability import control, series
from observability.control import ControlError
from observability.messages.jobs import OtherJob, SubmittedJob
from observability.messages.live import Status
from observability.messages.summary import (
    Failure,
    FaultImpact,
    JobSummary,
    Link,
    RunPart,
    RunSummary,
)
from observability.processinfo import tail
from observability.record import Facts, RunDirectory, RunError
from observability.series import Series
from topologies.model.spec import TopologyError, load
from topologies.model.topology import Topology


@dataclass(frozen=True)
class RunData:
    """The data of a run.

    current: rows of the submitted jobs of a live testbed, by name.
    machine: facts of the machine, and costs, by name.
    undrawable: why the topology is unknown; empty if it is known.
    ended: why the run failed, with the end of a log; empty if it is up or ended normally.
    """

    run: RunDirectory
    facts: Facts
    jobs: list[JobSummary]
    current: dict[str, SubmittedJob]
    others: list[OtherJob]
    links: list[Link]
    faults: list[FaultImpact]
    failure: Failure | None
    machine: Mapping[str, object]
    series: Series
    topology: Topology | None
    undrawable: str
    alive: bool
    ended: str


def read(run: RunDirectory) -> RunData:
    """Reads the data of a run; raises ``RunError`` if there is none."""
    facts, alive = run.facts, run.alive
    if not facts:
        raise RunError(f"{run.path} is no run directory: its testbed.json is missing or is no JSON")
    summary: RunSummary | None = None
    with suppress(OSError, ValueError):
        summary = run.read_summary()
    now = _status(run) if alive else None
    topology, undrawable = _topology(run, facts)
    try:
        over_time = series.read(run.path / series.FILE)
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise RunError(f"{run.path / series.FILE} cannot be read: {error}") from error
    ended = "" if alive else _ended(run, summary)
    nothing: RunSummary = {"name": None, "target": None, "clock": None, "links": [], "jobs": []}
    known = nothing if summary is None else summary
    part = cast(RunPart, known)  # of which an abandoned run has less
    machine = dict(known).get("machine")
    return RunData(
        run,
        facts,
        known["jobs"],
        {} if now is None else submitted(now),
        part.get("others", []) if now is None else now["others"],
        known["links"] if now is None else now["links"],
        part.get("faults", []),
        known.get("failure"),
        machine if isinstance(machine, dict) else {},
        over_time,
        topology,
        undrawable,
        alive,
        ended,
    )


def _status(run: RunDirectory) -> Status | None:
    """Queries a live testbed for its status; returns None if it does not answer."""
    try:
        return control.status(run)
    except ControlError:
        return None


def submitted(status: Status) -> dict[str, SubmittedJob]:
    """Returns the submitted jobs of a testbed's status, by name."""
    others = {one["number"] for one in status["others"]}
    found = cast(list[SubmittedJob], status["jobs"])
    return {row["job"]: row for row in found if row["number"] not in others}


def _topology(run: RunDirectory, facts: Facts) -> tuple[Topology | None, str]:
    # Runs of earlier versions have no copy of their own.
    path = run.topology if run.topology.exists() else Path(facts["topology"])
    try:
        return load(path), ""
    except (TopologyError, OSError) as error:
        return None, str(error)


def _ended(run: RunDirectory, summary: RunSummary | None) -> str:
    if run.failure:
        return run.failure
    failure = summary.get("failure") if summary is not None else None
    if failure is None and summary is not None:
        return ""
    process = failure.get("process") if failure is not None else None
    if not process:
        process = "virtual" if run.facts.get("clock") == "virtual" else "supervisor"
    said = failure["message"] if failure else "It ended without a summary: it was killed."
    return f"{said}\n{tail(run.logs / f'{process}.log')}"
