# SPDX-License-Identifier: Apache-2.0
"""Whole runs in virtual time, in this process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from observability import record
from simulation.faults.check import scheduled
from simulation.kernel.engine import Engine
from simulation.links.trains import SECOND
from simulation.session import Session, check
from simulation.tracing.events import TraceFile
from testbed.program import program_for
from tests.summaries import check_summary
from topologies.model.spec import read


class StoppedError(Exception):
    """A test ends a run."""


def run(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    files: Mapping[str, str],
    change: Callable[[Session], None] = lambda session: None,
    emit: Callable[[dict[str, Any]], None] = lambda message: None,
) -> Session:
    """Of topology.yaml, job.yaml and maybe faults.yaml; its trace is trace.json. emit may raise
    StoppedError."""
    folder.mkdir(exist_ok=True)
    monkeypatch.setenv("RACKHUB_RUNS", str(folder / "runs"))
    for name, text in files.items():
        (folder / name).write_text(text)
    _, _, plane = program_for([folder / "job.yaml"], None, None)
    checked = check(read(folder / "topology.yaml"), [folder / "job.yaml"], plane)
    faults = scheduled(folder / "faults.yaml", checked) if "faults.yaml" in files else []
    facts = {"topology": str(folder / "topology.yaml"), "target": "embedded", "clock": "virtual"}
    with (
        TraceFile(folder / "trace.json") as file,
        record.create("small", chosen=False, facts=facts) as directory,
    ):
        session = Session(checked, plane, directory, emit, trace=file, faults=faults)
        change(session)
        with contextlib.suppress(StoppedError):
            assert session.execute()
            check_summary(directory.summary)
    return session


def one_by_one(session: Session) -> None:
    """Packets come in no trains, in rounds of a microsecond, and nodes in another order."""
    engine = session.network.engine
    other = Engine(span=SECOND // 10**6, order=lambda nodes: list(reversed(nodes)))
    engine._span, engine._order = other._span, other._order
    for host in session.network.hosts.values():
        host.trains = False
