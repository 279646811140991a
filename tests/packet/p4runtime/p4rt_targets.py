# SPDX-License-Identifier: Apache-2.0
"""Switch processes for the P4Runtime tests: this target and BMv2, with the same command line."""

import contextlib
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import grpc
import pytest

from tests.packet.p4runtime.p4rt_support import CPU_PORT, DEVICE
from tests.packet.thrift import free_port

ROOT = Path(__file__).parents[3]
EMBEDDED = [sys.executable, "-m", "switch"]
BOTH = [
    "embedded",
    pytest.param("bmv2", marks=pytest.mark.bmv2),
]


def command(kind, address, *options, target=()):
    """Command line of a switch that waits for its program."""
    line = EMBEDDED if kind == "embedded" else ["simple_switch_grpc", "-L", "off"]
    line = [*line, "--no-p4", "--device-id", str(DEVICE), *options]
    if kind == "bmv2":  # its thrift server would take port 9090 of every address
        line += ["--thrift-port", str(free_port())]
    return [*line, "--", "--grpc-server-addr", address, *target]


@contextlib.contextmanager
def running(kind, *options, target=("--cpu-port", str(CPU_PORT)), prefix=()):
    """Runs a switch on a unix socket; yields (process, address, path of its log).

    prefix: command that runs the command, such as `ip netns exec NAME`.
    """
    with tempfile.TemporaryDirectory(prefix="p4rt") as directory:
        address = f"unix:{directory}/socket"
        log = Path(directory) / "log"
        with log.open("w") as output:
            process = subprocess.Popen(
                [*prefix, *command(kind, address, *options, target=target)],
                cwd=ROOT,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            with grpc.insecure_channel(address) as channel:
                try:
                    grpc.channel_ready_future(channel).result(timeout=60)
                except grpc.FutureTimeoutError:
                    pytest.fail(f"{kind} does not listen: {log.read_text()}")
            yield process, address, log
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
