# SPDX-License-Identifier: Apache-2.0
"""Tests that real models learn the same, bit by bit, in whatever order gradients are sent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.network.testbeds import Rackhub

DIGITS = """\
name: ordered
workload: digits
hidden: [128, 64]
iterations: 12
batch: 256
optimizer: {name: momentum, rate: 0.05}
"""
CHARACTERS = """\
name: ordered
workload: characters
hidden: [64]
iterations: 8
batch: 256
optimizer: {name: adam, rate: 0.004}
"""
TARGETS = ["embedded", pytest.param("bmv2", marks=pytest.mark.bmv2)]
WAYS = {
    "P3 in the network": "schedule: {order: priority}\n",
    "P3 of float32 chunks": "schedule: {order: priority}\npoison: 3\n",
    "P3 at servers": "placement: cs\nschedule: {order: priority, slice: 4000, assign: hashed,"
    " release: slice}\n",
    "P3 under a server": "placement: inc-server\nschedule: {order: priority, slice: 4000}\n",
    "P3's baseline": "placement: cs\nschedule: {slice: whole, assign: hashed, release: slice}\n",
    "ByteScheduler": "schedule: {order: credit, credit: 64 KiB}\n",
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("way", WAYS)
def test_weights_do_not_depend_on_the_order(tmp_path: Path, way: str, target: str) -> None:
    rackhub = Rackhub(tmp_path)
    rackhub.job.write_text(DIGITS + WAYS[way])
    _trains(rackhub, target)


@pytest.mark.parametrize("target", TARGETS)
def test_a_model_of_characters_learns_with_priorities(tmp_path: Path, target: str) -> None:
    rackhub = Rackhub(tmp_path)
    rackhub.job.write_text(CHARACTERS + WAYS["P3 in the network"])
    _trains(rackhub, target)


def _trains(rackhub: Rackhub, target: str) -> None:
    """Runs the job: its weights are those of one process that sums in one order."""
    result = rackhub.call(
        "run", rackhub.topology, "--job", rackhub.job, "--target", target, "--json"
    )
    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout)
    assert summary["matches_reference"] is True
    assert summary["schedule"] != "fifo"
