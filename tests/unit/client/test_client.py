# SPDX-License-Identifier: Apache-2.0
"""Tests workers and a server process on loopback: real sockets, sums, and every ending."""

from __future__ import annotations

import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from hosts.client import Client
from hosts.errors import (
    CheckpointError,
    JobRefusedError,
    LeftBehindError,
    PlanWithdrawnError,
    ServiceUnavailableError,
    UnknownKeyError,
    UseAfterLeaveError,
    WrongNonceError,
)
from hosts.session import testbed_environment
from hosts.session.job_service import explained
from protocol import jobs_pb2
from protocol.call_status import KEY, LOST, REPLACED
from protocol.optimizer_plan import KeyOptions, OptimizerPlan
from simulation.kernel.calls import CallContext, CallError
from tests.unit.client.small_client import (
    KEYS,
    Server,
    create,
    gradients,
    in_parallel,
    reference,
    server,
    service,
    stuck,
)
from tests.unit.controller.small_service import SmallService

__all__ = ["server", "service"]  # fixtures


def test_the_environment_tells_a_program_of_the_testbed_that_it_runs_on(
    service: SmallService, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(testbed_environment.SERVICE, raising=False)
    for call in (Client, lambda: Client.create_service(None, "test", ["w0"], ["s0"])):
        with pytest.raises(ServiceUnavailableError, match="RACKHUB_SERVICE is not set"):
            call()
    monkeypatch.setenv(testbed_environment.SERVICE, service.address)
    monkeypatch.setenv(testbed_environment.ADDRESS, "127.0.0.1")
    monkeypatch.setenv(testbed_environment.QUEUE_BYTES, "many")
    with pytest.raises(ValueError, match="RACKHUB_QUEUE_BYTES=many"):
        Client()
    monkeypatch.setenv(testbed_environment.QUEUE_BYTES, "131072")
    nonce = Client.create_service(None, "test", ["w0"], ["s0"]).nonce
    assert server.command(f"join {nonce} 0") == "joined 1"
    for name in (testbed_environment.NONCE, testbed_environment.RANK):
        monkeypatch.delenv(name, raising=False)
    with Client() as client:
        with pytest.raises(WrongNonceError, match="RACKHUB_NONCE is not set"):
            client.connect_service(rank=0)
        monkeypatch.setenv(testbed_environment.NONCE, nonce)
        with pytest.raises(JobRefusedError, match="RACKHUB_RANK is not set"):
            client.connect_service()
        monkeypatch.setenv(testbed_environment.RANK, "last")
        with pytest.raises(ValueError, match="RACKHUB_RANK=last: the worker's rank, a number"):
            client.connect_service()
        monkeypatch.setenv(testbed_environment.RANK, "0")
        client.connect_service()
        assert (client.rank, client.world) == (0, 1)
        client.init_service({"w": 7})
        assert client.push_pull({"w": np.ones(7, np.float32)})["w"].tolist() == [1] * 7


def test_every_worker_gets_the_sums_of_a_single_process_bit_for_bit(
    service: SmallService, server: Server
) -> None:
    world, rounds = 3, 4
    values = gradients(world, rounds, seed=1)
    # One round that grows too fast for its exponent and one that is not finite: both go DIRECT.
    values[1][2]["w"] *= np.float32(1e6)
    values[2][3]["b"][5] = np.nan
    nonce = create(service, world)
    assert server.command(f"join {nonce} 0") == "joined 1"

    def train(client: Client, rank: int) -> tuple[list[dict[str, np.ndarray]], dict[str, Any]]:
        assert (client.job, client.world) == (1, world)
        sums = [client.push_pull(values[rank][r]) for r in range(rounds - 1)]
        last = client.all_reduce([values[rank][-1][name] for name in KEYS])
        return [*sums, dict(zip(KEYS, last, strict=True))], client.statistics

    expected = reference(values)
    assert np.isnan(expected[3]["b"][5])
    for sums, statistics in in_parallel(service, nonce, world, train):
        for mine, right in zip(sums, expected, strict=True):
            assert list(mine) == list(KEYS)
            for name in KEYS:
                np.testing.assert_array_equal(mine[name], right[name])
                assert mine[name].dtype == np.float32
        assert statistics["completed_direct"] >= 2
        assert statistics["completed"] + statistics["completed_direct"] == rounds * 45

    service.wait_for(lambda: len(service.jobs[nonce].left) == world)
    assert {reason for _, _, reason in service.jobs[nonce].left} == {""}
    assert server.stop() == 0


def test_some_keys_at_a_time_in_any_order(service: SmallService, server: Server) -> None:
    nonce = create(service, 2)
    server.command(f"join {nonce} 0")
    ones = {name: np.ones(shape, np.float32) for name, shape in KEYS.items()}

    def work(client: Client, rank: int) -> None:
        names = ["big", "b"] if rank else ["b", "big"]
        sums = client.push_pull({name: ones[name] * np.float32(rank + 1) for name in names})
        for name in names:
            np.testing.assert_array_equal(sums[name], 3 * ones[name])
        assert client.push_pull({}) == {}
        np.testing.assert_array_equal(client.push_pull({"w": ones["w"]})["w"], 2 * ones["w"])

    in_parallel(service, nonce, 2, work)


def test_one_server_process_serves_many_jobs_at_once(service: SmallService, server: Server) -> None:
    jobs = 3
    nonces = [create(service, 2) for _ in range(jobs)]
    for number, nonce in enumerate(nonces, start=1):
        assert server.command(f"join {nonce} 0") == f"joined {number}"
    together = threading.Barrier(2 * jobs)

    def work(client: Client, rank: int) -> float:
        together.wait(60)
        value = np.full(KEYS["big"], client.job, np.float32)
        return float(client.push_pull({"big": value})["big"].max())

    with ThreadPoolExecutor(jobs) as pool:
        sums = list(pool.map(lambda nonce: in_parallel(service, nonce, 2, work), nonces))
    assert sums == [[2.0, 2.0], [4.0, 4.0], [6.0, 6.0]]


def test_wrong_arguments_are_named_and_harm_nothing(service: SmallService, server: Server) -> None:
    nonce = create(service, 1)
    server.command(f"join {nonce} 0")
    bias = np.ones(30, np.float32)

    def work(client: Client, rank: int) -> None:
        with pytest.raises(KeyError, match="'v' is not a key of this job, those are w, b, big"):
            client.push_pull({"v": bias})
        with pytest.raises(TypeError, match=r"b: an array of .* is needed, this is int64"):
            client.push_pull({"b": np.ones(30, np.int64)})
        with pytest.raises(TypeError, match=r"b: an array of .* is needed, this is list"):
            client.push_pull({"b": [1.0] * 30})  # type: ignore[dict-item]
        with pytest.raises(ValueError, match=r"b: declared with shape \(30,\), given \(31,\)"):
            client.push_pull({"b": np.ones(31, np.float32)})
        with pytest.raises(ValueError, match="1 arrays for the 3 keys"):
            client.all_reduce([bias])
        with pytest.raises(RuntimeError, match="a job's keys do not change"):
            client.init_service({"b": 30})
        np.testing.assert_array_equal(client.push_pull({"b": bias})["b"], bias)

    in_parallel(service, nonce, 1, work)


def test_calls_out_of_order_say_what_comes_first(service: SmallService) -> None:
    client = Client(service.address, address="127.0.0.1")
    with pytest.raises(RuntimeError, match="connect_service first"):
        client.init_service({"b": 30})
    nonce = create(service, 2)
    for rank in (-1, 1 << 32):
        with pytest.raises(JobRefusedError, match=f"has workers 0 to n - 1, not {rank}$"):
            client.connect_service(nonce, rank)
    client.connect_service(nonce, 0)
    with pytest.raises(RuntimeError, match="init_service first"):
        client.push_pull({"b": np.ones(30, np.float32)})
    with pytest.raises(TypeError, match=r"b: an array of .* is needed, this is int64"):
        client.init_service({"b": np.ones(30, np.int64)})
    with pytest.raises(TypeError, match=r"optimizer 'sgd' is no .*OptimizerPlan, such as"):
        client.init_service({"b": np.ones(30, np.float32)}, optimizer="sgd")  # type: ignore
    plan = OptimizerPlan("sgd", 0.1, keys=(KeyOptions("w*", 0.2),))
    with pytest.raises(UnknownKeyError, match=r"init_service: .* no key is called 'w\*'.* b$"):
        client.init_service({"b": np.ones(30, np.float32)}, optimizer=plan)
    client.leave()
    client.leave()
    for call in (
        lambda: client.push_pull({}),
        lambda: client.connect_service("x", 0),
        lambda: client.statistics,
    ):
        with pytest.raises(UseAfterLeaveError, match="has left its job"):
            call()


def test_missing_service_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ServiceUnavailableError, match="no such socket"):
        Client(f"unix:{tmp_path}/jobs", address="127.0.0.1")
    with pytest.raises(ServiceUnavailableError, match="no such socket"):
        Client.create_service(f"{tmp_path}/jobs", "test", ["w0"], ["s0"])
    with pytest.raises(ValueError, match="at most 107"):
        Client(f"unix:/{'x' * 107}", address="127.0.0.1")


