# SPDX-License-Identifier: Apache-2.0
"""Reads the data of a run from its directory, and from the testbed itself if that is up."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from observability import series
from observability.control import ControlError, ask
from observability.processinfo import tail
from observability.record import RunDirectory, RunError
from observability.series import Series
from topologies.model.spec import TopologyError, load
from topologies.model.topology import Topology

Message = dict[str, Any]


@dataclass(frozen=True)
class RunData:
    """The data of a run.

    summary: always has ``links``, ``jobs``, ``others`` and ``faults``.
    undrawable: why the topology is unknown; empty if it is known.
    ended: why the run failed, with the end of a log; empty if it is up or ended normally.
    """

    run: RunDirectory
    facts: Message
    summary: Message
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
    summary: Message | None = None
    with suppress(OSError, ValueError):
        summary = json.loads(run.summary.read_text())
    complete = {"links": [], "jobs": [], "others": [], "faults": [], **(summary or {})}
    if alive:
        complete |= _now(run)
    topology, undrawable = _topology(run, facts)
    try:
        over_time = series.read(run.path / series.FILE)
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise RunError(f"{run.path / series.FILE} cannot be read: {error}") from error
    ended = "" if alive else _ended(run, summary)
    return RunData(run, facts, complete, over_time, topology, undrawable, alive, ended)


def _now(run: RunDirectory) -> Message:
    """Queries a live testbed for its status; returns nothing if it does not answer."""
    try:
        status = ask(run, "status")
    except ControlError:
        return {}
    return current(status)


def current(status: Message) -> Message:
    """Converts a testbed's status to entries of a summary; ``current``: rows of submitted jobs."""
    others = status["others"]
    numbers = {one["number"] for one in others}
    submitted = [row for row in status["jobs"] if row["number"] not in numbers]
    return {"links": status["links"], "current": submitted, "others": others}


def _topology(run: RunDirectory, facts: Message) -> tuple[Topology | None, str]:
    # Runs of earlier versions have no copy of their own.
    path = run.topology if run.topology.exists() else Path(facts["topology"])
    try:
        return load(path), ""
    except (TopologyError, OSError) as error:
        return None, str(error)


def _ended(run: RunDirectory, summary: Message | None) -> str:
    with suppress(OSError):
        return (run.path / "failure.txt").read_text().rstrip()
    failure = (summary or {}).get("failure")
    if failure is None and summary is not None:
        return ""
    virtual = run.facts.get("clock") == "virtual"
    process = (failure or {}).get("process") or ("virtual" if virtual else "supervisor")
    said = failure["message"] if failure else "It ended without a summary: it was killed."
    return f"{said}\n{tail(run.logs / f'{process}.log')}"
