# SPDX-License-Identifier: Apache-2.0
"""Tests the distribution rackhub-switch: built, installed alone, and started under BMv2's name."""

import contextlib
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import grpc
import pytest

import switch as package
from switch.p4runtime.stubs import p4runtime_pb2 as p4rt
from switch.p4runtime.stubs import p4runtime_pb2_grpc
from tests.conftest import ROOT
from tests.namespaces import needs_namespaces
from tests.packet.p4runtime.p4rt_support import (
    ELECTION,
    INFO,
    INSERT,
    JSON_PATH,
    action,
    arbitration,
    entry,
    ethernet,
    exact,
    write_request,
)
from tests.packet.ports.wires import wired

BMV2 = "simple_switch_grpc"
HOST = 0x0200_0000_00AA


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy, for a build leaves files beside its sources."""
    directory = tmp_path_factory.mktemp("wheel")
    ignored = shutil.ignore_patterns("build", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT / "switch", directory / "switch", ignore=ignored)
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    done = subprocess.run([*pip, "./switch"], cwd=directory, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (made,) = directory.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """bin/ of an environment that has the wheel and what that names, and nothing else."""
    venv = tmp_path_factory.mktemp("alone") / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    pip = [str(venv / "bin" / "pip"), "install", "--disable-pip-version-check", "--quiet"]
    # The versions that everything else is tested with, of what the wheel asks for by itself.
    locked = ["-c", str(ROOT / "requirements" / "rackhub.txt")]
    done = subprocess.run([*pip, *locked, str(wheel)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return venv / "bin"


def test_the_wheel_has_the_projects_version_and_every_source(wheel):
    assert wheel.name.startswith(f"rackhub_switch-{package.__version__}-")
    listed = subprocess.run(
        [sys.executable, "-m", "zipfile", "-l", str(wheel)],
        check=True,
        capture_output=True,
        text=True,
    )
    packed = set(re.findall(r"^(switch/\S+)", listed.stdout, re.MULTILINE))
    sources = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "switch").rglob("*.[pch]*")
        if path.suffix in (".py", ".pyi", ".c", ".h") and "build" not in path.parts
    }
    assert packed == sources


def test_wheel_is_self_contained(installed):
    listed = subprocess.run(
        [str(installed / "pip"), "list", "--format=json", "--disable-pip-version-check"],
        check=True,
        capture_output=True,
        text=True,
    )
    names = {one["name"].lower().replace("_", "-") for one in json.loads(listed.stdout)}
    assert names - {"pip", "setuptools"} == {
        "rackhub-switch",
        "grpcio",
        "protobuf",
        "googleapis-common-protos",
        "typing-extensions",
    }


@contextlib.contextmanager
def bmv2_by_name(installed, directory, inside, *options):
    """Installs the launcher, and starts BMv2 as a script does that finds it on PATH."""
    tools = directory / "tools"
    tools.mkdir()
    run = [str(installed / "rackhub-switch"), "--install-as", BMV2, str(tools)]
    subprocess.run(run, check=True, capture_output=True, cwd=directory)
    # Neither what a tool has on its own path nor what lies where it runs gets into the switch.
    (directory / "switch.py").write_text("raise ImportError('another switch')")
    environment = os.environ | {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "PYTHONPATH": str(directory),
    }
    process = subprocess.Popen(
        [*inside, BMV2, *options],
        cwd=directory,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=(directory / "errors").open("w"),
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def wrapped(program):
    """A p4.tmp.P4DeviceConfig {reassign: true, device_data: program}."""
    length, varint = len(program), b""
    while length > 0x7F:
        varint += bytes([0x80 | length & 0x7F])
        length >>= 7
    return b"\x08\x01\x1a" + varint + bytes([length]) + program


@needs_namespaces
def test_a_script_for_bmv2_starts_it_by_name_and_a_program_forwards(installed, tmp_path):
    socket = tmp_path / "socket"
    options = ["-i", "1@sw1", "-i", "2@sw2", "--no-p4", "--thrift-port", "9090", "--pcap"]
    options += ["--log-file", "s1", "--", "--grpc-server-addr", f"unix:{socket}"]
    with contextlib.ExitStack() as stack:
        inside, wires = stack.enter_context(wired())
        process = stack.enter_context(bmv2_by_name(installed, tmp_path, inside, *options))
        line = process.stdout.readline()
        assert line == f"Server listening on unix:{socket}\n", (tmp_path / "errors").read_text()
        assert Path(f"/proc/{process.pid}/comm").read_text() == BMV2[:15] + "\n"
        stub = p4runtime_pb2_grpc.P4RuntimeStub(
            stack.enter_context(grpc.insecure_channel(f"unix:{socket}"))
        )
        requests = queue.Queue()
        stack.callback(requests.put, None)
        requests.put(arbitration(device=0))
        stream = stub.StreamChannel(iter(requests.get, None), timeout=60)
        assert next(stream).arbitration.device_id == 0
        pushed = p4rt.SetForwardingPipelineConfigRequest(device_id=0, action="VERIFY_AND_COMMIT")
        pushed.election_id.high, pushed.election_id.low = ELECTION
        pushed.config.p4info.CopyFrom(INFO)
        pushed.config.p4_device_config = wrapped(JSON_PATH.read_bytes())
        stub.SetForwardingPipelineConfig(pushed, timeout=120)
        wanted = entry("bridge", {"destination": exact(HOST), "port": exact(1)})
        wanted.action.CopyFrom(action("forward", port=2))
        request = write_request((INSERT, wanted))
        request.device_id = 0
        stub.Write(request, timeout=60)
        frame = ethernet(HOST, payload=bytes(50))
        wires.send(1, frame)
        assert wires.receive(2) == frame
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert frame in (tmp_path / "sw2_out.pcap").read_bytes()
    assert "hits handle" in (tmp_path / "s1.txt").read_text()


@needs_namespaces
def test_under_bmv2s_name_it_is_device_0_on_bmv2s_port(installed, tmp_path):
    with contextlib.ExitStack() as stack:
        inside, _ = stack.enter_context(wired())
        process = stack.enter_context(bmv2_by_name(installed, tmp_path, inside, "--no-p4"))
        assert process.stdout.readline() == "Server listening on 0.0.0.0:9559\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
