# SPDX-License-Identifier: Apache-2.0
"""Tests the experiment across racks: the shapes of its coarse points, and its closed forms."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from cli.main import main
from experiments.across_racks.figures import crossover, pipelined, pipelined_switched


@pytest.mark.timeout(300)
def test_boxes_relieve_the_core_and_the_plan_knows_when_they_pay(tmp_path: Path) -> None:
    found = CliRunner().invoke(
        main,
        ["experiment", "across_racks", "--quick", "--jobs", "1", "--json", "--to", str(tmp_path)],
    )
    # Claims hold: the plan chooses as measured, which is one level and two with slow boxes.
    assert found.exit_code == 0, found.stderr
    figures = {one["id"]: one for one in json.loads(found.stdout)["figures"]}
    for racks in (2, 4):
        assert figures[f"core.r{racks}"]["ours"] == 4  # to the byte
        switched = figures[f"core.switch.r{racks}"]
        assert switched["paper"] == 2 * 4 * (racks - 1) / racks
        assert switched["ours"] == pytest.approx(switched["paper"], rel=0.01)  # but for headers
        assert figures[f"gain.switch.r{racks}.o4"]["ours"] > figures[f"gain.r{racks}.o4"]["ours"]
        assert figures[f"gain.r{racks}.o1"]["ours"] > 1.4
        assert figures[f"gain.r{racks}.o4"]["ours"] > 2
    assert 1 < figures["crossover.switch.box2"]["ours"] < figures["crossover.box2"]["ours"] < 4
    page = (tmp_path / "across_racks.md").read_text()
    assert "4 racks are faster flat, with cs (none)" in page  # boxes of two links, 1:1


def test_the_model_is_the_notes() -> None:
    """Their sample gains for racks of four workers, boxes of as many links as workers."""
    for racks, over, gain in ((2, 1, 1.75), (2, 4, 4.0)):
        flat, two = pipelined(racks, over, 4)
        assert flat / two == pytest.approx(gain)
    assert pipelined_switched(4, 4) == pytest.approx(5 / 4)  # its box carries a copy more
    assert pipelined_switched(8, 10) == 2.0  # an uplink with half a worker's rate
    flat, two = pipelined(4, 2, 1)  # a rack's copies at a box of one link
    assert (flat, two) == (3.0, 4.0)


def test_crossovers_are_interpolated() -> None:
    at = (1, 2, 4)
    assert crossover(lambda over: over, lambda over: 3.0, at) == 3.0
    assert crossover(lambda over: over, lambda over: 0.5, at) == 1.0  # from the first on
    assert crossover(lambda over: over, lambda over: 9.0, at) == 4.0  # beyond the last
