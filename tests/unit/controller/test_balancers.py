# SPDX-License-Identifier: Apache-2.0
"""Tests that a registered load balancer's moves are carried out while a job trains."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path

import pytest

from controller.planning.balancing.balancer import Balancer, Measurements, Move
from controller.planning.balancing.registry import BALANCERS
from controller.planning.balancing.static import Static
from protocol.balance import STATIC, Balance
from protocol.trees import TreeKind
from tests.unit.simulation.virtual_session import run

pytestmark = pytest.mark.unit

TOPOLOGY = """\
name: pair
defaults: {rate: 1 Gbit/s, delay: 5 us}
racks: [{workers: 2, servers: 1, count: 2}]
cores: 2
"""
FOUR_SERVERS = TOPOLOGY.replace("servers: 1", "servers: 2")
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

    def __init__(self, asked: Balance) -> None:
        super().__init__(asked)
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

    def make(asked: Balance) -> Wanderer:
        made.append(Wanderer(asked))
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
    assert list(Static(Balance()).observe(measured)) == [Move(changed)] * moves


class Shuffler(Static):
    """Moves a random half of the slices to random servers after every other round."""

    def observe(self, measurements: Measurements) -> Iterable[Move]:
        complete, load = measurements.round, measurements.load
        if complete is None or load is None or load.moving or complete.number % 2:
            return
        draw = random.Random(complete.number)
        moved = {
            one: draw.choice(sorted(load.rates))
            for one in range(len(load.owners))
            if draw.random() < 0.5
        }
        yield Move("a test", moved=tuple(moved.items()))


MOMENTUM = "{name: momentum, rate: 0.05, momentum: 0.9, at: servers}"
ADAM = "{name: adam, rate: 0.001, at: servers}"


@pytest.mark.parametrize(
    ("placement", "faulty", "optimizer"),
    [
        ("cs", False, ""),
        ("cs", True, ""),
        ("ncs", False, ""),
        ("ncs", True, ""),
        ("ncs", False, MOMENTUM),
        ("cs", True, ADAM),
    ],
)
def test_load_moves_while_a_job_trains(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    placement: str,
    faulty: bool,
    optimizer: str,
) -> None:
    """Weights are the reference's, or the run would fail; the job keeps its plan epoch."""
    caplog.set_level("INFO")
    monkeypatch.setitem(BALANCERS, "shuffler", Shuffler)
    loss = "{rate: 1 Gbit/s, delay: 5 us, loss: 3 %, duplicate: 2 %, reorder: 5 %}"
    topology = TOPOLOGY.replace("{rate: 1 Gbit/s, delay: 5 us}", loss) if faulty else TOPOLOGY
    job = JOB.replace("400 ms", "5 ms").replace("iterations: 10", "iterations: 30")
    if optimizer:  # its state moves, too
        job = job.replace("{rate: 0.05}", optimizer)
    job += f"placement: {placement}\nbalance: shuffler\nslice_bytes: 1 KiB\n"
    session = run(tmp_path, monkeypatch, {"topology.yaml": topology, "job.yaml": job})
    (summary,) = json.loads(session.run.summary.read_text())["jobs"]
    assert summary["matches_reference"] is True
    assert len(summary["plans"]) == 1
    held = caplog.text.count("the new chunk map holds from round")
    assert held >= 5


def test_psld_moves_parameters_from_a_slow_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its link is slow from the beginning; weights are those of a job that stays where it is.

    Another server's steps wait for their replicas behind that link, two others' do not.
    """
    caplog.set_level("INFO")
    faults = "name: slow\nfaults: [{at: 0, slow: {link: [s0, tor0], by: 20}, for: forever}]\n"
    found = {}
    for policy in (STATIC, "psld"):
        job = JOB.replace("400 ms", "5 ms").replace("iterations: 10", "iterations: 12")
        job = job.replace("{rate: 0.05}", MOMENTUM).replace("[32]", "[256]")
        job += f"placement: ncs\nbalance: {policy}\nslice_bytes: 4 KiB\n"
        files = {"topology.yaml": FOUR_SERVERS, "job.yaml": job, "faults.yaml": faults}
        session = run(tmp_path / policy, monkeypatch, files)
        (found[policy],) = json.loads(session.run.summary.read_text())["jobs"]
    still, moving = found[STATIC], found["psld"]
    assert moving["matches_reference"] is True
    assert moving["weights_sha256"] == still["weights_sha256"]
    assert len(moving["plans"]) == 1
    assert "have moved here from" in caplog.text
    assert moving["seconds_per_iteration"][-1] < 0.8 * still["seconds_per_iteration"][-1]


def test_psld_moves_load_where_workers_are_in_rounds_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a server whose link is slow from the beginning."""
    faults = "name: slow\nfaults: [{at: 0, slow: {link: [s0, tor0], by: 8}, for: forever}]\n"
    found = {}
    for policy in (STATIC, "psld"):
        job = JOB.replace("400 ms", "2 ms").replace("{rate: 0.05}", MOMENTUM)
        job = job.replace("[32]", "[128]")
        job += f"placement: ncs\nbalance: {policy}\nslice_bytes: 4 KiB\n"
        job += "consistency: {staleness: 2}\n"
        files = {"topology.yaml": FOUR_SERVERS, "job.yaml": job, "faults.yaml": faults}
        session = run(tmp_path / policy, monkeypatch, files)
        (found[policy],) = json.loads(session.run.summary.read_text())["jobs"]
    still, moving = found[STATIC], found["psld"]
    assert still["moves"] == []
    assert len(moving["plans"]) == 1
    assert sum(one["bytes"] for one in moving["moves"]) > 0
    assert moving["blocked_seconds"] == 0
    assert moving["staleness_seen"]["max"] <= 2
    assert moving["seconds_per_iteration"][-1] < 0.9 * still["seconds_per_iteration"][-1]


def test_workers_measure_their_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two servers, one has a link of a tenth of the other's rate."""
    seen: list[Measurements] = []

    class Observer(Static):
        def observe(self, measurements: Measurements) -> Iterable[Move]:
            seen.append(measurements)
            return ()

    monkeypatch.setitem(BALANCERS, "observer", Observer)
    topology = TOPOLOGY + "links: [{ends: [s0, tor0], rate: 100 Mbit/s}]\n"
    job = JOB.replace("400 ms", "5 ms") + "tree: none\nbalance: observer\nslice_bytes: 1 KiB\n"
    run(tmp_path, monkeypatch, {"topology.yaml": topology, "job.yaml": job})
    rounds = [one.round for one in seen if one.round is not None]
    assert [one.number for one in rounds] == list(range(1, 11))
    for complete in rounds[2:]:
        slow, fast = complete.servers
        assert (slow.server, fast.server) == (0, 1)
        assert slow.waited > 3 * fast.waited
        assert fast.ended < slow.ended < complete.seconds
    load = next(one.load for one in seen if one.round is not None)
    assert load is not None
    assert sum(load.chunks) == sum(one.sums for one in rounds[-1].servers)
    assert load.rates[1] == pytest.approx(10 * load.rates[0])
