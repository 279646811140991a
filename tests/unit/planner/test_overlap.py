# SPDX-License-Identifier: Apache-2.0
"""Tests predictions of iterations whose exchange overlaps with computation: closed forms, and runs
in virtual time with each order of gradients."""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from planner.iteration_time import Prediction, Setting, Work
from planner.job_work import work_of
from planner.network import WORKER, Line, ModelError, Network
from planner.parcels import Layers
from planner.predictions import predictions
from protocol.header import LANE_BYTES
from protocol.propagation import Propagation
from specs import jobfile
from specs.p4program import HEADERS
from sweeps import code
from sweeps.execution import Order, execute
from testbed.program import read_program
from topologies.model.spec import parse

FRAME = 1000
RATE = 8e6  # bit/s: a frame takes 1 ms
STEP = 1e-3
FILL = 2 * STEP  # to the switch and back
ONE_RACK = Network((4,), (1,), (), {WORKER: Line(RATE), "server": Line(RATE)})
# The last of two layers has 100 of 110 chunks.
COUNTS, LAST, FIRST = (10, 100), 100, 10


def in_network(layers: Layers, propagation: Propagation, window: int = 64) -> Prediction:
    """The prediction for a switch that sums."""
    work = Work(110, FRAME, layers.seconds, 10, 0, COUNTS, layers, propagation)
    found = predictions(ONE_RACK, work, Setting(window=window))
    return next(one for one in found if one.name == "inc (two-level)")


FIFO = Propagation()
PRIORITY = Propagation(order="priority", classes=2, in_network=True)


def test_the_first_layer_waits_for_all_others_without_priority() -> None:
    layers = Layers((0.005, 0.007), (0.02, 0.03), (0, 1))
    # Backward pass of the last layer, then the link is busy; both forward passes follow.
    busy = 0.03 + (LAST + FIRST) * STEP + FILL - STEP
    found = in_network(layers, FIFO)
    assert found.seconds == pytest.approx(busy + 0.005 + 0.007)
    assert found.limit == "link"
    assert sum(found.parts.values()) == pytest.approx(found.seconds)


def test_with_priority_the_last_layer_arrives_while_the_first_computes() -> None:
    layers = Layers((0.005, 0.007), (0.02, 0.03), (0, 1))
    busy = 0.03 + (LAST + FIRST) * STEP + FILL - STEP
    assert in_network(layers, PRIORITY).seconds == pytest.approx(busy + 0.007)


def test_an_urgent_layer_overtakes_within_a_few_chunks() -> None:
    # The first layer is pushed when 20 chunks have passed, and its forward pass takes longest.
    layers = Layers((0.5, 0.0), (0.02, 0.0), (0, 1))
    overtakes = 0.02 + FIRST * STEP + FILL - STEP + 0.5
    found = in_network(layers, PRIORITY, window=4).seconds
    assert overtakes <= found <= overtakes + 2 * STEP
    waits = 0.0 + (LAST + FIRST) * STEP + FILL - STEP + 0.5
    assert in_network(layers, FIFO, window=4).seconds == pytest.approx(waits)


def test_computing_hides_what_takes_less() -> None:
    layers = Layers((1.0, 1.0), (1.0, 2.0), (0, 1))
    for propagation in (FIFO, PRIORITY):
        found = in_network(layers, propagation)
        # The first layer's gradients come last, and its sums are needed first.
        assert found.seconds == pytest.approx(5.0 + FIRST * STEP + FILL - STEP)
        assert found.limit == "compute"


def test_layers_of_one_tensor_without_time_are_as_one() -> None:
    work = Work(110, FRAME, 0.5, 10, 0, COUNTS)
    together = Layers((0.0,), (0.5,), (0, 0))
    plain, layered = (
        {one.name: one.seconds for one in predictions(ONE_RACK, each, Setting(window=64))}
        for each in (work, replace(work, layers=together))
    )
    assert layered["inc (two-level)"] == pytest.approx(plain["inc (two-level)"])
    for name in ("ncs (none)", "ncc (none)"):
        assert layered[name] == pytest.approx(plain[name], rel=0.03)


def test_layers_have_to_be_those_of_the_tensors() -> None:
    with pytest.raises(ModelError, match="layers of 1 tensors, and 2 tensors"):
        Work(110, FRAME, 0.0, 10, 0, COUNTS, Layers((0.0,), (0.0,), (0,)))


TRACE = "layer_times:\n" + "".join(
    f"  - {{name: layer{layer}, forward_seconds: {forward}, backward_seconds: {2 * forward}}}\n"
    for layer, forward in enumerate((0.0005, 0.001, 0.0005, 0.002, 0.001), start=1)
)
JOB = """name: overlap
workload: layers
layers: [32 KiB, 100 KiB, 400 KiB, 200 KiB, 700 KiB]
iterations: 4
payload: none
chunk_bytes: 4 KiB
window: 32
compute: {layers: trace.yaml}
"""
ONE, TWO = (
    "name: t\ndefaults: {rate: 1 Gbit/s, delay: 5 us, queue_bytes: 4 MiB, mtu: 9000}\n" + racks
    for racks in (
        "racks: [{workers: 4, servers: 4}]\n",
        "racks: [{workers: 2, servers: 1, count: 2}]\ncores: 1\nuplinks: {rate: 500 Mbit/s}\n",
    )
)
SLICES = "slice: 20000, release: slice"


@pytest.mark.parametrize(
    ("topology", "placement", "schedule", "within"),
    [
        (ONE, "inc", "order: fifo", 0.001),
        (TWO, "inc", "order: fifo", 0.001),
        (TWO, "inc", "order: priority, classes: 3", 0.01),
        (ONE, "ncs", "order: fifo", 0.05),
        (ONE, "ncs", f"order: priority, {SLICES}", 0.03),
        (ONE, "cs", "order: fifo, slice: whole, assign: hashed, release: slice", 0.03),
        (ONE, "cs", f"order: fifo, {SLICES}", 0.03),
        (ONE, "cs", f"order: priority, {SLICES}", 0.06),
        (ONE, "cs", f"order: credit, credit: 640 KiB, {SLICES}", 0.03),
        (TWO, "ncs", f"order: fifo, {SLICES}", 0.03),
    ],
)
def test_a_run_takes_as_long_as_predicted(
    tmp_path: Path, topology: str, placement: str, schedule: str, within: float
) -> None:
    job = f"{JOB}placement: {placement}\nschedule: {{{schedule}}}\n"
    outcome = execute(code.digest(), Order(topology, job, {"trace.yaml": TRACE}), "here")
    assert outcome.summary is not None, outcome.error
    # The first iteration negotiates exponents, and no forward pass follows on the last one.
    measured = statistics.fmean(outcome.summary["seconds_per_iteration"][1:-1])
    assert predicted(tmp_path, topology, job) == pytest.approx(measured, rel=within)


def predicted(folder: Path, topology: str, job: str) -> float:
    """The predicted time of a job's own placement."""
    (folder / "trace.yaml").write_text(TRACE)
    path = folder / "job.yaml"
    path.write_text(job)
    file, net = jobfile.load(path), parse(topology)
    work = work_of(file, read_program(*HEADERS.files(), file.spec.chunk_bytes // LANE_BYTES))
    network = Network.of(net, [n.name for n in net.workers], [n.name for n in net.servers])
    found = predictions(network, work, Setting(net.costs, window=file.spec.window))
    spec = file.spec
    return next(
        one.seconds
        for one in found
        if (one.placement, one.tree) == (spec.placement.kind, spec.tree)
    )
