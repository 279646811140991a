# SPDX-License-Identifier: Apache-2.0
"""Tests an asynchronous job on lossy links with a server failure.

Single gradients are checked in tests/packet/jobs/test_asynchronous.py.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.network.testbeds import Rackhub

ITERATIONS = 60
JOB = f"""\
name: apart
workload: digits
hidden: [32]
iterations: {ITERATIONS}
batch: 256
optimizer: {{name: sgd, rate: 0.2, at: servers}}
placement: ncs
consistency: asynchronous
"""
FAULTS = """\
name: one-server
faults:
  - {at: 200 chunks, kill: s0}
"""


def test_asynchronous_job_survives_loss_and_server_failure(tmp_path: Path) -> None:
    rackhub = Rackhub(tmp_path)
    topology = rackhub.topology.read_text().replace("50 Mbit/s", "50 Mbit/s, loss: 1 %")
    rackhub.topology.write_text(topology)
    rackhub.job.write_text(JOB)
    faults = tmp_path / "faults.yaml"
    faults.write_text(FAULTS)
    result = rackhub.call(
        "chaos", rackhub.topology, "--faults", faults, "--job", rackhub.job, "--target", "embedded"
    )
    assert result.returncode == 0, result.stdout + result.stderr
    summary = json.loads((rackhub.latest() / "summary.json").read_text())
    assert summary["test_accuracy"] > 0.8  # a loaded machine's gradients are staler
    assert len(summary["seconds_per_iteration"]) == ITERATIONS
    assert summary["consistency"] == "asynchronous"
    assert summary["staleness_seen"]["max"] >= 1
    assert summary["matches_reference"] is None
    assert "depend on who is done when" in summary["no_reference"]
    assert summary["chunks"]["retransmitted"] > 0
    # Nobody lost what the dead one had: the other one had its replica.
    assert {one["from"] for one in summary["restored"]} <= {"s0", "s1"}
    assert ("s1", "s1") in {(one["server"], one["from"]) for one in summary["restored"]}