def test_refusals_carry_the_reason(service: SmallService) -> None:
    with pytest.raises(JobRefusedError, match="tor0 has 0 of 64 slots free") as refused:
        Client.create_service(service.address, "too-large", ["w0"], ["s0"])
    # Nothing of gRPC is above it where a program ends with it.
    assert "_InactiveRpcError" not in "".join(traceback.format_exception(refused.value))
    with pytest.raises(ValueError, match="two-level, tor, core, none"):
        Client.create_service(service.address, "test", ["w0"], ["s0"], tree="ring")
    with (
        Client(service.address, address="127.0.0.1") as client,
        pytest.raises(WrongNonceError, match="no job's"),
    ):
        client.connect_service("guess", 0)


def test_early_job_failure_reaches_waiting_members(service: SmallService) -> None:
    nonce = create(service, 2)
    with Client(service.address, address="127.0.0.1") as client:
        client.connect_service(nonce, 0)
        timer = threading.Timer(
            0.1, service.end, (nonce, grpc.StatusCode.ABORTED, "job 1 failed: w1 did not come")
        )
        timer.start()
        with pytest.raises(PlanWithdrawnError, match="w1 did not come"):
            client.init_service({"b": 30})
        timer.join()


def test_replaced_process_is_told_that_its_job_goes_on(service: SmallService) -> None:
    nonce = create(service, 2)
    with Client(service.address, address="127.0.0.1") as client:
        client.connect_service(nonce, 0)
        service.jobs[nonce].processes[0] = 1  # another process is in its place
        with pytest.raises(LeftBehindError) as caught:
            client.init_service({"b": 30})
    assert caught.value.replaced


