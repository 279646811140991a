# SPDX-License-Identifier: Apache-2.0
"""The controller against real switches: what it writes is there, and nothing is left behind.

Every test runs against the embedded target called in process, the same behind gRPC, and BMv2.
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
from p4.v1 import p4runtime_pb2
from p4runtime_sh.p4runtime import P4RuntimeClient

from controller.connection import Connection, DeviceConnection, GrpcConnection, SwitchError
from controller.dataplane import DataPlane
from controller.entries import Entity, P4Info, deletion, insertion, multicast_group
from controller.fabric import Fabric
from controller.job import Job, JobError, Key, Refusal, Role, State
from controller.jobs import RETRY_SECONDS, JobTable
from controller.service import JobServer, ServiceError
from controller.trees import TreeKind
from protocol import jobs_pb2, jobs_pb2_grpc
from protocol.header import PORT
from protocol.plan import Address, WorkerPlan
from switch.p4runtime import Device, serve
from testbed.dataplane import SOURCES
from topologies.addressing import Addressing
from topologies.spec import parse

pytestmark = pytest.mark.packet

PROGRAM = SOURCES / "build" / "aggregation.json"
P4INFO = SOURCES / "build" / "aggregation.p4info.txtpb"
TOPOLOGY_TEXT = """\
name: small
racks: [{workers: 2, servers: 1}, {workers: 2, servers: 1}]
cores: 1
links:
  - {from: w0, to: tor0, loss: 0.5, duplicate: 0.25}
  - {ends: [tor1, core0], reorder: 0.125}
  - {ends: [s0, tor1], add: true}
