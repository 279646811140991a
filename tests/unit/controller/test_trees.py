# SPDX-License-Identifier: Apache-2.0
"""Tests aggregation trees: for any topology and members, every worker counts once and packets
meet their nodes along the address plan's routes."""

from __future__ import annotations

from ipaddress import IPv4Address

import numpy as np
import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from controller.planning.tree_planner import PlanRefusedError, Tree, TreeKind, TreeNode, plan_trees
from controller.planning.windows import choose_window
from protocol.partition import servers_of, shares
from topologies.model.addressing import Addressing
from topologies.model.spec import parse
from topologies.model.topology import Topology

FRAME = 1098


def build(text: str) -> tuple[Topology, Addressing]:
    """A topology from YAML flow text."""
    topology = parse(f"name: x\n{text}\n")
    return topology, Addressing(topology)


TWO_RACKS = build("racks: [{workers: 4, servers: 1}, {workers: 4, servers: 1}]\ncores: 1")


def plan(
    plant: tuple[Topology, Addressing],
    workers: str,
    servers: str,
    kind: TreeKind,
    streams: int = 0,
    rotation: int = 0,
) -> tuple[Tree, ...]:
    """plan_trees with names in short: "w0 w1"."""
    topology, addressing = plant
    addresses = [addressing.address(name) for name in servers.split()]
    return plan_trees(topology, addressing, workers.split(), addresses, kind, streams, rotation)


def shape(tree: Tree) -> dict[str, list[str]]:
    """Children by node name; "server" for a server root."""
    return {n.switch or "server": [c.name for c in n.children] for n in tree.nodes}


@st.composite
def jobs(draw: st.DrawFn) -> tuple[Topology, Addressing, list[str], list[IPv4Address], int, int]:
    """Any members on any of many shapes, server links other than the first included."""
    racks = draw(
        st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2)), min_size=1, max_size=5).filter(
            lambda r: any(w for w, _ in r) and any(s for _, s in r)
        )
    )
    cores = draw(st.lists(st.integers(1, 3), min_size=1 if len(racks) > 1 else 0, max_size=2))
    servers = sum(count for _, count in racks)
    extra = draw(
        st.lists(st.tuples(st.integers(0, servers - 1), st.integers(0, len(racks) - 1)), max_size=1)
    )
    topology, addressing = build(
        f"racks: {[{'workers': w, 'servers': s} for w, s in racks]}\ncores: {cores}\n"
        f"links: {[{'ends': [f's{s}', f'tor{t}'], 'add': True} for s, t in extra]}"
    )
    workers = draw(
        st.lists(st.sampled_from([n.name for n in topology.workers]), min_size=1, unique=True)
    )
    chosen = draw(
        st.lists(st.sampled_from([n.name for n in topology.servers]), min_size=1, unique=True)
    )
    addresses = [
        draw(st.sampled_from([i.ipv4 for i in addressing.host_interfaces(name)])) for name in chosen
    ]
    return (
        topology,
        addressing,
        workers,
        addresses,
        draw(st.integers(0, 4)),
        draw(st.integers(0, 9)),
    )


@given(jobs(), st.sampled_from(TreeKind))
@settings(max_examples=250, deadline=None)
def test_any_plan_counts_every_worker_once_and_stands_where_packets_pass(
    job: tuple[Topology, Addressing, list[str], list[IPv4Address], int, int], kind: TreeKind
) -> None:
    topology, addressing, workers, servers, streams, rotation = job
    try:
        trees = plan_trees(topology, addressing, workers, servers, kind, streams, rotation)
    except PlanRefusedError as refusal:
        event(f"{kind.name} refused")
        # Only these kinds depend on where servers are; the reason is never empty.
        anywhere = kind in (TreeKind.TWO_LEVEL, TreeKind.NONE)
        allowed = not anywhere and bool(str(refusal))
        if not allowed:
            raise
        return
    event(f"{kind.name} planned")
    again = plan_trees(topology, addressing, workers, servers, kind, streams, rotation)
    assert trees == again
    assert len(trees) == (streams or len(trees))
    numbers = [node.node for tree in trees for node in tree.nodes]
    assert len(set(numbers)) == len(numbers)
    assert 0 not in numbers
    where = shares((1,) * len(servers) * len(trees), 1, len(servers), len(trees))
    for tree in trees:
        check_counts(tree, len(workers))
        chunks = np.arange(len(servers) * len(trees))
        reached = set(where.server_of(chunks[where.stream_of(chunks) == tree.stream]).tolist())
        assert set(servers_of(tree.stream, len(trees), len(servers))) == reached
        for rank, worker in enumerate(workers):
            for server in sorted(reached):
                climb(addressing, tree, rank, worker, server, servers[server])
    window = choose_window(addressing, trees, servers, FRAME)
    assert 1 <= window <= 64
    assert window & (window - 1) == 0


