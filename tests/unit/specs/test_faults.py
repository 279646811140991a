# SPDX-License-Identifier: Apache-2.0
"""Tests fault files and their schedules on a topology."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
from pydantic import TypeAdapter

from specs.faultfile import EVERY_LINK, KINDS, Fault, FaultsError, load, parse, schedule
from tests.conftest import ROOT
from topologies.model.spec import load as load_topology

TOPOLOGY = load_topology(ROOT / "topologies" / "two-racks.yaml")


def faults(text: str, seed: int | None = None) -> list[Fault]:
    return schedule(parse(f"name: x\n{text}", "x.yaml"), TOPOLOGY, seed)


def refusals(text: str, seed: int | None = None) -> list[str]:
    with pytest.raises(FaultsError) as caught:
        faults(text, seed)
    return [str(problem) for problem in caught.value.problems]


def test_the_file_that_comes_along_has_every_kind() -> None:
    found = schedule(load(ROOT / "jobs" / "faults" / "every-kind.yaml"), TOPOLOGY)
    assert {fault.kind for fault in found} == set(KINDS)


def test_faults_are_sorted_by_time_and_keep_their_fields() -> None:
    found = faults(
        "faults:\n"
        "  - {at: 1500 chunks, kill: core0, gone: forever}\n"
        "  - {at: 4 s, stop: w2, for: 10 s}\n"
        "  - {at: 500 ms, kill: tor0, gone: 2 s}\n"
        "  - {at: 6, repush: tor1}\n"
        "  - {at: 7 s, impair: {ends: [core0, tor0], loss: 10 %, reorder: 0.5}, for: 5 s}\n"
        "  - {at: 8 s, kill: controller}\n"
        "  - {at: 9 s, disconnect: core0, for: 3 s}\n"
        "  - {at: 9 s, impair: {ends: all, loss: 30 %}, for: 400 chunks}\n"
        "  - {at: 9 s, kill: w1, gone: 3 s}\n"
        "  - {after: 500 chunks, repush: core0}\n"
    )
    assert found == [
        Fault("kill", 0.5, node="tor0", seconds=2.0),
        Fault("stop", 4.0, node="w2", seconds=10.0),
        Fault("repush", 6.0, node="tor1"),
        Fault(
            "impair", 7.0, ends=("core0", "tor0"), seconds=5.0,
            quality=(("loss", 0.1), ("reorder", 0.5)),
        ),
        Fault("kill", 8.0, node="controller"),
        Fault("disconnect", 9.0, node="core0", seconds=3.0),
        Fault("impair", 9.0, ends=EVERY_LINK, quality=(("loss", 0.3),), lasts=400),
        Fault("kill", 9.0, node="w1", seconds=3.0),
        Fault("kill", chunks=1500, node="core0", seconds=math.inf),
        Fault("repush", node="core0", after=500),
    ]  # fmt: skip
    assert [fault.where for fault in found[3:7]] == [
        "core0-tor0",
        "controller",
        "core0",
        "every link",
    ]
    for fault in found:  # as it goes over the control socket
        sent = json.dumps(dataclasses.asdict(fault))
        assert TypeAdapter(Fault).validate_json(sent) == fault


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ("faults: [{at: 1 s}]", "x.yaml:2: faults[0]: needs exactly one of kill, stop,"),
        (
            "faults: [{at: 1 s, kill: s0, stop: s0, for: 1 s}]",
            "x.yaml:2: faults[0]: needs exactly one",
        ),
        ("faults: [{kill: s0}]", "x.yaml:2: faults[0]: needs either `at` or `after`"),
        ("faults: [{after: 1 s, kill: s0}]", "x.yaml:2: faults[0].after: '1 s' is not understood"),
        ("faults: [{at: soon, kill: s0}]", "x.yaml:2: faults[0].at: 'soon' is not understood"),
        ("faults: [{at: 1 s, kill: w99}]", "x.yaml:2: faults[0].kill: there is no "),
        ("faults: [{at: 1 s, repush: w0}]", "x.yaml:2: faults[0].repush: there is no "),
        ("faults: [{at: 1 s, stop: s0}]", "x.yaml:2: faults[0]: stop needs `for`"),
        ("faults: [{at: 1 s, disconnect: tor0}]", "x.yaml:2: faults[0]: disconnect needs `for`"),
        (
            "faults: [{at: 1 s, disconnect: s0, for: 1 s}]",
            "x.yaml:2: faults[0].disconnect: there is no ",
        ),
        ("faults: [{at: 1 s, kill: s0, for: 1 s}]", "x.yaml:2: faults[0]: kill takes no `for`"),
        ("faults: [{at: 1 s, stop: s0, for: 0 s}]", "x.yaml:2: faults[0].for: "),
        ("faults: [{at: 1 s, stop: s0, for: 9 chunks}]", "x.yaml:2: faults[0].for: stop lasts for"),
        (
            "faults: [{at: 1 s, stop: s0, for: 1 s, gone: 1 s}]",
            "x.yaml:2: faults[0].gone: is for kill",
        ),
        (
            "faults:\n  - {at: 1 s, impair: {ends: [w0, tor1], loss: 1 %}, for: 1 s}",
            "x.yaml:3: faults[0].impair.ends: no link joins 'w0' and 'tor1'",
        ),
        (
            "faults: [{at: 1 s, impair: {ends: [w0, tor0]}, for: 1 s}]",
            "x.yaml:2: faults[0].impair: needs one of loss, duplicate, reorder, corrupt",
        ),
        (
            "faults: [{at: 1 s, impair: {ends: all, loss: 100 %}, for: 500 chunks}]",
            "x.yaml:2: faults[0].impair.loss: 100 % until 500 chunks are done, which they would",
        ),
        ("faults: []", "x.yaml:1: has no faults"),
        ("random: {every: 1 s, count: 1, nodes: [w99]}", "x.yaml:2: random.nodes[0]: 'w99' is no"),
        (
            "random: {every: 1 s, count: 1, nodes: [servers], kinds: [repush, disconnect]}",
            "x.yaml:2: random.kinds: of repush and disconnect only switches can have any",
        ),
        ("faults: [{at: 1 s, bite: s0}]", "x.yaml:2: faults[0].bite: unknown field; allowed here:"),
    ],
)
def test_invalid_faults_are_rejected_with_location(text: str, refusal: str) -> None:
    (said,) = refusals(text)
    assert said.startswith(refusal)


def test_a_file_without_a_name_is_told_its_mistake() -> None:
    """And runs without one, once that is mended."""
    for text, refusal in (
        ("faults: [{at: 1 s, kill: w99}]", "x.yaml:1: faults[0].kill: there is no 'w99' here"),
        ("faults: [{at: 1 s, stop: s0}]", "x.yaml:1: faults[0]: stop needs `for`"),
        ("", "x.yaml:1: is empty; allowed: name, faults, random"),
        ("faults: []", "x.yaml:1: has no faults; allowed: faults, random, or both"),
    ):
        with pytest.raises(FaultsError) as caught:
            schedule(parse(text, "x.yaml"), TOPOLOGY)
        (problem,) = caught.value.problems
        assert str(problem).startswith(refusal)
    mended = parse("faults: [{at: 1 s, stop: s0, for: 1 s}]")
    assert schedule(mended, TOPOLOGY) == [Fault("stop", 1.0, node="s0", seconds=1.0)]


def test_a_seed_needs_random_faults() -> None:
    (said,) = refusals("faults: [{at: 1 s, kill: s0}]", seed=7)
    assert "--seed is for random faults" in said


def test_random_faults_follow_their_seed_and_their_choice_of_nodes() -> None:
    text = "random: {seed: 3, every: 2 s, nodes: [switches, s1], count: 200}"
    found = faults(text)
    assert found == faults(text)
    assert found != faults(text, seed=4)
    assert faults(text, seed=4) == faults(text.replace("seed: 3", "seed: 4"))
    assert [fault.at for fault in found] == [2.0 * number for number in range(1, 201)]
    assert {fault.kind for fault in found} == set(KINDS)
    switches = {"tor0", "tor1", "core0"}
    for fault in found:
        if fault.kind == "impair":
            assert switches & set(fault.ends)
            assert all(0 < value <= 0.1 for _, value in fault.quality)
        else:
            others = {"s1"} if fault.kind in ("kill", "stop") else set()
            assert fault.node in switches | others
        assert (fault.seconds > 0) == (fault.kind in ("stop", "disconnect", "impair"))
