# SPDX-License-Identifier: Apache-2.0
"""Tests that a registered load balancer's moves are carried out while a job trains."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from controller.planning.balancing.balancer import Balancer, Measurements, Move
from controller.planning.balancing.registry import BALANCERS, STATIC
from controller.planning.balancing.static import Static
from protocol.trees import TreeKind
from tests.unit.simulation.virtual_session import run

pytestmark = pytest.mark.unit

TOPOLOGY = """\
name: pair
defaults: {rate: 1 Gbit/s, delay: 5 us}
racks: [{workers: 2, servers: 1, count: 2}]
cores: 2
"""
JOB = """\
name: digits
hidden: [32]
batch: 32
iterations: 10
window: 16
compute: 400 ms
optimizer: {rate: 0.05}
"""


class Wanderer(Balancer):
    """Leaves the core of the job's tree once, then asks for what it cannot have, then for tor."""

    def __init__(self) -> None:
        self.seen: list[Measurements] = []
        self.steps = [self.elsewhere, self.impossible, self.other_tree]

    def observe(self, measurements: Measurements) -> Iterable[Move]:
        self.seen.append(measurements)
        if measurements.changing or len(self.seen) % 2 or not self.steps:
            return []
        return [self.steps.pop(0)(measurements)]

    @staticmethod
    def elsewhere(measurements: Measurements) -> Move:
        (core,) = {one for one in measurements.switches if one.startswith("core")}
        return Move(f"{core} is busy", avoid=frozenset({core}))

    @staticmethod
    def impossible(measurements: Measurements) -> Move:
        return Move("no power of two", window=measurements.window + 1)

    @staticmethod
    def other_tree(measurements: Measurements) -> Move:
        return Move("servers are idle", kind=TreeKind.TOR, window=32)


def test_moves_of_another_balancer_are_carried_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The reference has the same weights, or the run would fail."""
    made: list[Wanderer] = []

    def make() -> Wanderer:
        made.append(Wanderer())
        return made[-1]

    monkeypatch.setitem(BALANCERS, STATIC, make)  # type: ignore[arg-type]
    session = run(tmp_path, monkeypatch, {"topology.yaml": TOPOLOGY, "job.yaml": JOB})
    (job,) = json.loads(session.run.summary.read_text())["jobs"]
    assert job["state"] == "done"
    assert [(plan["tree"], plan["roots"]) for plan in job["plans"]] == [
        ("two-level", ["core0"]), ("two-level", ["core1"]), ("tor", ["s0", "s1"]),
    ]  # fmt: skip
    (wanderer,) = made
    assert not wanderer.steps
    assert "a move for no power of two is impossible" in caplog.text
    first, last = wanderer.seen[0], wanderer.seen[-1]
    assert first.switches == {"tor0", "tor1", "core0"}
    assert (first.kind, first.window, first.servers) == (TreeKind.TWO_LEVEL, 16, ("s0", "s1"))
    assert {name for name, (used, _) in first.slots.items() if used} == first.switches
    assert (last.kind, last.window, last.switches) == (TreeKind.TOR, 32, {"tor0", "tor1"})


@pytest.mark.parametrize(
    ("changed", "waiting", "outdated", "moves"),
    [
        ("", "", True, 0),
        ("", "no core", True, 0),
        ("core0 died", "", False, 0),
        ("core0 died", "", True, 1),
        ("core0 is there again", "no core", False, 1),
    ],
)
def test_static_moves_load_only_after_changes_of_the_network(
    changed: str, waiting: str, outdated: bool, moves: int
) -> None:
    measured = Measurements(
        changed, 0.0, 1, False, waiting, TreeKind.TOR, 8, 1, frozenset(), ("s0",), {}, {},
        lambda: outdated,
    )  # fmt: skip
    assert list(Static().observe(measured)) == [Move(changed)] * moves
