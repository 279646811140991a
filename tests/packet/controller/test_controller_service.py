# SPDX-License-Identifier: Apache-2.0
"""Tests the job service over its socket in front of real switches, and its process."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from controller.jobs.registry import JobTable
from controller.p4rt.connection import GrpcConnection
from controller.p4rt.fabric import Fabric
from controller.planning.tree_planner import TreeKind
from controller.service.servicer import JobServer, ServiceError
from protocol import jobs_pb2, jobs_pb2_grpc
from protocol.header import PORT
from protocol.plan import WorkerPlan
from specs.p4program import SOURCES
from tests.packet.controller.controller_rig import (
    KINDS,
    P4INFO,
    PROGRAM,
    SWITCHES,
    TOPOLOGY_TEXT,
    run,
    start,
    state,
    switches,
    table,
)
from topologies.model.addressing import Addressing

__all__ = ["switches", "table"]  # fixtures


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
        values = [next(watch) for watch in watches]
        assert {i.halt.reason for i in values} == {"worker 1 (w2): chunk 1: checksum"}
        assert {instruction.epoch for instruction in values} == {2}
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
        # A member that lost its connection is notified again.
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
def test_process_reports_readiness_and_stops_on_request(kind: str, tmp_path: Path) -> None:
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
        process.communicate(timeout=60)
        assert process.returncode == 0
        assert not Path(directory, "jobs").exists()


def test_process_reports_startup_error(tmp_path: Path) -> None:
    topology = tmp_path / "small.yaml"
    topology.write_text(TOPOLOGY_TEXT + "core: 1\n")
    command = [sys.executable, "-m", "controller", "--topology", str(topology)]
    command += ["--program", str(PROGRAM), "--p4info", str(P4INFO), "--listen", "unix:x"]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=SOURCES.parent, timeout=60)
    assert ended.returncode == 1
    line = TOPOLOGY_TEXT.count("\n") + 1
    assert f"{topology}:{line}: core: unknown field; allowed here: name, defaults" in ended.stderr
    assert not ended.stdout


def test_stopped_service_keeps_jobs_alive(switches: Fabric) -> None:
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
