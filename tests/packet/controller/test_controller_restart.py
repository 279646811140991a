# SPDX-License-Identifier: Apache-2.0
"""Tests controller restarts: running jobs are unaffected, changes meanwhile are detected, and no
epoch is used twice."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from controller.jobs.job import Job, Role, State
from controller.p4rt.connection import SwitchError
from controller.p4rt.entries import bare, deletion, insertion, multicast_group
from controller.planning.tree_planner import TreeKind
from protocol import jobs_pb2, jobs_pb2_grpc
from protocol.header import PORT
from specs.p4program import SOURCES
from tests.packet.controller.controller_rig import P4INFO, PROGRAM, state
from tests.packet.controller.test_switch_faults import KINDS, TEXT, Plant
from topologies.model.spec import parse


@pytest.fixture(params=KINDS)
def plant(request: pytest.FixtureRequest) -> Iterator[Plant]:
    """Two racks, two cores, on each target."""
    with ExitStack() as stack:
        yield Plant(parse(TEXT % 2), request.param, stack)


def again(plant: Plant) -> Job:
    """The controller dies and is started again; the job that it has then."""
    plant.kill_controller()
    plant.control()
    return plant.table.jobs()[0]


def test_running_job_is_unaffected_by_restart(plant: Plant) -> None:
    old = plant.train(streams=2)
    other = plant.table.create("other", ["w0"], ["s0"], TreeKind.TWO_LEVEL)
    before = state(plant.fabric)
    pipelines = {name: device.pipeline for name, device in plant.devices.items()}
    job = again(plant)
    assert job is not old
    assert state(plant.fabric) == before
    # Not even the registers are others.
    assert {name: device.pipeline for name, device in plant.devices.items()} == pipelines
    assert (job.epoch, job.nonce, job.trees) == (1, old.nonce, old.trees)
    assert job.instructions == old.instructions
    # Members learn that it is there again and go on; workers as soon as servers are heard.
    assert plant.table.instruction(old.nonce, Role.WORKER, 0) is None
    plant.serve(job)
    assert plant.table.instruction(old.nonce, Role.WORKER, 0) == old.instructions[job.places[0]]
    held = {name: budget.used for name, budget in plant.table.resources.budgets.items()}
    slots = (job.slots, plant.table.jobs()[1].slots)
    assert held == {name: sum(one.get(name, 0) for one in slots) for name in held}
    plant.table.replan(job, "as before", window=4)
    plant.follow(job)
    for rank in range(4):
        plant.table.leave(job.nonce, Role.WORKER, rank)
    plant.table.leave(other.nonce, Role.WORKER, 0)
    assert all(budget.used == 0 for budget in plant.table.resources.budgets.values())
    assert plant.whole()


def test_switch_changes_during_restart_are_detected(plant: Plant) -> None:
    job = plant.train()
    info = plant.fabric.dataplane.p4info
    # One loses a route, one the job's node, one is restarted; a stranger's node stays behind.
    tor0, tor1 = (plant.fabric.connections[name] for name in ("tor0", "tor1"))
    (route, *_) = tor0.read([info.all_entries("forwarding.routes")])
    tor0.write([deletion(bare(route))])
    key = {"job": 77, "epoch": 5, "stream": 0, "node": 1}
    given = {"base": 0, "mask": 1, "full": 1, "group": 9}
    tor0.write([insertion(multicast_group(9, [(1, 1)]))])
    tor0.write([insertion(info.table_entry("aggregation.nodes", key, "root", given))])
    (node,) = tor1.read([info.all_entries("aggregation.nodes")])
    tor1.write([deletion(bare(node))])
    plant.kill_controller()
    plant.restart("core0")
    plant.control()
    (job,) = plant.table.jobs()
    assert job.epoch == 2
    plant.follow(job)
    assert plant.whole()
    with pytest.raises(SwitchError) as caught:
        plant.fabric.connections["tor0"].read([multicast_group(9, ())])
    assert caught.value.not_found


def test_epoch_change_in_progress_restarts(plant: Plant) -> None:
    job = plant.train()
    plant.table.replan(job, "first", avoid=["core0"])
    job = again(plant)
    assert job.epoch == 3
    assert plant.roots(job) == ["core1"]
    plant.follow(job)
    assert plant.whole()
    assert plant.epochs("core1") == [3]
    assert plant.table.resources.budgets["core0"].used == 0


def test_switch_unreachable_at_start_is_adopted_later(
    plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Those that are there answer at once, and no member comes meanwhile.
    monkeypatch.setattr("controller.p4rt.connection.CONNECT_SECONDS", 2.0)
    job = plant.train()
    plant.kill_controller()
    plant.stop("core0")
    plant.control()
    (job,) = plant.table.jobs()
    assert (job.epoch, plant.fabric.unwritable) == (1, {"core0"})
    plant.serve(job)
    plant.stuck(job, 4)
    plant.follow(job)
    assert (job.epoch, plant.roots(job)) == (2, ["core1"])
    # Routes that avoid it and what may be left on it are remembered, too.
    job = again(plant)
    assert plant.fabric.addressing.missing == {"core0"}
    assert (job.epoch, plant.roots(job)) == (2, ["core1"])
    assert plant.table.resources.budgets["core0"].used
    plant.start("core0")
    plant.mend("core0")
    assert (job.epoch, plant.roots(job)) == (3, ["core0"])
    plant.follow(job)
    assert plant.whole()
    used = {name: budget.used for name, budget in plant.table.resources.budgets.items()}
    assert used == {"core1": 0, **job.slots}
    # All is well: another start finds nothing to do.
    job = again(plant)
    assert (job.epoch, plant.fabric.unwritable) == (3, frozenset())


def test_entries_of_ended_job_are_deleted_when_switch_returns(plant: Plant) -> None:
    job = plant.train()
    plant.fabric.connections["tor0"].close()
    for rank in range(4):
        plant.table.leave(job.nonce, Role.WORKER, rank)
    assert job.state is State.GONE
    assert plant.table.resources.budgets["tor0"].used
    job = again(plant)
    assert job.state is State.GONE
    assert not job.held
    assert plant.table.resources.budgets["tor0"].used == 0
    assert plant.whole()


@pytest.mark.parametrize("kind", KINDS)
def test_the_process_killed_and_started_again(kind: str, tmp_path: Path) -> None:
    topology = tmp_path / "topology.yaml"
    topology.write_text(TEXT % 2)
    with ExitStack() as stack:
        plant = Plant(parse(TEXT % 2), kind, stack)
        plant.kill_controller()
        listen = f"unix:{plant.directory}/jobs"
        command = [sys.executable, "-m", "controller", "--topology", str(topology)]
        command += ["--program", str(PROGRAM), "--p4info", str(P4INFO), "--listen", listen]
        command += ["--journal", str(tmp_path / "journal")]
        for name in plant.names:
            command += ["--switch", f"{name}={plant.address(name)},{plant.number(name)}"]

        def start() -> subprocess.Popen[str]:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                cwd=SOURCES.parent,
            )  # fmt: skip
            stack.callback(process.communicate)
            stack.callback(process.kill)
            assert process.stdout is not None
            ready = process.stdout.readline()
            assert ready == f"ready {listen}\n", process.communicate()[1]
            return process

        process = start()
        with grpc.insecure_channel(listen) as channel:
            stub = jobs_pb2_grpc.JobServiceStub(channel)
            nonce = run_job(stub, plant)
            status = stub.Status(jobs_pb2.StatusRequest())
        process.kill()
        process.wait()
        pipelines = {name: device.pipeline for name, device in plant.devices.items()}
        start()
        with grpc.insecure_channel(listen) as channel:
            stub = jobs_pb2_grpc.JobServiceStub(channel)
            assert stub.Status(jobs_pb2.StatusRequest()) == status
            who = {"nonce": nonce, "role": jobs_pb2.SERVER, "rank": 0}
            watch = stub.Watch(jobs_pb2.WatchRequest(**who))
            assert next(watch).plan.epoch == 1
            assert stub.Heartbeat(jobs_pb2.HeartbeatRequest(epoch=1, **who)).epoch == 1
            stub.Leave(jobs_pb2.LeaveRequest(nonce=nonce, role=jobs_pb2.WORKER, rank=0))
            assert list(watch) == []
        assert {name: device.pipeline for name, device in plant.devices.items()} == pipelines


def run_job(stub: jobs_pb2_grpc.JobServiceStub, plant: Plant) -> str:
    """A job of w0 and s0 that runs; its nonce."""
    created = stub.CreateService(
        jobs_pb2.CreateServiceRequest(
            namespace="digits",
            workers=[jobs_pb2.Member(host="w0", rank=0)],
            servers=[jobs_pb2.Member(host="s0", rank=0)],
            tree=jobs_pb2.TWO_LEVEL,
        )
    )
    address = plant.fabric.addressing.address
    for role, host, port in ((jobs_pb2.SERVER, "s0", PORT), (jobs_pb2.WORKER, "w0", 5000)):
        at = jobs_pb2.Address(ipv4=int(address(host)), port=port)
        stub.ConnectService(
            jobs_pb2.ConnectServiceRequest(nonce=created.nonce, role=role, rank=0, address=at)
        )
    key = jobs_pb2.Key(key=0, name="weight", elements=640)
    stub.InitService(jobs_pb2.InitServiceRequest(nonce=created.nonce, rank=0, keys=[key]))
    return str(created.nonce)
