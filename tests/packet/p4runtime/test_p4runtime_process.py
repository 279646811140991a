# SPDX-License-Identifier: Apache-2.0
"""Tests the process `python -m switch`: readiness, addresses in use, TLS, shutdown."""

import contextlib
import queue
import select
import signal
import socket
import subprocess
import tempfile
from pathlib import Path

import grpc
import pytest

from switch.p4runtime.stubs import p4runtime_pb2 as p4rt
from switch.p4runtime.stubs import p4runtime_pb2_grpc
from tests.packet.p4runtime.p4rt_support import (
    DEVICE,
    JSON_PATH,
    arbitration,
    config,
    config_request,
)
from tests.packet.p4runtime.p4rt_targets import EMBEDDED, ROOT, running


@contextlib.contextmanager
def started(*arguments):
    """The process, when it has said "ready"."""
    process = subprocess.Popen(
        [*EMBEDDED, *arguments],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        line = process.stdout.readline()
        if line != "ready\n":
            process.wait(10)
            pytest.fail(f"said {line!r}: {process.stderr.read()}")
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def run(*arguments):
    return subprocess.run(
        [*EMBEDDED, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )


def version(channel):
    stub = p4runtime_pb2_grpc.P4RuntimeStub(channel)
    return stub.Capabilities(p4rt.CapabilitiesRequest(), timeout=60).p4runtime_api_version


@pytest.fixture
def directory():
    with tempfile.TemporaryDirectory(prefix="p4rt") as name:
        yield Path(name)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_when_ready_and_ends_with_0_and_its_counters(directory, number):
    path = directory / "socket"
    with started("--no-p4", "--", "--grpc-server-addr", f"unix:{path}") as process:
        with grpc.insecure_channel(f"unix:{path}") as channel:
            assert version(channel)
        process.send_signal(number)
        assert process.wait(60) == 0
        assert "packet_ins=0" in process.stderr.read()
    assert not path.exists()


def test_every_request_for_counters_is_answered(directory):
    """Also one that comes as the main thread goes back to waiting for signals."""
    address = f"unix:{directory}/socket"
    with started("--no-p4", "--", "--grpc-server-addr", address) as process:
        for _ in range(20_000):
            process.send_signal(signal.SIGUSR1)
            assert select.select([process.stdout], [], [], 10)[0]
            assert process.stdout.readline() == '{"ports": {}}\n'


def test_it_ends_while_a_controller_is_connected(directory):
    with running("embedded") as (process, address, _), grpc.insecure_channel(address) as channel:
        stub = p4runtime_pb2_grpc.P4RuntimeStub(channel)
        requests = queue.Queue()
        requests.put(arbitration())
        stream = stub.StreamChannel(iter(requests.get, None))
        assert next(stream).arbitration.status.code == 0
        stub.SetForwardingPipelineConfig(config_request(pushed=config()), timeout=60)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        with pytest.raises(grpc.RpcError):
            next(stream)
        requests.put(None)


def test_a_stream_ends_with_the_error_of_arbitration():
    with running("embedded") as (_, address, _), grpc.insecure_channel(address) as channel:
        stub = p4runtime_pb2_grpc.P4RuntimeStub(channel)
        unknown = stub.StreamChannel(iter([arbitration(device=9)]), timeout=60)
        with pytest.raises(grpc.RpcError):
            next(unknown)
        assert unknown.code() == grpc.StatusCode.NOT_FOUND
        assert "device 1" in unknown.details()
        requests = iter([arbitration(), arbitration(device=9)])
        changed = stub.StreamChannel(requests, timeout=60)
        assert next(changed).arbitration.status.code == 0
        with pytest.raises(grpc.RpcError):
            next(changed)
        assert changed.code() == grpc.StatusCode.FAILED_PRECONDITION
        # A client that has no more to say: its stream ends well.
        assert len(list(stub.StreamChannel(iter([arbitration()]), timeout=60))) == 1


def test_a_program_on_the_command_line_runs_from_the_start(directory):
    path = directory / "socket"
    arguments = [str(JSON_PATH), "--", "--grpc-server-addr", f"unix:{path}"]
    with started(*arguments) as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_a_program_that_is_none_is_an_error(directory):
    program = directory / "program.json"
    program.write_text("{}")
    done = run(str(program), "--", "--grpc-server-addr", f"unix:{directory}/socket")
    assert done.returncode == 1
    assert str(program) in done.stderr
    assert "ready" not in done.stdout
    done = run(str(directory / "missing.json"))
    assert done.returncode == 1
    assert "missing.json" in done.stderr


def test_an_interface_that_does_not_exist_is_an_error(directory):
    done = run(
        "--no-p4", "-i", "1@nosuchif0", "--", "--grpc-server-addr", f"unix:{directory}/socket"
    )
    assert done.returncode == 1
    assert "nosuchif0" in done.stderr
    assert not (directory / "socket").exists()


def test_a_live_socket_is_taken_and_stays_with_its_owner(directory):
    address = f"unix:{directory}/socket"
    with started("--no-p4", "--", "--grpc-server-addr", address) as first:
        done = run("--no-p4", "--", "--grpc-server-addr", address)
        assert done.returncode == 1
        assert "port already taken" in done.stderr
        with grpc.insecure_channel(address) as channel:
            assert version(channel)
        assert first.poll() is None


def test_the_socket_of_a_killed_process_is_replaced(directory):
    address = f"unix:{directory}/socket"
    with started("--no-p4", "--", "--grpc-server-addr", address) as first:
        first.kill()
        first.wait()
    assert (directory / "socket").exists()
    with (
        started("--no-p4", "--", "--grpc-server-addr", address),
        grpc.insecure_channel(address) as channel,
    ):
        assert version(channel)


def test_a_file_in_the_place_of_the_socket_is_not_removed(directory):
    path = directory / "socket"
    path.write_text("mine")
    done = run("--no-p4", "--", "--grpc-server-addr", f"unix:{path}")
    assert done.returncode == 1
    assert "is no socket" in done.stderr
    assert path.read_text() == "mine"


def test_a_tcp_port_that_is_taken_is_an_error():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run("--no-p4", "--", "--grpc-server-addr", f"127.0.0.1:{port}")
    assert done.returncode == 1
    assert "port already taken" in done.stderr


def test_a_log_file_takes_the_log(directory):
    log = directory / "log"
    arguments = [
        "--no-p4",
        "--log-file",
        str(log),
        "--",
        "--grpc-server-addr",
        f"unix:{directory}/socket",
    ]
    with started(*arguments) as process:
        process.terminate()
        assert process.wait(60) == 0
        assert process.stderr.read() == ""
    assert f"device {DEVICE} ready" in log.read_text()


def test_tls_serves_only_those_who_trust_its_certificate(directory):
    certificate, key = directory / "cert.pem", directory / "key.pem"
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "1",
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=DNS:localhost",
            "-keyout",
            str(key),
            "-out",
            str(certificate),
        ],
        check=True,
        capture_output=True,
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"localhost:{free.getsockname()[1]}"
    arguments = [
        "--no-p4",
        "--",
        "--grpc-server-addr",
        address,
        "--grpc-server-ssl",
        "--grpc-server-cert",
        str(certificate),
        "--grpc-server-key",
        str(key),
    ]
    with started(*arguments):
        credentials = grpc.ssl_channel_credentials(certificate.read_bytes())
        with grpc.secure_channel(address, credentials) as channel:
            assert version(channel)
        with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError):
            version(channel)
