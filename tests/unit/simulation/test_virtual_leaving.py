# SPDX-License-Identifier: Apache-2.0
"""Tests that workers leave jobs by order, and come back: no gradient is lost, and nobody waits."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.unit.simulation.virtual_session import run

TOPOLOGY = """\
name: leaving
defaults: {rate: 50 Mbit/s, delay: 0.1 ms, queue_bytes: 64 KiB%s}
racks: [{workers: 2, servers: 1}, {workers: 2, servers: 1}]
cores: 1
"""
LOSS = ", loss: 1 %, duplicate: 1 %, reorder: 3 %"
JOB = """\
name: tiny
hidden: [16]
iterations: 60
batch: 24
"""
MOMENTUM = "optimizer: {name: momentum, rate: 0.05, momentum: 0.9, at: %s}\n"
WORKERS = ["w0", "w1", "w2", "w3"]
CHUNKS = 7  # of an iteration


def left(
    folder: Path, monkeypatch: pytest.MonkeyPatch, faults: str, job: str, topology: str = TOPOLOGY
) -> tuple[dict[str, Any], list[dict[str, Any]], list[str]]:
    """The only job's row of the summary, the rows of faults, and what was said."""
    said: list[str] = []

    def emit(message: dict[str, Any]) -> None:
        if message["event"] == "fault":
            said.append(message["text"])

    if "%s" in topology:
        topology %= ""
    files = {"topology.yaml": topology, "job.yaml": job, "faults.yaml": f"faults:\n{faults}"}
    session = run(folder, monkeypatch, files, emit=emit)
    found = json.loads(session.run.summary.read_text())
    return found["jobs"][0], found["faults"], said


@pytest.mark.parametrize(
    ("placement", "at"),
    [
        ("inc", "workers"),
        ("inc-server", "servers"),
        ("ncs", "workers"),
        ("ncs", "servers"),
        ("cs", "servers"),
    ],
)
@pytest.mark.parametrize("loss", ["", LOSS])
def test_workers_leave_between_rounds_and_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, placement: str, at: str, loss: str
) -> None:
    """All gradients of an iteration's workers are in all its sums, and means follow from the next
    one on; weights are those of a reference with the same workers in each iteration."""
    faults = (
        "- {at: 70 chunks, scale: {workers: [-w1]}}\n"
        "- {at: 140 chunks, scale: {workers: [-w0, -w3]}}\n"
        "- {at: 210 chunks, scale: {workers: [+w1, +w3]}}\n"
        "- {at: 280 chunks, scale: {workers: [-w1]}}\n"
    )
    job = f"{JOB}{MOMENTUM % at}placement: {placement}\n"
    summary, rows, said = left(tmp_path, monkeypatch, faults, job, TOPOLOGY % loss)
    assert summary["matches_reference"] is True
    assert [row["what"] for row in rows] == [
        f"changed: {n}" for n in ("3 workers", "1 worker", "3 workers", "2 workers")
    ]
    assert summary["lost_workers"] == {}
    assert set(summary["left_workers"]) == {"w0", "w1"}
    assert summary["rejoined_workers"] == {"w1": 1, "w3": 1}
    assert summary["finished_workers"] == ["w2", "w3"]
    spans = summary["attendance"]
    assert all(len(span["sums"]) == 1 for span in spans), "some sums lack a worker's gradients"
    assert [span["sums"][0]["workers"] for span in spans] == [
        *(WORKERS, ["w0", "w2", "w3"], ["w2", "w3"], ["w2"], ["w1", "w2"]),
        *(["w1", "w2", "w3"], ["w2", "w3"]),
    ]
    assert summary["left_workers"] == {"w0": spans[1]["to"], "w1": spans[5]["to"]}
    for host, rest, span in (("w1", "w0, w2, w3", 0), ("w3", "w2", 2)):
        after = spans[span]["to"]
        assert f"{host} has left job tiny after iteration {after}; it goes on with {rest}" in said
    # Changes of plan epoch take round trips, of calls of a millisecond.
    assert max(summary["seconds_per_iteration"]) < 0.2
    assert len(summary["plans"]) == 7


@pytest.mark.parametrize("consistency", ["asynchronous", "{staleness: 1}"])
def test_workers_leave_where_each_is_in_rounds_of_its_own(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    consistency: str,
) -> None:
    """Servers take a step with each gradient of theirs, once; the others are not held back."""
    caplog.set_level("INFO")
    faults = (
        "- {at: 0, slow: {host: w0, by: 3}, for: forever}\n"
        "- {at: 70 chunks, scale: {workers: [-w0]}}\n"
        "- {at: 210 chunks, scale: {workers: [-w3]}}\n"
    )
    job = f"{JOB}{MOMENTUM % 'servers'}placement: ncs\ncompute: 5 ms\nconsistency: {consistency}\n"
    summary, rows, _ = left(tmp_path, monkeypatch, faults, job)
    assert [row["what"] for row in rows if row["kind"] == "scale"] == [
        "changed: 3 workers",
        "changed: 2 workers",
    ]
    after = summary["left_workers"]
    assert set(after) == {"w0", "w3"}
    assert 10 <= after["w0"] < after["w3"] < 60
    stepped = [int(n) for n in re.findall(r"'stepped': (\d+)", caplog.text)]
    assert sum(stepped) == CHUNKS * (2 * 60 + sum(after.values()))
    assert max(summary["seconds_per_iteration"]) < 0.2


