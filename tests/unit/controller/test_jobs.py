# SPDX-License-Identifier: Apache-2.0
"""Tests the life cycle of a job and rejected calls. Jobs use servers only (tree NONE);
tests/packet/controller/test_controller.py has the switches."""

from __future__ import annotations

import pytest

from controller.jobs.job import Job, JobError, Key, Refusal, Role, State
from controller.jobs.journal import Journal
from controller.jobs.registry import JobTable
from controller.jobs.roster import REMEMBERED
from controller.p4rt.connection import DeviceConnection
from controller.p4rt.dataplane import DataPlane
from controller.p4rt.fabric import Fabric, FabricError
from controller.planning.admission import Admission
from controller.planning.tree_planner import TreeKind
from protocol import jobs_pb2
from protocol.header import PORT
from protocol.plan import Address, ServerPlan, WorkerPlan
from specs.p4program import SOURCES
from switch.p4runtime.device import Device
from topologies.model.addressing import Addressing
from topologies.model.spec import load, parse
from topologies.model.topology import Topology

KEYS = [Key(0, "weight", 640), Key(1, "bias", 10)]
TOPOLOGY = load(SOURCES.parent / "topologies" / "two-racks.yaml")
WORKERS = [node.name for node in TOPOLOGY.workers]
SERVERS = [node.name for node in TOPOLOGY.servers]


def fabric(topology: Topology, build: str = "aggregation") -> Fabric:
    """A fabric whose switches were never asked for anything."""
    files = SOURCES / "build"
    plane = DataPlane.load(files / f"{build}.json", files / f"{build}.p4info.txtpb")
    connections = {
        node.name: DeviceConnection(node.name, Device(number))
        for number, node in enumerate(topology.switches, start=1)
    }
    return Fabric(topology, Addressing(topology), plane, connections)


class Clock:
    """Time that passes on request."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Table(JobTable):
    """A table on the two-racks topology, with members' calls in short."""

    def __init__(self, journal: Journal | None = None) -> None:
        self.time = Clock()
        super().__init__(fabric(TOPOLOGY), self.time, lease=10, join=60, journal=journal)

    def new(self, namespace: str = "digits", **more: int) -> Job:
        return self.create(namespace, WORKERS[:2], SERVERS, TreeKind.NONE, **more)

    def enter(self, job: Job, place: str) -> None:
        """Connect a member ("w0" is worker rank 0), with keys if it is a worker."""
        role, rank = role_of(place)
        host = job.workers[rank] if role is Role.WORKER else job.servers[rank]
        address = Address(int(self.fabric.addressing.address(host)), port_of(place))
        self.connect(job.nonce, role, rank, address)
        if role is Role.WORKER:
            self.init(job.nonce, rank, KEYS)

    def running(self, namespace: str = "digits") -> Job:
        job = self.new(namespace)
        for place in ("s0", "w0", "s1", "w1"):
            self.enter(job, place)
        assert job.state is State.RUNNING
        return job


def plan(table: JobTable, job: Job, place: str) -> jobs_pb2.Plan | None:
    """The plan that a member has to run."""
    instruction = table.instruction(job.nonce, *role_of(place))
    if instruction is None:
        return None
    assert instruction.WhichOneof("what") == "plan"
    assert instruction.epoch == instruction.plan.epoch
    return instruction.plan


def role_of(place: str) -> tuple[Role, int]:
    return (Role.WORKER if place[0] == "w" else Role.SERVER), int(place[1:])


def port_of(place: str) -> int:
    return PORT if place[0] == "s" else 40000 + int(place[1:])


@pytest.fixture
def table() -> Table:
    return Table()


@pytest.mark.parametrize(("slice_bytes", "chunks"), [(0, 32), (8 << 10, 8), (1000, 1)])
def test_a_job_says_how_large_its_slices_are(table: Table, slice_bytes: int, chunks: int) -> None:
    job = table.new(slice_bytes=slice_bytes)
    for place in ("s0", "w0", "s1", "w1"):
        table.enter(job, place)
    for rank in range(2):
        table.heartbeat(job.nonce, Role.SERVER, rank, job.epoch)
    plans = [plan(table, job, place) for place in ("w0", "w1", "s0", "s1")]
    assert [one.chunks_per_slice for one in plans if one is not None] == [chunks] * 4


