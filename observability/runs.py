# SPDX-License-Identifier: Apache-2.0
"""Lists the runs of the runs folder, and removes old ones. Results of sweeps, which are kept in
``runs/sweeps``, are no runs."""

from __future__ import annotations

import datetime
import shlex
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Literal, TypeAlias, TypedDict, cast

from observability import record
from observability.messages.jobs import Clock
from observability.messages.summary import RunPart, RunSummary, is_finished
from observability.record import FACTS, RunDirectory, RunError

RunState: TypeAlias = Literal["up", "done", "wrong", "failed", "stopped", "down"]


class RunRow(TypedDict):
    """A run in ``rackhub runs list``."""

    run: str
    """Name of its directory."""
    path: str
    name: str
    """Name of the testbed."""
    began: str
    """Local time in ISO 8601."""
    command: str
    """Command line that started it; empty if unknown."""
    topology: str
    """Topology file that was given."""
    clock: Clock | None
    jobs: list[str]
    """Jobs that were submitted to it; of a run that is up those that are over."""
    state: RunState
    """``up``: alive. ``done``: every job is, and right as far as known. ``wrong``: weights differ
    from the reference's. ``stopped``: a job was. ``down``: it had no job."""
    reason: str
    """Why it failed; empty if it did not."""
    seconds: float
    """From its start to its end, or until now."""
    bytes: int
    """What its directory takes on the disk."""
    latest: bool
    """Whether ``runs/latest`` points to it."""


def rows() -> list[RunRow]:
    """Returns all runs, the newest first. Raises ``RunError`` if the folder cannot be read."""
    latest = _latest()
    live = {run.path for run in record.live_runs()}  # notes which ones were killed
    found = []
    for run in record.all_runs():
        if run.facts:  # otherwise it is about to start
            with suppress(FileNotFoundError):  # another command removes it at the moment
                found.append(_row(run, alive=run.path in live, latest=run.path.name == latest))
    # Names of directories sort those of one second by the testbeds' names.
    return sorted(found, key=lambda row: row["began"], reverse=True)


def prune(keep: int | None, older: float | None, *, dry_run: bool = False) -> list[RunRow]:
    """Removes runs that are over, but never the one that ``runs/latest`` points to.

    keep: the newest so many runs stay. older: only those that began so many seconds ago.
    dry_run: none is removed.
    Returns what is removed. Raises ``RunError``, after all others, if one cannot be.
    """
    now = time.time()
    chosen: list[RunRow] = []
    problems: list[str] = []
    for row in rows()[keep or 0 :]:
        began = datetime.datetime.fromisoformat(row["began"]).timestamp()
        if row["state"] == "up" or row["latest"] or now - began < (older or 0.0):
            continue
        try:
            if not dry_run:
                _remove(Path(row["path"]))
            chosen.append(row)
        except OSError as error:
            problems.append(f"{error.filename or row['path']}: cannot be removed: {error.strerror}")
    if problems:
        raise RunError("\n".join(problems))
    return chosen


def _remove(folder: Path) -> None:
    """Removes a run's directory, ``testbed.json`` last: it is a run as long as it has this."""
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != FACTS:
            entry.unlink()
    shutil.rmtree(folder)


def _latest() -> str:
    with suppress(OSError):
        return (record.runs_folder() / "latest").readlink().name
    return ""


def _row(run: RunDirectory, *, alive: bool, latest: bool) -> RunRow:
    facts = run.facts
    summary: RunSummary | None = None
    with suppress(OSError, ValueError):
        summary = run.read_summary()
    state, reason = _state(run, summary)
    began = run.began
    return {
        "run": run.path.name,
        "path": str(run.path),
        "name": run.name,
        "began": datetime.datetime.fromtimestamp(began).isoformat(timespec="milliseconds"),
        "command": facts.get("command", ""),
        "topology": facts.get("given") or facts.get("topology", ""),
        "clock": facts.get("clock"),
        "jobs": [] if summary is None else [job["job"] for job in summary["jobs"]],
        "state": "up" if alive else state,
        "reason": "" if alive else reason,
        "seconds": (time.time() if alive else run.last_sign) - began,
        "bytes": _size(run.path),
        "latest": latest,
    }


def kind(row: RunRow) -> str:
    """Returns the command that started a run, without its arguments."""
    with suppress(ValueError, IndexError):
        return shlex.split(row["command"])[1]
    return ""


def _state(run: RunDirectory, summary: RunSummary | None) -> tuple[RunState, str]:
    """Returns the state of a run that is over, and why it failed."""
    if summary is None:
        return "failed", run.failure.partition("\n")[0] or "it has no summary"
    failure = cast(RunPart, summary).get("failure")
    reason = failure["message"] if failure is not None else ""
    states = {job["state"] for job in summary["jobs"]}
    if run.failure or "failed" in states or (failure is not None and states <= {"done"}):
        return "failed", reason
    if states - {"done"}:
        return "stopped", reason
    if any(is_finished(job) and job["matches_reference"] is False for job in summary["jobs"]):
        return "wrong", ""
    return ("done" if states else "down"), ""


def _size(folder: Path) -> int:
    """Returns the bytes that a folder takes on the disk."""
    total = 0
    for entry in (folder, *folder.rglob("*")):
        with suppress(OSError):  # a file that is written, or removed, at the moment
            total += 512 * entry.lstat().st_blocks
    return total