"""
TOPOLOGY = parse(TOPOLOGY_TEXT)
SWITCHES = [node.name for node in TOPOLOGY.switches]
KEYS = [Key(0, "weight", 640)]
# What P4Runtime can read back. BMv2 does not answer a wildcard for multicast groups.
GROUPS = range(1, 5)

KINDS = [
    "in process",
    "embedded",
    pytest.param(
        "bmv2",
        marks=[
            pytest.mark.bmv2,
            pytest.mark.skipif(
                shutil.which("simple_switch_grpc") is None, reason="BMv2 is not installed"
            ),
        ],
    ),
]


def free_port() -> int:
    """A TCP port that nobody has: BMv2 cannot do without one for Thrift."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def start(kind: str, stack: ExitStack) -> dict[str, Connection]:
    """Switches without interfaces, and connections to them that are not open yet."""
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rh-")))
    connections: dict[str, Connection] = {}
    for number, name in enumerate(SWITCHES, start=1):
        address = f"unix:{directory}/{name}"
        if kind == "bmv2":
            command = [str(shutil.which("simple_switch_grpc")), "-L", "off", "--no-p4"]
            command += ["--device-id", str(number), "--thrift-port", str(free_port())]
            process = subprocess.Popen(
                [*command, "--", "--grpc-server-addr", address],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
        else:
            device = Device(number)
            stack.callback(device.close)
            if kind == "in process":
                connections[name] = DeviceConnection(name, device)
                continue
            server = serve(device, address)
            stack.callback(server.stop)
        connections[name] = GrpcConnection(name, address, number)
    return connections


@pytest.fixture(scope="module", params=KINDS)
def switches(request: pytest.FixtureRequest) -> Iterator[Fabric]:
    """A fabric that is up."""
    with ExitStack() as stack:
        connections = start(request.param, stack)
        addressing = Addressing(TOPOLOGY)
        fabric = Fabric(TOPOLOGY, addressing, DataPlane.load(PROGRAM, P4INFO), connections)
        fabric.bring_up()
        stack.callback(fabric.close)
        yield fabric


class Clock:
    """Time that passes when told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def table(switches: Fabric) -> Iterator[JobTable]:
    """Jobs on those switches; nothing of them is left for the next test."""
    before = state(switches)
    yield JobTable(switches, Clock(), lease=10, join=60)
    assert state(switches) == before


def state(fabric: Fabric) -> dict[str, set[bytes]]:
    """All entries and multicast groups, by switch."""
    found = {}
    for name, connection in fabric.connections.items():
        entities = connection.read([P4Info(fabric.dataplane.p4info.message).all_entries()])
        for group in GROUPS:
            try:
                entities += connection.read([multicast_group(group, [])])
            except SwitchError as error:
                assert "NOT_FOUND" in str(error)  # noqa: PT017
        found[name] = {e.SerializeToString(deterministic=True) for e in map(comparable, entities)}
    return found


def comparable(entity: Entity) -> Entity:
    """Without what a target adds to an entry (BMv2: empty counters and controller data)."""
    result = Entity()
    result.CopyFrom(entity)
    if result.HasField("table_entry"):
        fields = sorted(result.table_entry.match, key=lambda field: field.field_id)
        del result.table_entry.match[:]
        result.table_entry.match.extend(fields)
    return result


def run(table: JobTable, kind: TreeKind, workers: str, servers: str, **more: int) -> Job:
    """A job whose members are all in."""
    job = table.create("digits", workers.split(), servers.split(), kind, **more)
    enter(table, job)
    return job


def enter(table: JobTable, job: Job) -> None:
    address = table.fabric.addressing.address
    for rank, name in enumerate(job.servers):
        table.connect(job.nonce, Role.SERVER, rank, Address(int(address(name)), PORT))
    for rank, name in enumerate(job.workers):
        table.connect(job.nonce, Role.WORKER, rank, Address(int(address(name)), 5000 + rank))
        table.init(job.nonce, rank, KEYS)


def leave(table: JobTable, job: Job) -> None:
    for rank in range(len(job.workers)):
        table.leave(job.nonce, Role.WORKER, rank)
    assert job.state is State.GONE


def entries(fabric: Fabric, switch: str, name: str) -> list[p4runtime_pb2.TableEntry]:
    read = fabric.connections[switch].read([fabric.dataplane.p4info.all_entries(name)])
    return [entity.table_entry for entity in read]


def values(fabric: Fabric, entry: p4runtime_pb2.TableEntry) -> tuple[str, dict[str, int]]:
    """Action name and parameters of an entry, by name."""
    info = fabric.dataplane.p4info.message
    (action,) = [a for a in info.actions if a.preamble.id == entry.action.action.action_id]
    names = {param.id: param.name for param in action.params}
    given = {names[p.param_id]: int.from_bytes(p.value, "big") for p in entry.action.action.params}
    return action.preamble.name.rsplit(".", 1)[-1], given


def test_switches_start_with_routes_guards_thresholds_and_impairments(switches: Fabric) -> None:
    plan = switches.addressing
    for name in SWITCHES:
        routes = {}
        for entry in entries(switches, name, "forwarding.routes"):
            assert entry.match[0].lpm.prefix_len == 32
            _, given = values(switches, entry)
            routes[int.from_bytes(entry.match[0].lpm.value, "big")] = given["port"]
        assert routes == {int(ip): route.port for ip, route in plan.routes(name).items()}
        thresholds = [
            values(switches, e)[1] for e in entries(switches, name, "congestion.thresholds")
        ]
        assert thresholds == [{"depth": 64 * 1024 // 1098}] * len(plan.ports(name))
    # tor0: an address and a deny for w0, w1; s0's two addresses and a deny; core0's port is open.
    assert len(entries(switches, "tor0", "source_guard.sources")) == 2 + 2 + 3
    assert len(entries(switches, "tor1", "source_guard.sources")) == 2 + 2 + 2 + 3
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
    assert up["seed"] != down["seed"]
    assert not any(impaired.values())


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


def test_a_server_with_two_links_is_planned_for_where_it_listens(table: JobTable) -> None:
    job = table.create("digits", ["w0", "w1"], ["s0"], TreeKind.TOR)
    (planned,) = [node for node in job.trees[0].nodes if node.switch == "tor0"]
    second = table.fabric.addressing.host_interfaces("s0")[1]
    table.connect(job.nonce, Role.SERVER, 0, Address(int(second.ipv4), PORT))
    for rank, name in enumerate(job.workers):
        address = int(table.fabric.addressing.address(name))
        table.connect(job.nonce, Role.WORKER, rank, Address(address, 5000))
        table.init(job.nonce, rank, KEYS)
    (node,) = [node for node in job.trees[0].nodes if node.switch == "tor0"]
    assert planned.parent is not None
    assert node.parent is not None
    assert table.fabric.addressing.port("tor0", planned.parent.port).peer == "s0"
    assert table.fabric.addressing.port("tor0", node.parent.port).peer == "core0"
    leave(table, job)


def test_a_failed_installation_leaves_nothing_and_tells_everyone(table: JobTable) -> None:
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


def test_slots_stay_taken_until_the_switch_has_confirmed(table: JobTable) -> None:
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


def test_deleting_what_is_gone_already_is_fine(table: JobTable) -> None:
    job = run(table, TreeKind.TWO_LEVEL, "w0 w1", "s0")
    read = table.fabric.connections["tor0"].read
    (node,) = read([table.fabric.dataplane.p4info.all_entries("aggregation.nodes")])
    node.table_entry.ClearField("action")
    table.fabric.connections["tor0"].write([deletion(node)])
    leave(table, job)
    assert not job.held


def test_the_operators_shell_can_read_while_the_controller_writes(switches: Fabric) -> None:
    connection = switches.connections["tor0"]
    if not isinstance(connection, GrpcConnection):
        pytest.skip("the shell needs gRPC")
    shell = P4RuntimeClient(connection.device_id, connection.address, (0, 1))
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


def test_a_switch_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.connection.CONNECT_SECONDS", 0.3)
    connection = GrpcConnection("tor5", f"unix:{tmp_path}/none", 1)
    with pytest.raises(SwitchError, match=r"tor5: P4Runtime at unix:.*none: no answer within"):
        connection.open()


def test_the_whole_job_service_over_its_socket(switches: Fabric, tmp_path: Path) -> None:
    before = state(switches)
    directory = tempfile.TemporaryDirectory(prefix="rh-")
    address = f"unix:{directory.name}/jobs"
    server = JobServer(JobTable(switches), address)
    with directory, grpc.insecure_channel(address) as channel:
        try:
            talk(jobs_pb2_grpc.JobServiceStub(channel), switches.addressing)
        finally:
            server.stop()
        assert not Path(directory.name, "jobs").exists()
    assert state(switches) == before


def talk(stub: jobs_pb2_grpc.JobServiceStub, addressing: Addressing) -> None:
    """Two workers and a server, from CreateService to the end of their plans."""
    request = jobs_pb2.CreateServiceRequest(
        namespace="digits",
        workers=[jobs_pb2.Member(host="w2", rank=1), jobs_pb2.Member(host="w0", rank=0)],
        servers=[jobs_pb2.Member(host="s0", rank=0)],
        tree=jobs_pb2.TWO_LEVEL,
    )
    created = stub.CreateService(request)
    with pytest.raises(grpc.RpcError) as caught:
        stub.CreateService(request)
    assert caught.value.code() is grpc.StatusCode.ALREADY_EXISTS
    watches = {}
    for role, rank, host, port in (
        (jobs_pb2.WORKER, 0, "w0", 5000),
        (jobs_pb2.WORKER, 1, "w2", 5001),
        (jobs_pb2.SERVER, 0, "s0", PORT),
    ):
        at = jobs_pb2.Address(ipv4=int(addressing.address(host)), port=port)
        who = {"nonce": created.nonce, "role": role, "rank": rank}
        reply = stub.ConnectService(jobs_pb2.ConnectServiceRequest(address=at, **who))
        assert (reply.job, reply.world, reply.lanes) == (created.job, 2, 256)
        watches[role, rank] = stub.Watch(jobs_pb2.WatchRequest(**who))
    for rank in (0, 1):
        key = jobs_pb2.Key(key=0, name="weight", elements=640)
        stub.InitService(jobs_pb2.InitServiceRequest(nonce=created.nonce, rank=rank, keys=[key]))
    server = (jobs_pb2.SERVER, 0)
    plans = {server: next(watches[server]).plan}
    stub.Heartbeat(
        jobs_pb2.HeartbeatRequest(
            nonce=created.nonce, role=jobs_pb2.SERVER, rank=0, epoch=plans[server].epoch
        )
    )
    plans |= {who: next(watch).plan for who, watch in watches.items() if who != server}
    assert WorkerPlan.from_message(plans[jobs_pb2.WORKER, 1]).rank == 1
    assert plans[jobs_pb2.SERVER, 0].windows[0] == plans[jobs_pb2.WORKER, 0].streams[0].window
    status = stub.Status(jobs_pb2.StatusRequest())
    (job,) = status.jobs
    assert (job.state, job.tree, job.world, job.connected) == ("running", "TWO_LEVEL", 2, 3)
    assert dict(job.slots) == {b.switch: b.used for b in status.budgets}
    for bad, code in (
        (jobs_pb2.HeartbeatRequest(nonce="0" * 32, role=jobs_pb2.WORKER), "PERMISSION_DENIED"),
        (jobs_pb2.HeartbeatRequest(nonce=created.nonce), "INVALID_ARGUMENT"),
        (
            jobs_pb2.HeartbeatRequest(nonce=created.nonce, role=jobs_pb2.SERVER, rank=1),
            "INVALID_ARGUMENT",
        ),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            stub.Heartbeat(bad)
        assert caught.value.code().name == code
        assert caught.value.details()
    for rank in (0, 1):
        stub.Leave(jobs_pb2.LeaveRequest(nonce=created.nonce, role=jobs_pb2.WORKER, rank=rank))
    assert all(list(watch) == [] for watch in watches.values())
    # A job that fails ends its watches with the reason.
    again = stub.CreateService(request)
    watch = stub.Watch(jobs_pb2.WatchRequest(nonce=again.nonce, role=jobs_pb2.SERVER, rank=0))
    stub.Leave(
        jobs_pb2.LeaveRequest(
            nonce=again.nonce, role=jobs_pb2.WORKER, rank=0, reason="out of memory"
        )
    )
    with pytest.raises(grpc.RpcError) as caught:
        next(watch)
    assert caught.value.code() is grpc.StatusCode.ABORTED
    assert "worker 0 (w0) gave up: out of memory" in caught.value.details()


def test_a_change_of_epoch_over_the_socket(switches: Fabric) -> None:
    table = JobTable(switches)
    with tempfile.TemporaryDirectory(prefix="rh-") as directory, ExitStack() as stack:
        address = f"unix:{directory}/jobs"
        server = JobServer(table, address)
        stack.callback(server.stop)
        channel = stack.enter_context(grpc.insecure_channel(address))
        stub = jobs_pb2_grpc.JobServiceStub(channel)
        job = run(table, TreeKind.TWO_LEVEL, "w0 w2", "s0")
        workers = [{"nonce": job.nonce, "role": jobs_pb2.WORKER, "rank": rank} for rank in (0, 1)]
        everyone = [*workers, {"nonce": job.nonce, "role": jobs_pb2.SERVER, "rank": 0}]
        watches = [stub.Watch(jobs_pb2.WatchRequest(**who)) for who in everyone]

        def beat() -> None:
            reply = stub.Heartbeat(jobs_pb2.HeartbeatRequest(epoch=job.epoch, **everyone[2]))
            assert reply.epoch == job.epoch

        assert next(watches[2]).plan.epoch == 1
        beat()
        assert [next(watch).plan.epoch for watch in watches[:2]] == [1, 1]
        broken = jobs_pb2.Broken(chunk=1, reason="checksum")
        stub.Resync(jobs_pb2.ResyncRequest(epoch=1, broken=broken, **workers[1]))
        assert job.epoch == 2
        told = [next(watch) for watch in watches]
        assert {i.halt.reason for i in told} == {"worker 1 (w2): chunk 1: checksum"}
        assert {instruction.epoch for instruction in told} == {2}
        report = jobs_pb2.Report(levels=bytes(5))
        with pytest.raises(grpc.RpcError) as caught:
            stub.Resync(jobs_pb2.ResyncRequest(epoch=2, report=report, **workers[0]))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        # 640 elements are three chunks; the second worker lacks a result of the last one.
        for who, last in zip(everyone, (1, 0, None), strict=True):
            levels = (
                b"" if last is None else b"".join(n.to_bytes(4, "little") for n in (1, 1, last))
            )
            report = jobs_pb2.Report(levels=levels)
            stub.Resync(jobs_pb2.ResyncRequest(epoch=2, report=report, **who))
        (want,) = next(watches[0]).hand.wants
        assert (want.chunk, want.level) == (2, 1)
        result = jobs_pb2.Result(chunk=2, level=1, header=bytes(32), payload=bytes(1024))
        handed = jobs_pb2.Handed(results=[result], last=True)
        stub.Resync(jobs_pb2.ResyncRequest(epoch=2, handed=handed, **workers[0]))
        assert list(next(watches[1]).take.results) == [result]
        # Whoever lost its connection is told again.
        watches[1] = stub.Watch(jobs_pb2.WatchRequest(**workers[1]))
        assert list(next(watches[1]).take.results) == [result]
        stub.Resync(jobs_pb2.ResyncRequest(epoch=2, taken=jobs_pb2.Taken(page=0), **workers[1]))
        assert next(watches[2]).plan.epoch == 2
        beat()
        assert [next(watch).plan.epoch for watch in watches[:2]] == [2, 2]
        levels = bytes(8) + (1).to_bytes(4, "little")
        leaving = jobs_pb2.LeaveRequest(results=[result], levels=levels, **workers[0])
        stub.Leave(leaving)
        assert list(job.kept.results.values()) == [result]
        stub.Leave(jobs_pb2.LeaveRequest(**workers[1]))
        assert all(list(watch) == [] for watch in watches)


def test_a_socket_in_use_is_not_taken_over(switches: Fabric, tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="rh-") as directory:
        address = f"unix:{directory}/jobs"
        server = JobServer(JobTable(switches), address)
        try:
            with pytest.raises(ServiceError, match="a process is listening there already"):
                JobServer(JobTable(switches), address)
        finally:
            server.stop()
        with pytest.raises(ServiceError, match="sockets allow 107"):
            JobServer(JobTable(switches), f"unix:{directory}/{'x' * 100}")
        with pytest.raises(ServiceError, match="listens on unix sockets"):
            JobServer(JobTable(switches), "127.0.0.1:5000")


@pytest.mark.parametrize("kind", KINDS[1:])
def test_the_process_says_when_it_is_ready_and_ends_when_told(kind: str, tmp_path: Path) -> None:
    topology = tmp_path / "small.yaml"
    topology.write_text(TOPOLOGY_TEXT)
    with ExitStack() as stack:
        connections = start(kind, stack)
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="rh-"))
        command = [sys.executable, "-m", "controller", "--topology", str(topology)]
        command += ["--program", str(PROGRAM), "--p4info", str(P4INFO)]
        command += ["--listen", f"unix:{directory}/jobs"]
        for name, connection in connections.items():
            assert isinstance(connection, GrpcConnection)
            command += ["--switch", f"{name}={connection.address},{connection.device_id}"]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=SOURCES.parent
        )
        stack.callback(process.kill)
        assert process.stdout is not None
        ready = process.stdout.readline()
        assert ready == f"ready unix:{directory}/jobs\n", process.communicate()[1]
        with grpc.insecure_channel(f"unix:{directory}/jobs") as channel:
            reply = jobs_pb2_grpc.JobServiceStub(channel).Status(jobs_pb2.StatusRequest())
            assert {budget.switch for budget in reply.budgets} == set(SWITCHES)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
        assert process.returncode == 0
        assert not Path(directory, "jobs").exists()


def test_the_process_says_why_it_cannot_start(tmp_path: Path) -> None:
    topology = tmp_path / "small.yaml"
    topology.write_text(TOPOLOGY_TEXT + "core: 1\n")
    command = [sys.executable, "-m", "controller", "--topology", str(topology)]
    command += ["--program", str(PROGRAM), "--p4info", str(P4INFO), "--listen", "unix:x"]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=SOURCES.parent, timeout=30)
    assert ended.returncode == 1
    assert f"{topology}:8: core: unknown field; allowed here: name, defaults" in ended.stderr
    assert not ended.stdout


def test_a_service_that_is_stopped_does_not_say_that_its_jobs_are_over(switches: Fabric) -> None:
    table = JobTable(switches)
    with tempfile.TemporaryDirectory(prefix="rh-") as directory:
        address = f"unix:{directory}/jobs"
        server = JobServer(table, address)
        with grpc.insecure_channel(address) as channel:
            stub = jobs_pb2_grpc.JobServiceStub(channel)
            job = run(table, TreeKind.TWO_LEVEL, "w0 w2", "s0")
            who = {"nonce": job.nonce, "role": jobs_pb2.SERVER, "rank": 0}
            watch = stub.Watch(jobs_pb2.WatchRequest(**who))
            assert next(watch).plan.epoch == 1
            server.stop()
            with pytest.raises(grpc.RpcError) as caught:
                next(watch)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "being stopped" in caught.value.details()
    assert not job.state.over
