# SPDX-License-Identifier: Apache-2.0
"""Tests that the time series of a run reads back, also after a crash."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from observability import series
from observability.series import SeriesWriter
from tests.unit.observability import small_run


def test_a_written_series_reads_back(tmp_path: Path) -> None:
    path = tmp_path / series.FILE
    writer = SeriesWriter(path)
    small_run.train(writer)
    writer.state("digits", "done")
    result = series.read(path)
    (curve,) = result.jobs.values()
    assert [state for _, state in curve.states] == ["running", "done"]
    assert curve.began == result.began is not None
    numbers = range(1, small_run.ITERATIONS + 1)
    assert [one.number for one in curve.iterations] == list(numbers)
    assert [one.loss for one in curve.iterations] == pytest.approx([2.0 / n for n in numbers])
    assert [one.accuracy for one in curve.iterations] == [n / 10 for n in numbers]
    ends = [one.ended for one in curve.iterations]
    assert ends == pytest.approx([n + small_run.SECONDS for n in numbers], abs=1e-3)
    assert [sample.t for sample in result.samples] == [n + 0.5 for n in numbers]
    assert result.samples[0].switches["tor0"] == {"held": 64, "aggregating": 5, "partial": 2}
    assert result.samples[0].servers["s1"] == {"received_bytes": 4000, "sent_bytes": 2000}
    # From when the job ran, a moment after the testbed was started, to its last iteration.
    assert series.covered(result.spans) == pytest.approx(ends[-1] - result.began)


def test_an_incomplete_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / series.FILE
    writer = SeriesWriter(path)
    writer.iterations("digits", small_run.done(1, 2))
    before = path.stat().st_size
    writer.iterations("digits", small_run.done(3))
    whole = path.read_bytes()
    for cut in range(before, len(whole)):
        path.write_bytes(whole[:cut])
        assert [one.number for one in series.read(path).jobs["digits"].iterations] == [1, 2]
    assert series.read(tmp_path / "none").jobs == {}


def test_time_that_jobs_trained_side_by_side_counts_once(tmp_path: Path) -> None:
    path = tmp_path / series.FILE
    rows = []
    for name, began, ended in (("a", 1.0, 4.0), ("b", 2.0, 3.0), ("c", 3.5, 6.0), ("d", 9.0, 10.0)):
        rows.append({"t": began, "job": name, "state": "running"})
        rows.append(
            {"t": ended, "job": name, "first": 1, "ended": [ended], "loss": [1.0], "accuracy": {}}
        )
    small_run.write_lines(path, rows)
    assert series.covered(series.read(path).spans) == 5.0 + 1.0
    assert series.covered([]) is None


def test_a_loss_that_is_no_number_is_kept(tmp_path: Path) -> None:
    writer = SeriesWriter(tmp_path / series.FILE)
    (one,) = small_run.done(1)
    writer.iterations("digits", [one._replace(loss=math.nan)])
    (read,) = series.read(tmp_path / series.FILE).jobs["digits"].iterations
    assert math.isnan(read.loss)


def test_a_write_error_is_logged_once_and_raises_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer = SeriesWriter(tmp_path / "gone" / series.FILE)
    writer.state("digits", "running")
    writer.state("digits", "done")
    (said,) = caplog.messages
    assert str(tmp_path / "gone" / series.FILE) in said
