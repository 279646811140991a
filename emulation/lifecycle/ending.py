# SPDX-License-Identifier: Apache-2.0
"""Ends testbeds that are up, from outside, for ``rackhub down``."""

from __future__ import annotations

import os
import signal
import time
from typing import Literal

from typing_extensions import TypedDict

from observability import control, record
from observability.control import ControlError, SupervisorGoneError
from observability.messages.jobs import JobRow
from observability.processinfo import STOPPED, state_of
from observability.record import RunDirectory

_POLL_SECONDS = 0.05


class EndedTestbed(TypedDict):
    """A testbed that ``rackhub down`` ended."""

    name: str
    run: str
    """Its run directory."""
    end: Literal["down", "killed", "found killed"]
    """``down``: in order. ``killed``: its supervisor did not answer. ``found killed``: it had
    been before; what it left is removed now."""
    jobs: list[JobRow]
    """Jobs that this ended."""


def end(run: RunDirectory, *, kill: bool = False) -> EndedTestbed:
    """Takes a testbed down and waits until it is gone.

    kill: also if its supervisor is stuck. Otherwise that raises ``SupervisorGoneError``.
    """
    row = _row(run, "down")
    pid = run.supervisor() if kill else None
    try:
        if pid is not None and state_of(pid) in STOPPED:
            raise SupervisorGoneError(f"supervisor {pid} of {run.name} is stopped", stuck=True)
        row["jobs"] = _request(run)
    except SupervisorGoneError as error:
        if pid is None:
            raise
        try:
            os.kill(pid, signal.SIGKILL)
        except PermissionError:
            raise error from None
        row["end"] = "killed"
    run.wait_until_gone()
    if run.sweep() and row["end"] == "down":
        row["end"] = "found killed"
    return row


def end_all() -> list[EndedTestbed]:
    """Ends all testbeds of the runs folder; removes what killed ones have left.

    Raises ``ControlError`` if one cannot be ended, after all others.
    """
    ended = [
        _row(run, "found killed") for run in record.all_runs() if not run.alive and run.sweep()
    ]
    problems = []
    for run in record.testbeds():
        try:
            ended.append(end(run, kill=True))
        except ControlError as error:
            problems.append(str(error))
    if problems:
        raise ControlError("\n".join(problems))
    return ended


def _row(run: RunDirectory, how: Literal["down", "found killed"]) -> EndedTestbed:
    return {"name": run.name, "run": str(run.path), "end": how, "jobs": []}


def _request(run: RunDirectory) -> list[JobRow]:
    """Requests the end, as soon as the testbed listens; returns the jobs that this ends."""
    while run.alive:
        try:
            return control.down(run)
        except SupervisorGoneError as error:
            if error.stuck:
                raise
        time.sleep(_POLL_SECONDS)  # it is starting, or nearly gone: no event to wait for
    return []
