# SPDX-License-Identifier: Apache-2.0
"""Tests layer traces: contents, and rejection with file, line and field."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specs import jobfile
from specs.p4program import SOURCES
from testbed import preflight
from testbed.program import read_program
from tests.conftest import ROOT
from topologies.model.documents import DocumentError
from topologies.model.spec import read
from workloads.workloads import layers

BUILD = SOURCES / "build"
TOPOLOGY = ROOT / "topologies" / "one-rack.yaml"
JOB = "name: x\niterations: 5\nbatch: 8\nhidden: [8]\ncompute: {layers: layers.yaml}\n"
FIRST = "  - {name: layer1, forward_seconds: 0.001, backward_seconds: 0.002}\n"
SECOND = "  - {name: layer2, forward_seconds: 0.5e-3, backward_seconds: 0}\n"


def job(folder: Path, trace: str | None, text: str = JOB) -> Path:
    """A job's file, beside its trace's."""
    if trace is not None:
        (folder / "layers.yaml").write_text(trace)
    (folder / "job.yaml").write_text(text)
    return folder / "job.yaml"


def refused(path: Path) -> str:
    """What is wrong with a job."""
    plane = read_program(BUILD / "aggregation.json", BUILD / "aggregation.p4info.txtpb")
    with pytest.raises(DocumentError) as raised:
        preflight.check(read(TOPOLOGY), [path], plane, "embedded", virtual=True)
    return str(raised.value).replace(f"{path.parent}/", "")


def test_times_are_by_layer_and_add_up(tmp_path: Path) -> None:
    loaded = jobfile.load(job(tmp_path, "layer_times:\n" + FIRST + SECOND))
    assert loaded.layer_times is not None
    first, second = loaded.layer_times.times.values()
    assert (first.name, first.forward_seconds, first.backward_seconds) == ("layer1", 0.001, 0.002)
    assert (second.name, second.forward_seconds, second.backward_seconds) == ("layer2", 0.0005, 0)
    assert loaded.compute_seconds == pytest.approx(0.0035)


def test_a_profilers_json_is_a_layer_trace(tmp_path: Path) -> None:
    """YAML would have its small numbers as text."""
    one = {"name": "layer1", "forward_seconds": 2e-5, "backward_seconds": 3}
    loaded = jobfile.load(job(tmp_path, json.dumps({"layer_times": [one]})))
    assert loaded.compute_seconds == pytest.approx(3.00002)


def test_a_time_of_all_layers_is_one_as_before(tmp_path: Path) -> None:
    path = job(tmp_path, None, JOB.replace("{layers: layers.yaml}", "5 ms"))
    assert jobfile.load(path).compute_seconds == 0.005


def test_the_shipped_trace_is_of_its_workload() -> None:
    text = (ROOT / "jobs" / "resnet50.yaml").read_text() + "compute: {layers: layers/resnet50.yaml}"
    loaded = jobfile.parse(text, str(ROOT / "jobs" / "changed.yaml"))
    assert loaded.layer_times is not None
    loaded.layer_times.check(list(layers(loaded.spec)), "resnet50")
    assert len(loaded.layer_times.times) == 54


@pytest.mark.parametrize(
    ("trace", "says"),
    [
        (FIRST, "layers.yaml:1: layer_times: nothing of layer2, which the model of job x has"),
        (
            FIRST + SECOND + SECOND.replace("2", "3", 1),
            "layers.yaml:4: layer_times[2].name: the model of job x has no layer 'layer3'; it has"
            " layer1, layer2",
        ),
        (FIRST + SECOND + FIRST, "layers.yaml:4: layer_times[2].name: 'layer1' is given twice"),
        (
            FIRST + SECOND.replace("0.5e-3", "-0.1"),
            "layers.yaml:3: layer_times[1].forward_seconds: should be at least 0, not -0.1",
        ),
        (
            FIRST + SECOND.replace("0.5e-3", ".nan"),
            "layers.yaml:3: layer_times[1].forward_seconds: should be",
        ),
        (
            FIRST.replace("0.001", "soon"),
            "layers.yaml:2: layer_times[0].forward_seconds: should be a number, not 'soon'",
        ),
        (
            FIRST.replace("backward_seconds", "backward_ms"),
            "layers.yaml:2: layer_times[0].backward_ms: unknown field; allowed here: name,",
        ),
    ],
)
def test_trace_of_other_model_is_rejected(tmp_path: Path, trace: str, says: str) -> None:
    assert says in refused(job(tmp_path, "layer_times:\n" + trace))


@pytest.mark.parametrize(
    ("trace", "text", "says"),
    [
        (None, JOB, "job.yaml:5: compute.layers: there is no file layers.yaml"),
        ("iterations: 3\nname: y\n", JOB, "layers.yaml:1: this is a job, and a layer trace is"),
        ("", JOB, "layers.yaml:1: is empty; needed: at least layer_times"),
        (
            "layer_times:\n" + FIRST,
            JOB.replace("{layers", "{seconds: 1, layers"),
            "job.yaml:5: compute: one of `seconds`, `layers` says how long a pass takes",
        ),
        (None, JOB.replace("{layers: layers.yaml}", "-1 s"), "job.yaml:5: compute: '-1 s' is neg"),
        (None, JOB.replace("{layers: layers.yaml}", "{time: 1}"), "job.yaml:5: compute.time: unkn"),
    ],
)
def test_a_job_without_times_that_can_be_is_refused(
    tmp_path: Path, trace: str | None, text: str, says: str
) -> None:
    assert says in refused(job(tmp_path, trace, text))
