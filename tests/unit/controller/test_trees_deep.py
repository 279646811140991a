# SPDX-License-Identifier: Apache-2.0
"""Tests aggregation trees with several levels of cores."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from controller.planning.tree_planner import PlanRefusedError, Tree, TreeKind, plan_trees
from controller.planning.windows import choose_window
from planner.link_loads import HEADER_FRAME_BYTES, Workload, expected
from protocol.partition import servers_of
from tests.unit.controller.test_trees import FRAME, build, check_counts, climb
from topologies.model.addressing import Addressing
from topologies.model.topology import Topology
from topologies.model.wording import few

Plant = tuple[Topology, Addressing]
PODS_OF_PODS = "cores: [{racks: 32, cores: 1}, {racks: 1024, cores: 1}, 1]"


def plan(
    plant: Plant,
    kind: TreeKind = TreeKind.TWO_LEVEL,
    *,
    workers: str = "",
    servers: str = "s0",
    streams: int = 0,
    missing: str = "",
    avoid: str = "",
) -> tuple[Tree, ...]:
    """Trees of all workers, if not some are named ("w0 w1")."""
    topology, addressing = plant
    names = workers.split() or [node.name for node in topology.workers]
    addresses = [addressing.address(name) for name in servers.split()]
    there = addressing.without(missing.split())
    return plan_trees(topology, there, names, addresses, kind, streams, avoid=avoid.split())


def cores(tree: Tree) -> dict[str, str]:
    """Children of each core, in short."""
    return {
        node.switch: few([child.name for child in node.children])
        for node in tree.nodes
        if node.switch is not None and node.switch.startswith("core")
    }


def test_racks_of_a_thousand_workers_are_joined_by_two_cores_and_one_above() -> None:
    (tree,) = plan(build("racks: [{workers: 16, servers: 1, count: 64}]\ncores: [2, 1]"))
    assert cores(tree) == {"core2": "core0, core1", "core0": "tor0..tor31", "core1": "tor32..tor63"}
    check_counts(tree, 1024)
    assert [child.workers for child in tree.root.children] == [512, 512]
    assert len(tree.switches) == 67
    # A parent is written before its children, so that nothing is sent to what is not there yet.
    for node in tree.nodes[1:]:
        assert node.parent is not None
        assert node.parent.node < node.node
    # Of 32 racks none has to wait for more than one core.
    (tree,) = plan(build("racks: [{workers: 32, servers: 1, count: 32}]\ncores: [2, 1]"))
    assert cores(tree) == {"core0": "tor0..tor31"}
    check_counts(tree, 1024)


def test_no_core_has_more_children_than_it_must() -> None:
    (tree,) = plan(build("racks: [{workers: 1, servers: 1, count: 65}]\ncores: [4, 1]"))
    assert [len(node.children) for node in tree.nodes[:4]] == [3, 21, 22, 22]


def test_pods_of_pods_make_four_levels_of_switches() -> None:
    plant = build(f"racks: [{{workers: 1, servers: 1, count: 1100}}]\n{PODS_OF_PODS}")
    (tree,) = plan(plant)
    check_counts(tree, 1100)
    below = cores(tree)
    assert below["core37"] == "core35, core36"
    assert below["core35"] == "core0..core31"
    assert below["core36"] == "core32..core34"
    assert below["core34"] == "tor1088..tor1099"
    for rank in (0, 1099):
        climb(plant[1], tree, rank, f"w{rank}", 0, plant[1].address("s0"))


def test_a_job_within_a_pod_stays_there() -> None:
    plant = build("racks: [{workers: 2, servers: 1, count: 6}]\ncores: [{racks: 2, cores: 2}, 2]")
    (tree,) = plan(plant, workers="w4 w6 w7")
    assert cores(tree) == {"core2": "tor2, tor3"}
    # A rack that is alone in its pod still passes a core: sums go from neighbour to neighbour.
    (tree,) = plan(plant, workers="w0 w2 w4")
    assert cores(tree) == {"core6": "core0, core2", "core0": "tor0, tor1", "core2": "tor2"}
    (tree,) = plan(plant, workers="w2")
    assert [node.switch for node in tree.nodes] == ["tor1"]


def test_jobs_and_streams_take_turns_at_cores_of_every_level() -> None:
    plant = build("racks: [{workers: 1, servers: 1, count: 40}]\ncores: [4, 2]")
    assert [list(cores(tree)) for tree in plan(plant, streams=3)] == [
        ["core4", "core0", "core1"],
        ["core5", "core2", "core3"],
        ["core4", "core0", "core1"],
    ]


def test_a_tree_goes_round_cores_of_any_level_that_are_dead() -> None:
    plant = build("racks: [{workers: 1, servers: 1, count: 40}]\ncores: [3, 2]")
    for way in ("missing", "avoid"):
        assert list(cores(*plan(plant, **{way: "core0"}))) == ["core3", "core1", "core2"]
        assert list(cores(*plan(plant, **{way: "core3"}))) == ["core4", "core0", "core1"]
        with pytest.raises(
            PlanRefusedError, match=r"no core \(but for core3, core4\) is linked to all of core0, c"
        ) as caught:
            plan(plant, **{way: "core3 core4"})
        assert caught.value.field == "tree"
        with pytest.raises(
            PlanRefusedError,
            match=r"core0 \(but for core1, core2\) would have 40 children \(tor0\.\.tor39\), 32",
        ):
            plan(plant, **{way: "core1 core2"})


@pytest.mark.parametrize(
    ("text", "kind", "field", "says"),
    [
        ("cores: 1", TreeKind.TWO_LEVEL, "cores",
         r"^core0 would have 33 children \(tor0\.\.tor32\), 32 are possible; `cores: \[2, 1\]`"),
        ("cores: 2", TreeKind.TWO_LEVEL, "cores",
         r"^no core is linked to all of core0, core1; `cores: \[2, 1\]` would do$"),
        ("cores: [1, 1]", TreeKind.TWO_LEVEL_SERVER, "cores", r"^core0 would have 33 children"),
        ("cores: 1", TreeKind.TOR, "workers",
         r"^the server would have 33 children, 32 are possible; use workers of at most 32 racks$"),
        ("cores: [2, 1]", TreeKind.TOR, "workers", r"or tree two-level or two-level-server, with"),
        ("cores: [2, 1]", TreeKind.NONE, "workers", r"^the server would have 33 children.*level-s"),
        ("cores: [2, 1]", TreeKind.CORE, "workers", r"^the core would have 33 children.*level-ser"),
    ],
)  # fmt: skip
def test_more_racks_than_children_are_refused_with_what_would_fit(
    text: str, kind: TreeKind, field: str, says: str
) -> None:
    plant = build(f"racks: [{{workers: 1, servers: 1, count: 33}}]\n{text}")
    with pytest.raises(PlanRefusedError, match=says) as caught:
        plan(plant, kind)
    assert caught.value.field == field


def test_suggested_trees_work_for_many_racks() -> None:
    racks = "racks: [{workers: 1, servers: 1, count: 1100}]"
    with pytest.raises(PlanRefusedError) as caught:
        plan(build(f"{racks}\ncores: [{{racks: 32, cores: 1}}, 1]"))
    assert str(caught.value) == (
        f"core35 would have 35 children (core0..core34), 32 are possible; `{PODS_OF_PODS}` would do"
    )


def test_a_header_has_room_for_every_tree_node_and_worker() -> None:
    plant = build(f"racks: [{{workers: 1, servers: 1, count: 1100}}]\n{PODS_OF_PODS}")
    with pytest.raises(PlanRefusedError, match="60 streams with 1138 tree nodes each") as caught:
        plan(plant, streams=60)
    assert caught.value.field == "streams"
    topology, addressing = plant
    everyone = ["w0"] * 65_536
    with pytest.raises(PlanRefusedError, match="65536 workers; a sum says of how many it is, up"):
        plan_trees(topology, addressing, everyone, [addressing.address("s0")], TreeKind.TWO_LEVEL)


@st.composite
def many_racks(draw: st.DrawFn) -> tuple[Plant, list[str], list[str]]:
    """More racks than a core takes, some without workers of the job, and any servers."""
    count = draw(st.integers(33, 80))
    shapes = [
        "[4, 2, 1]", "[3, 2]", "[{racks: 8, cores: 2}, 2]", "[{racks: 40, cores: 2}, 1]",
        "[{racks: 5, cores: 1}, {racks: 20, cores: 2}, 2]", "[{racks: 1, cores: 1}, 3, 2]",
    ]  # fmt: skip
    levels = draw(st.sampled_from(shapes))
    plant = build(f"racks: [{{workers: 2, servers: 1, count: {count}}}]\ncores: {levels}")
    topology = plant[0]
    out = draw(st.sets(st.integers(0, count - 1), max_size=count // 2))
    workers = [node.name for node in topology.workers if node.rack not in out]
    names = [node.name for node in topology.servers]
    return (
        plant,
        workers,
        draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True)),
    )


@given(many_racks(), st.sampled_from([TreeKind.TWO_LEVEL, TreeKind.TWO_LEVEL_SERVER]), st.data())
@settings(max_examples=40, deadline=None)
def test_any_deep_tree_counts_every_worker_once_and_stands_where_packets_pass(
    job: tuple[Plant, list[str], list[str]], kind: TreeKind, data: st.DataObject
) -> None:
    (topology, whole), workers, names = job
    missing = data.draw(st.sets(st.sampled_from([n.name for n in topology.cores]), max_size=1))
    addressing = whole.without(missing)
    servers = [whole.address(name) for name in names]
    try:
        trees = plan_trees(topology, addressing, workers, servers, kind, avoid=missing)
    except PlanRefusedError as refusal:
        event(f"refused: {' '.join(str(refusal).split()[:2])}")
        # Every shape joins all racks as long as no core is missing.
        allowed = missing or "different ways" in str(refusal)
        if not allowed:
            raise
        return
    event(f"{len({topology.by_name[n.switch].level for n in trees[0].switches})} levels")
    for tree in trees:
        check_counts(tree, len(workers))
        assert not missing & {node.switch for node in tree.nodes}
        for server in servers_of(tree.stream, len(trees), len(servers)):
            for rank in (0, len(workers) // 2, len(workers) - 1):
                climb(addressing, tree, rank, workers[rank], server, servers[server])
    assert 1 <= choose_window(addressing, trees, servers, FRAME) <= 64


def test_a_window_fills_the_way_up_all_levels() -> None:
    """To the top and back are three links each way."""
    topology, addressing = build(
        "defaults: {rate: 100 Mbit/s, delay: 50 ms, queue_bytes: 64 MiB}\n"
        "racks: [{workers: 1, servers: 1, count: 33}]\ncores: [2, 1]"
    )
    trees = plan((topology, addressing))
    window = choose_window(addressing, trees, [addressing.address("s0")], FRAME, most=1 << 14)
    in_flight = window * FRAME * 8
    assert 100e6 * 6 * 0.05 <= in_flight < 2 * 100e6 * (6 * 0.05 + 0.03)


def test_every_edge_of_a_deep_tree_carries_each_chunk_once_and_nothing_else_does() -> None:
    topology, addressing = build("racks: [{workers: 2, servers: 1, count: 40}]\ncores: [4, 2]")
    (tree,) = plan((topology, addressing))
    work = Workload((256 * 10,), 256, 3, 32)
    loads = expected(addressing, [tree], ["s0"], work)
    full = HEADER_FRAME_BYTES + 1024
    each = 10 * (3 * full + HEADER_FRAME_BYTES)
    assert {load.bytes for load in loads.values()} == {each}
    assert {load.packets for load in loads.values()} == {10 * 4}
    ends = Counter(way.node.rstrip("0123456789") for way in loads)
    # Up: 80 workers, 40 ToRs, 2 cores. Down: core4 to two, those to 40, ToRs to 80.
    assert ends == {"w": 80, "tor": 40 + 80, "core": 2 + 2 + 40}
    assert {way.node for way in loads if way.node.startswith("core")} == {"core0", "core1", "core4"}


def test_a_deep_tree_under_a_server_sends_it_one_sum() -> None:
    plant = build("racks: [{workers: 1, servers: 1, count: 40}]\ncores: [2, 1]")
    (tree,) = plan(plant, TreeKind.TWO_LEVEL_SERVER)
    work = Workload((256,), 256, 1, 32)
    loads = expected(plant[1], [tree], ["s0"], work)
    each = HEADER_FRAME_BYTES + 1024 + HEADER_FRAME_BYTES
    at_server = [way for way in loads if way.node == "s0"]
    assert [loads[way].bytes for way in at_server] == [each]
    # From the top down to the server's rack the sum goes beside the results, and the answer up.
    assert sorted({load.bytes for load in loads.values()}) == [each, 2 * each]
    assert sum(load.bytes for load in loads.values()) == each * 2 * (40 + 40 + 2 + 3)