@pytest.mark.parametrize("mark", [LOST, REPLACED, ""])
def test_status_says_whether_a_job_goes_on_without_its_caller(mark: str) -> None:
    context = CallContext("caller")
    if mark:
        context.set_trailing_metadata(((KEY, mark),))
    with pytest.raises(CallError) as caught:
        context.abort(grpc.StatusCode.ABORTED, "some reason")
    error = explained(caught.value)
    assert isinstance(error, PlanWithdrawnError)
    assert isinstance(error, LeftBehindError) == bool(mark)
    assert getattr(error, "replaced", False) == (mark == REPLACED)


def test_waiting_for_others_ends_with_the_timeout(service: SmallService) -> None:
    with Client(service.address, address="127.0.0.1") as client:
        client.connect_service(create(service, 2), 0)
        with pytest.raises(TimeoutError, match="not every worker and server has connected"):
            client.init_service({"b": 30}, timeout=0.2)


def test_leaving_with_an_error_tells_the_reason(service: SmallService) -> None:
    nonce = create(service, 1)

    def diverge() -> None:
        with Client(service.address, address="127.0.0.1") as client:
            client.connect_service(nonce, 0)
            raise ZeroDivisionError("loss diverged")

    with pytest.raises(ZeroDivisionError, match="loss diverged"):
        diverge()
    assert service.jobs[nonce].left == [(jobs_pb2.WORKER, 0, "ZeroDivisionError: loss diverged")]


def test_heartbeats_continue_while_computing(
    service: SmallService, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hosts.session.membership.HEARTBEAT_SECONDS", 0.05)
    nonce = create(service, 1)
    with Client(service.address, address="127.0.0.1") as client:
        client.connect_service(nonce, 0)
        service.wait_for(lambda: service.beats[nonce, jobs_pb2.WORKER, 0] >= 3)


def test_the_server_answers_each_command_with_a_line(service: SmallService, server: Server) -> None:
    address, port = server.ready.removeprefix("ready ").split(":")
    assert address == "127.0.0.1"
    assert int(port) > 0
    assert server.command("join guess 0") == "refused the nonce is no job's"
    assert server.command("dance") == "refused a command is: join NONCE RANK"
    nonce = create(service, 1)
    assert server.command(f"join {nonce} 0") == "joined 1"
    assert server.command(f"join {nonce} 0") == "refused job 1 is served here already"


def test_stopped_server_leaves_its_jobs(service: SmallService, server: Server) -> None:
    nonce, waiting, other = stuck(service, server)
    server.process.stdin.close()  # no more jobs; it goes on
    assert server.stop() == 0
    assert service.jobs[nonce].left == [(jobs_pb2.SERVER, 0, "the server was asked to stop")]
    waiting.leave()
    other.leave()


def test_server_reports_port_in_use(service: SmallService, server: Server) -> None:
    port = server.ready.rpartition(":")[2]
    second = Server(service, "--port", port)
    _, complaint = second.process.communicate(timeout=60)
    assert second.process.returncode == 1
    assert complaint.strip() == f"server: cannot bind UDP 127.0.0.1:{port}: Address already in use"


def test_asynchronous_worker_gets_parameters_but_no_checkpoint(
    service: SmallService, server: Server, tmp_path: Path
) -> None:
    nonce = create(service, 1)
    assert server.command(f"join {nonce} 0").startswith("joined")
    ones, sgd = np.ones(10, np.float32), OptimizerPlan("sgd", 1.0)
    with Client(service.address, address="127.0.0.1") as client:
        client.connect_service(nonce, 0)
        with pytest.raises(ValueError, match="without an optimizer at the servers there are only"):
            client.init_service({"w": 10}, consistency="asynchronous")
        with pytest.raises(ValueError, match="consistency 'soon'; allowed: synchronous, asyn"):
            client.init_service({"w": ones}, optimizer=sgd, consistency="soon")
        begun = client.init_service({"w": ones}, optimizer=sgd, consistency="asynchronous")
        assert (begun["w"] == 1).all()
        # The second one's answer is to the second one, though both are under way.
        first, second = (client.push({"w": ones}) for _ in range(2))
        assert (second.result()["w"] == -1).all()
        assert (first.result()["w"] == 0).all()
        assert (client.pull()["w"] == -1).all()
        with pytest.raises(CheckpointError, match="with consistency asynchronous other workers'"):
            client.checkpoint(tmp_path / "none")
        assert not list(tmp_path.glob("none*"))