@given(jobs(), st.sampled_from(TreeKind), st.data())
@settings(max_examples=150, deadline=None)
def test_trees_keep_off_switches_and_packets_pass_no_missing_one(
    job: tuple[Topology, Addressing, list[str], list[IPv4Address], int, int],
    kind: TreeKind,
    data: st.DataObject,
) -> None:
    topology, whole, workers, servers, streams, rotation = job
    switches = [node.name for node in topology.switches]
    missing = data.draw(st.sets(st.sampled_from(switches), max_size=2))
    avoid = data.draw(st.sets(st.sampled_from(switches), max_size=2)) | missing
    addressing = whole.without(missing)
    try:
        trees = plan_trees(topology, addressing, workers, servers, kind, streams, rotation, avoid)
    except PlanRefusedError as refusal:
        event(f"{kind.name} refused: {' '.join(str(refusal).split()[:2])}")
        return
    event(f"{kind.name} planned")
    for tree in trees:
        check_counts(tree, len(workers))
        assert not avoid & {node.switch for node in tree.nodes}
        for rank, worker in enumerate(workers):
            for server in servers_of(tree.stream, len(trees), len(servers)):
                climb(addressing, tree, rank, worker, server, servers[server])
                assert not missing & set(addressing.path(worker, servers[server]))


def check_counts(tree: Tree, world: int) -> None:
    """Each worker has one place, child indices count from 0, and the root counts all."""
    assert sorted(tree.leaves) == list(range(world))
    leaves = [c.rank for n in tree.nodes for c in n.children if c.rank is not None]
    assert len(leaves) == world
    assert tree.root.workers == world
    for node in tree.nodes:
        assert [child.sender for child in node.children] == list(range(len(node.children)))
        assert 0 < len(node.children) <= 32
        assert node.full == (1 << len(node.children)) - 1
        for child in node.children:
            assert (child.node == 0) == (child.rank is not None)
    for node in tree.nodes[1:]:
        assert node.parent is not None
        (parent,) = [n for n in tree.nodes if n.node == node.parent.node]
        child = parent.children[node.parent.sender]
        assert (child.name, child.node, child.workers) == (node.switch, node.node, node.workers)


def climb(
    addressing: Addressing, tree: Tree, rank: int, worker: str, server: int, address: IPv4Address
) -> None:
    """Follow a worker's contribution up to the root, and a result down again."""
    node, child = tree.leaves[rank]
    assert child.address == addressing.address(worker)
    if node.switch is None:
        assert server in node.servers
        return
    # The packet is addressed to the server; the node's switch is on its way, by the child's port.
    path = addressing.path(worker, address)
    assert node.switch in path
    arrives_by(addressing, path, worker, node, child.port, child.mac)
    assert all(n.switch != path[0] or n is node for n in tree.nodes)
    while node.parent is not None:
        (parent,) = [n for n in tree.nodes if n.node == node.parent.node]
        assert node.switch is not None
        up = addressing.port(node.switch, node.parent.port)
        assert up.peer_mac == node.parent.mac
        above = parent.children[node.parent.sender]
        assert above.address == addressing.switch_address(node.switch)
        if parent.switch is not None:
            assert (up.peer, up.peer_number, up.mac) == (parent.switch, above.port, above.mac)
        else:
            assert server in parent.servers
            host = addressing.interfaces[address]
            if up.peer_is_host:
                assert (up.peer, up.peer_mac) == (host.node, host.mac)
            else:  # from there on by routes, and never back
                assert node.switch not in addressing.path(up.peer, address)
            # The server's answer to the ToR's own address comes in by the port sums leave by.
            own = addressing.switch_address(node.switch)
            if not up.peer_is_host:
                back = addressing.path(host.switch, own)
                out = addressing.route(back[-2], own)
                there = addressing.port(back[-2], out.port)
                assert (there.peer, there.peer_number) == (node.switch, node.parent.port)
        node = parent


