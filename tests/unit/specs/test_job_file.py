# SPDX-License-Identifier: Apache-2.0
"""Tests validation of job files."""

from __future__ import annotations

from typing import get_args

import pytest

from protocol.consistency import ASYNCHRONOUS, SYNCHRONOUS, Consistency
from protocol.learning_rate import Schedule
from protocol.optimizer_plan import KeyOptions, OptimizerPlan
from specs.jobfile import JobFileError, load, parse
from specs.jobspec import JobSpec
from tests.conftest import ROOT
from topologies.model.spec import load as load_topology
from workloads.workloads import WORKLOADS

TWO_RACKS = load_topology(ROOT / "topologies" / "two-racks.yaml")


def problems(text: str) -> str:
    with pytest.raises(JobFileError) as caught:
        parse(text, "job.yaml").place(TWO_RACKS)
    return str(caught.value)


def test_the_default_job_uses_every_worker_and_server() -> None:
    placement = load(ROOT / "jobs" / "digits.yaml").place(TWO_RACKS)
    assert placement.workers == tuple(f"w{n}" for n in range(8))
    assert placement.servers == ("s0", "s1")


def test_every_problem_is_named_with_line_and_field() -> None:
    text = problems("name: x\niterations: 0\nbach: 3\noptimizer:\n  rate: -1\n")
    assert "job.yaml:2: iterations:" in text
    assert "job.yaml:3: bach: unknown field; allowed here: name," in text
    assert "job.yaml:5: optimizer.rate:" in text


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("window: 48", "job.yaml:4: window: 48 is no power of two"),
        ("placement: {workers: [w0, w9]}", "workers[1]: two-racks has no worker 'w9'"),
        ("placement: {workers: [w0, s0]}", "has no worker 's0'; allowed: w0..w7"),
        ("placement: {workers: [w0, w0]}", "workers[1]: w0 is named twice"),
        ("placement: {servers: []}", "placement.servers: is empty"),
        ("placement: {servers: some}", "should be all, or a list of node names"),
        ("batch: 12", "job.yaml:4: batch: 12 cannot be split evenly over 8 workers"),
        (
            "tree: ring",
            "job.yaml:4: tree: should be two-level, tor, core, none, two-level-server or",
        ),
        ("admission: all", "job.yaml:4: admission: should be network or servers, not 'all'"),
        ("patience: 0", "job.yaml:4: patience: 0 is out of range; allowed: 1 s to 86400 s"),
        (
            "patience: soon",
            "job.yaml:4: patience: 'soon' is not understood; write it like \"120 s\"",
        ),
        ("optimizer: {momentum: 1}", "optimizer.momentum: should be less than 1, not 1"),
        ("optimizer: {at: servers}", "job.yaml:4: optimizer.at: servers take steps where a tree's"),
        ("optimizer: {rate: 1, at: switches}", "optimizer.at: should be workers or servers"),
        ("optimizer: {name: lamb}", "optimizer.name: should be sgd, momentum, nesterov or adam"),
        ("optimizer: {name: adam, momentum: 0.9}", "optimizer.momentum: adam has none"),
        ("optimizer: {beta2: 0.9}", "job.yaml:4: optimizer.beta2: momentum has none; leave it out"),
        ("optimizer: {name: adam, beta1: 1}", "optimizer.beta1: should be less than 1, not 1"),
        ("optimizer: {weight_decay: -1}", "optimizer.weight_decay: should be"),
        ("optimizer: {keys: {w: {rate: 0}}}", "optimizer.keys.w.rate: should be more than 0"),
        ("optimizer: {keys: {w: {speed: 1}}}", "optimizer.keys.w.speed: unknown field"),
        ("optimizer: {schedule: {kind: sine}}", "schedule.kind: should be constant, step, linear"),
        ("optimizer: {schedule: {kind: step}}", "schedule.every: is needed with schedule step"),
        (
            "optimizer: {schedule: {kind: cosine, warmup: 5}}",
            "job.yaml:4: optimizer.schedule.warmup: 5 steps of warm-up leave none of 5",
        ),
        ("optimizer: {schedule: {steps: 9}}", "schedule.steps: schedule constant has none"),
        (
            "server: {pipeline: wide}",
            "job.yaml:4: server.pipeline: pipeline wide is one of servers",
        ),
        (
            "tree: tor\nserver: {ablate: [elision]}",
            "job.yaml:5: server.ablate: elision can be left",
        ),
        ("tree: none\nserver: {ablate: [optimizer]}", "server.ablate: optimizer can be left out"),
        ("server: {ablate: [network]}", "server.ablate[0]: should be aggregation, optimizer or"),
        ("schedule: {order: lazy}", "schedule.order: should be fifo, priority or credit"),
        (
            "schedule: {slice: 0}",
            "schedule.slice: 0 parameters; allowed: 1 to 16,777,216, or whole",
        ),
        ("schedule: {slice: half}", "schedule.slice: 'half' should be a number of parameters"),
        ("schedule: {classes: 0}", "schedule.classes: should be at least 1"),
        ("schedule: {order: priority, classes: 129}", "schedule.classes: should be at most 128"),
        ("schedule: {classes: 2}", "job.yaml:4: schedule.classes: order fifo has none"),
        (
            "streams: 16\nschedule: {order: priority, classes: 9}",
            "job.yaml:5: schedule: 9 classes of 16 streams each; allowed: up to 8 streams",
        ),
        (
            "schedule: {slice: 40,000}",
            "schedule: field names are words, not 0; numbers have no commas",
        ),
        ("schedule: {assign: random}", "schedule.assign: should be balanced, hashed or keys"),
        (
            "schedule: {release: slice}",
            "job.yaml:4: schedule.release: release slice is about servers that send sums, and the",
        ),
        (
            "schedule: {order: priority, credit: 1 MB}",
            "job.yaml:4: schedule.credit: is of order credit, and this is priority; leave it out",
        ),
        (
            "slice_bytes: 64 KiB\nschedule: {slice: 40000}",
            "job.yaml:5: schedule.slice: and `slice_bytes` both say how long a slice is",
        ),
        ("balance: best", "balance.policy: should be static, least-loaded or psld"),
        ("placement: ncs\nbalance: {measure: 1}", "job.yaml:5: balance.measure: should be"),
        (
            "balance: {measure: true}",
            "job.yaml:4: balance: is about what servers sum, and the root",
        ),
        ("balance: psld", "job.yaml:4: balance: is about what servers sum, and the root of tree"),
        (
            "placement: ncs\nbalance: {policy: psld, explore: 2}",
            "balance.explore: should be at most 1",
        ),
        ("gradients: float8", "gradients: should be float32, float16 or bfloat16"),
        ("workload: letters", "workload: should be digits, characters, resnet50, layers or"),
        ("workload: layers", "layers: is empty; workload layers needs the bytes of each"),
        (
            "workload: model",
            "job.yaml:1: model: is empty; workload model needs one of alexnet, vgg11",
        ),
        ("workload: model\nmodel: vgg16", "job.yaml:5: model: should be alexnet, vgg11, vgg19,"),
        ("model: vgg19", "job.yaml:4: model: is for workload model, and this is digits"),
        (
            "compute: {iteration: 1 s, model: vgg11}\nworkload: model\nmodel: vgg19",
            "job.yaml:4: compute.model: is vgg11, and the job's model is vgg19: leave it out",
        ),
        (
            "compute: {model: vgg19}\nworkload: model\nmodel: vgg19",
            "job.yaml:4: compute.model: goes with `iteration`, which its layers divide",
        ),
        ("compute: {iteration: 1 s}", "job.yaml:4: compute.iteration: is divided by a model's"),
        (
            "workload: model\nmodel: vgg19\ncompute: {seconds: 1, iteration: 1 s}",
            "job.yaml:6: compute: one of `seconds`, `iteration` says how long a pass takes",
        ),
        ("layers: [4 MB]", "job.yaml:4: layers: workload digits has layers of its own"),
        ("workload: layers\nlayers: [4 B, 6 B]", "job.yaml:5: layers[1]: 6 B are no whole number"),
        ("payload: none", "job.yaml:4: payload: without payload there are no sums that workload"),
        (
            "workload: resnet50\nbatch: 8",
            "job.yaml:5: batch: workload resnet50 has sizes of layers",
        ),
        ("workload: resnet50\nplacement: inc-server", "job.yaml:5: placement: has servers take"),
        ("workload: resnet50\nchunk_bytes: 1 KiB", "job.yaml:5: chunk_bytes: chunks with payload"),
        (
            "workload: resnet50\npayload: none\nchunk_bytes: 6",
            "job.yaml:6: chunk_bytes: 6 B; allowed: multiples of 4 B",
        ),
        ("hidden: []", "job.yaml:4: hidden: needs at least 1, has 0"),
    ],
)
def test_out_of_range_values_are_rejected(line: str, expected: str) -> None:
    assert expected in problems(f"name: x\niterations: 5\nseed: 1\n{line}\n")


