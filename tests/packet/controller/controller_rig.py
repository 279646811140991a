# SPDX-License-Identifier: Apache-2.0
"""A controller over real switches. Tests with its fixtures run against the embedded target
called in process, the same behind gRPC, and BMv2."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from controller.jobs.job import Job, Key, Role, State
from controller.jobs.registry import JobTable
from controller.p4rt.connection import Connection, DeviceConnection, GrpcConnection, SwitchError
from controller.p4rt.dataplane import DataPlane
from controller.p4rt.entries import Entity, P4Info, multicast_group
from controller.p4rt.fabric import Fabric
from controller.planning.tree_planner import TreeKind
from protocol.plan import Address
from specs.p4program import SOURCES
from switch.p4runtime.device import Device
from switch.p4runtime.service.server import serve
from switch.p4runtime.stubs import p4runtime_pb2
from tests.packet.thrift import free_port
from topologies.model.addressing import Addressing
from topologies.model.spec import parse

PROGRAM = SOURCES / "build" / "aggregation.json"
P4INFO = SOURCES / "build" / "aggregation.p4info.txtpb"
TOPOLOGY_TEXT = """\
name: small
seed: 5
racks: [{workers: 2, servers: 1}, {workers: 2, servers: 2}]
cores: 1
links:
  - {from: w0, to: tor0, loss: 0.5, duplicate: 0.25}
  - {ends: [tor1, core0], reorder: 0.125}
  - {ends: [s2, tor0], add: true}
"""
TOPOLOGY = parse(TOPOLOGY_TEXT)
SWITCHES = [node.name for node in TOPOLOGY.switches]
KEYS = [Key(0, "weight", 640)]
# What P4Runtime can read back. BMv2 does not answer a wildcard for multicast groups.
GROUPS = range(1, 5)

KINDS = [
    "in process",
    "embedded",
    pytest.param("bmv2", marks=pytest.mark.bmv2),
]


def start(kind: str, stack: ExitStack) -> dict[str, Connection]:
    """Starts switches without interfaces; returns connections that are not open yet."""
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rh-")))
    connections: dict[str, Connection] = {}
    for number, name in enumerate(SWITCHES, start=1):
        address = f"unix:{directory}/{name}"
        if kind == "bmv2":
            command = [str(shutil.which("simple_switch_grpc")), "-L", "off", "--no-p4"]
            command += ["--device-id", str(number), "--thrift-port", str(free_port())]
            process = subprocess.Popen([*command, "--", "--grpc-server-addr", address])
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
    """Provides a connected fabric."""
    with ExitStack() as stack:
        connections = start(request.param, stack)
        addressing = Addressing(TOPOLOGY)
        fabric = Fabric(TOPOLOGY, addressing, DataPlane.load(PROGRAM, P4INFO), connections)
        fabric.bring_up()
        stack.callback(fabric.close)
        yield fabric


class Clock:
    """A manual clock."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def table(switches: Fabric) -> Iterator[JobTable]:
    """Provides a job table on these switches and removes its jobs after the test."""
    before = state(switches)
    yield JobTable(switches, Clock(), lease=10, join=60)
    assert state(switches) == before


def state(fabric: Fabric) -> dict[str, set[bytes]]:
    """Returns all entries and multicast groups, by switch."""
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
    """Creates a job whose members have all connected."""
    job = table.create("digits", workers.split(), servers.split(), kind, **more)
    enter(table, job)
    return job


def enter(table: JobTable, job: Job) -> None:
    address, unit = table.fabric.addressing.address, table.fabric.addressing.unit
    for rank, name in enumerate(job.servers):
        at = Address(int(unit(name).address), unit(name).port)
        table.connect(job.nonce, Role.SERVER, rank, at)
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
