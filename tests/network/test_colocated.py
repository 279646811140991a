# SPDX-License-Identifier: Apache-2.0
"""Tests servers on workers' hosts: separate processes, and PHub's share of each link.

Every other placement's bytes: `rackhub experiment placements`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.link_loads import Workload
from specs.placements import KINDS
from tests.network.testbeds import Rackhub

WORKERS = 4
# 128 chunks, four slices: one for each server.
HIDDEN = 192, 97
WORK = Workload((64 * 192, 192, 192 * 97, 97, 97 * 10, 10), 256, 12, 32)


def test_colocated_servers_match_single_process(tmp_path: Path) -> None:
    rackhub = Rackhub(tmp_path)
    job = rackhub.job.read_text().replace("[32]", str(list(HIDDEN)))
    rackhub.job.write_text(f"{job}placement: cs\n")
    arguments = ("run", rackhub.topology, "--job", rackhub.job, "--target", "embedded")
    result = rackhub.call(*arguments, "--json")
    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout)
    assert summary["matches_reference"] is True
    assert (summary["placement"], summary["tree"], summary["servers"]) == ("cs", "none", WORKERS)
    assert (rackhub.latest() / "logs" / "w3-server.log").exists()
    copies = next(kind.copies(WORKERS, WORKERS) for kind in KINDS if kind.name == "cs")
    for worker in range(WORKERS):
        ends = f"w{worker}", f"tor{worker // 2}"
        ways = [row for row in summary["links"] if {row["from"], row["to"]} == set(ends)]
        carried = sum(row["bytes"] for row in ways)
        assert carried == pytest.approx(copies * WORK.edge(WORK.chunks).bytes, rel=0.02)
        assert sum(row["expected_bytes"] for row in ways) == pytest.approx(carried, rel=0.02)
    assert not any(row["bytes"] for row in summary["links"] if row["to"] in ("s0", "s1"))