def test_plans_come_when_the_last_member_is_in(table: Table) -> None:
    job = table.new()
    for place in ("w0", "s0", "w1"):
        table.enter(job, place)
        assert job.state is State.WAITING
        assert plan(table, job, place) is None
    table.enter(job, "s1")
    assert job.state is State.RUNNING
    # A worker's chunk must find its server ready.
    table.heartbeat(job.nonce, Role.SERVER, 0, job.epoch)
    assert plan(table, job, "w1") is None
    table.heartbeat(job.nonce, Role.SERVER, 1, job.epoch)
    message = plan(table, job, "w1")
    assert message is not None
    result = WorkerPlan.from_message(message)
    address = table.fabric.addressing.address
    servers = tuple(Address(int(address(name)), PORT) for name in SERVERS)
    assert (result.job, result.world, result.rank, result.lanes) == (1, 2, 1, 256)
    assert result.epoch > 0
    assert result.servers == servers
    assert (result.link_rate, result.chunks_per_slice) == (20_000_000, 32)
    (stream,) = result.streams
    assert (stream.sender, stream.window) == (1, job.reservation.window if job.reservation else 0)
    for rank in range(2):
        message = plan(table, job, f"s{rank}")
        assert message is not None
        server = ServerPlan.from_message(message)
        assert server.workers == tuple(Address(int(address(f"w{n}")), 40000 + n) for n in range(2))
        (root,) = server.roots
        # Both servers share the stream's root: the workers know it by one node id.
        assert root.node == stream.node
        assert [child.address for child in root.children] == list(server.workers)
        assert server.windows == {0: stream.window}


def test_a_job_is_gone_when_its_last_worker_has_left(table: Table) -> None:
    job = table.running()
    table.leave(job.nonce, Role.WORKER, 0)
    assert job.state is State.LEAVING
    table.heartbeat(job.nonce, Role.SERVER, 0)
    table.leave(job.nonce, Role.WORKER, 1)
    assert job.state is State.GONE
    assert not job.held
    assert plan(table, job, "s0") is None
    table.leave(job.nonce, Role.SERVER, 0)  # late, and fine
    with pytest.raises(JobError, match="is over: all workers have left"):
        table.heartbeat(job.nonce, Role.SERVER, 0)
    again = table.running()
    assert again.number != job.number or again.epoch != job.epoch


def test_a_member_that_gives_up_fails_the_job(table: Table) -> None:
    job = table.running()
    table.leave(job.nonce, Role.WORKER, 1, "NaN in the loss")
    assert job.state is State.FAILED
    assert not job.held
    says = r"worker 1 \(w1\) gave up: NaN in the loss"
    for role in Role:  # everyone learns why, whatever it calls
        with pytest.raises(JobError, match=says) as caught:
            table.instruction(job.nonce, role, 0)
        assert caught.value.refusal is Refusal.ABORTED
        with pytest.raises(JobError, match=says):
            table.heartbeat(job.nonce, role, 0)


def test_a_job_whose_members_do_not_come_fails(table: Table) -> None:
    job = table.new()
    table.enter(job, "w0")
    for _ in range(61):
        table.time.now += 1
        table.heartbeat(job.nonce, Role.WORKER, 0)
        table.expire()
    assert job.state is State.FAILED
    assert job.reason == "not in after 60 s: worker 1 (w1), server 0 (s0), server 1 (s1)"


def test_workers_keys_must_be_equal(table: Table) -> None:
    job = table.new()
    table.enter(job, "w0")
    address = Address(int(table.fabric.addressing.address("w1")), 40001)
    table.connect(job.nonce, Role.WORKER, 1, address)
    for keys, says in (
        ([KEYS[0], Key(1, "bias", 11)], r"worker 1 \(w1\) has key 1 \('bias'\) of 11 elements"),
        ([KEYS[0]], "has 1 key, workers before it have 2"),
        ([], "0 keys; allowed: 1 to"),
        ([Key(0, "weight", 0)], "no elements"),
        ([KEYS[0], KEYS[0]], "key 0 is given twice"),
        ([Key(0, "huge", 2**45)], "chunks; allowed: 2097152, 536870912 elements"),
    ):
        with pytest.raises(JobError, match=says) as caught:
            table.init(job.nonce, 1, keys)
        assert caught.value.refusal is Refusal.INVALID_ARGUMENT
    table.init(job.nonce, 1, KEYS)  # nothing is spoilt


