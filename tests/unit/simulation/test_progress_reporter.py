# SPDX-License-Identifier: Apache-2.0
"""Progress reports of runs in virtual time, which do not change results."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from observability import record
from simulation.kernel import progress
from simulation.kernel.progress import PERIOD_SECONDS, ProgressReporter
from simulation.links.trains import SECOND
from tests.unit.simulation.virtual_session import run

FILES = {
    "topology.yaml": "name: small\nracks: [{workers: 2, servers: 1}]\ncores: 0\n"
    "defaults: {rate: 1 Gbit/s, loss: 1 %}\n",
    "job.yaml": "name: sizes\nworkload: layers\nlayers: [300 kB]\niterations: 2\nwindow: 16\n",
}


class Halfway:
    """A job whose progress the test sets."""

    name, iterations = "job", 4

    def __init__(self) -> None:
        self.done: float | None = None

    def iterations_done(self) -> float | None:
        return self.done

    def rounds(self, done: float) -> float:
        return done + min(done, 1.0)


def test_remaining_time_is_estimated_from_progress() -> None:
    messages: list[dict[str, Any]] = []
    job, times = Halfway(), iter([0.0, 0.5, 5.0, 6.0, 6.5, 9.0, 20.0])
    reporter = ProgressReporter([job], lambda: 3 * SECOND, messages.append, lambda: next(times))
    for done in (0.0, None, 0.5, 0.9, 1.25, 4.0):  # no report is due at 0.5 s and 6.5 s
        job.done = done
        reporter.poll()
    first, later = messages  # none before it runs, and none at the end
    assert first["iterations_done"] == 0.5
    assert first["left_seconds"] is None
    assert (later["wall_seconds"], later["virtual_seconds"]) == (9.0, 3.0)
    # The first iteration takes twice as long as the others.
    assert later["left_seconds"] == (4 + 1 - 2.25) / ((2.25 - 2 * 0.5) / (9.0 - 6.0))
    assert PERIOD_SECONDS > 0.5


def test_aborted_run_reports_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its links, its trace and its log, too; the job's number is that of packets in captures."""
    monkeypatch.setattr(progress, "PERIOD_SECONDS", 0.0)

    def stop(message: dict[str, Any]) -> None:
        if message["event"] == "within" and message["iterations_done"] > 1.5:
            raise KeyboardInterrupt  # between two rounds, as a signal does

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, monkeypatch, FILES, emit=stop)
    (directory,) = record.all_runs()
    summary = json.loads(directory.summary.read_text())
    (job,) = summary["jobs"]
    assert (job["number"], job["state"], job["iterations_done"]) == (1, "stopped", 1)
    assert min(row["bytes"] for row in summary["links"] if row["from"] == "w0") > 1.5 * 300_000
    assert summary["virtual"]["seconds"] > 1.5 * 8 * 300_000 / 1e9
    result = (directory.logs / "virtual.log").read_text()
    assert result.splitlines()[-1].endswith(" s by a signal")
    assert "Traceback" not in result
    json.loads((tmp_path / "trace.json").read_text())


def test_run_aborted_after_last_iteration_has_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(message: dict[str, Any]) -> None:
        if message["event"] == "checking":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, monkeypatch, FILES, emit=stop)
    (directory,) = record.all_runs()
    summary = json.loads(directory.summary.read_text())
    (job,) = summary["jobs"]
    assert (job["state"], job["reason"]) == ("stopped", "ended by a signal")
    assert job["iterations_done"] == 2
    assert min(row["bytes"] for row in summary["links"] if row["from"] == "w0") > 2 * 300_000


def test_progress_reports_do_not_change_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, reported = [], []
    for name, period in (("quiet", math.inf), ("loud", 0.0)):
        monkeypatch.setattr(progress, "PERIOD_SECONDS", period)
        messages: list[dict[str, Any]] = []
        session = run(tmp_path / name, monkeypatch, FILES, emit=messages.append)
        summary = json.loads(session.run.summary.read_text())
        for part in (summary, *summary["jobs"]):
            part.pop("machine")
        summary["virtual"].pop("trace")
        series = (session.run.path / "series.jsonl").read_bytes()
        found.append((summary, (tmp_path / name / "trace.json").read_bytes(), series))
        reported.append([one for one in messages if one["event"] == "within"])
    assert found[0] == found[1]
    ended = [row.get("ended", ()) for row in map(json.loads, found[0][2].splitlines())]
    assert sum(map(len, ended)) == 2  # the series has the last iteration, too
    assert reported[0] == []
    shares = [one["iterations_done"] for one in reported[1]]
    assert shares == sorted(shares)
    assert {math.floor(share) for share in shares} == {0, 1}
    chunks = found[0][0]["chunks"]["aggregated_in_network"] // 2
    assert all(share * chunks == pytest.approx(round(share * chunks)) for share in shares)
    assert len(set(shares)) > 4  # within an iteration, too