def test_a_worker_that_is_done_does_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = (
        "- {at: 0, slow: {host: w3, by: 8}, for: forever}\n"
        "- {at: 1600 ms, scale: {workers: [+w0]}}\n"
    )
    placed = "placement: ncs\ncompute: 5 ms\nconsistency: asynchronous\n"
    job = f"{JOB}{MOMENTUM % 'servers'}{placed}"
    summary, rows, _ = left(tmp_path, monkeypatch, faults, job)
    assert rows[1]["what"] == "were refused: job tiny: w0 has done all iterations"
    assert summary["finished_workers"] == WORKERS
    assert summary["lost_workers"] == {}


def test_a_worker_that_left_and_comes_back_too_late_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = (
        "- {at: 70 chunks, scale: {workers: [-w0]}}\n- {at: 413 chunks, scale: {workers: [+w0]}}\n"
    )
    summary, rows, _ = left(tmp_path, monkeypatch, faults, JOB)
    assert rows[1]["what"] == "were refused: job tiny was over before w0 had joined"
    assert set(summary["left_workers"]) == {"w0"}
    assert summary["lost_workers"] == {}


def test_a_worker_that_does_not_leave_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job goes on without it, as after any kill."""
    faults = "- {at: 70 chunks, stop: w1, for: 5 s}\n- {at: 70 chunks, scale: {workers: [-w1]}}\n"
    summary, rows, said = left(tmp_path, monkeypatch, faults, f"{JOB}patience: 2 s\n")
    assert summary["matches_reference"] is True
    how = "did not leave within 1 s and was killed"
    assert summary["lost_workers"] == {"w1": how}
    assert summary["left_workers"] == {}
    what = "changed: 3 workers; killed, not having left in time: w1"
    assert [row["what"] for row in rows if row["kind"] == "scale"] == [what]
    assert f"w1 {how}; job tiny goes on with w0, w2, w3; it stays away" in said


def test_impossible_orders_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    faults = (
        "- {at: 35 chunks, scale: {workers: [-w0, -w1, -w2, -w3]}}\n"
        "- {at: 70 chunks, scale: {workers: [+w1]}}\n"
        "- {at: 105 chunks, scale: {workers: [-w1, -w2, -w3]}}\n"
        "- {at: 140 chunks, scale: {workers: [-w1]}}\n"
        "- {at: 175 chunks, scale: {workers: [-w0]}}\n"
    )
    summary, rows, _ = left(tmp_path, monkeypatch, faults, JOB)
    assert [row["what"] for row in rows] == [
        "were refused: job tiny: none of the workers that it has would be left",
        "were refused: job tiny: w1 is in the job, or on its way",
        "changed: 1 worker",
        "were refused: job tiny has no worker at w1; workers: w0",
        "were refused: job tiny: none of the workers that it has would be left",
    ]
    assert summary["matches_reference"] is True
    assert summary["finished_workers"] == ["w0"]


def test_of_two_orders_at_a_time_the_second_sees_who_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = (
        "- {at: 70 chunks, scale: {workers: [-w1]}}\n"
        "- {at: 70 chunks, scale: {workers: [-w1]}}\n"
        "- {at: 140 chunks, scale: {workers: [-w0, -w2]}}\n"
        "- {at: 140 chunks, scale: {workers: [-w3, -w2]}}\n"
        "- {at: 210 chunks, scale: {workers: [+w1]}}\n"
        "- {at: 210 chunks, scale: {workers: [+w1]}}\n"
    )
    summary, rows, _ = left(tmp_path, monkeypatch, faults, JOB)
    assert sorted(row["what"] for row in rows) == [
        "changed: 1 worker",
        "changed: 2 workers",
        "changed: 3 workers",
        "were refused: job tiny has no worker at w1; workers: w0, w2, w3",
        "were refused: job tiny has no worker at w2; workers: w3",
        "were refused: job tiny: w1 is in the job, or on its way",
    ]
    assert summary["matches_reference"] is True


def test_an_order_that_is_refused_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither servers, nor those workers that could come."""
    job = f"{JOB}placement: {{kind: ncs, workers: [w0, w1, w2], servers: [s0], spares: [s1]}}\n"
    faults = "- {at: 70 chunks, scale: {servers: [+s1], workers: [+w3, +w0]}}\n"
    summary, (row,), _ = left(tmp_path, monkeypatch, faults, job)
    assert row["what"] == "were refused: job tiny: w0 is in the job, or on its way"
    assert summary["moves"] == []
    assert summary["finished_workers"] == ["w0", "w1", "w2"]
