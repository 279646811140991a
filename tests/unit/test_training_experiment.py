# SPDX-License-Identifier: Apache-2.0
"""Tests the experiment on training: equal weights, and the order in time, of its coarse points."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml
from click.testing import CliRunner

from cli.main import main
from experiments.training.jobs import P3, models, points
from specs import jobfile
from workloads.workloads import shapes

_PASSES = ("forward", "backward")


@pytest.mark.timeout(300)
def test_time_differs_by_what_sums_and_weights_do_not(tmp_path: Path) -> None:
    found = CliRunner().invoke(
        main, ["experiment", "training", "--quick", "--jobs", "1", "--json", "--to", str(tmp_path)]
    )
    assert found.exit_code == 0, found.stderr  # claims: bit-identical weights, switches are fastest
    figures = {one["id"]: one for one in json.loads(found.stdout)["figures"]}
    assert set(figures) == {"time.digits.colocated-ps", "time.digits.p3", "accuracy.digits.p3"}
    assert figures["accuracy.digits.p3"]["ours"] == 0
    slow, p3 = (figures[f"time.digits.{way}"]["ours"] for way in ("colocated-ps", "p3"))
    assert 1 < p3 < slow < 2.5  # 1.75 times the traffic, and latency
    page = (tmp_path / "training.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("|") and "`" in line]
    digests = {line.split("`")[1] for line in rows if "digits" not in line}
    assert len(digests) == 1
    picture = ElementTree.parse(tmp_path / "training" / "digits.svg").getroot()
    assert picture.tag.endswith("svg")


def test_layers_have_the_parameters_of_the_models() -> None:
    for point in points(False):
        spec = jobfile.parse(yaml.safe_dump({**point.job, "compute": 0})).spec
        (model,) = (one for one in models(False) if one.name == spec.workload)
        assert sum(model.layers.values()) == sum(shapes(spec).values())


def test_layer_times_are_a_third_forward_and_add_up() -> None:
    for point in points(False):
        varied = point.values.get("parameter") == "computing"
        total = 0.02 * (float(point.values["factor"]) if varied else 1)
        for text in point.files.values():
            rows = yaml.safe_load(text)["layer_times"]
            forward, backward = (sum(row[f"{n}_seconds"] for row in rows) for n in _PASSES)
            assert (forward, backward) == (pytest.approx(total / 3), pytest.approx(2 * total / 3))


def test_only_p3_has_priorities() -> None:
    for point in points(False):
        order = point.job["schedule"].get("order", "fifo")
        assert (order == "priority") is (point.values["way"] == P3)
