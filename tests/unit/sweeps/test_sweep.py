# SPDX-License-Identifier: Apache-2.0
"""Tests sweeps: interruption, dying processes, and result tables."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from cli.commands import sweep
from cli.main import main
from emulation.nodes.processes import environment, python
from specs.paths import ROOT
from specs.sweepfile import Axis
from sweeps import code, table
from sweeps.conduct import State, conduct
from sweeps.execution import Outcome
from sweeps.local import LocalCrew
from sweeps.store import opened
from sweeps.trials import Trial
from tests.unit.sweeps import small_sweep
from topologies.model.units import time_text

# Answers for a trial as the real process does. That of topology `dies` never does, that of `shy`
# only the second time.
STANDIN = """
import json, os, pathlib, signal, sys
for line in sys.stdin:
    name, seen = json.loads(line)["topology"], pathlib.Path(sys.argv[1], "seen")
    first = not seen.exists()
    seen.touch()
    if name == "dies" or (name == "shy" and first):
        print("out of breath", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    print(json.dumps({"summary": {"seconds_per_iteration": [0.5]}}), flush=True)
"""


def test_killed_sweep_resumes(tmp_path: Path, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = small_sweep.written(tmp_path)
    killed = subprocess.Popen(
        python("cli", "sweep", str(path), "--jobs", "1"),
        env=environment(),
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert killed.stderr is not None
    for line in killed.stderr:
        if line.startswith("1/3 trials"):
            break
    killed.kill()
    killed.wait()
    killed.stderr.close()
    folder = runs / "sweeps" / "small"
    (first,) = folder.glob("trials/*/result.json")
    before = first.read_bytes(), first.stat().st_mtime_ns

    again = CliRunner().invoke(main, ["sweep", str(path), "--jobs", "2", "--json"])
    assert again.exit_code == 0, again.output
    assert "3 trials, 1 of them done before" in again.stderr
    assert (first.read_bytes(), first.stat().st_mtime_ns) == before
    rows = json.loads(again.stdout)["trials"]
    assert [row["topology_defaults_rate_bit_per_s"] for row in rows] == [10**8, 10**9, 10**10]
    assert all(row["matches_reference"] is True for row in rows)
    assert rows[0]["iteration_median_s"] > rows[1]["iteration_median_s"]
    assert len({row["weights_sha256"] for row in rows}) == 1
    for row in rows:  # picoseconds, which is what virtual time counts
        for name in ("iteration_median_s", "iteration_mean_s", "iteration_longest_s"):
            assert row[name] == float(f"{row[name]:.12f}")
    assert ElementTree.parse(folder / "plot.svg").getroot().tag.endswith("svg")

    nothing = CliRunner().invoke(main, ["sweep", str(path)])
    assert nothing.exit_code == 0
    assert "3 trials, 3 of them done before" in nothing.stderr
    assert len(small_sweep.rows(folder)) == 3
    titles, *output = nothing.stdout.strip().splitlines()
    assert titles.split()[:4] == ["trial", "link", "rate", "iteration"]
    for line, row, rate in zip(output, rows, ("100 Mbit/s", "1 Gbit/s", "10 Gbit/s"), strict=True):
        assert line.split("  ")[:2] == [row["trial"], rate]
        assert time_text(row["iteration_median_s"], 4) in line

    monkeypatch.setattr(sweep, "_MOST_SHOWN", 1)
    cut = CliRunner().invoke(main, ["sweep", str(path)]).stdout.strip().splitlines()
    assert cut[:2] == [titles, output[0]]
    assert cut[2].startswith("... and 2 more trials; all of them")
    assert cut[2].endswith("/results.csv")
    assert len(cut) == 3


def trial(name: str, rate: object = 1) -> Trial:
    return Trial(name, name, {RATE.path: rate}, {RATE.path: rate}, name, "")


RATE = Axis("topology.defaults.rate", (1, 2, 3), ("axes", "topology.defaults.rate"))


def test_trial_is_retried_when_process_dies(tmp_path: Path) -> None:
    messages: list[tuple[str, str]] = []
    command = [sys.executable, "-c", STANDIN, str(tmp_path)]
    listed = [trial("shy"), trial("dies"), trial("well")]
    with opened(tmp_path / "sweep") as store:

        def note(_: State, which: Trial, __: Outcome, became: str) -> None:
            messages.append((which.id, became))

        def crew() -> LocalCrew:
            return LocalCrew(1, store.logs, command)

        state = conduct(store, listed, crew, note)
        assert (state.done, state.failed, state.again) == (2, 1, 2)
        assert sorted(messages) == [
            *(("dies", "again"), ("dies", "failed")),
            *(("shy", "again"), ("shy", "done"), ("well", "done")),
        ]
        result = store.result(trial("dies"))
        assert result is not None
        assert result["error"] == "its process was ended by SIGKILL"
        assert "out of breath" in result["log"]
        assert result["attempts"] == 2
        # What failed is tried again by the next call, what is done is not.
        messages.clear()
        conduct(store, listed, crew, note)
        assert messages == [("dies", "again"), ("dies", "failed")]


def test_a_change_of_drawing_code_runs_nothing_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code, "ROOT", tmp_path)

    def digest(changed: str) -> str:
        path = tmp_path / changed
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(path.read_text() + "#" if path.exists() else "#")
        return code.digest.__wrapped__()

    first = digest("simulation/session.py")
    assert digest("observability/pictures.py") == first
    assert digest("observability/report/charts.py") == first
    assert digest("sweeps/plot.py") == first
    assert digest("experiments/p3/page.py") == first
    assert len({first, digest("observability/record.py"), digest("simulation/session.py")}) == 3


def test_parquet_has_the_rows_and_types_that_csv_has(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    nothing = {"state": "failed", "attempts": 2, "summary": None, "error": "x", "seconds": 1.0}
    done = {**nothing, "state": "done", "summary": {"iterations": 3, "test_loss": 2}, "error": ""}
    rows = [table.row(trial("a", 10), [RATE], nothing), table.row(trial("b", 20), [RATE], done)]
    table.write_parquet(tmp_path / "t.parquet", rows)
    table.write_csv(tmp_path / "t.csv", rows)
    assert parquet.read_table(tmp_path / "t.parquet").to_pylist() == rows
    head, first, *_ = (tmp_path / "t.csv").read_text().splitlines()
    assert head.startswith("trial,state,attempts,topology_defaults_rate_bit_per_s,")
    assert first.startswith("a,failed,2,10,")


def test_a_second_sweep_in_the_same_folder_is_refused(tmp_path: Path, runs: Path) -> None:
    path = small_sweep.written(tmp_path)
    with opened(runs / "sweeps" / "small"):
        result = CliRunner().invoke(main, ["sweep", str(path)])
    assert result.exit_code == 1
    assert "another sweep or experiment is at work there" in result.output


def test_closed_output_pipe_keeps_folder_usable(tmp_path: Path) -> None:
    with pytest.raises(BrokenPipeError), opened(tmp_path):
        raise BrokenPipeError
