# SPDX-License-Identifier: Apache-2.0
"""Tests the controller against real switches: installed state, and its removal."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from controller.jobs.job import Job, JobError, Refusal, Role, State
from controller.jobs.registry import RETRY_SECONDS, JobTable
from controller.p4rt.connection import Connection, DeviceConnection, GrpcConnection, SwitchError
from controller.p4rt.entries import deletion, insertion, multicast_group
from controller.p4rt.fabric import Fabric
from controller.planning.tree_planner import TreeKind
from protocol import jobs_pb2
from protocol.header import PORT
from protocol.plan import Address
from tests.packet.controller.controller_rig import (
    KEYS,
    KINDS,
    SWITCHES,
    Clock,
    enter,
    entries,
    leave,
    run,
    switches,
    table,
    values,
)
from tests.packet.p4runtime.shell_client import ShellClient, needs_shell
from topologies.model.addressing import Addressing

__all__ = ["switches", "table"]  # fixtures


def test_switches_start_with_routes_guards_thresholds_and_impairments(switches: Fabric) -> None:
    plan = switches.addressing
    for name in SWITCHES:
        routes = {}
        for entry in entries(switches, name, "forwarding.routes"):
            prefix = int.from_bytes(entry.match[0].lpm.value, "big"), entry.match[0].lpm.prefix_len
            routes[IPv4Network(prefix)] = values(switches, entry)[1]["port"]
        found = {
            address: port
            for address in plan.destinations
            for prefix, port in routes.items()
            if address in prefix
        }
        assert found == {address: route.port for address, route in plan.routes(name).items()}
        assert len(routes) < len(found)
        thresholds = [
            values(switches, e)[1] for e in entries(switches, name, "congestion.thresholds")
        ]
        assert thresholds == [{"depth": 64 * 1024 // 1098}] * len(plan.ports(name))
    # An address and a deny for each link of a host (s2 has two). Ports of core0 are open.
    assert len(entries(switches, "tor0", "source_guard.sources")) == 2 + 2 + 2 + 2
    assert len(entries(switches, "tor1", "source_guard.sources")) == 2 + 2 + 2 + 2
    assert not entries(switches, "core0", "source_guard.sources")
    # Each impaired direction once: w0's at the ToR's arrival, both of tor1-core0 at departures.
    impaired = {
        (switch, way): [values(switches, e)[1] for e in entries(switches, switch, way)]
        for switch in SWITCHES
        for way in ("arrival.impairments", "departure.impairments")
    }
    (arrival,) = impaired.pop(("tor0", "arrival.impairments"))
    assert (arrival["loss"], arrival["duplicate"], arrival["reorder"]) == (2**31, 2**30, 0)
    (up,) = impaired.pop(("tor1", "departure.impairments"))
    (down,) = impaired.pop(("core0", "departure.impairments"))
    assert up["reorder"] == down["reorder"] == 2**29
    assert len({arrival["seed"], up["seed"], down["seed"]}) == 3
    assert not any(impaired.values())


def seeds_of_draws(fabric: Fabric) -> dict[tuple[str, str], int]:
    """By switch and table, of which there is one entry at most."""
    return {
        (switch, way): values(fabric, entry)[1]["seed"]
        for switch in SWITCHES
        for way in ("arrival.impairments", "departure.impairments")
        for entry in entries(fabric, switch, way)
    }


def test_draws_depend_on_seed_and_link_only(switches: Fabric) -> None:
    before = seeds_of_draws(switches)
    assert len(set(before.values())) == len(before) == 3
    topology = switches.topology
    for other in (replace(topology, name="renamed"), replace(topology, seed=6)):
        fabric = Fabric(other, Addressing(other), switches.dataplane, switches.connections)
        try:
            for name in SWITCHES:
                fabric.restore(name)
            found = seeds_of_draws(fabric)
        finally:
            for name in SWITCHES:
                switches.restore(name)
        assert found.keys() == before.keys()
        assert [found[one] == seed for one, seed in before.items()] == 3 * [other.seed == 5]
    assert seeds_of_draws(switches) == before


@pytest.mark.parametrize(
    ("kind", "workers", "servers"),
    [
        (TreeKind.TWO_LEVEL, "w0 w1 w2 w3", "s0 s1"),
        (TreeKind.TWO_LEVEL, "w3 w2", "s0"),
        (TreeKind.TOR, "w0 w2 w3", "s0 s1"),
        (TreeKind.CORE, "w0 w1", "s1"),
        (TreeKind.NONE, "w0 w3", "s0"),
    ],
)
def test_entries_of_a_job_follow_its_trees_and_go_with_it(
    table: JobTable, kind: TreeKind, workers: str, servers: str
) -> None:
    fabric = table.fabric
    job = run(table, kind, workers, servers)
    assert job.reservation is not None
    for switch in SWITCHES:
        nodes = [(t, n) for t in job.trees for n in t.nodes if n.switch == switch]
        children = [(t.stream, c) for t, n in nodes for c in n.children]
        found = [values(fabric, e) for e in entries(fabric, switch, "aggregation.nodes")]
        expected = []
        for tree, node in nodes:
            place = job.reservation.places[tree.stream, switch]
            given = {
                "base": place.base,
                "mask": 2 * job.reservation.window - 1,
                "full": 2 ** len(node.children) - 1,
                "group": place.group,
            }
            if node.parent is not None:
                given |= {
                    "parent_port": node.parent.port,
                    "parent_mac": int(node.parent.mac.replace(":", ""), 16),
                    "parent": node.parent.node,
                    "sender": node.parent.sender,
                    "address": int(fabric.addressing.switch_address(switch)),
                }
            expected.append(("root" if node.parent is None else "inner", given))
            (group,) = fabric.connections[switch].read([multicast_group(place.group, [])])
            replicas = group.packet_replication_engine_entry.multicast_group_entry.replicas
            assert sorted((r.egress_port, r.instance) for r in replicas) == sorted(
                (c.port, c.sender + 1) for c in node.children
            )
        assert sorted(found, key=str) == sorted(expected, key=str)
        found = [values(fabric, e) for e in entries(fabric, switch, "aggregation.children")]
        assert sorted(found, key=str) == sorted(
            (
                (
                    "worker" if c.rank is not None else "subtree",
                    {"source": int(c.address), "workers": c.workers},
                )
                for _, c in children
            ),
            key=str,
        )
        found = [values(fabric, e) for e in entries(fabric, switch, "receivers.children")]
        assert sorted(found, key=str) == sorted(
            (
                (
                    "address",
                    {
                        "destination": int(c.address),
                        "udp_port": PORT if c.rank is None else 5000 + c.rank,
                        "mac": int(c.mac.replace(":", ""), 16),
                        "node": c.node,
                    },
                )
                for _, c in children
            ),
            key=str,
        )
    leave(table, job)
    assert all(budget.used == 0 for budget in table.resources.budgets.values())


def test_two_jobs_share_switches_without_sharing_anything(table: JobTable) -> None:
    first = run(table, TreeKind.TWO_LEVEL, "w0 w1 w2 w3", "s0")
    second = table.create("other", ["w0", "w2"], ["s0"], TreeKind.TWO_LEVEL)
    address = table.fabric.addressing.address
    table.connect(second.nonce, Role.SERVER, 0, Address(int(address("s0")), PORT))
    for rank, name in enumerate(second.workers):
        table.connect(second.nonce, Role.WORKER, rank, Address(int(address(name)), 6000 + rank))
        table.init(second.nonce, rank, KEYS)
    assert second.state is State.RUNNING
    for switch in SWITCHES:
        nodes = [
            values(table.fabric, e)[1] for e in entries(table.fabric, switch, "aggregation.nodes")
        ]
        runs = [set(range(n["base"], n["base"] + n["mask"] + 1)) for n in nodes]
        assert len(runs) == 2
        assert runs[0].isdisjoint(runs[1])
        assert nodes[0]["group"] != nodes[1]["group"]
    leave(table, first)
    assert table.instruction(second.nonce, Role.SERVER, 0) is not None
    assert len(entries(table.fabric, "core0", "aggregation.nodes")) == 1
    leave(table, second)


def test_each_process_of_a_server_is_planned_for_where_it_listens(table: JobTable) -> None:
    job = run(table, TreeKind.TOR, "w0 w1", "s2")
    plan = table.fabric.addressing
    assert job.servers == ("s2.0", "s2.1")
    ways = []
    for tree in job.trees:
        (node,) = [node for node in tree.nodes if node.switch == "tor0"]
        assert node.parent is not None
        ways.append((tree.root.servers, plan.port("tor0", node.parent.port).peer))
    assert ways == [((0,), "core0"), ((1,), "s2")]
    result = table.instruction(job.nonce, Role.SERVER, 1)
    assert result is not None
    assert [(a.ipv4, a.port) for a in result.plan.servers] == [
        (int(end.ipv4), PORT) for end in plan.host_interfaces("s2")
    ]
    assert set(result.plan.callers) == {int(plan.address("s2"))}
    leave(table, job)


def test_failed_installation_is_rolled_back_and_reported(table: JobTable) -> None:
    job = table.create("digits", ["w0", "w2"], ["s0"], TreeKind.TWO_LEVEL)
    last = job.trees[0].nodes[-1].switch
    assert last is not None
    assert job.reservation is not None
    # Somebody else's group under the id that the last switch would get.
    stranger = multicast_group(job.reservation.places[0, last].group, [(1, 1)])
    table.fabric.connections[last].write([insertion(stranger)])
    with pytest.raises(JobError, match=f"could not be installed: {last}: .*ALREADY_EXISTS") as e:
        enter(table, job)
    assert e.value.refusal is Refusal.ABORTED
    assert job.state is State.FAILED
    assert not job.held
    for role in Role:
        with pytest.raises(JobError, match="could not be installed"):
            table.instruction(job.nonce, role, 0)
    table.fabric.remove(last, [stranger])


def what(table: JobTable, job: Job, rank: int) -> str | None:
    """What a worker is to do now."""
    result = table.instruction(job.nonce, Role.WORKER, rank)
    return result.WhichOneof("what") if result is not None else None


@pytest.mark.parametrize("reported", [True, False])
def test_job_start_waits_for_unreachable_switch(table: JobTable, reported: bool) -> None:
    """True if it is there again before it was missed, or its end was reported."""
    job = table.create("digits", ["w0", "w2"], ["s0"], TreeKind.TWO_LEVEL)
    connection = table.fabric.connections["tor1"]
    connection.close()
    try:
        if reported:
            table.outages.died("tor1", "was killed by SIGKILL", 0.0)
        enter(table, job)
        assert job.state is State.RUNNING
        assert what(table, job, 0) == "halt"
    finally:
        connection.open()
    table.outages.regained("tor1")
    assert not job.waiting
    lanes = table.fabric.dataplane.lanes
    for role, rank in ((Role.SERVER, 0), (Role.WORKER, 0), (Role.WORKER, 1)):
        levels = b"" if role is Role.SERVER else bytes(4 * job.chunks(lanes))
        report = jobs_pb2.ResyncRequest(epoch=job.epoch, report=jobs_pb2.Report(levels=levels))
        table.resync(job.nonce, role, rank, report)
    table.heartbeat(job.nonce, Role.SERVER, 0, job.epoch)
    assert what(table, job, 1) == "plan"
    assert len(entries(table.fabric, "tor1", "aggregation.nodes")) == 1
    leave(table, job)


def test_slots_stay_held_until_switch_confirms(table: JobTable) -> None:
    job = run(table, TreeKind.TWO_LEVEL, "w0 w2", "s0", window=16)
    connection = table.fabric.connections["tor1"]
    connection.close()
    try:
        leave(table, job)
        used = {name: budget.used for name, budget in table.resources.budgets.items()}
        assert used == {"core0": 0, "tor0": 0, "tor1": 32}
        other = table.create("digits", ["w2"], ["s0"], TreeKind.TWO_LEVEL, window=16)
        assert other.reservation is not None
        assert other.reservation.places[0, "tor1"].base != 0
        table.leave(other.nonce, Role.WORKER, 0)
    finally:
        connection.open()
    assert isinstance(table.clock, Clock)
    table.clock.now += RETRY_SECONDS
    table.expire()
    assert not job.held
    assert table.resources.budgets["tor1"].used == 0


def test_delete_of_missing_entry_is_ignored(table: JobTable) -> None:
    job = run(table, TreeKind.TWO_LEVEL, "w0 w1", "s0")
    read = table.fabric.connections["tor0"].read
    (node,) = read([table.fabric.dataplane.p4info.all_entries("aggregation.nodes")])
    node.table_entry.ClearField("action")
    table.fabric.connections["tor0"].write([deletion(node)])
    leave(table, job)
    assert not job.held


@pytest.mark.parametrize(
    "switches", [kind for kind in KINDS if kind != "in process"], indirect=True
)
@needs_shell
def test_the_operators_shell_can_read_while_the_controller_writes(switches: Fabric) -> None:
    connection = switches.connections["tor0"]
    assert isinstance(connection, GrpcConnection)
    shell = ShellClient(connection.device_id, connection.address, (0, 1))
    try:
        everything = switches.dataplane.p4info.all_entries("forwarding.routes")
        seen = [entity for reply in shell.read_one(everything) for entity in reply.entities]
        assert len(seen) == len(entries(switches, "tor0", "forwarding.routes"))
        entry = multicast_group(100, [])
        switches.connections["tor0"].write([insertion(entry)])
        switches.remove("tor0", [entry])
    finally:
        shell.tear_down()


def test_a_second_controller_is_refused(switches: Fabric) -> None:
    connection = switches.connections["tor0"]
    if isinstance(connection, DeviceConnection):
        second: Connection = DeviceConnection("tor0", connection.device)
    else:
        assert isinstance(connection, GrpcConnection)
        second = GrpcConnection("tor0", connection.address, connection.device_id)
    with pytest.raises(SwitchError, match=r"tor0: .*([Ee]lection[ _]id|another client is primary)"):
        second.open()
    # The first goes on as if nothing had been.
    entry = multicast_group(100, [])
    connection.write([insertion(entry)])
    switches.remove("tor0", [entry])


def test_missing_switch_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.p4rt.connection.CONNECT_SECONDS", 0.3)
    connection = GrpcConnection("tor5", f"unix:{tmp_path}/none", 1)
    with pytest.raises(SwitchError, match=r"tor5: P4Runtime at unix:.*none: no answer within"):
        connection.open()
