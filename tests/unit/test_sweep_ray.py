# SPDX-License-Identifier: Apache-2.0
"""A sweep over a Ray cluster of several nodes, all on this machine (pip install 'rackhub[ray]')."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from testbed.cli.main import main
from tests.unit import small_sweep

cluster_utils = pytest.importorskip("ray.cluster_utils")

# A node that runs no trials.
HEAD = {"num_cpus": 0, "include_dashboard": False}


def test_a_cluster_comes_to_what_processes_here_come_to(tmp_path: Path, runs: Path) -> None:
    path = small_sweep.written(tmp_path)
    here = CliRunner().invoke(main, ["sweep", str(path), "--to", str(tmp_path / "here")])
    assert here.exit_code == 0, here.output
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args=HEAD)
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=1)
        there = tmp_path / "there"
        options = ("--ray", cluster.address, "--to", str(there))
        result = CliRunner().invoke(main, ["sweep", str(path), *options])
        assert result.exit_code == 0, result.output
    finally:
        cluster.shutdown()
    assert small_sweep.rows(there) == small_sweep.rows(tmp_path / "here")
    results = [json.loads(one.read_text()) for one in there.glob("trials/*/result.json")]
    assert len({one["where"] for one in results}) == 2


def test_no_cluster_at_an_address_is_an_error_that_says_so(tmp_path: Path, runs: Path) -> None:
    path = small_sweep.written(tmp_path)
    result = CliRunner().invoke(main, ["sweep", str(path), "--ray", "127.0.0.1:1"])
    assert result.exit_code == 1
    assert "--ray 127.0.0.1:1: no cluster there" in result.output
    assert "Traceback" not in result.output