def arrives_by(
    addressing: Addressing,
    path: tuple[str, ...],
    worker: str,
    node: TreeNode,
    port: int,
    mac: str,
) -> None:
    """The switch on a path gets packets by this port, and this MAC is on its other side."""
    assert node.switch is not None
    before = path.index(node.switch) - 1
    at = addressing.port(node.switch, port)
    assert at.peer == (path[before] if before >= 0 else worker)
    assert at.peer_mac == mac


def test_two_racks_have_two_levels() -> None:
    (tree,) = plan(TWO_RACKS, "w0 w1 w4 w5", "s0 s1", TreeKind.TWO_LEVEL)
    assert shape(tree) == {"core0": ["tor0", "tor1"], "tor0": ["w0", "w1"], "tor1": ["w4", "w5"]}


def test_workers_of_one_rack_need_no_core() -> None:
    (tree,) = plan(TWO_RACKS, "w5 w4", "s0", TreeKind.TWO_LEVEL)
    assert shape(tree) == {"tor1": ["w5", "w4"]}
    assert tree.root.parent is None


def test_one_worker_alone_in_a_rack_still_passes_its_tor() -> None:
    (tree,) = plan(TWO_RACKS, "w0 w1 w7", "s1", TreeKind.TWO_LEVEL)
    assert shape(tree) == {"core0": ["tor0", "tor1"], "tor0": ["w0", "w1"], "tor1": ["w7"]}


def test_servers_in_different_directions_get_a_stream_each() -> None:
    trees = plan(TWO_RACKS, "w0 w4", "s0 s1", TreeKind.TOR)
    assert [tree.root.servers for tree in trees] == [(0,), (1,)]
    assert [shape(tree)["server"] for tree in trees] == [["tor0", "tor1"]] * 2
    with pytest.raises(PlanRefusedError, match="a multiple of 2 streams would part them"):
        plan(TWO_RACKS, "w0 w4", "s0 s1", TreeKind.TOR, streams=1)


def test_a_core_tree_needs_the_core_on_the_way() -> None:
    (tree,) = plan(TWO_RACKS, "w0 w1 w2", "s1", TreeKind.CORE)
    assert shape(tree) == {"core0": ["w0", "w1", "w2"]}
    with pytest.raises(PlanRefusedError, match="from w0 to s0 pass no core, only tor0"):
        plan(TWO_RACKS, "w0 w1", "s0 s1", TreeKind.CORE)


def test_servers_behind_different_cores_get_a_stream_each() -> None:
    plant = build(
        "racks: [{workers: 2, servers: 0}, {workers: 2, servers: 0}, {workers: 0, servers: 2}]\n"
        "cores: 2"
    )
    trees = plan(plant, "w0 w2", "s0 s1", TreeKind.CORE)
    assert [tree.root.switch for tree in trees] == ["core0", "core1"]


def test_jobs_and_streams_take_turns_at_equal_cores() -> None:
    plant = build("racks: [{workers: 1, servers: 1}, {workers: 1}]\ncores: 3")
    roots = [
        [tree.root.switch for tree in plan(plant, "w0 w1", "s0", TreeKind.TWO_LEVEL, 2, rotation)]
        for rotation in range(3)
    ]
    assert roots == [["core0", "core1"], ["core1", "core2"], ["core2", "core0"]]


def test_more_children_than_bits_are_refused() -> None:
    plant = build("racks: [{workers: 33, servers: 1}]")
    everyone = " ".join(f"w{n}" for n in range(33))
    with pytest.raises(PlanRefusedError, match="tor0 would have 33 children, 32 are possible"):
        plan(plant, everyone, "s0", TreeKind.TWO_LEVEL)
    # No advice that would not help.
    with pytest.raises(PlanRefusedError, match=r"use at most that many workers there$"):
        plan(plant, everyone, "s0", TreeKind.NONE)
    halves = build("racks: [{workers: 20, servers: 1}, {workers: 20}]\ncores: 1")
    everyone = " ".join(f"w{n}" for n in range(40))
    with pytest.raises(PlanRefusedError, match="or tree two-level or tor, where each ToR is one"):
        plan(halves, everyone, "s0", TreeKind.NONE)


def test_kinds_are_spelled_as_in_job_files() -> None:
    spelled = ["two-level", "tor", "core", "none", "two-level-server", "core-server"]
    assert [str(kind) for kind in TreeKind] == spelled
    assert [TreeKind.of(str(kind)) for kind in TreeKind] == list(TreeKind)


