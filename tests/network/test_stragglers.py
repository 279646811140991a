# SPDX-License-Identifier: Apache-2.0
"""Tests that psld moves load away from a straggling server of a testbed, without another result."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

from tests.network.testbeds import Rackhub

STAR = """\
name: star
defaults: {rate: 10 Mbit/s}
racks: [{workers: 2, servers: 3}]
"""
JOB = """\
name: digits
workload: digits
hidden: [256]
iterations: 40
batch: 64
slice_bytes: 4 KiB
placement: ncs
balance: psld
"""
# Of a core a server needs 3 to 5 ms for its share of an iteration, of which the links take 70.
STRAGGLERS = {"link": "{link: [s0, tor0], by: 3.5}", "processing": "{host: s0, by: 25}"}


@pytest.fixture
def rackhub(tmp_path: Path) -> Rackhub:
    found = Rackhub(tmp_path)
    found.topology.write_text(STAR)
    found.job.write_text(JOB)
    return found


@pytest.mark.parametrize("target", ["embedded", pytest.param("bmv2", marks=pytest.mark.bmv2)])
@pytest.mark.parametrize("slow", ["link", pytest.param("processing", marks=pytest.mark.soak)])
def test_load_moves_from_a_straggler(rackhub: Rackhub, slow: str, target: str) -> None:
    """Iterations are shorter then; the reference's weights are those of a job without moves."""
    file = rackhub.folder / "faults.yaml"
    file.write_text(f"faults: [{{at: 0 s, slow: {STRAGGLERS[slow]}, for: forever}}]\n")
    result = rackhub.call(
        "chaos", rackhub.topology, "--faults", file, "--job", rackhub.job, "--target", target,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    summary = json.loads((rackhub.latest() / "summary.json").read_text())
    assert summary["matches_reference"] is True
    first = summary["moves"][0]
    assert first["reason"] == "server 0 straggles"
    assert first["slices"] > 0
    times = summary["seconds_per_iteration"]
    # The last two before it are of the straggler; the first after it may be partly of either map.
    before, after = times[first["from_round"] - 3 : first["from_round"] - 1], times[-12:]
    assert statistics.median(after) < 0.85 * statistics.median(before)
