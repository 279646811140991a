# SPDX-License-Identifier: Apache-2.0
"""The same files emulated and in virtual time: the same packets, the same weights, the same time.

What is sent for the first time, and what comes of it, have to be the same in any case. Times of an
emulated run mean something only if the machine was not what it waited for, which the run itself
says: then it is run once more.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.network.testbeds import Rackhub

pytestmark = pytest.mark.network

Message = dict[str, Any]
RATE = 500  # kbit/s: 57 chunks/s, some 0.4 ms of CPU each, which a busy machine has, too
TRIES = 2
WITHIN = 0.10
# 76 chunks: a port in emulation lets a frame go when its time on the line begins, so that a chunk
# alone is there a few frames' times earlier.
JOB = """\
name: {name}
workload: digits
hidden: [256]
iterations: 4
batch: 24
optimizer: {{name: momentum, rate: 0.05}}
"""
RACK = "racks: [{workers: 3, servers: 1}]"
RACKS = "racks: [{workers: 2, servers: 1}, {workers: 1}]\ncores: 1"


@dataclass(frozen=True)
class Scenario:
    """topology: less its name and rates; jobs: what each has beside ``JOB``. loss: on every link;
    which packets are lost depends on the order in which those of several workers come, so then
    there is no saying how long an iteration should take."""

    topology: str
    jobs: Sequence[str] = ("",)
    loss: float = 0.0


SCENARIOS = {
    "rack": Scenario(RACK),
    "racks": Scenario(RACKS),
    "server-root": Scenario(RACKS, ["tree: tor\n"]),
    "server-alone": Scenario(RACKS, ["tree: none\n"]),
    "loss": Scenario(RACKS, loss=0.01),
    # Over the same switches; the link that they share has room for both, whenever they begin.
    "jobs": Scenario(
        "racks: [{workers: 2, servers: 1}, {workers: 2}]\ncores: 1\nuplinks: {rate: 20 Mbit/s}",
        ["placement: {workers: [w0, w2]}\n", "placement: {workers: [w1, w3]}\n"],
    ),
}


def run(rackhub: Rackhub, scenario: Scenario, clock: str) -> Message:
    """The summary of a run."""
    links = f"defaults: {{rate: {RATE} kbit/s, loss: {scenario.loss}}}\n"
    rackhub.topology.write_text(f"name: small\n{links}{scenario.topology}\n")
    arguments: list[str | Path] = []
    for number, more in enumerate(scenario.jobs):
        file = rackhub.folder / f"job{number}.yaml"
        file.write_text(JOB.format(name=f"job{number}") + more)
        arguments += ["--job", file]
    target = () if clock == "virtual" else ("--target", "embedded")
    told = rackhub.json("run", rackhub.topology, *arguments, "--clock", clock, "--pcap", *target)
    assert told["clock"] == clock
    return dict(told)


def first(summary: Message) -> dict[str, int]:
    """Bytes that each link direction carried for the first time."""
    return {row["interface"]: row["first_bytes"] for row in summary["links"]}


def seconds(summary: Message) -> list[float]:
    """Of each job the median iteration, but for the first, which finds exponents."""
    return [statistics.median(job["seconds_per_iteration"][1:]) for job in summary["jobs"]]


@pytest.mark.parametrize("name", SCENARIOS)
def test_both_clocks_tell_the_same(tmp_path: Path, name: str) -> None:
    rackhub, scenario = Rackhub(tmp_path), SCENARIOS[name]
    virtual = run(rackhub, scenario, "virtual")
    why = []
    for _ in range(TRIES):
        emulated = run(rackhub, scenario, "emulated")
        assert first(virtual) == first(emulated)
        assert any(first(virtual).values())
        for row in (*virtual["links"], *emulated["links"]):
            assert row["bytes"] == row["first_bytes"] + row["again_bytes"]
            # A chunk that goes to a server in float32 is not expected, but the same in both.
            if not any(job["chunks"]["in_float32"] for job in virtual["jobs"]):
                assert row["first_bytes"] == row["expected_bytes"]
        for one, other in zip(virtual["jobs"], emulated["jobs"], strict=True):
            assert one["weights_sha256"] == other["weights_sha256"]
            assert one["matches_reference"] is other["matches_reference"] is True
        if scenario.loss:
            for summary in (virtual, emulated):
                assert summary["chunks"]["retransmitted"] > 0
                assert sum(row["again_packets"] for row in summary["links"]) > 0
            return
        bound = {text for job in emulated["jobs"] for text in job["machine"]["cpu_bound_by"]}
        if not bound:
            assert seconds(emulated) == pytest.approx(seconds(virtual), rel=WITHIN)
            return
        why.append(", ".join(sorted(bound)))
    pytest.skip(f"bytes and weights are the same, times could not be told: {'; '.join(why)}")
