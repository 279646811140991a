# SPDX-License-Identifier: Apache-2.0
"""Tests the controller's handling of switches that are disconnected, restarted, reprogrammed or
dead while a job runs, behind gRPC. BMv2 is used where a process is killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from controller.jobs.job import Job, Role, State
from controller.jobs.journal import Journal
from controller.jobs.registry import JobTable
from controller.p4rt.connection import GrpcConnection, SwitchError
from controller.p4rt.dataplane import DataPlane
from controller.p4rt.entries import bare, deletion, insertion, multicast_group
from controller.p4rt.fabric import Fabric
from controller.planning.tree_planner import TreeKind
from controller.service.monitor import Monitor
from protocol import jobs_pb2
from switch.p4runtime.device import Device
from switch.p4runtime.service.server import Server, serve
from tests.packet.controller.controller_rig import P4INFO, PROGRAM, Clock, enter, entries, values
from tests.packet.thrift import free_port
from topologies.model.addressing import Addressing
from topologies.model.spec import parse
from topologies.model.topology import Topology

TEXT = """\
name: two-cores
racks: [{workers: 2, servers: 1}, {workers: 2, servers: 1}]
cores: %d
"""


class Plant:
    """Switches that can be stopped and started, each at its socket, and what controls them."""

    def __init__(self, topology: Topology, kind: str, stack: ExitStack) -> None:
        self.kind = kind
        self.directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rh-")))
        self.names = [node.name for node in topology.switches]
        self.devices: dict[str, Device] = {}
        self.servers: dict[str, Server] = {}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.running: dict[str, ExitStack] = {}
        stack.callback(lambda: [self.stop(name) for name in list(self.running)])
        for name in self.names:
            self.start(name)
        self.topology = topology
        self.clock = Clock()
        self.control()
        stack.callback(lambda: self.kill_controller())

    def control(self) -> None:
        """Start a controller, as the process does."""
        connections = {
            name: GrpcConnection(name, self.address(name), self.number(name)) for name in self.names
        }
        plane = DataPlane.load(PROGRAM, P4INFO)
        addressing = Addressing(self.topology)
        self.fabric = Fabric(self.topology, addressing, plane, dict(connections))
        self.journal = Journal(self.directory / "journal")
        term = self.journal.next_term()
        self.fabric.addressing = addressing.without(self.journal.gone())
        self.fabric.bring_up(keep=term > 1, term=term)
        self.table = JobTable(self.fabric, self.clock, lease=1e6, journal=self.journal)
        # A process that was just started may take a second or two.
        self.monitor = Monitor(self.table, answer=5.0 if self.kind == "bmv2" else 1.0)

    def kill_controller(self) -> None:
        """Nothing is said to anybody; the journal is as it is."""
        self.fabric.close()
        self.journal.close()

    def address(self, name: str) -> str:
        return f"unix:{self.directory}/{name}"

    def number(self, name: str) -> int:
        return self.names.index(name) + 1

    def start(self, name: str) -> None:
        """A switch without a program."""
        self.running[name] = stack = ExitStack()
        if self.kind == "embedded":
            self.devices[name] = Device(self.number(name))
            stack.callback(self.devices[name].close)
            self.serve_again(name)
            return
        command = [str(shutil.which("simple_switch_grpc")), "-L", "off", "--no-p4"]
        command += ["--device-id", str(self.number(name)), "--thrift-port", str(free_port())]
        process = subprocess.Popen([*command, "--", "--grpc-server-addr", self.address(name)])
        stack.callback(process.wait)
        stack.callback(process.kill)
        self.processes[name] = process

    def cut(self, name: str) -> None:
        """The embedded target forwards, but accepts no calls."""
        self.servers.pop(name).stop()

    def serve_again(self, name: str) -> None:
        self.servers[name] = serve(self.devices[name], self.address(name))

    def stop(self, name: str) -> None:
        """It is not there any more."""
        if name in self.servers:
            self.cut(name)
        self.running.pop(name).close()
        Path(self.directory, name).unlink(missing_ok=True)

    def restart(self, name: str) -> None:
        self.stop(name)
        self.start(name)

    def mend(self, name: str) -> None:
        """Look after a switch; a cut connection may be noticed only when it is used."""
        assert any(self.monitor.look(name) for _ in range(3))

    def train(self, kind: TreeKind = TreeKind.TWO_LEVEL, **more: int) -> Job:
        """A job of all workers, which run its plan."""
        job = self.table.create("digits", ["w0", "w1", "w2", "w3"], ["s0", "s1"], kind, **more)
        enter(self.table, job)
        self.serve(job)
        return job

    def serve(self, job: Job) -> None:
        for rank in job.scheme.servers:
            self.table.heartbeat(job.nonce, Role.SERVER, rank, job.epoch)

    def follow(self, job: Job) -> None:
        """All members do their part of a change, with nothing in flight."""
        for place in job.scheme.places:
            request = jobs_pb2.ResyncRequest(epoch=job.epoch, report=jobs_pb2.Report())
            self.table.resync(job.nonce, place.role, place.rank, request)
        self.serve(job)
        for place in job.scheme.places:
            instruction = self.table.instruction(job.nonce, place.role, place.rank)
            assert instruction is not None
            assert instruction.plan.epoch == job.epoch
            self.table.heartbeat(job.nonce, place.role, place.rank, job.epoch)

    def stuck(self, job: Job, seconds: float) -> None:
        """Worker 0 gets no answer any more."""
        self.table.heartbeat(job.nonce, Role.WORKER, 0, job.epoch, seconds)
        self.table.expire()

    def roots(self, job: Job) -> list[str | None]:
        return [tree.root.switch for tree in job.trees]

    def epochs(self, name: str) -> list[int]:
        """Epochs of the nodes that a switch has."""
        (field,) = [
            f.id
            for f in self.fabric.dataplane.p4info.table("aggregation.nodes").match_fields
            if f.name == "epoch"
        ]
        return sorted(
            int.from_bytes(match.exact.value, "big")
            for entry in entries(self.fabric, name, "aggregation.nodes")
            for match in entry.match
            if match.field_id == field
        )

    def whole(self) -> bool:
        """True if every switch has what it should have of routes and running jobs, and no more."""
        for name in self.names:
            table = self.fabric.dataplane.p4info.all_entries("aggregation.nodes")
            nodes = self.fabric.connections[name].read([table])
            wanted = sum(
                node.switch == name
                for job in self.table.jobs()
                if job.started
                for tree in job.trees
                for node in tree.nodes
            )
            if len(nodes) != wanted or not self.table.outages.intact(name, 5):
                return False
        return True


KINDS = [
    "embedded",
    pytest.param("bmv2", marks=pytest.mark.bmv2),
]


@pytest.fixture(params=KINDS)
def plant(request: pytest.FixtureRequest) -> Iterator[Plant]:
    """Two racks, two cores, on each target."""
    with ExitStack() as stack:
        yield Plant(parse(TEXT % 2), request.param, stack)


@pytest.fixture
def embedded() -> Iterator[Plant]:
    with ExitStack() as stack:
        yield Plant(parse(TEXT % 2), "embedded", stack)


@pytest.fixture
def one_core() -> Iterator[Plant]:
    with ExitStack() as stack:
        yield Plant(parse(TEXT % 1), "embedded", stack)


def test_another_plan_takes_the_place_of_the_old_one(plant: Plant) -> None:
    job = plant.train(streams=2)
    assert plant.roots(job) == ["core0", "core1"]
    plant.table.replan(job, "one stream", window=8, streams=1)
    plant.follow(job)
    assert plant.roots(job) == ["core0"]
    assert plant.whole()
    assert (plant.epochs("tor0"), plant.epochs("core1")) == ([2], [])
    plant.table.replan(job, "elsewhere", avoid=["core0"])
    plant.follow(job)
    assert plant.roots(job) == ["core1"]
    assert plant.whole()
    assert plant.epochs("core1") == [3]
    plant.table.replan(job, "no switch", kind=TreeKind.NONE)
    plant.follow(job)
    assert plant.roots(job) == [None]
    assert plant.whole()
    assert all(budget.used == 0 for budget in plant.table.resources.budgets.values())


def test_restarted_switch_is_restored_in_new_epoch(plant: Plant) -> None:
    job = plant.train()
    for name in ("core0", "tor1"):
        before = job.epoch
        plant.restart(name)
        plant.mend(name)
        assert job.epoch == before + 1
        plant.follow(job)
        assert plant.roots(job) == ["core0"]
        assert plant.whole()
        assert plant.monitor.look(name)
        assert job.epoch == before + 1


def test_foreign_pipeline_push_is_detected(plant: Plant) -> None:
    job = plant.train()
    stranger = GrpcConnection("tor0", plant.address("tor0"), plant.number("tor0"))
    stranger.term = 9
    stranger.open()
    plane = plant.fabric.dataplane
    stranger.push(plane.p4info.message, plane.device_config)
    stranger.close()
    # Somebody else was primary, with a higher election id: the first write is refused.
    plant.mend("tor0")
    assert job.epoch == 2
    plant.follow(job)
    assert plant.whole()


def test_reconnect_without_restart_changes_nothing(embedded: Plant) -> None:
    job = embedded.train()
    embedded.cut("core0")
    assert not embedded.monitor.look("core0")
    embedded.table.expire()
    assert embedded.table.fabric.unwritable == {"core0"}
    embedded.serve_again("core0")
    assert embedded.monitor.look("core0")
    assert (job.epoch, job.change) == (1, None)
    assert embedded.whole()


def test_dead_core_is_avoided_until_it_returns(plant: Plant) -> None:
    job = plant.train()
    plant.stop("core0")
    assert not plant.monitor.look("core0")
    plant.stuck(job, 2.5)
    assert job.epoch == 1
    plant.stuck(job, 3.5)
    assert job.epoch == 2
    assert plant.roots(job) == ["core1"]
    itself = plant.fabric.addressing.switch_address("core0")
    for name in ("tor0", "tor1"):
        (towards,) = plant.fabric.addressing.ports_between(name, "core0")
        routes = entries(plant.fabric, name, "forwarding.routes")
        ports = [values(plant.fabric, entry)[1]["port"] for entry in routes]
        through = [
            (int.from_bytes(entry.match[0].lpm.value, "big"), entry.match[0].lpm.prefix_len)
            for entry, port in zip(routes, ports, strict=True)
            if port == towards.number
        ]
        assert through == [(int(itself), 32)]  # there is no other way to it
    assert plant.monitor.look("tor0")
    plant.follow(job)
    plant.stuck(job, 0)
    assert job.epoch == 2
    # Its places are held, in case it still has the entries.
    assert plant.table.resources.budgets["core0"].used
    plant.start("core0")
    assert plant.monitor.look("core0")
    assert job.epoch == 3
    plant.follow(job)
    assert plant.roots(job) == ["core0"]
    assert plant.whole()
    used = {name: budget.used for name, budget in plant.table.resources.budgets.items()}
    assert used == {"core1": 0, **job.slots}


def test_job_waits_without_path_and_reports_it(one_core: Plant) -> None:
    job = one_core.train()
    one_core.stop("core0")
    assert not one_core.monitor.look("core0")
    one_core.stuck(job, 4)
    assert job.state is State.RUNNING
    assert job.status.startswith("waits: tree TWO_LEVEL: no way from ")
    assert "without core0" in job.status
    for place in job.scheme.places:
        request = jobs_pb2.ResyncRequest(epoch=job.epoch, report=jobs_pb2.Report())
        one_core.table.resync(job.nonce, place.role, place.rank, request)
        instruction = one_core.table.instruction(job.nonce, place.role, place.rank)
        assert instruction is not None
        assert instruction.WhichOneof("what") == "halt"
    one_core.start("core0")
    assert one_core.monitor.look("core0")
    one_core.follow(job)
    assert job.status == ""
    assert one_core.roots(job) == ["core0"]
    assert one_core.whole()


def test_held_members_do_not_mark_switch_dead(
    one_core: Plant,
) -> None:
    """They send no queries meanwhile, and what they wait for is a ToR: the core only lost its
    connection, and sums can be made behind it as soon as the ToR is back."""
    job = one_core.train()
    one_core.cut("core0")
    assert not one_core.monitor.look("core0")
    one_core.table.outages.died("tor0", "was killed", one_core.clock())
    assert "without tor0" in job.waiting
    one_core.table.heartbeat(job.nonce, Role.WORKER, 0, 1, 60.0)
    one_core.table.expire()
    assert one_core.table.fabric.addressing.missing == {"tor0"}
    one_core.restart("tor0")
    one_core.mend("tor0")
    one_core.table.heartbeat(job.nonce, Role.WORKER, 0, 1, 60.0)
    one_core.table.expire()
    one_core.follow(job)
    assert job.waiting == ""
    assert one_core.roots(job) == [None, None]


def test_a_tor_out_of_reach_takes_no_part_in_new_plans_but_forwards(embedded: Plant) -> None:
    job = embedded.train()
    embedded.stop("tor1")
    assert not embedded.monitor.look("tor1")
    embedded.table.leave(job.nonce, Role.SERVER, 1)
    # Its ToR cannot be written: the servers sum, and the switch is just passed.
    assert job.scheme.kind is TreeKind.NONE
    assert job.waiting == ""
    embedded.follow(job)
    embedded.start("tor1")
    assert embedded.monitor.look("tor1")
    assert job.scheme.kind is TreeKind.TWO_LEVEL
    embedded.follow(job)
    assert embedded.whole()


def test_switch_rejecting_entries_is_avoided(plant: Plant) -> None:
    job = plant.train()
    # Somebody else's entry under a key that the next epoch needs in core0.
    key = {"job": job.number, "epoch": 2, "stream": 0, "child": 1}
    given = {"destination": 1, "udp_port": 1, "mac": 1, "node": 0}
    stranger = plant.fabric.dataplane.p4info.table_entry(
        "receivers.children", key, "address", given
    )
    plant.fabric.connections["core0"].write([insertion(stranger)])
    plant.table.replan(job, "x")
    assert (job.epoch, plant.roots(job)) == (3, ["core1"])
    plant.follow(job)
    assert plant.whole()
    assert plant.table.resources.budgets["core0"].used == 0


def test_entries_of_no_job_go_when_a_switch_is_mended(plant: Plant) -> None:
    job = plant.train()
    info = plant.fabric.dataplane.p4info
    connection = plant.fabric.connections["tor0"]
    key = {"job": 77, "epoch": 5, "stream": 0, "node": 1}
    given = {"base": 0, "mask": 1, "full": 1, "group": 9}
    node = info.table_entry("aggregation.nodes", key, "root", given)
    connection.write([insertion(multicast_group(9, [(1, 1)]))])
    connection.write([insertion(node)])
    assert plant.monitor.look("tor0")
    assert job.epoch == 1
    (route, *_) = connection.read([info.all_entries("forwarding.routes")])
    connection.write([deletion(bare(route))])
    assert plant.monitor.look("tor0")
    assert job.epoch == 1  # its own entries were all there
    assert plant.whole()
    with pytest.raises(SwitchError) as caught:
        connection.read([multicast_group(9, ())])
    assert caught.value.not_found
    # Its own node is missed.
    (node,) = connection.read([info.all_entries("aggregation.nodes")])
    connection.write([deletion(bare(node))])
    assert plant.monitor.look("tor0")
    assert plant.epochs("tor0") == [2]
    plant.follow(job)
    assert plant.whole()


def test_the_monitor_finds_faults_by_itself(plant: Plant) -> None:
    job = plant.train()
    changed = plant.table.changed
    plant.monitor.start()
    try:
        for name in ("core0", "tor0"):
            before = job.epoch
            plant.restart(name)
            with changed:
                assert changed.wait_for(lambda n=before: job.epoch > n, timeout=30)
            with changed:
                assert changed.wait_for(lambda: not plant.fabric.down, timeout=30)
            plant.follow(job)
            assert plant.whole()
    finally:
        plant.monitor.stop()


@pytest.mark.bmv2
def test_hanging_switch_is_excluded_until_it_recovers() -> None:
    with ExitStack() as stack:
        plant = Plant(parse(TEXT % 2), "bmv2", stack)
        job = plant.train()
        plant.monitor.answer = 0.5
        core = plant.processes["core0"]
        core.send_signal(signal.SIGSTOP)
        # Its threads stop one after the other.
        os.waitid(os.P_PID, core.pid, os.WSTOPPED | os.WNOWAIT)
        assert plant.fabric.connections["core0"].alive
        assert not plant.monitor.look("core0")
        assert job.epoch == 1
        plant.table.replan(job, "for another reason")
        assert (job.epoch, plant.roots(job)) == (2, ["core1"])
        plant.follow(job)
        core.send_signal(signal.SIGCONT)
        plant.monitor.answer = 5.0
        plant.mend("core0")
        # It was not gone, so it still has what the first epoch left there, and loses it now.
        assert (job.epoch, plant.roots(job)) == (3, ["core0"])
        plant.follow(job)
        assert plant.whole()
        used = {name: budget.used for name, budget in plant.table.resources.budgets.items()}
        assert used == {"core1": 0, **job.slots}