@pytest.mark.parametrize(
    ("change", "refusal", "says"),
    [
        ({"namespace": "a/b"}, Refusal.INVALID_ARGUMENT, "namespace 'a/b': 1 to 63"),
        ({"workers": ["w0", "w9"]}, Refusal.INVALID_ARGUMENT, "worker 'w9' is no host of"),
        ({"workers": ["tor0"]}, Refusal.INVALID_ARGUMENT, r"hosts: w0\.\.w7, s0, s1"),
        ({"workers": ["w0", "w0"]}, Refusal.INVALID_ARGUMENT, "w0: named twice"),
        ({"workers": []}, Refusal.INVALID_ARGUMENT, "no workers"),
        ({"servers": []}, Refusal.INVALID_ARGUMENT, "no servers"),
        ({"slice_bytes": 1 << 30}, Refusal.INVALID_ARGUMENT, "slices of 1073741824 bytes; allowed"),
        ({"window": 48}, Refusal.INVALID_ARGUMENT, "window 48: a power of two"),
        ({"streams": 257}, Refusal.INVALID_ARGUMENT, "257 streams"),
        ({"namespace": "digits"}, Refusal.ALREADY_EXISTS, "'digits' is alive"),
        ({"window": 8192, "kind": TreeKind.TWO_LEVEL}, Refusal.RESOURCE_EXHAUSTED,
         "a window of 4096 would fit now"),
        ({"kind": TreeKind.CORE}, Refusal.RESOURCE_EXHAUSTED, "pass no core"),
    ],
)  # fmt: skip
def test_create_errors(
    table: Table, change: dict[str, object], refusal: Refusal, says: str
) -> None:
    table.new("digits")
    usual: dict[str, object] = {
        "namespace": "new",
        "workers": WORKERS,
        "servers": SERVERS,
        "kind": TreeKind.NONE,
    }
    with pytest.raises(JobError, match=says) as caught:
        table.create(**{**usual, **change})  # type: ignore[arg-type]
    assert caught.value.refusal is refusal
    assert all(budget.used == 0 for budget in table.resources.budgets.values())


@pytest.mark.parametrize(
    ("place", "rank", "address", "says"),
    [
        ("w0", 2, "10.0.0.1:5000", "has workers 0 to 1, not 2"),
        ("w0", 0, "10.0.0.2:5000", "cannot listen at 10.0.0.2:5000; w0 has 10.0.0.1"),
        ("w0", 0, "10.0.0.1:0", "UDP port 0 is not in 1 to 65535"),
        ("s0", 0, "10.0.1.1:5000", "s0 listens at UDP port 47110"),
        ("w0", 0, "10.0.0.1:47119", "UDP port 47119 is one of servers'"),
        ("w1", 1, "10.0.0.2:5001", "is connected already, from 10.0.0.2:40001"),
    ],
)
def test_connect_errors(table: Table, place: str, rank: int, address: str, says: str) -> None:
    job = table.new()
    table.enter(job, "w1")
    host, _, port = address.partition(":")
    with pytest.raises(JobError, match=says):
        table.connect(job.nonce, role_of(place)[0], rank, Address.of(host, int(port)))
    assert len(job.members) == 1


def test_calls_need_the_jobs_own_nonce(table: Table) -> None:
    job = table.running()
    other = table.new("other")
    assert job.nonce != other.nonce
    for nonce in ("", "0" * 32, job.nonce[:-1], job.nonce + "0", "ü"):
        for call in (
            lambda nonce: table.instruction(nonce, Role.WORKER, 0),
            lambda nonce: table.heartbeat(nonce, Role.WORKER, 0),
            lambda nonce: table.resync(nonce, Role.WORKER, 0, jobs_pb2.ResyncRequest()),
            lambda nonce: table.leave(nonce, Role.WORKER, 0, "mine now"),
            lambda nonce: table.init(nonce, 0, KEYS),
        ):
            with pytest.raises(JobError) as caught:
                call(nonce)
            assert caught.value.refusal is Refusal.PERMISSION_DENIED
    assert job.state is State.RUNNING
    with pytest.raises(JobError, match="is not connected; call ConnectService first"):
        table.heartbeat(other.nonce, Role.WORKER, 0)