@pytest.mark.parametrize(("written", "seconds"), [("40", 40.0), ("40 s", 40.0), ("5500 ms", 5.5)])
def test_a_time_may_have_a_unit(written: str, seconds: float) -> None:
    spec = parse(
        f"name: x\niterations: 5\nlease: {written}\npatience: {written}\n", "job.yaml"
    ).spec
    assert (spec.lease, spec.patience) == (seconds, seconds)


def test_optimizer_matches_job_file() -> None:
    lines = "optimizer:\n  name: adam\n  rate: 0.01\n  beta2: 0.99\n  weight_decay: 1e-4\n"
    lines += "  schedule: {kind: cosine, warmup: 2, floor: 0.1}\n"
    lines += "  keys:\n    'biases*': {weight_decay: 0}\n    weights1: {rate: 0.02}\n"
    plan = parse(f"name: x\niterations: 50\n{lines}").spec.plan
    assert plan == OptimizerPlan(
        "adam", 0.01, 0.0, 1e-4, 0.9, 0.99, 1e-8, Schedule("cosine", 2, 50, 0.1),
        (KeyOptions("biases*", None, 0.0), KeyOptions("weights1", 0.02)),
    )  # fmt: skip


def test_every_workload_has_a_name_in_job_files() -> None:
    named = JobSpec.model_fields["workload"].annotation
    assert set(get_args(named)) == set(WORKLOADS)


