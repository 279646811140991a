# SPDX-License-Identifier: Apache-2.0
"""Tests notes on axes of sweeps that change less than they seem to."""

from __future__ import annotations

from pathlib import Path

import pytest

from specs.sweepfile import load
from sweeps import effects
from sweeps.table import Row, column
from sweeps.trials import trials
from tests.unit.sweeps import small_sweep

UPLINKS = """\
name: racks
racks: [{workers: 2, servers: 1}, {workers: 2}]
cores: 1
uplinks: {rate: 2 Gbit/s}
"""
RATES = "[100 Mbit/s, 10 Gbit/s]"


def notes_of(folder: Path, topology: str, axes: str) -> list[str]:
    path = small_sweep.written(folder)
    (folder / "small.yaml").write_text(topology)
    path.write_text(f"name: s\ntopology: small.yaml\njob: tiny.yaml\naxes: {{{axes}}}\n")
    found = load(path)
    return list(effects.before(found.axes, trials(found)))


@pytest.mark.parametrize(
    ("topology", "axes", "lines"),
    [
        (UPLINKS, f"topology.defaults.delay: [1 us, 2 us], topology.defaults.rate: {RATES},"
         " topology.uplinks.rate: [1 Gbit/s]", []),
        (UPLINKS, f"topology.defaults.rate: {RATES}",
         ["topology.defaults.rate does not reach tor0-core0, tor1-core0: a rate of their own"
          " (2 Gbit/s) stays; to change it, too, make it an axis (topology.uplinks, racks or"
          " links)"]),
        (UPLINKS, "topology.defaults.rate: [1 Gbit/s, 1000 Mbit/s], job.window: [16, 64]",
         ["topology.defaults.rate changes nothing: with each of its values, topology and job come"
          " to the same"]),
        (UPLINKS, "topology.seed: [1, 2], topology.name: [a, b]",
         ["topology.seed changes nothing: with each of its values, topology and job come to the"
          " same",
          "topology.name changes nothing: with each of its values, topology and job come to the"
          " same"]),
        (f"{UPLINKS}defaults: {{loss: 1 %}}\n", "topology.seed: [1, 2]", []),
    ],
)  # fmt: skip
def test_static_effects_are_noted_before_running(
    tmp_path: Path, topology: str, axes: str, lines: list[str]
) -> None:
    assert notes_of(tmp_path, topology, axes) == lines


def test_equal_results_along_axis_are_noted(tmp_path: Path) -> None:
    path = small_sweep.written(tmp_path)
    path.write_text(path.read_text() + "  job.window: [16, 64]\n")
    axes = load(path).axes
    rate, window = (column(axis) for axis in axes)
    rows: list[Row] = [
        {
            "trial": f"{x}{y}",
            "state": "done",
            "wall_time_s": x + y,
            rate: x,
            window: y,
            "t_s": 1 / x,
        }
        for x in (1, 2)
        for y in (16, 64)
    ]
    line = "job.window makes no difference: results are equal, whatever its value"
    assert list(effects.equal(axes, rows)) == [line]
    assert list(effects.equal(axes, [*rows[:-1], {**rows[-1], "t_s": 7}])) == []
    assert list(effects.equal(axes, [rows[0], rows[2]])) == []  # of one window each
