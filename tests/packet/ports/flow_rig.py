# SPDX-License-Identifier: Apache-2.0
"""A switch process on real interfaces with a continuous flow of datagrams through it."""

from __future__ import annotations

import contextlib
import json
import queue
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from switch.p4runtime.stubs import p4runtime_pb2 as p4rt
from switch.p4runtime.stubs import p4runtime_pb2_grpc
from tests.packet.p4runtime.p4rt_support import (
    INSERT,
    action,
    arbitration,
    config,
    config_request,
    entry,
    exact,
    write_request,
)
from tests.packet.p4runtime.p4rt_targets import ROOT, command
from tests.packet.ports.port_rig import Rig, mac, wait_for

HOSTS = 3
# (destination, port in) -> port out: hosts 1 and 2 reach each other, 3 reaches both.
BRIDGED = {(2, 1): 2, (1, 2): 1, (1, 3): 1, (2, 3): 2}


class Flow:
    """Sends datagrams from one host to another, one at a time; fails if one does not arrive within
    five seconds."""

    def __init__(self, rig: Rig, source: int = 1, target: int = 2) -> None:
        self._sender, self._receiver = rig.udp(source), rig.udp(target)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._failure: str | None = None
        self.arrived = 0

    def _run(self) -> None:
        while not self._stop.is_set():
            sent = b"%d" % self.arrived
            self._sender.sendto(sent, self._receiver.getsockname())
            try:
                got = self._receiver.recv(100)
            except OSError as error:
                self._failure = f"datagram {self.arrived}: {error}"
                return
            if got != sent:
                self._failure = f"datagram {self.arrived}: {got!r} came"
                return
            self.arrived += 1

    def goes_on(self) -> None:
        """Returns once datagrams sent after this call have arrived."""
        enough = self.arrived + 3
        wait_for(lambda: self.arrived >= enough or self._failure is not None, "datagrams")
        assert self._failure is None, self._failure

    def __enter__(self) -> Flow:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._sender.close()
        self._receiver.close()
        assert self._failure is None, self._failure


class Primary:
    """A controller over gRPC with the highest election id so far."""

    def __init__(self, address: str, election: tuple[int, int]) -> None:
        self.election = election
        self.channel = grpc.insecure_channel(address)
        self.stub = p4runtime_pb2_grpc.P4RuntimeStub(self.channel)
        self._requests: queue.Queue[Any] = queue.Queue()
        self._requests.put(arbitration(election))
        self._stream = self.stub.StreamChannel(iter(self._requests.get, None))
        assert next(self._stream).arbitration.status.code == 0

    def push(self, pushed: Any) -> None:
        request = config_request(pushed=pushed, election=self.election)
        self.stub.SetForwardingPipelineConfig(request, timeout=120)

    def write(self, *updates: Any) -> None:
        self.stub.Write(write_request(*updates, election=self.election), timeout=60)

    def read(self, *messages: Any) -> list[Any]:
        """The table entries found."""
        request = p4rt.ReadRequest(device_id=1)
        for message in messages:
            request.entities.add().table_entry.CopyFrom(message)
        return [
            one.table_entry
            for response in self.stub.Read(request, timeout=60)
            for one in response.entities
        ]

    def close(self) -> None:
        self._requests.put(None)
        self.channel.close()


@dataclass
class Plant:
    """controller: primary with election id (0, 1)."""

    rig: Rig
    process: subprocess.Popen[str]
    address: str
    log: Path
    controller: Primary

    def counters(self) -> dict[int, dict[str, int]]:
        """Returns counters by port, as logged on SIGUSR1."""
        self.process.send_signal(signal.SIGUSR1)
        assert self.process.stdout is not None
        report = json.loads(self.process.stdout.readline())
        return {int(port): counts for port, counts in report["ports"].items()}

    def resident(self) -> int:
        """Returns the process's resident memory in bytes."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(one for one in text.splitlines() if one.startswith("VmRSS:"))
        return 1024 * int(line.split()[1])


@contextlib.contextmanager
def plant(mtu: int = 1500) -> Iterator[Plant]:
    """Three hosts on ports 1 to 3 of a switch that bridges between them."""
    with contextlib.ExitStack() as stack:
        rig = Rig(HOSTS, mtu)
        stack.callback(rig.close)
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rh-")))
        address, log = f"unix:{directory}/p4rt", directory / "log"
        ports = [word for n in rig.hosts for word in ("-i", f"{n}@s{n}")]
        line = command("embedded", address, "--log-file", str(log), *ports)
        process = rig.switch.run(
            lambda: subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        )
        stack.callback(_end, process)
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            pytest.fail(f"the switch did not start: {log.read_text()}")
        controller = Primary(address, (0, 1))
        stack.callback(controller.close)
        controller.push(config())
        for (destination, port), out in BRIDGED.items():
            address_of = int(mac(destination).replace(":", ""), 16)
            key = {"destination": exact(address_of), "port": exact(port)}
            controller.write((INSERT, entry("bridge", key, action("forward", port=out))))
        yield Plant(rig, process, address, log, controller)


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()
