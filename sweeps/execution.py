# SPDX-License-Identifier: Apache-2.0
"""Runs one trial in the calling process.

A trial is a job on a topology in virtual time, or whatever a function measures that the trial names
(``Order.by``).
"""

from __future__ import annotations

import json
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, TypedDict, cast

from observability.messages.summary import FinishedRun
from observability.processinfo import tail
from observability.record import RunDirectory
from simulation import session
from simulation.errors import VirtualError
from simulation.faults.check import scheduled
from sweeps import code
from testbed.errors import JobError
from testbed.program import program_for
from topologies.model.spec import read as read_topology

JOB = "job.yaml"
FAULTS = "faults.yaml"  # of `Order.files`, what happens meanwhile


@dataclass(frozen=True)
class Order:
    """The files and the function that a trial runs.

    topology, job: Contents of the files.
    files: Contents of further files in the job's folder, by name; ``faults.yaml`` has faults.
    by: ``module:function`` that runs it; "" runs the job in virtual time. The function takes a run
        directory with the files in it, and the order, and returns the summary.
    """

    topology: str
    job: str
    files: Mapping[str, str] = field(default_factory=dict)
    by: str = ""


class OutcomeRow(TypedDict):
    """An outcome as JSON."""

    summary: FinishedRun | None
    """``summary.json``, or what the order's function returned; None if the trial failed."""
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


def execute(known: str, order: Order, where: str) -> Outcome:
    """Runs a trial; leaves no files.

    Args:
        known: The digest of the sweep's rackhub (``code.digest``).
        where: For the outcome.
    """
    began = time.monotonic()
    if known != code.digest():
        text = "another rackhub is installed here than where the sweep was started"
        return Outcome(None, f"{where}: {text}; install the same version", "", where)
    with tempfile.TemporaryDirectory(prefix="rackhub-trial-") as folder:
        run = RunDirectory(Path(folder))
        error = log = ""
        summary: FinishedRun | None = None
        try:
            summary = _measure(order)(run, order)
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
        return Outcome(summary, "", "", where, seconds)


def run_virtually(run: RunDirectory, order: Order) -> FinishedRun:
    """Runs an order's job in virtual time; returns its summary.

    Raises:
        JobError: It failed, or its weights differ from the reference's.
    """
    write_files(run, order)
    jobs = [run.path / JOB]
    plane = program_for(jobs)[2]
    checked = session.check(read_topology(run.topology), jobs, plane)
    (run.path / "testbed.json").write_text(json.dumps({"name": checked.topology.name}))
    faults = scheduled(run.path / FAULTS, checked) if FAULTS in order.files else []
    if not session.Session(checked, plane, run, lambda _: None, faults=faults).execute():
        raise JobError("the weights differ from the reference's")
    return cast(FinishedRun, run.read_summary())


def write_files(run: RunDirectory, order: Order) -> None:
    """Writes an order's files into a run directory."""
    run.logs.mkdir(exist_ok=True)
    run.topology.write_text(order.topology)
    for name, text in {JOB: order.job, **order.files}.items():
        (run.path / name).write_text(text)


def _measure(order: Order) -> Callable[[RunDirectory, Order], Any]:
    if not order.by:
        return run_virtually
    module, _, function = order.by.partition(":")
    measure: Callable[[RunDirectory, Order], Any] = getattr(import_module(module), function)
    return measure
