# SPDX-License-Identifier: Apache-2.0
"""Tests hosts with several server processes and links: all are used, and each may be killed.

Their trees, bytes and replicas under loss: tests/packet/jobs/test_units.py, test_link_bytes.py.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.network.testbeds import JOB, TOPOLOGY, Rackhub

TARGETS = ["embedded", pytest.param("bmv2", marks=pytest.mark.bmv2)]
PBOX = Path(__file__).parents[2] / "topologies" / "pbox.yaml"
LINKS, PROCESSES = 4, 9
# 72 chunks, each a slice: eight for each process, two of which share a link.
HIDDEN = 128, 68


@pytest.mark.parametrize("target", TARGETS)
def test_pbox_links_share_load(tmp_path: Path, target: str) -> None:
    rackhub = Rackhub(tmp_path)
    job = JOB.replace("ations: 12", "ations: 4").replace("[32]", str(list(HIDDEN)))
    rackhub.job.write_text(f"{job}tree: tor\nslice_bytes: 1 KiB\n")
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


def test_shards_are_restored_from_other_host(tmp_path: Path) -> None:
    """One is killed, then its host with all it has: each was replicated at the other host."""
    rackhub = Rackhub(tmp_path)
    wider = "links: [{ends: [s0, tor0], add: true}, {ends: [s1, tor1], add: true}]\n"
    rackhub.topology.write_text(TOPOLOGY + wider)
    job = JOB.replace("ations: 12", "ations: 150").replace("0.05}", "0.05, at: servers}")
    rackhub.job.write_text(f"{job}tree: tor\nslice_bytes: 1 KiB\n")
    faults = tmp_path / "faults.yaml"
    faults.write_text(
        "name: units\nfaults:\n"
        "  - {at: 200 chunks, kill: s0.1}\n  - {after: 200 chunks, kill: s0}\n"
    )
    arguments = ("--faults", faults, "--job", rackhub.job, "--target", "embedded")
    result = rackhub.call("chaos", rackhub.topology, *arguments)
    assert result.returncode == 0, result.stdout + result.stderr
    summary = json.loads((rackhub.latest() / "summary.json").read_text())
    assert summary["matches_reference"] is True  # momentum included
    assert [(row["node"], row["kind"]) for row in summary["faults"]] == [
        ("s0.1", "kill"),
        ("s0", "kill"),
    ]
    for name in ("s0.0", "s0.1"):
        assert f"{name} was killed by SIGKILL; started again" in result.stdout + result.stderr
    restored = {(one["server"], one["from"]) for one in summary["restored"]}
    assert {server for server, _ in restored} >= {"s0.0", "s0.1"}
    assert {source for _, source in restored} <= {"s0.0", "s0.1", "s1.0", "s1.1"}
