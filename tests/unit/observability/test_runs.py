# SPDX-License-Identifier: Apache-2.0
"""Tests the list of runs, and the removal of old ones."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from click.shell_completion import BashComplete
from click.testing import CliRunner

from cli.main import main
from observability import record, runs
from tests.unit.observability import small_run

pytestmark = pytest.mark.usefixtures("runs")
DAY = 86_400.0


def call(*arguments: str) -> str:
    result = CliRunner().invoke(main, ["runs", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def made(*names: str, **changes: Any) -> list[Path]:
    """Directories of runs that are over, the oldest first; changes: of their job's summary."""
    paths = []
    for name in names:
        with small_run.begun(name) as (run, _):
            run.write_summary(small_run.summary(jobs=[small_run.job(**changes)]))
        paths.append(run.path)
    return paths


def age(run: Path, seconds: float) -> None:
    """Lets a run have begun so much earlier."""
    began = time.time() - seconds
    os.utime(run / "testbed.json", (began, began))


def test_runs_are_listed_with_how_they_ended() -> None:
    (done,) = made("done")
    made("wrong", matches=False)
    made("stop", state="stopped")
    with small_run.begun("broken") as (run, _):
        run.note_failure("w3 was killed", "w3")
    facts = small_run.facts(command="rackhub up 'my topology.yaml' --pcap")
    with record.create("bed", chosen=False, facts=facts) as up:
        found = json.loads(call("list", "--json"))
    assert [(row["name"], row["state"], row["reason"], row["jobs"]) for row in found] == [
        ("bed", "up", "", []),
        ("broken", "failed", "w3 was killed", []),
        ("stop", "stopped", "", ["digits"]),
        ("wrong", "wrong", "", ["digits"]),
        ("done", "done", "", ["digits"]),
    ]
    assert [row["latest"] for row in found] == [True, *[False] * 4]
    assert runs.kind(found[0]) == "up"
    assert {row["topology"] for row in found} == {str(small_run.TOPOLOGY)}
    assert (found[0]["run"], found[-1]["path"]) == (up.path.name, str(done))
    assert [row["run"] for row in json.loads(call("list", "-n", "2", "--json"))] == [
        row["run"] for row in found[:2]
    ]


def test_duration_and_size_are_those_of_the_directory() -> None:
    (path,) = made("a")
    age(path, 100.0)
    (path / "logs" / "supervisor.log").write_text("down")
    os.utime(path / "logs" / "supervisor.log", (time.time() - 40.0,) * 2)
    (before,) = runs.rows()
    assert before["seconds"] == pytest.approx(60.0, abs=5.0)
    (path / "pcap").mkdir()
    (path / "pcap" / "x").write_bytes(bytes(1 << 20))
    (after,) = runs.rows()
    assert after["bytes"] - before["bytes"] == pytest.approx(1 << 20, abs=1 << 14)


def test_pruning_keeps_new_runs_live_ones_and_the_latest() -> None:
    old, middle, new = made("old", "middle", "new")
    for path, days in ((old, 9), (middle, 5), (new, 8)):
        age(path, days * DAY)
    assert "1 run would be removed" in call("prune", "--keep", "1", "--dry-run")
    listed = json.loads(call("prune", "--older-than", "7d", "--dry-run", "--json"))
    assert [row["name"] for row in listed["removed"]] == ["old"]  # `latest` points to new
    with record.create("bed", chosen=False, facts=small_run.facts()) as up:
        size = sum(row["bytes"] for row in runs.rows() if row["name"] in ("old", "new"))
        pruned = json.loads(call("prune", "--keep", "2", "--older-than", "7", "--json"))
        assert [row["name"] for row in pruned["removed"]] == ["new", "old"]
        assert pruned["bytes"] == size
        assert call("prune", "--keep", "0").startswith("1 run removed, ")
        assert not any(path.exists() for path in (old, middle, new))
        assert up.alive
    assert call("prune", "--keep", "0") == "0 runs removed, 0 B freed\n"
    assert [run.path for run in record.all_runs()] == [up.path]


def test_results_of_sweeps_stay(runs: Path) -> None:
    trial = runs / "sweeps" / "mine" / "results.csv"
    trial.parent.mkdir(parents=True)
    trial.touch()
    made("a", "b")
    assert call("prune", "--keep", "1").startswith("1 run removed")
    assert trial.exists()


def test_pruning_needs_a_criterion() -> None:
    result = CliRunner().invoke(main, ["runs", "prune"])
    assert result.exit_code == 2
    assert "--keep N, --older-than AGE, or both" in result.output
    assert call("list").startswith("there is no run in ")


@pytest.mark.parametrize("words", [["report"], ["trace", "job", "--run"]])
def test_names_of_runs_are_completed(words: list[str]) -> None:
    first, second = made("a", "b")
    completion = BashComplete(main, {}, "rackhub", "_RACKHUB_COMPLETE")
    found = [one.value for one in completion.get_completions(words, "")]
    assert found == ["latest", second.name, first.name]
    assert [one.value for one in completion.get_completions(words, "lat")] == ["latest"]