def test_a_missing_file_is_an_error_of_that_file() -> None:
    with pytest.raises(JobFileError, match=r"nowhere\.yaml: no such file"):
        load("nowhere.yaml")


SERVED = "name: x\niterations: 5\noptimizer: {at: servers}\ntree: none\n"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("synchronous", SYNCHRONOUS),
        ("asynchronous", ASYNCHRONOUS),
        ("{staleness: 0}", Consistency(False, 0)),
        ("{staleness: 3}", Consistency(False, 3)),
    ],
)
def test_servers_get_gradient_policy(written: str, meant: Consistency) -> None:
    spec = parse(f"{SERVED}consistency: {written}\n", "job.yaml").spec
    assert spec.plan.consistency == meant
    assert OptimizerPlan.from_message(spec.plan.to_message()) == spec.plan


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("consistency: eventual", "job.yaml:5: consistency: consistency 'eventual'; allowed:"),
        ("consistency: {staleness: -1}", "consistency: staleness -1; allowed: 0 to"),
        ("consistency: {staleness: soon}", "consistency: consistency"),
        ("consistency: 3", "consistency: 3 should be synchronous, asynchronous or {staleness: N}"),
        (
            "consistency: asynchronous\ncheckpoint: {every: 5}",
            "job.yaml:6: checkpoint: is of one step of all chunks",
        ),
        ("consistency: asynchronous\npoison: 1", "job.yaml:6: poison: with consistency async"),
        (
            "consistency: asynchronous\nserver: {pipeline: wide}",
            "job.yaml:6: server: wide is about",
        ),
    ],
)
def test_incompatible_consistency_is_rejected(lines: str, expected: str) -> None:
    assert expected in problems(f"{SERVED}{lines}\n")


def test_a_consistency_needs_servers_that_take_steps_and_no_switch_that_sums() -> None:
    result = problems("name: x\niterations: 5\nconsistency: asynchronous\n")
    assert "job.yaml:3: consistency: asynchronous is about steps at servers; allowed:" in result
    assert "job.yaml:3: consistency: with consistency asynchronous a server takes a step" in result
    placed = "name: x\niterations: 5\nplacement: inc-server\nconsistency: {staleness: 1}\n"
    result = problems(placed)
    assert "tree is two-level-server; allowed: none, which placements cc, cs, ncc" in result
    assert result.startswith("job.yaml:4: consistency: ")  # the file has no field `tree`
    parse(f"{placed.replace('inc-server', 'ncs')}optimizer: {{at: servers}}\n")