def test_a_core_under_a_server_is_its_only_child() -> None:
    (tree,) = plan(TWO_RACKS, "w0 w1 w4", "s0", TreeKind.TWO_LEVEL_SERVER)
    assert tree.root.switch is None
    racks = {"tor0": ["w0", "w1"], "tor1": ["w4"]}
    assert shape(tree) == {"server": ["core0"], "core0": ["tor0", "tor1"], **racks}
    # Without racks to join there is nothing for a core to do.
    (tree,) = plan(TWO_RACKS, "w0 w1", "s0", TreeKind.TWO_LEVEL_SERVER)
    assert shape(tree) == {"server": ["tor0"], "tor0": ["w0", "w1"]}
    (tree,) = plan(TWO_RACKS, "w0 w1", "s1", TreeKind.CORE_SERVER)
    assert shape(tree) == {"server": ["core0"], "core0": ["w0", "w1"]}
    # Servers of different racks are in different directions of it.
    assert len(plan(TWO_RACKS, "w0 w4", "s0 s1", TreeKind.TWO_LEVEL_SERVER)) == 2


def test_a_core_tree_needs_a_core() -> None:
    plant = build("racks: [{workers: 2, servers: 1}]")
    with pytest.raises(PlanRefusedError, match="has no core, which tree core needs; use two-level"):
        plan(plant, "w0 w1", "s0", TreeKind.CORE)


def test_worker_and_server_on_one_host_bypass_the_switch() -> None:
    with pytest.raises(PlanRefusedError, match="w0: worker and server on one host"):
        plan(TWO_RACKS, "w0 w1", "w0", TreeKind.TWO_LEVEL)
    (tree,) = plan(TWO_RACKS, "w0 w1", "w0 w1", TreeKind.NONE)
    assert shape(tree) == {"server": ["w0", "w1"]}


@given(st.integers(1, 400), st.integers(1, 16), st.sampled_from([1, 10, 100]))
@settings(max_examples=50, deadline=None)
def test_windows_fill_the_round_trip_and_fit_the_queues(
    queue_kb: int, workers: int, milliseconds: int
) -> None:
    assume(queue_kb * 1000 >= 1514)
    topology, addressing = build(
        f"defaults: {{rate: 100 Mbit/s, delay: {milliseconds} ms, queue_bytes: {queue_kb} kB}}\n"
        f"racks: [{{workers: {workers}, servers: 1}}]"
    )
    servers = [addressing.address("s0")]
    names = [node.name for node in topology.workers]
    # Every worker's window can meet in the server's queue, and nothing needs more than fills a
    # round trip: 2 links each way, at 100 Mbit/s.
    trees = plan_trees(topology, addressing, names, servers, TreeKind.NONE)
    window = choose_window(addressing, trees, servers, FRAME, most=1 << 14)
    assert window == 1 or window * workers * FRAME <= queue_kb * 1000
    round_trip = 4 * milliseconds / 1000
    assert window * FRAME * 8 < 2 * 100e6 * (round_trip + 0.03)
    if queue_kb * 1000 > 8 * workers * 100e6 / 8 * (round_trip + 0.03):
        assert window * FRAME * 8 >= 100e6 * round_trip
    counted = choose_window(addressing, trees, servers, FRAME, queue_packets=64)
    assert counted == 1 or counted * workers <= 32
    # Under a switch root no queue sees more than one worker's.
    trees = plan_trees(topology, addressing, names, servers, TreeKind.TWO_LEVEL)
    alone = choose_window(addressing, trees, servers, FRAME, most=1 << 14)
    assert alone == 1 or alone * FRAME <= queue_kb * 1000


def test_a_tree_without_a_core_stands_under_the_next_one() -> None:
    topology, addressing = build("racks: [{workers: 1, servers: 1}, {workers: 1}]\ncores: 2")
    server = [addressing.address("s0")]

    def cores(avoid: str, missing: str = "") -> list[str | None]:
        plant = addressing.without(missing.split())
        kind = TreeKind.TWO_LEVEL
        trees = plan_trees(topology, plant, ["w0", "w1"], server, kind, avoid=avoid.split())
        return [tree.root.switch for tree in trees]

    assert cores("") == ["core0"]
    assert cores("core0") == cores("", "core0") == ["core1"]
    with pytest.raises(
        PlanRefusedError, match=r"no core \(but for core0, core1\) is linked to all"
    ):
        cores("core0 core1")
    with pytest.raises(PlanRefusedError, match="tor1 cannot take part, and is the ToR of workers"):
        cores("tor1")
    with pytest.raises(PlanRefusedError, match="no way from w1 to s0 without core0, core1"):
        cores("", "core0 core1")
