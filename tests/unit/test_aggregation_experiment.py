# SPDX-License-Identifier: Apache-2.0
"""Tests the experiment on aggregation in the network: the shapes of its coarse points."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from cli.main import main
from experiments.aggregation.figures import knee, round_trip
from experiments.aggregation.jobs import INC
from experiments.aggregation.planned import planned


@pytest.mark.timeout(300)
def test_coarse_points_have_the_shapes_of_closed_forms(tmp_path: Path) -> None:
    found = CliRunner().invoke(
        main,
        ["experiment", "aggregation", "--quick", "--jobs", "1", "--json", "--to", str(tmp_path)],
    )
    assert found.exit_code == 0, found.stderr  # claims: flat, below baselines, a knee
    figures = {one["id"]: one for one in json.loads(found.stdout)["figures"]}
    assert list(figures) == [
        *("flat.64", "ring.8", "knee.5us", "loss.1%.levels1", "loss.1%.levels2", "straggler.8"),
    ]
    assert all(one["holds"] for one in figures.values())
    assert figures["flat.64"]["ours"] == pytest.approx(1, abs=0.01)
    assert figures["knee.5us"]["ours"] == 8
    assert 1 < figures["loss.1%.levels1"]["ours"] < 2
    assert 7.5 < figures["straggler.8"]["ours"] < 8.2
    for name in ("workers", "windows", "losses"):
        picture = ElementTree.parse(tmp_path / "aggregation" / f"{name}.svg")
        assert picture.getroot().tag.endswith("svg")


def test_the_knee_is_the_rate_times_the_round_trip() -> None:
    """Four links of 5 us and 8,252 B at 10 Gbit/s: 46.4 us, in which 7.03 frames leave."""
    assert round_trip(5e-6) == pytest.approx(46.41e-6, rel=1e-3)
    assert knee(5e-6) == pytest.approx(7.03, rel=1e-3)


def test_predictions_have_all_ways() -> None:
    times = {way: planned(1024, way, quick=False) for way in (INC, "ring", "ps", "sharded-ps")}
    assert all(times.values())
    assert min(times, key=lambda way: times[way] or 0) == INC
