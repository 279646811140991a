# SPDX-License-Identifier: Apache-2.0
"""Tests sweeps from Python."""

from __future__ import annotations

import csv
from itertools import pairwise
from pathlib import Path

import pytest

import rackhub

SMALL = rackhub.Topology.build("small", racks=2, workers=2, link="50 Mbit/s")
SIZES = {"name": "sizes", "workload": "layers", "layers": ["64 kB"], "iterations": 2}
RATES = {"topology.defaults.rate": ["10 Mbit/s", "40 Mbit/s"]}


def test_a_sweep_has_a_row_for_each_trial_and_goes_on(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    axes = {**RATES, "job.tree": ["two-level", "none"]}
    table = rackhub.sweep(SMALL, SIZES, axes, name="rates", processes=2, progress=True)
    assert len(table) == len(table.rows) == 4
    assert "4 trials, 0 of them done before" in capsys.readouterr().out
    times = {
        (row["topology_defaults_rate_bit_per_s"], row["job_tree"]): row["iteration_median_s"]
        for row in table.rows
    }
    for tree in ("two-level", "none"):  # four times the rate, in at least three times less
        assert times[10_000_000, tree] > 3 * times[40_000_000, tree]
    assert times[10_000_000, "none"] > times[10_000_000, "two-level"]
    assert table.path == runs / "sweeps" / "rates"
    with (table.path / "results.csv").open() as file:
        assert [row["trial"] for row in csv.DictReader(file)] == [r["trial"] for r in table.rows]

    again = rackhub.sweep(SMALL, SIZES, axes, name="rates", progress=True)
    assert "4 trials, 4 of them done before" in capsys.readouterr().out
    assert again.rows == table.rows
    (axes_of_plot,) = again.plot().axes
    assert "rate" in axes_of_plot.get_xlabel()
    drawn = {tuple(line.get_ydata()) for line in axes_of_plot.lines}
    assert len(drawn) == 2
    assert repr(again) == "<Sweep rates: 4 trials over topology.defaults.rate, job.tree>"


def test_an_axis_is_how_slow_a_link_is(runs: Path) -> None:
    slow = [{"at": 0, "slow": {"link": "all", "by": 1}, "for": "forever"}]
    job = {**SIZES, "iterations": 3}
    axes = {"faults.faults[0].slow.by": [1, 4, 16]}
    table = rackhub.sweep(SMALL, job, axes, faults=slow, name="slow", processes=1)
    times = [row["iteration_median_s"] for row in table.rows]
    assert [row["faults_faults_0_slow_by"] for row in table.rows] == [1, 4, 16]
    for before, after in pairwise(times):  # all that takes time is on links
        assert after == pytest.approx(4 * before, rel=0.02)
    without = rackhub.sweep(SMALL, job, {"job.window": [0]}, name="without", processes=1)
    assert without.rows[0]["iteration_median_s"] == times[0]
    axes = {"faults.faults[0].slow.by": [1, 0.5]}
    with pytest.raises(rackhub.SweepFileError, match=r"faults.faults\[0\].slow.by\[1\]: 0.5 is no"):
        rackhub.sweep(SMALL, job, axes, faults=slow, name="fast", processes=1)
    with pytest.raises(rackhub.SweepFileError, match=r"is no field; allowed: topology.FIELD, job"):
        rackhub.sweep(SMALL, job, axes, name="none", processes=1)


def test_rows_are_a_table_for_pandas(tmp_path: Path, runs: Path) -> None:
    pytest.importorskip("pandas")
    table = rackhub.sweep(SMALL, SIZES, RATES, to=tmp_path / "here", processes=1, iterations=1)
    found = table.to_pandas()
    assert list(found["topology_defaults_rate_bit_per_s"]) == [10_000_000, 40_000_000]
    assert list(found["iterations"]) == [1, 1]
    assert (tmp_path / "here" / "results.csv").exists()


def test_mistakes_are_named_before_any_trial(runs: Path) -> None:
    for axes, expected in (
        ({"topology.rate": [1]}, "rackhub.sweep: axes.topology.rate: unknown field"),
        ({"job.window": [16, 3]}, r"rackhub.sweep: axes.job.window\[1\]: 3 is no power of two"),
        ({"job.window": []}, "rackhub.sweep: axes.job.window: needs at least 1"),
    ):
        with pytest.raises(rackhub.SweepFileError, match=f"^{expected}"):
            rackhub.sweep(SMALL, SIZES, axes)
    with pytest.raises(rackhub.SweepFileError, match=r"^sizes: iterations: should be at least 1"):
        rackhub.sweep(SMALL, SIZES, RATES, iterations=0)
    assert not runs.exists()


def test_a_sweep_without_an_axis_to_draw_over_says_so(runs: Path) -> None:
    table = rackhub.sweep(SMALL, SIZES, {"job.window": [16]}, processes=1)
    with pytest.raises(rackhub.SweepError, match="no plot: "):
        table.plot()
