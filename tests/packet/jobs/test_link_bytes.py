# SPDX-License-Identifier: Apache-2.0
"""Tests that jobs put exactly the bytes of `planner.link_loads` on links, on real switches.

Servers on workers' hosts: tests/network/test_colocated.py.
"""

from __future__ import annotations

from collections import Counter

import pytest

from controller.planning.tree_planner import TreeKind, plan_trees
from planner.link_loads import Direction, Workload, expected
from protocol.optimizer_plan import OptimizerPlan
from protocol.server_pipelines import USUAL, Pipeline
from tests.impaired_links import Impairments
from tests.packet.jobs.protocol_run import LIMIT, Run, network_of
from tests.packet.jobs.switched_job import LANES, StartedJob
from tests.packet.jobs.switched_network import SwitchedNetwork
from topologies.model.replica_order import units_by_rank

WORKERS = ["w0", "w1", "w2", "w3", "w4"]
CHUNKS, ROUNDS = 40, 3
MOMENTUM = OptimizerPlan("momentum", 0.1, 0.9)


def counted(network: SwitchedNetwork) -> Counter[tuple[str, int]]:
    """Bytes by the switch's port where they arrive; those to a host at the port they leave by."""
    found: Counter[tuple[str, int]] = Counter()

    def count(node: str, port: int, frame: bytes) -> bytes:
        found[node, port] += len(frame)
        return frame

    network.tamper = count
    return found


@pytest.mark.parametrize(
    ("kind", "servers", "optimizer", "pipeline"),
    [
        (TreeKind.TWO_LEVEL_SERVER, ["s0"], MOMENTUM, USUAL),
        (TreeKind.CORE_SERVER, ["s0"], MOMENTUM, Pipeline("wide")),
        (TreeKind.TOR, ["s0"], MOMENTUM, USUAL),
        (TreeKind.NONE, ["s0"], MOMENTUM, Pipeline("wide", ("elision",))),
        (TreeKind.NONE, ["s0", "s1"], None, USUAL),
        (TreeKind.CORE, ["s0", "s1"], None, USUAL),
    ],
)
def test_links_carry_what_is_expected(
    kind: TreeKind, servers: list[str], optimizer: OptimizerPlan | None, pipeline: Pipeline
) -> None:
    network = network_of("server rack", 1, Impairments())
    _carries_what_is_expected(network, kind, WORKERS, servers, CHUNKS, optimizer, pipeline)


@pytest.mark.parametrize("kind", [TreeKind.TOR, TreeKind.TWO_LEVEL_SERVER, TreeKind.NONE], ids=str)
def test_each_link_of_a_wide_server_carries_what_is_for_its_processes(
    kind: TreeKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four processes at two links of one host, one of another host, a slice of four chunks each."""
    monkeypatch.setattr("controller.p4rt.dataplane.SLICE_BYTES", 4096)
    network = network_of("wide server", 1, Impairments())
    carried = _carries_what_is_expected(network, kind, WORKERS[:4], ["s0", "s1"], 20, None)
    first, second = (
        (end.switch, end.switch_port) for end in network.addressing.host_interfaces("s0")
    )
    assert carried[first] == carried[second] > 0


def _carries_what_is_expected(
    network: SwitchedNetwork,
    kind: TreeKind,
    workers: list[str],
    servers: list[str],
    chunks: int,
    optimizer: OptimizerPlan | None,
    pipeline: Pipeline = USUAL,
) -> Counter[tuple[str, int]]:
    addressing = network.addressing
    carried = counted(network)
    started = StartedJob(
        network, "job", workers, servers, kind, chunks, optimizer=optimizer, pipeline=pipeline
    )
    run = Run(started, ROUNDS, seed=3, odd=False)
    run.submit(skew=0.0, seed=1)
    finished = network.run(lambda: run.done, LIMIT)
    network.close()
    assert finished
    run.check()
    assert sum(one.statistics.retransmitted for one in started.transports) == 0
    slices = network.fabric.dataplane.chunks_per_slice()
    start, pulls = optimizer is not None, pipeline.pulls
    work = Workload((chunks * LANES,), LANES, ROUNDS, slices, start=start, pulls=pulls)
    units = units_by_rank(addressing, servers)
    addresses = [unit.address for unit in units]
    trees = plan_trees(addressing.topology, addressing, workers, addresses, kind)
    wanted: Counter[tuple[str, int]] = Counter()
    for way, load in expected(addressing, trees, [unit.name for unit in units], work).items():
        wanted[_port(network, way)] += load.bytes
    assert carried == wanted
    return carried


def _port(network: SwitchedNetwork, way: Direction) -> tuple[str, int]:
    """Where `counted` has a link's direction."""
    addressing = network.addressing
    if addressing.topology.by_name[way.node].kind == "switch":
        (port,) = [p for p in addressing.ports(way.node) if p.interface == way.interface]
        return (way.node, port.number) if port.peer_is_host else (port.peer, port.peer_number)
    ends = addressing.host_interfaces(way.node)
    (end,) = [end for end in ends if end.interface == way.interface]
    return end.switch, end.switch_port
