# SPDX-License-Identifier: Apache-2.0
"""Tests stopped switches in virtual time: packets and calls wait until they go on, and jobs avoid
those that are stopped for long."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from simulation.session import Session
from tests.unit.simulation.virtual_session import one_by_one, run

TOPOLOGY = """\
name: stopping
defaults: {rate: 50 Mbit/s, delay: 0.1 ms, queue_bytes: 64 KiB}
racks: [{workers: 2, servers: 1}, {workers: 2, servers: 1}]
cores: 2
"""
JOB = """\
name: tiny
hidden: [16]
iterations: 60
batch: 24
optimizer: {name: momentum, rate: 0.05, momentum: 0.9}
"""


def stopped(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    faults: str,
    job: str = JOB,
    topology: str = TOPOLOGY,
    change: Callable[[Session], None] = lambda session: None,
) -> tuple[dict[str, Any], list[str], Session]:
    """A run's summary, what was said, and its session. Its weights are the reference's."""
    said: list[str] = []

    def emit(message: dict[str, Any]) -> None:
        if message["event"] == "fault":
            said.append(message["text"])

    files = {"topology.yaml": topology, "job.yaml": job, "faults.yaml": f"faults:\n{faults}"}
    session = run(folder, monkeypatch, files, change, emit)
    summary = json.loads(session.run.summary.read_text())
    assert summary["matches_reference"] is True
    return summary, said, session


EVERYTHING = """\
- {at: 35 chunks, stop: tor0, for: 30 ms}
- {at: 35 chunks, stop: core0, for: 50 ms}
- {at: 35 chunks, stop: tor0, for: 20 ms}
- {at: 70 chunks, stop: core0, for: 1 ms}
- {at: 105 chunks, stop: tor0, for: 100 ms}
- {at: 105 chunks, kill: tor0, gone: 10 ms}
- {after: 35 chunks, stop: tor1, for: 100 ms}
- {after: 35 chunks, stop: core0, for: 20 s}
- {after: 35 chunks, repush: core0}
- {at: 1 ms, load: {from: s0, to: w3, rate: 20 Mbit/s}, for: forever}
"""


def ungrouped(session: Session) -> None:
    session.network.together = False


def test_runs_with_stopped_switches_are_the_same_again_and_packet_by_packet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if each switch runs by itself, so that links between them hold what arrives, instead
    of wires."""
    found = []
    ways = {"once": lambda session: None, "singly": one_by_one, "ungrouped": ungrouped}
    for name, change in ways.items():
        summary, said, session = stopped(tmp_path / name, monkeypatch, EVERYTHING, change=change)
        del summary["machine"], summary["jobs"][0]["machine"], summary["virtual"]["trace"]
        trace = (tmp_path / name / "trace.json").read_text()
        lost = [one.overflowed for one in session.network.switches.values()]
        found.append((json.dumps(summary), said, trace, lost))
    assert found[0] == found[1] == found[2]
    rows = json.loads(found[0][0])["faults"]
    assert len([row for row in rows if row["kind"] == "stop"]) == 7


@pytest.mark.parametrize("switch", ["core0", "tor0"])
def test_packets_wait_for_a_switch_that_goes_on_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, switch: str
) -> None:
    """Nothing is lost, and its connection to the controller, whose calls wait, stays."""
    faults = f"- {{at: 70 chunks, stop: {switch}, for: 300 ms}}\n"
    summary, said, session = stopped(tmp_path, monkeypatch, faults)
    assert said == [f"{switch} was stopped for 0.3 s"]
    (row,) = summary["faults"]
    assert 0.3 < row["seconds"] < 0.32
    assert row["lasted"] == 0.3
    assert len(summary["plans"]) == 1
    assert session.network.switches[switch].overflowed == 0
    assert sum(one["dropped"] for one in summary["links"]) == 0


def test_a_job_avoids_a_switch_that_is_stopped_for_long_and_takes_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The controller's calls time out, workers get no answers, and the other core is in the next
    plan. It has lost nothing when it goes on."""
    caplog.set_level("INFO")
    faults = "- {at: 70 chunks, stop: core0, for: 9 s}\n"
    job = JOB + "compute: 150 ms\n"
    summary, _, session = stopped(tmp_path, monkeypatch, faults, job)
    assert "core0: no answer within 2 s" in caplog.text
    assert "core0 cannot be reached, neither by the controller nor by members" in caplog.text
    roots = [plan["roots"] for plan in summary["plans"]]
    assert roots[:2] == [["core0"], ["core1"]]
    (row,) = summary["faults"]
    assert 4 < max(summary["seconds_per_iteration"]) < 9
    assert "core0 is there" in caplog.text
    assert session.network.switches["core0"].wiped == 0
    assert row["lasted"] == 9.0


def test_receive_buffers_of_a_stopped_switch_have_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other traffic fills them, from a host and from another switch; what has no room is lost."""
    faults = (
        "- {at: 0, load: {from: s0, to: w3, rate: 40 Mbit/s}, for: 4 s}\n"
        "- {at: 100 ms, stop: tor0, for: 1 s}\n"
        "- {at: 2.5 s, stop: core0, for: 1 s}\n"
    )
    job = JOB + "tree: tor\ncompute: 50 ms\n"
    topology = TOPOLOGY.replace("cores: 2", "cores: 1")
    _, said, session = stopped(tmp_path, monkeypatch, faults, job, topology)
    # 1 s of 40 Mbit/s in frames of 1514 bytes, less the slots of a ring.
    for name in ("tor0", "core0"):
        switch = session.network.switches[name]
        assert switch.overflowed == pytest.approx(40e6 / 8 / 1514 - 2048, rel=0.02)
        text = f"{name} had no room for {switch.overflowed:,} packets while it was stopped"
        assert text in said
