# SPDX-License-Identifier: Apache-2.0
"""Tests several server processes per host that run a job's optimizer, under loss and failures."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from controller.planning.tree_planner import TreeKind
from protocol.optimizer_plan import OptimizerPlan
from tests.impaired_links import Impairments
from tests.packet.jobs.protocol_run import LIMIT, Run, network_of, start

ADAM = OptimizerPlan("adam", 0.1, weight_decay=1e-4)
Begin = Callable[[str, TreeKind, int], Run]


@pytest.fixture
def begin(monkeypatch) -> Iterator[Begin]:
    """Begins a job with so many chunks, four of which are a slice."""
    monkeypatch.setattr("controller.p4rt.dataplane.SLICE_BYTES", 4096)
    networks = []

    def run_on(topology: str, kind: TreeKind, chunks: int) -> Run:
        networks.append(network_of(topology, 1, Impairments(0.01, 0.02, 0.01)))
        started = start(networks[-1], topology, kind, chunks, window=8, optimizer=ADAM)
        run = Run(started, 4, seed=1, odd=False)
        run.submit(skew=0.05, seed=1)
        return run

    yield run_on
    for network in networks:
        network.close()


def halfway(run: Run) -> None:
    network = run.started.network
    assert network.run(lambda: run.done or run.seen.sum() >= 0.4 * run.seen.size, LIMIT)
    assert not run.done


def sources(run: Run) -> set[str]:
    return {one.source for one in run.started.job.restored}


@pytest.mark.parametrize(
    ("kind", "victim"), [(TreeKind.TOR, 1), (TreeKind.NONE, 3)], ids=["tor", "none"]
)
def test_restarted_process_restores_shard_from_backup(kind, victim, begin) -> None:
    """The one's backup is on its own host, which has four of five processes, the other's is not."""
    run = begin("wide server", kind, 20)
    started = run.started
    assert started.servers == ["s0.0", "s0.2", "s0.1", "s0.3", "s1"]  # the links take turns
    halfway(run)
    started.kill_server(victim, reported=True)
    assert started.network.run(lambda: victim not in started.job.scheme.servers, LIMIT)
    started.restart_server(victim)
    assert started.network.run(lambda: run.done, LIMIT)
    run.check()
    assert started.job.scheme.servers == (0, 1, 2, 3, 4)
    assert sources(run) <= set(started.servers)


def test_host_failure_loses_no_step(begin) -> None:
    """Each of its processes is replicated on the other host."""
    run = begin("two wide servers", TreeKind.NONE, 16)
    started = run.started
    assert started.servers == ["s0.0", "s1.0", "s0.1", "s1.1"]
    halfway(run)
    for rank in (0, 2):
        started.kill_server(rank, reported=True)
    assert started.network.run(lambda: run.done, LIMIT)
    run.check()
    assert [started.servers[rank] for rank in started.job.scheme.servers] == ["s1.0", "s1.1"]
    assert sources(run) <= {"s1.0", "s1.1"}
