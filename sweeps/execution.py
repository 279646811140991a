# SPDX-License-Identifier: Apache-2.0
"""Runs one trial in the calling process."""

from __future__ import annotations

import json
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict, cast

from observability.messages.summary import FinishedRun
from observability.processinfo import tail
from observability.record import RunDirectory
from simulation import session
from simulation.errors import VirtualError
from sweeps import code
from testbed.errors import JobError
from testbed.program import program_for
from topologies.model.spec import read as read_topology


class OutcomeRow(TypedDict):
    """An outcome as JSON."""

    summary: FinishedRun | None
    """``summary.json``; None if the trial failed."""
    error: str
    """Why it failed; empty if it did not."""
    log: str
    """End of its log if it failed."""
    where: str
    """The process or node that ran it."""
    seconds: float
    """Wall time."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a trial: its summary.json, or an error and the end of its log.

    where: The process or node that ran it.
    seconds: Wall time.
    """

    summary: FinishedRun | None
    error: str = ""
    log: str = ""
    where: str = ""
    seconds: float = 0.0

    def to_message(self) -> OutcomeRow:
        """Returns the JSON object."""
        return {
            "summary": self.summary,
            "error": self.error,
            "log": self.log,
            "where": self.where,
            "seconds": self.seconds,
        }


def execute(known: str, topology: str, job: str, where: str) -> Outcome:
    """Runs a job on a topology in virtual time; leaves no files.

    Args:
        known: The digest of the sweep's rackhub (``code.digest``).
        topology, job: Contents of the files.
        where: For the outcome.
    """
    began = time.monotonic()
    if known != code.digest():
        text = "another rackhub is installed here than where the sweep was started"
        return Outcome(None, f"{where}: {text}; install the same version", "", where)
    with tempfile.TemporaryDirectory(prefix="rackhub-trial-") as folder:
        run = RunDirectory(Path(folder))
        error = log = ""
        try:
            matches = _run(run, topology, job)
            if not matches:
                error = "the weights differ from the reference's"
        except (JobError, VirtualError) as failure:
            error = str(failure).split("\n", 1)[0]
        except Exception as failure:  # any failure is the trial's outcome
            error = f"{type(failure).__name__}: {failure}"
            log = traceback.format_exc()
        seconds = time.monotonic() - began
        if error:
            said = run.logs / "virtual.log"
            log = "\n".join(filter(None, [tail(said) if said.exists() else "", log]))
            return Outcome(None, error, log, where, seconds)
        return Outcome(cast(FinishedRun, run.read_summary()), "", "", where, seconds)


def _run(run: RunDirectory, topology: str, job: str) -> bool:
    run.logs.mkdir()
    run.topology.write_text(topology)
    (run.path / "job.yaml").write_text(job)
    jobs = [run.path / "job.yaml"]
    plane = program_for(jobs)[2]
    checked = session.check(read_topology(run.topology), jobs, plane)
    (run.path / "testbed.json").write_text(json.dumps({"name": checked.topology.name}))
    return session.Session(checked, plane, run, lambda _: None).execute()