def test_slots_are_held_from_admission_to_the_end(table: Table) -> None:
    jobs = []
    # 8192 slots per switch: windows of 1024 take a quarter each.
    for number in range(4):
        jobs.append(table.create(f"job{number}", WORKERS, SERVERS, TreeKind.TWO_LEVEL, window=1024))
    with pytest.raises(JobError, match="no window fits until a job ends"):
        table.create("job4", WORKERS, SERVERS, TreeKind.TWO_LEVEL)
    table.leave(jobs[1].nonce, Role.WORKER, 0)
    assert jobs[1].state is State.FAILED
    # Asked for no window in particular, a job takes what is left.
    small = table.create("job4", WORKERS, SERVERS, TreeKind.TWO_LEVEL)
    assert small.reservation is not None
    assert small.reservation.window == 64
    assert small.reservation.slots() == {"core0": 128, "tor0": 128, "tor1": 128}


def test_without_room_a_job_is_refused_or_runs_on_its_servers_as_it_asks(table: Table) -> None:
    full = table.create("full", WORKERS, SERVERS, TreeKind.TWO_LEVEL, window=4096)
    with pytest.raises(
        JobError, match="with admission servers it would run without switches"
    ) as no:
        table.create("other", WORKERS, SERVERS, TreeKind.TWO_LEVEL)
    assert no.value.refusal is Refusal.RESOURCE_EXHAUSTED
    servers = Admission.SERVERS
    other = table.create("other", WORKERS, SERVERS, TreeKind.TWO_LEVEL, admission=servers)
    assert (other.kind, other.scheme.kind, other.slots) == (TreeKind.NONE, TreeKind.NONE, {})
    # Only room is what that is about.
    with pytest.raises(JobError, match="pass no core"):
        table.create("wrong", WORKERS, SERVERS, TreeKind.CORE, admission=servers)
    table.leave(full.nonce, Role.WORKER, 0)
    third = table.create("third", WORKERS, SERVERS, TreeKind.TWO_LEVEL, admission=servers)
    assert third.kind is TreeKind.TWO_LEVEL


def test_finished_jobs_are_remembered_for_a_while_and_numbers_move_on(table: Table) -> None:
    seen = set()
    for _ in range(REMEMBERED + 3):
        job = table.new()
        assert job.number != 0
        assert job.epoch != 0
        seen.add((job.number, job.epoch))
        table.leave(job.nonce, Role.WORKER, 0)
    assert len(seen) == REMEMBERED + 3
    assert len(table.jobs()) == REMEMBERED


def test_chunks_have_to_fit_the_links() -> None:
    with pytest.raises(FabricError, match="link w0-tor0 has MTU 1500, but a chunk of 2048 lanes"):
        fabric(TOPOLOGY, "aggregation_jumbo")
    jumbo = parse("name: j\ndefaults: {mtu: 9000}\nracks: [{workers: 1, servers: 1}]\n")
    assert fabric(jumbo, "aggregation_jumbo").dataplane.lanes == 2048


def test_a_fabric_needs_a_connection_for_each_switch() -> None:
    full = fabric(TOPOLOGY)
    some = {"tor0": full.connections["tor0"], "tor7": full.connections["tor1"]}
    with pytest.raises(FabricError, match="missing: core0, tor1, unknown: tor7"):
        Fabric(TOPOLOGY, full.addressing, full.dataplane, some)


def test_servers_need_memory_for_payloads_only() -> None:
    """1,024 workers with a window of 2^12: 8 GiB of payloads and more at the server, or nothing."""
    racks = "[{workers: 32, servers: 1}, {workers: 32, count: 31}]"
    many = parse(f"name: many\nracks: {racks}\ncores: 1\n")
    names = [node.name for node in many.workers], ["s0"]
    summing = JobTable(fabric(many))
    with pytest.raises(JobError, match=r"chunks of 1024 workers in 8192 slots need 8200 MiB at"):
        summing.create("much", *names, TreeKind.TWO_LEVEL, window=1 << 12)
    occupying = JobTable(fabric(many, "aggregation_headers"))
    assert occupying.create("much", *names, TreeKind.TWO_LEVEL, window=1 << 12).trees
