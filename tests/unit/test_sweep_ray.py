# SPDX-License-Identifier: Apache-2.0
"""A sweep over a Ray cluster of several nodes, all on this machine (pip install 'rackhub[ray]')."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from testbed.cli.main import main
from testbed.sweeps.cluster import RayCrew
from testbed.sweeps.conduct import State, conduct
from testbed.sweeps.execution import Outcome
from testbed.sweeps.store import opened
from testbed.sweeps.sweepfile import load
from testbed.sweeps.trials import Trial, trials
from tests.unit import small_sweep

cluster_utils = pytest.importorskip("ray.cluster_utils")
ray = pytest.importorskip("ray")

# A node that runs no trials.
HEAD = {"num_cpus": 0, "include_dashboard": False}


def test_a_cluster_comes_to_what_processes_here_come_to(tmp_path: Path, runs: Path) -> None:
    """Though a node is lost in the middle, and the sweep stopped after that: what was done then is
    not run again."""
    path = small_sweep.written(tmp_path)
    here = CliRunner().invoke(main, ["sweep", str(path), "--to", str(tmp_path / "here")])
    assert here.exit_code == 0, here.output
    there = tmp_path / "there"
    listed = trials(load(path))
    told: list[str] = []

    def until_it_is_known(state: State, trial: Trial, result: dict[str, Any]) -> None:
        told.append(result["state"])
        if {"again", "done"} <= set(told):
            raise KeyboardInterrupt

    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args=HEAD)
    try:
        nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
        with opened(there) as store, pytest.raises(KeyboardInterrupt):
            conduct(store, listed, lambda: _Losing(cluster, nodes[1]), until_it_is_known)
        assert told.count("again") == 1
        before = {one.parent.name for one in there.glob("trials/*/result.json")}
        assert len(before) == told.count("done") < len(listed)
        cluster.add_node(num_cpus=1)
        options = ("--ray", cluster.address, "--to", str(there))
        result = CliRunner().invoke(main, ["sweep", str(path), *options])
        assert result.exit_code == 0, result.output
        assert f"{len(before)} of them done before" in result.output
    finally:
        cluster.shutdown()
    assert small_sweep.rows(there) == small_sweep.rows(tmp_path / "here")
    results = [json.loads(one.read_text()) for one in there.glob("trials/*/result.json")]
    assert all(one["where"].startswith("node ") for one in results)


class _Losing(RayCrew):
    """Loses a node as soon as both are at work."""

    def __init__(self, cluster: Any, node: Any) -> None:
        super().__init__(cluster.address)
        self._cluster, self._node = cluster, node

    def next(self) -> tuple[Trial, Outcome]:
        """See Crew."""
        if self._node is not None:
            while ray.available_resources().get("CPU", 0):
                time.sleep(0.01)  # Ray tells of nodes only when asked
            self._cluster.remove_node(self._node, allow_graceful=False)
            self._node = None
        return super().next()


def test_no_cluster_at_an_address_is_an_error_that_says_so(tmp_path: Path, runs: Path) -> None:
    path = small_sweep.written(tmp_path)
    result = CliRunner().invoke(main, ["sweep", str(path), "--ray", "127.0.0.1:1"])
    assert result.exit_code == 1
    assert "--ray 127.0.0.1:1: no cluster there" in result.output
    assert "Traceback" not in result.output
