# SPDX-License-Identifier: Apache-2.0
"""Tests closed forms per link class against bytes summed link by link."""

from __future__ import annotations

import random
from ipaddress import IPv4Address

import pytest

from controller.planning.tree_planner import PlanRefusedError, TreeKind, plan_trees
from planner.iteration_time import Setting, Work, predict_placements
from planner.link_loads import HEADER_FRAME_BYTES, Workload, expected
from planner.network import SERVER, WORKER, Network, uplink
from specs import placements
from specs.placements import kind_of
from topologies.model.addressing import Addressing
from topologies.model.replica_order import units_by_rank
from topologies.model.spec import parse

LANES = 256
FRAME = HEADER_FRAME_BYTES + 4 * LANES
CORES = ["1", "2", "3", "4", "[{racks: 2, cores: 1}, 2]", "[{racks: 2, cores: 2}, 3]"]
CORES += ["[{racks: 2, cores: 3}, 2]", "[{racks: 2, cores: 2}, {racks: 4, cores: 3}, 2]"]


def random_file(chance: random.Random) -> str:
    racks = [(chance.randint(0, 4), chance.choice([0, 0, 1, 2])) for _ in range(5)]
    racks[chance.randrange(5)] = (2, 1)
    cores = [chance.choice([1, 1, 2]) for _ in racks]
    values = [f"{{workers: {w}, servers: {s}" + (f", server_cores: {c}}}" if s else "}")
            for (w, s), c in zip(racks, cores, strict=True) if w or s]  # fmt: skip
    file = f"name: t\nracks: [{', '.join(values)}]\n"
    if len(values) > 1:
        file += f"cores: {chance.choice(CORES)}\n"
    if chance.random() < 0.3:
        home = next(number for number, rack in enumerate(values) if "servers: 0" not in rack)
        file += f"links: [{{ends: [s0, tor{home}], add: true}}]\n"
    return file


@pytest.mark.parametrize("seed", range(60))
def test_the_busiest_links_carry_exactly_what_is_added_up_link_by_link(seed: int) -> None:
    """Any racks, levels of cores, processes and links of servers, members of a job, and tensors."""
    chance = random.Random(seed)
    topology = parse(random_file(chance))
    addressing, nodes = Addressing(topology), topology.by_name
    workers = [node.name for node in topology.workers]
    if chance.random() < 0.3:
        workers = chance.sample(workers, chance.randint(1, len(workers)))
    sizes = tuple(chance.randint(1, 20_000) for _ in range(chance.choice([1, 1, 3])))
    slices = chance.choice([1, 4, 32])
    load = Workload(sizes, LANES, 1, slices, exponent_rounds=0)
    network = Network.of(topology, workers, [node.name for node in topology.servers])
    work = Work(load.chunks, FRAME, 0.0, slices, counts=load.counts)
    compared = 0
    for one in predict_placements(network, work, Setting()):
        kind = kind_of(one.placement)
        assert kind is not None
        # Between a switch that sums and a server the model does not tell cores apart.
        if not one.bytes or (kind.single and one.tree != "tor"):
            continue
        units = units_by_rank(addressing, placements.hosts(kind, topology, workers).default)
        addresses: list[IPv4Address] = [unit.address for unit in units]
        try:
            trees = plan_trees(topology, addressing, workers, addresses, TreeKind.of(one.tree))
        except PlanRefusedError:
            continue
        names = [unit.name for unit in units]
        most: dict[str, int] = {}
        for way, carried in expected(addressing, trees, names, load).items():
            ends = [nodes[way.node]]
            if ends[0].kind == "switch":
                ports = addressing.ports(way.node)
                ends.append(nodes[next(p.peer for p in ports if p.interface == way.interface)])
            low = min(ends, key=lambda node: (node.kind == "switch", node.level))
            if len(ends) == 1 or low.kind != "switch":
                name = {"worker": WORKER, "server": SERVER}[low.kind]
            else:
                name = uplink(low.level - 1)
            most[name] = max(most.get(name, 0), carried.bytes)
        result = {name: size for name, size in one.bytes.items() if size}
        assert result == most, (one.name, random_file(random.Random(seed)))
        compared += 1
    assert compared >= 2
