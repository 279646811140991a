# SPDX-License-Identifier: Apache-2.0
"""Hosts with several server processes, at several links: all are used, and each may be killed.

Their trees, bytes and replicas under loss: tests/packet/test_units.py, test_link_bytes.py.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.network.testbeds import JOB, TOPOLOGY, Rackhub

pytestmark = pytest.mark.network

TARGETS = ["embedded", pytest.param("bmv2", marks=pytest.mark.bmv2)]
PBOX = Path(__file__).parents[2] / "topologies" / "pbox.yaml"
LINKS, PROCESSES = 4, 9
# 72 chunks, each a slice: eight for each process, two of which share a link.
HIDDEN = 128, 68


@pytest.mark.parametrize("target", TARGETS)
def test_every_link_of_a_pbox_carries_its_share(tmp_path: Path, target: str) -> None:
    rackhub = Rackhub(tmp_path)
    job = JOB.replace("ations: 12", "ations: 4").replace("[32]", str(list(HIDDEN)))
    rackhub.job.write_text(f"{job}tree: tor\nslice: 1 KiB\n")
    summary = rackhub.json("run", PBOX, "--job", rackhub.job, "--target", target)
    assert summary["matches_reference"] is True
    rows = summary["jobs"][0]["links"]
    for worker in ("w0", "w1", "w2", "w3"):
        (everything,) = [row["expected_bytes"] for row in rows if row["from"] == worker]
        # Each ToR's sum, for two of nine processes.
        share = 2 * everything * 2 / PROCESSES
        for way in ("from", "to"):
            carried = [row["bytes"] for row in rows if row[way] == "s0"]
            assert carried == [pytest.approx(share, rel=0.05)] * LINKS


def test_a_killed_process_of_a_server_gets_its_shard_back(tmp_path: Path) -> None:
    """And the host as a whole, whose processes have nobody else to be replicated by, once more."""
    rackhub = Rackhub(tmp_path)
    rackhub.topology.write_text(f"{TOPOLOGY}links: [{{ends: [s0, tor0], add: true}}]\n")
    job = JOB.replace("12", "150").replace("momentum, rate: 0.05", "sgd, rate: 0.05, at: servers")
    rackhub.job.write_text(f"{job}tree: tor\nslice: 1 KiB\n")
    faults = tmp_path / "faults.yaml"
    faults.write_text(
        "name: units\nfaults:\n"
        "  - {at: 200 chunks, kill: s0.1}\n  - {after: 200 chunks, kill: s0}\n"
    )
    arguments = ("--faults", faults, "--job", rackhub.job, "--target", "embedded")
    result = rackhub.call("chaos", rackhub.topology, *arguments)
    assert result.returncode == 0, result.stdout + result.stderr
    summary = json.loads((rackhub.latest() / "summary.json").read_text())
    assert summary["matches_reference"] is True
    assert [(row["node"], row["kind"]) for row in summary["faults"]] == [
        ("s0.1", "kill"),
        ("s0", "kill"),
    ]
    ended = summary["faults"][0]["epoch_after"]
    told = {(one["server"], one["from"]) for one in summary["restored"] if one["epoch"] <= ended}
    assert ("s1", "s1") in told  # it had the replica
    assert told & {("s0.1", "s1"), ("s0.1", "s0.0")}
    assert {who for row in told for who in row} <= {"s0.0", "s0.1", "s1"}
    for name in ("s0.0", "s0.1"):
        log = (rackhub.latest() / "logs" / f"{name}.log").read_text()
        assert log.count("ready ") == (2 if name == "s0.0" else 3)
