# SPDX-License-Identifier: Apache-2.0
"""Tests that real models learn the same, bit by bit, in whatever order gradients are sent."""

from __future__ import annotations

from collections.abc import Iterator

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


@pytest.fixture(scope="module", params=TARGETS)
def standing(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Rackhub]:
    """A testbed that is up, for one job after the other."""
    rackhub = Rackhub(tmp_path_factory.mktemp("standing"))
    rackhub.json("up", rackhub.topology, "--target", request.param)
    yield rackhub
    rackhub.call("down")
    assert not rackhub.processes()


@pytest.mark.parametrize("way", WAYS)
def test_weights_do_not_depend_on_the_order(standing: Rackhub, way: str) -> None:
    standing.job.write_text(DIGITS + WAYS[way])
    _trains(standing)


def test_a_model_of_characters_learns_with_priorities(standing: Rackhub) -> None:
    standing.job.write_text(CHARACTERS + WAYS["P3 in the network"])
    _trains(standing)


def _trains(rackhub: Rackhub) -> None:
    """Runs the job: its weights are those of one process that sums in one order."""
    summary = rackhub.json("submit", rackhub.job)
    assert summary["matches_reference"] is True
    assert summary["schedule"] != "fifo"
