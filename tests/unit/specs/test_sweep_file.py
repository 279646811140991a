# SPDX-License-Identifier: Apache-2.0
"""Tests sweep files: their trials, and validation before running."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cli.main import main
from tests.conftest import ROOT

TOPOLOGY = """
name: small
defaults: {rate: 100 Mbit/s, queue_bytes: 64 KiB}
racks: [{workers: 2, servers: 1}]
"""
JOB = """
name: tiny
iterations: 2
batch: 64
hidden: [16]
"""
AXES = """
axes:
  topology.defaults.rate: [1 Gbit/s, 10 Gbit/s]
  job.window: [16, 64]
"""


@pytest.fixture
def base(tmp_path: Path, runs: Path) -> Path:
    """A folder with a topology and a job."""
    (tmp_path / "small.yaml").write_text(TOPOLOGY)
    (tmp_path / "tiny.yaml").write_text(JOB)
    return tmp_path


def dry_run(folder: Path, text: str, *options: str) -> Result:
    path = folder / "sweep.yaml"
    path.write_text(f"name: s\ntopology: small.yaml\njob: tiny.yaml{text}")
    return CliRunner().invoke(main, ["sweep", str(path), "--dry-run", *options])


def listed(folder: Path, text: str) -> list[dict[str, object]]:
    result = dry_run(folder, text, "--json")
    assert result.exit_code == 0, result.output
    rows: list[dict[str, object]] = json.loads(result.stdout)["trials"]
    return rows


def test_a_trial_for_each_combination_but_those_excluded(base: Path, runs: Path) -> None:
    text = f"{AXES}seeds: 2\nexclude:\n- {{topology.defaults.rate: 1 Gbit/s, job.window: 64}}\n"
    found = [tuple(dict(row["values"]).values()) for row in listed(base, text)]  # type: ignore[call-overload]
    expected = [("1 Gbit/s", 16), ("10 Gbit/s", 16), ("10 Gbit/s", 64)]
    assert found == [(*values, seed) for values in expected for seed in (1, 2)]
    assert not runs.exists()


def test_a_trial_is_known_by_the_content_of_its_inputs(base: Path) -> None:
    before = [row["trial"] for row in listed(base, AXES)]
    assert len(set(before)) == 4
    (base / "small.yaml").write_text(f"# a remark\n{TOPOLOGY}")
    wider = AXES.replace("[16, 64]", "[64, 16, 32]")
    after = {row["trial"] for row in listed(base, wider)}
    assert len(after) == 6
    assert set(before) < after
    (base / "tiny.yaml").write_text(JOB.replace("[16]", "[17]"))
    assert not after & {row["trial"] for row in listed(base, wider)}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("\naxes: {window: [1]}", "sweep.yaml:4: axes.window: is no field; allowed: topology.FIEL"),
        ("\naxes:\n  job.window: []", "sweep.yaml:5: axes.job.window: needs at least 1, has 0"),
        ("\naxes:\n  job.window: [16, 32, 16]", "axes.job.window[2]: 16 is given twice"),
        ("\naxes:\n  job.window:\n  - 16\n  - 17", "7: axes.job.window[1]: 17 is no power of two"),
        (
            "\naxes:\n  topology.defaults.rate: [0 Mbit/s, 1 Gbit/s]",
            "5: axes.topology.defaults.rate[0]: '0 Mbit/s' is out of range; allowed: 1 kbit/s",
        ),
        (
            "\naxes:\n  topology.racks[1].workers: [1]",
            "5: axes.topology.racks[1].workers: racks has 1 entries; the first is [0] in",
        ),
        ("\naxes:\n  job.name.x: [1]", "axes.job.name.x: name is no group of fields in"),
        ("\naxes:\n  job.restore: [a.checkpoint]", "axes.job.restore: of trials only summaries"),
        ("\naxes: {job.window: [1]}\nexclude: [{job.window: 2}]", "2 is no value of that axis"),
        ("\naxes: {job.window: [1]}\nexclude: [{job.seed: 2}]", "is no axis; axes are job.window"),
        ("\naxes: {job.window: [1]}\nexclude: [{job.window: 1}]", "exclude: excludes every trial"),
        ("\nseeds: [1]\naxes: {job.seed: [2]}", ":4: seeds: job.seed is an axis already"),
        ("\nseeds: [1]\naxes: {topology.seed: [2]}", ":4: seeds: topology.seed is an axis already"),
        ("\nseeds: [1]\naxes: {seeds: [2]}", ":5: axes.seeds: stands beside `axes`, not in it"),
        ("\nseeds: [1, -1]", ":4: seeds[1]: should be at least 0, not -1 (in the trial with seeds"),
        ("\nseeds: [4294967296]", ":4: seeds[0]: should be less than 4294967296"),
        ("\nseeds: 10001", ":4: seeds: 10001 should be a list of seeds, or how many"),
        ("\nseeds: 101\naxes: {job.batch: [" + ", ".join(map(str, range(2, 202))) + "]}", "20,200"),
        ("\nplot: {y: speed}", ":4: plot.y: 'speed' is no column of the results; such are"),
        ("\nplot: {x: job.window}", ":4: plot.x: 'job.window' is no axis"),
        ("\naxes: {topology.racks: [[{workers: 3, servers: 1}]]}", "tiny.yaml:4: batch: 64 cannot"),
    ],
)
def test_bad_input_is_refused_with_file_line_field_and_reason(
    base: Path, runs: Path, text: str, says: str
) -> None:
    result = dry_run(base, text)
    assert result.exit_code == 1
    assert says in result.output
    assert "Traceback" not in result.output
    assert not runs.exists()


@pytest.mark.parametrize(
    ("axis", "meant"),
    [
        ("job.windw", "window"),
        ("job.optimizer.rat", "rate"),
        ("job.optimizer.keys.W0.wait_decay", "weight_decay"),
        ("topology.default.rate", "defaults"),
        ("topology.racks[0].worker", "workers"),
        ("topology.links[0].form", "from"),
    ],
)
def test_misspelt_axis_is_reported_once_and_not_as_a_trial(
    base: Path, axis: str, meant: str
) -> None:
    result = dry_run(base, f"{AXES}  {axis}: [1, 2]\n")
    (line,) = result.output.splitlines()
    assert f"sweep.yaml:7: axes.{axis}: unknown field; allowed here: " in line
    assert line.endswith(f"did you mean {meant}?")


def test_missing_base_file_is_reported_with_field(base: Path, runs: Path) -> None:
    (base / "small.yaml").unlink()
    result = dry_run(base, AXES)
    assert result.exit_code == 1
    says = f"sweep.yaml:2: topology: {base / 'small.yaml'}: no such file"
    assert says in result.output
    assert not runs.exists()


def test_shared_problem_is_reported_once(base: Path) -> None:
    result = dry_run(base, f"{AXES}  topology.defaults.mtu: [100, 1500]\n")
    (line,) = result.output.splitlines()
    assert ":7: axes.topology.defaults.mtu[0]: 100 is out of range" in line
    assert line.endswith(
        "(in the trial with topology.defaults.rate 1 Gbit/s, job.window 16,"
        " topology.defaults.mtu 100, and 3 more trials)"
    )


@pytest.mark.parametrize(
    "path", sorted((ROOT / "jobs/sweeps").glob("*.yaml")), ids=lambda p: p.stem
)
def test_shipped_sweeps_can_run(path: Path, runs: Path) -> None:
    result = CliRunner().invoke(main, ["sweep", str(path), "--dry-run"])
    assert result.exit_code == 0, result.output
