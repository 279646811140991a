# SPDX-License-Identifier: Apache-2.0
"""What jobs put on links is what `testbed.expected` says, byte by byte, on the real switches.

Servers on workers' hosts: tests/network/test_colocated.py.
"""

from __future__ import annotations

from collections import Counter

import pytest

from controller.trees import TreeKind, plan_trees
from protocol.optimizer import OptimizerPlan
from protocol.pipeline import USUAL, Pipeline
from testbed.expected import Direction, Workload, expected
from tests.packet.protocol_run import LIMIT, Run, network_of
from tests.packet.switched_job import LANES, StartedJob
from tests.packet.switched_network import Faults, SwitchedNetwork

pytestmark = pytest.mark.packet

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
    network = network_of("server rack", 1, Faults())
    addressing = network.addressing
    carried = counted(network)
    started = StartedJob(
        network, "job", WORKERS, servers, kind, CHUNKS, optimizer=optimizer, pipeline=pipeline
    )
    run = Run(started, ROUNDS, seed=3, odd=False)
    run.submit(skew=0.0, seed=1)
    finished = network.run(lambda: run.done, LIMIT)
    network.close()
    assert finished
    run.check()
    assert sum(one.statistics.retransmitted for one in started.transports) == 0
    slices = network.fabric.dataplane.chunks_per_slice
    start, pulls = optimizer is not None, pipeline.pulls
    work = Workload((CHUNKS * LANES,), LANES, ROUNDS, slices, start=start, pulls=pulls)
    addresses = [addressing.address(name) for name in servers]
    trees = plan_trees(addressing.topology, addressing, WORKERS, addresses, kind)
    wanted: Counter[tuple[str, int]] = Counter()
    for way, load in expected(addressing, trees, servers, work).items():
        wanted[_port(network, way)] += load.bytes
    assert carried == wanted


def _port(network: SwitchedNetwork, way: Direction) -> tuple[str, int]:
    """Where `counted` has a link's direction."""
    addressing = network.addressing
    if addressing.topology.by_name[way.node].kind == "switch":
        (port,) = [p for p in addressing.ports(way.node) if p.interface == way.interface]
        return (way.node, port.number) if port.peer_is_host else (port.peer, port.peer_number)
    end = addressing.host_interfaces(way.node)[0]
    return end.switch, end.switch_port
