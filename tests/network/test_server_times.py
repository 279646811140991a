# SPDX-License-Identifier: Apache-2.0
"""Tests that a testbed shows what its workers and servers measured, and asks where chunks are."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

import rackhub
from cli.main import main
from observability.messages.servers import ServerTimes
from tests.network.testbeds import wait_for
from tests.unit.observability import small_run

STAR = rackhub.Topology.build("star", racks=1, workers=2, servers=2)
JOB = {
    "name": "digits",
    "hidden": [32],
    "batch": 32,
    "iterations": 100_000,
    "slice_bytes": "1 KiB",
    "placement": {"kind": "ncs", "servers": ["s0"], "spares": ["s1"]},
    "balance": {"measure": True},
}


def call(*arguments: str) -> str:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def rows() -> list[ServerTimes]:
    """Returns what is known of servers; none while the controller does not answer."""
    asked = CliRunner().invoke(main, ["why", "digits", "--servers", "--json"])
    if asked.exit_code:
        assert "the controller does not answer" in asked.stderr
        return []
    found: list[ServerTimes] = json.loads(asked.stdout)["server_times"]
    return found


def test_times_of_servers_and_the_current_map_are_shown(runs: Path) -> None:
    """All slices move from s0 to s1. Then s1 is stopped, and every chunk waits for it."""
    with rackhub.up(STAR, target="embedded") as testbed:
        job = testbed.submit(JOB)

        def measured(found: list[ServerTimes], at: int) -> bool:
            return bool(found) and None not in (found[at]["waiting"], found[at]["handling"])

        wait_for(lambda: measured(rows(), 0), "s0 to be measured")
        job.scale(["+s1", "-s0"])

        def shown() -> list[ServerTimes]:
            (job_row,) = testbed.snapshot()["jobs"]
            return job_row["servers"]

        # Snapshots that are asked for at short intervals are one.
        wait_for(lambda: measured(shown(), 1), "s1 to be measured")
        _, one = shown()
        assert one["handling"] is not None
        assert one["waiting"] is not None
        assert 0 < one["handling"] < one["waiting"]
        assert (one["received_per_second"] or 0) > 0
        assert one.keys() == small_run.server_times()[0].keys()
        name = "rackhub_job_server_handling_seconds"
        servers = [
            sample.labels["server"]
            for metric in testbed.metrics()
            for sample in metric.samples
            if sample.name == name
        ]
        assert "s1" in servers
        assert call("why", "digits", "--servers").startswith("digits is running; its servers")
        keys = job.servers()["key_times"]
        assert sum(key["chunks"] for key in keys) == sum(key["servers"]["s1"] for key in keys)
        refused = CliRunner().invoke(main, ["why", "nothing", "--servers"])
        assert refused.exit_code == 1
        assert "no job 'nothing'; there are: digits" in refused.stderr

        testbed.pause("s1")
        wait_for(lambda: testbed.why("digits")["waits"], "the job to wait")
        nodes = [node for chunk in testbed.why("digits")["chunks"] for node in chunk["nodes"]]
        assert {node["node"] for node in nodes} == {"s1"}
        testbed.resume("s1")
        job.stop()
