# SPDX-License-Identifier: Apache-2.0
"""A sweep over a Ray cluster of several nodes, all on this machine (pip install 'rackhub[ray]')."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cli.main import main
from specs.sweepfile import load
from sweeps.cluster import RayCrew, _on_node
from sweeps.conduct import State, conduct
from sweeps.errors import SweepError
from sweeps.execution import Outcome
from sweeps.store import opened
from sweeps.trials import Trial, trials
from tests.unit.sweeps import small_sweep

cluster_utils = pytest.importorskip("ray.cluster_utils", reason="Ray is not installed")
ray = pytest.importorskip("ray")
psutil = pytest.importorskip("psutil")  # comes with Ray, and is put on the path by it

# A node that runs no trials.
HEAD = {"num_cpus": 0, "include_dashboard": False}
WAIT_SECONDS = 600.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Without nodes but its head; behind it all processes are gone that it ever had."""
    with pytest.MonkeyPatch.context() as patched:
        # Ray adds 15, so that on a busy machine its workers stand for minutes.
        patched.setenv("RAY_worker_niceness", "0")
        patched.setenv("RAY_health_check_period_ms", "500")  # a lost node is known after five
        found = cluster_utils.Cluster(initialize_head=True, head_node_args=HEAD)
        found.seen = _processes()
        try:
            yield found
        finally:
            found.seen |= _processes()
            found.shutdown()
    _, alive = psutil.wait_procs(found.seen, timeout=30)
    assert not alive


def _processes() -> set[Any]:
    """Of this test and its children; those of a node that is lost have no parent."""
    return set(psutil.Process().children(recursive=True))


@pytest.fixture
def nodes(cluster: Any) -> Iterator[Callable[[], Any]]:
    """Adds a node that runs one trial at a time."""
    yield lambda: cluster.add_node(num_cpus=1)
    cluster.seen |= _processes()
    for node in list(cluster.worker_nodes):
        cluster.remove_node(node)


@pytest.mark.timeout(300)  # starts nodes, which may take long on a busy machine
def test_cluster_gives_same_results_as_local_processes(
    tmp_path: Path, runs: Path, cluster: Any, nodes: Callable[[], Any]
) -> None:
    """Though a node is lost in the middle, and the sweep stopped after that: what was done then is
    not run again."""
    path = small_sweep.written(tmp_path)
    here = CliRunner().invoke(main, ["sweep", str(path), "--to", str(tmp_path / "here")])
    assert here.exit_code == 0, here.output
    there = tmp_path / "there"
    listed = trials(load(path))
    messages: list[str] = []

    def until_it_is_known(_: State, __: Trial, ___: Outcome, became: str) -> None:
        messages.append(became)
        if {"again", "done"} <= set(messages):
            raise KeyboardInterrupt

    _, last = nodes(), nodes()
    with opened(there) as store, pytest.raises(KeyboardInterrupt):
        conduct(store, listed, lambda: _Losing(cluster, last, tmp_path), until_it_is_known)
    assert messages.count("again") == 1
    before = {one.parent.name for one in there.glob("trials/*/result.json")}
    assert len(before) == messages.count("done") < len(listed)
    nodes()
    options = ("--ray", cluster.address, "--to", str(there))
    result = CliRunner().invoke(main, ["sweep", str(path), *options])
    assert result.exit_code == 0, result.output
    assert f"{len(before)} of them done before" in result.output
    assert small_sweep.rows(there) == small_sweep.rows(tmp_path / "here")
    results = [json.loads(one.read_text()) for one in there.glob("trials/*/result.json")]
    assert all(one["where"].startswith("node ") for one in results)


@pytest.mark.timeout(300)
def test_cluster_without_cpus_is_abandoned(
    tmp_path: Path, runs: Path, cluster: Any, nodes: Callable[[], Any]
) -> None:
    messages: list[str] = []
    listed, only = trials(load(small_sweep.written(tmp_path))), nodes()

    def crew() -> _Losing:
        return _Losing(cluster, only, tmp_path, say=messages.append, alone=0.5)

    with opened(tmp_path / "there") as store, pytest.raises(SweepError, match="no node with a CPU"):
        conduct(store, listed, crew, lambda *_: None)
    assert messages == ["--ray: no node has a CPU now; waiting 0.5 s for one"]
    assert not list(store.path.glob("trials/*/result.json"))


class _Losing(RayCrew):
    """Loses a node as soon as a trial is at work there, which is never done."""

    def __init__(self, cluster: Any, node: Any, folder: Path, **options: Any) -> None:
        super().__init__(cluster.address, **options)
        self._cluster, self._node = cluster, node
        self._begun = begun = folder / "begun"
        lost = node.node_id

        def on_node(*trial: str) -> dict[str, Any]:
            if ray.get_runtime_context().get_node_id() == lost:
                begun.touch()
                time.sleep(WAIT_SECONDS)
            return _on_node(*trial)

        self._task = ray.remote(num_cpus=1, max_retries=0)(on_node)

    def next(self) -> tuple[Trial, Outcome]:
        """Implements ``Crew.next``."""
        if self._node is not None:
            while not self._begun.exists():
                time.sleep(0.01)  # a file can only be looked for again
            self._cluster.seen |= _processes()
            self._cluster.remove_node(self._node, allow_graceful=False)
            self._node = None
        return super().next()


def test_no_cluster_at_an_address_is_an_error_that_says_so(tmp_path: Path, runs: Path) -> None:
    path = small_sweep.written(tmp_path)
    result = CliRunner().invoke(main, ["sweep", str(path), "--ray", "127.0.0.1:1"])
    assert result.exit_code == 1
    assert "--ray 127.0.0.1:1: no cluster there" in result.output
    assert "Traceback" not in result.output
