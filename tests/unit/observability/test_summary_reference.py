# SPDX-License-Identifier: Apache-2.0
"""Tests that the references of summaries and reports are up to date, and that both keep to them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ConfigDict, TypeAdapter, ValidationError

from observability import record
from observability.messages.report import ReportData
from observability.report import collect
from tests.conftest import ROOT
from tests.summaries import check_summary
from tests.unit.simulation import virtual_session

TOPOLOGY = "name: r\nracks: [{workers: 2, servers: 1}]\n"
DIGITS = "name: j\nworkload: digits\niterations: 2\n"
STALE = "tree: none\nconsistency: {staleness: 2}\noptimizer: {name: sgd, at: servers}\n"


def test_schema_and_page_are_up_to_date() -> None:
    script = ROOT / "scripts" / "summary_reference.py"
    done = subprocess.run(
        [sys.executable, script, "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "job",
    [
        DIGITS,
        DIGITS + "tree: none\nconsistency: {staleness: 2}\noptimizer: {name: sgd, at: servers}\n",
    ],
    ids=["synchronous", "asynchronous"],
)
def test_a_summary_has_the_keys_of_its_model_and_no_others(
    job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"topology.yaml": TOPOLOGY, "job.yaml": job}
    run = virtual_session.run(tmp_path, monkeypatch, files).run
    reports = TypeAdapter(list[ReportData], config=ConfigDict(extra="forbid"))
    reports.validate_json(json.dumps([collect(run)]), strict=True)
    path = run.summary
    check_summary(path)
    whole = json.loads(path.read_text())
    for change in ({"extra": 1}, {"state": "over"}, {"chunks": {}}, {"workers": "2"}):
        path.write_text(json.dumps({**whole, **change}))
        with pytest.raises(ValidationError):
            check_summary(path)


@pytest.mark.usefixtures("runs")
def test_a_run_that_could_not_begin_has_a_valid_summary() -> None:
    facts: record.Facts = {"topology": str(ROOT / "topologies" / "two-racks.yaml")}
    facts |= {"target": "embedded", "clock": "emulated"}
    with record.create("small", chosen=False, facts=facts) as run:
        run.note_failure("the network cannot be built", "supervisor")
    check_summary(run.summary)
