# SPDX-License-Identifier: Apache-2.0
"""Tests what switches' counters and workers' reports imply for a job and its missing members."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections import Counter
from pathlib import Path

import pytest

from controller.p4rt.dataplane import DataPlane
from controller.planning.tree_planner import Tree, TreeKind, plan_trees
from emulation.jobs.waiting import Waits
from emulation.nodes import counters
from emulation.nodes.processes import ProcessError, Processes
from emulation.nodes.switchprocess import SwitchProcess
from hosts.worker.explanation import Waiting
from observability import outcomes
from observability.messages.process_reports import WaitingReport
from protocol.outcomes import Outcome
from tests.conftest import ROOT
from topologies.model.addressing import Addressing
from topologies.model.spec import load

SERVERS = ("s0", "s1")


def trees(kind: TreeKind, name: str = "two-racks") -> tuple[Tree, ...]:
    topology = load(ROOT / "topologies" / f"{name}.yaml")
    addressing = Addressing(topology)
    workers = [node.name for node in topology.workers]
    servers = [addressing.address(node.name) for node in topology.servers]
    return plan_trees(topology, addressing, workers, servers, kind)


COUNTS = {
    "tor0": Counter(
        {Outcome.COMPLETED: 7, Outcome.PARTIAL_SENT: 70, Outcome.REPLAYED: 3, Outcome.RESENT: 2}
    ),
    "tor1": Counter({Outcome.PARTIAL_SENT: 70, Outcome.FORWARDED: 9}),
    "tor2": Counter(),
    "tor3": Counter(),
    "core0": Counter({Outcome.COMPLETED: 69, Outcome.REPLAYED: 10, Outcome.PARTIAL_SENT: 40}),
    "core1": Counter({Outcome.PARTIAL_SENT: 30}),
}


@pytest.mark.parametrize(
    ("name", "kind", "sums", "again"),
    [
        ("two-racks", TreeKind.TWO_LEVEL, 69, 15),
        ("two-racks", TreeKind.TOR, 70, 5),
        ("two-racks", TreeKind.NONE, 0, 0),
        ("one-rack", TreeKind.TWO_LEVEL, 7, 5),  # the ToR is the root
        # Half of the streams go over each core: their servers' sums are of both.
        ("four-racks-two-cores", TreeKind.TWO_LEVEL_SERVER, 70, 15),
    ],
)
def test_outcomes_count_switches_of_job_trees(
    name: str, kind: TreeKind, sums: int, again: int
) -> None:
    assert outcomes.sums_made(trees(kind, name), COUNTS) == sums
    assert outcomes.retransmitted(trees(kind, name), COUNTS) == again


def test_outcomes_are_relative_to_job_start() -> None:
    before = {"tor0": Counter({Outcome.COMPLETED: 5, Outcome.CLAIMED: 1})}
    now = {"tor0": Counter({Outcome.COMPLETED: 12, Outcome.CLAIMED: 1, Outcome.REPLAYED: 2})}
    assert outcomes.since(before, now) == {
        "tor0": {Outcome.COMPLETED: 7, Outcome.CLAIMED: 0, Outcome.REPLAYED: 2}
    }


def test_a_switch_that_does_not_answer_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its socket takes connections, as that of a process that hangs does; no answer ever comes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("emulation.nodes.counters.ANSWER_SECONDS", 0.5)
    (tmp_path / "sockets").mkdir()
    (tmp_path / "hangs.log").write_text("ready\n")
    build = ROOT / "p4src" / "build"
    plane = DataPlane.load(build / "aggregation.json", build / "aggregation.p4info.txtpb")

    async def run() -> list[ProcessError]:
        switch = SwitchProcess("hangs", "embedded", ())
        group = Processes(tmp_path, tmp_path)
        switch.process = group.start("hangs", [sys.executable, "-c", "input()"], wants_input=True)
        _, silent = await counters.read([switch], plane)
        await group.stop()
        return silent

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("sockets/hangs")
        listener.listen()
        (error,) = asyncio.run(run())
    assert error.name == "hangs"
    assert "hangs does not answer P4Runtime within 0.5 s" in str(error)


def report(children: int, node: int, phase: str | None = "AGGREGATING") -> WaitingReport:
    oldest = Waiting(
        stream=0, seq=0, chunk=0, kind="sum", sent=1, sent_first=8.0, sent_last=8.0,
        asked_last=0.5, unanswered_queries=0, node=node, phase=phase, children=children, heard=0.4,
    )  # fmt: skip
    return {"report": "waiting", "seconds": 7.5, "oldest": oldest, "text": "no sum for 7.5 s"}


def test_missing_members_are_named() -> None:
    (tree,) = trees(TreeKind.TWO_LEVEL)
    core, tor0, _ = tree.nodes
    waits = Waits([tree], SERVERS)
    assert waits.seconds == 0
    waits.take(4, report(0b10, core.node))  # rack 1 is in, rack 0 is not
    assert (waits.missing(), waits.seconds) == (["tor0 at core0"], 7.5)
    waits.take(0, report(0b1011, tor0.node))
    assert str(waits) == "missing: w2 at tor0"
    waits.over(0)
    waits.over(4)
    waits.take(1, report(0, tor0.node, phase=None))
    assert waits.missing() == []
    assert str(waits) == "no sum for 7.5 s"
