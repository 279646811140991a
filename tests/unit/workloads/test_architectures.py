# SPDX-License-Identifier: Apache-2.0
"""Compares networks computed from their publications with tables derived from other definitions.

tests/unit/workloads/architectures/README.md says whose.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import get_args

import pytest

from specs import jobfile
from specs.jobspec import ModelName
from testbed import preflight
from testbed.program import program_for
from tests.conftest import ROOT
from topologies.model.documents import DocumentError
from topologies.model.spec import read
from workloads.architectures.registry import ARCHITECTURES, keys_of
from workloads.layer_times import times_of
from workloads.workloads import layers, shapes

TABLES = Path(__file__).parent / "architectures"

# Model: keys, parameters, 10^6 multiplications of a forward pass.
TOTALS = {
    "alexnet": (16, 50_844_008, 1010),
    "vgg11": (22, 132_863_336, 7609),
    "vgg19": (38, 143_667_240, 19632),
    "googlenet-224-full": (116, 6_998_552, 1583),
    "googlenet-299": (116, 10_070_552, 2528),
    "inception-v3": (284, 23_834_568, 5713),
    "resnet18-v2": (61, 11_691_950, 1827),
    "resnet50-v1": (161, 25_557_032, 3858),
    "resnet50-v2": (157, 25_549_486, 4089),
    "resnet269-v2": (814, 102_065_838, 20030),
    "resnext269": (820, 102_172_974, 20288),
    "sockeye-iwslt15": (37, 27_734_558, 0),
}
SOCKEYE = "name: x\niterations: 1\nworkload: model\nmodel: sockeye-iwslt15\n"


@pytest.mark.parametrize("model", ARCHITECTURES)
def test_every_key_is_that_of_the_reference_table(model: str) -> None:
    with (TABLES / f"{model}.csv").open() as file:
        rows = [(r["key"], int(r["parameters"]), r["forward_macs_per_example"])
                for r in csv.DictReader(file)]  # fmt: skip
    keys = keys_of(model)
    found = [(k.name, k.parameters, "" if k.macs is None else str(k.macs)) for k in keys]
    assert found == rows


@pytest.mark.parametrize("model", TOTALS)
def test_totals(model: str) -> None:
    keys = keys_of(model)
    count, parameters, millions = TOTALS[model]
    assert (len(keys), sum(key.parameters for key in keys)) == (count, parameters)
    assert sum(key.macs or 0 for key in keys) / 1e6 == pytest.approx(millions, abs=0.5)


def test_a_model_needs_no_payload_unless_the_job_asks_for_it() -> None:
    text = "name: x\niterations: 1\nworkload: model\nmodel: alexnet\n"
    assert jobfile.parse(text).spec.payload == "none"
    assert jobfile.parse(f"{text}payload: summed\n").spec.payload == "summed"


def test_an_iteration_is_divided_over_layers_by_multiplications() -> None:
    file = jobfile.load(ROOT / "jobs" / "models" / "vgg19.yaml")
    times = times_of(file)
    assert times is not None
    assert list(times) == list(layers(file.spec))
    forward = sum(one.forward_seconds for one in times.values())
    backward = sum(one.backward_seconds for one in times.values())
    assert (forward, backward) == (pytest.approx(0.268 / 3), pytest.approx(0.268 * 2 / 3))
    # 3 x 3 x 64 x 64 against 3 x 3 x 3 x 64 multiplications for each of as many positions
    ratio = times["conv1_2"].forward_seconds / times["conv1_1"].forward_seconds
    assert ratio == pytest.approx(64 / 3)


@pytest.mark.parametrize("model", ARCHITECTURES)
def test_every_network_has_a_job_that_fits_its_topology(model: str) -> None:
    path = ROOT / "jobs" / "models" / f"{model}.yaml"
    plane = program_for([path])[2]
    topology = read(ROOT / "topologies" / "two-racks-10g.yaml")
    found = preflight.check(topology, [path], plane, "embedded", virtual=True)
    assert found.warnings == ()
    assert shapes(found.jobs[0].file.spec) == {k.name: k.parameters for k in keys_of(model)}


def test_a_model_whose_multiplications_vary_has_no_times_by_layer(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(SOCKEYE + "compute: {iteration: 1 s}\n")
    topology = read(ROOT / "topologies" / "two-racks-10g.yaml")
    with pytest.raises(DocumentError, match=r"job\.yaml:5: compute\.iteration: is divided by"):
        preflight.check(topology, [path], program_for([path])[2], "embedded", virtual=True)


def test_times_measured_elsewhere_replace_those_by_multiplications(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(SOCKEYE + "compute: {layers: measured.yaml}\n")
    rows = [
        f"  - {{name: {layer}, forward_seconds: {number}.0e-3, backward_seconds: 1.0e-3}}\n"
        for number, layer in enumerate(layers(jobfile.parse(SOCKEYE).spec))
    ]
    (tmp_path / "measured.yaml").write_text("layer_times:\n" + "".join(rows))
    topology = read(ROOT / "topologies" / "two-racks-10g.yaml")
    plane = program_for([path])[2]
    found = preflight.check(topology, [path], plane, "embedded", virtual=True)
    times = times_of(found.jobs[0].file)
    assert times is not None
    assert [one.forward_seconds for one in times.values()] == [i / 1000 for i in range(len(rows))]
    (tmp_path / "measured.yaml").write_text("layer_times:\n" + "".join(rows[1:]))
    with pytest.raises(DocumentError, match=r"layer_times: nothing of source_embed, which"):
        preflight.check(topology, [path], plane, "embedded", virtual=True)


def test_job_files_name_every_network_and_no_other() -> None:
    assert set(get_args(ModelName)) == set(ARCHITECTURES) == set(TOTALS)
