# SPDX-License-Identifier: Apache-2.0
"""The files and programs of docs/tutorial are valid, and validate prints what it shows."""

from __future__ import annotations

import re
from pathlib import Path

from specs.fault_schedule import schedule
from specs.faultfile import parse
from specs.p4program import SOURCES
from testbed import preflight, preflight_report
from testbed.program import read_program
from tests.conftest import ROOT
from topologies.model.spec import read

TUTORIAL = ROOT / "docs" / "tutorial"


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of a page."""
    text = (TUTORIAL / page).read_text()
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def test_own_topology(tmp_path: Path) -> None:
    for name, text in zip(("mine", "quick"), blocks("own-topology.md", "yaml"), strict=True):
        (tmp_path / f"{name}.yaml").write_text(text)
    build = SOURCES / "build"
    plane = read_program(build / "aggregation.json", build / "aggregation.p4info.txtpb")
    topology = read(tmp_path / "mine.yaml")
    found = preflight.check(topology, [tmp_path / "quick.yaml"], plane, "embedded")
    shown = (TUTORIAL / "own-topology.md").read_text()
    for line in preflight_report.describe(found, plane):
        assert line.split("/")[-1] in shown


def test_break_and_recover() -> None:
    (faults,) = blocks("break-and-recover.md", "yaml")
    two_racks = read(ROOT / "topologies" / "two-racks.yaml").topology
    assert len(schedule(parse(faults), two_racks)) == 3
