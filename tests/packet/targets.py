# SPDX-License-Identifier: GPL-2.0-only
"""Switches under test behind one interface, so that the same test runs on every target.

`InProcess` is the embedded target called as a function; `OnInterfaces` is a switch process of its
own (embedded or BMv2) on veth pairs in a network namespace of its own.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from pyroute2 import NetNS, netns
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

from controller.p4rt.connection import Connection, DeviceConnection, GrpcConnection
from controller.p4rt.dataplane import DataPlane
from controller.p4rt.entries import insertion
from protocol.priorities import PRIORITIES
from specs import p4program as builds
from switch.p4runtime.device import Device
from tests.namespaces import WITHOUT_IPV6

PORTS = range(1, 6)
DEVICE_ID = 1
# Packets to 10.200.0.<port> are routed to <port>: one of them per port behind a stimulus says that
# everything the stimulus caused is out.
MARKER = "10.200.0."
MARKER_SOURCE = "10.201.0.1"
WAIT_SECONDS = 60.0
THRIFT_PORT = 9090  # of BMv2, in a namespace of its own
SPACES = itertools.count(1)

Output = list[tuple[int, bytes]]


def build(name: str) -> tuple[DataPlane, Path, Path]:
    """A committed build of the data plane and its two files."""
    program = builds.SOURCES / "build" / f"{name}.json"
    p4info = builds.SOURCES / "build" / f"{name}.p4info.txtpb"
    return DataPlane.load(program, p4info), program, p4info


class Target(Protocol):
    """A switch with the data plane pushed and no entries."""

    connection: Connection
    plane: DataPlane

    def exchange(
        self, port: int, frames: Sequence[bytes], complete: Callable[[Output], bool] | None = None
    ) -> Output:
        """Let frames arrive on a port back to back; all (port, frame) that this makes leave.

        `complete` tells, where links lose packets, from what came out that no more is to come.
        """


class InProcess:
    """The embedded target, called."""

    def __init__(self, name: str, queues: int = PRIORITIES) -> None:
        self.plane, program, _ = build(name)
        self.device = Device(DEVICE_ID, priority_queues=queues)
        self.connection: Connection = DeviceConnection("in process", self.device)
        self.connection.open()
        self.connection.push(self.plane.p4info.message, program.read_bytes())

    def exchange(
        self, port: int, frames: Sequence[bytes], complete: Callable[[Output], bool] | None = None
    ) -> Output:
        """Implements ``Target.exchange``."""
        pipeline = self.device.pipeline
        assert pipeline is not None
        output = pipeline.inject_batch([port] * len(frames), frames)
        assert complete is None or complete(output)
        return output

    def close(self) -> None:
        """Give the switch back."""
        self.connection.close()


class OnInterfaces:
    """A switch process on veth pairs.

    options: more of its command line. queues: of each port, for priorities 0 to queues - 1.
    """

    def __init__(self, name: str, kind: str, *options: str, queues: int = PRIORITIES) -> None:
        self.plane, program, _ = build(name)
        self._options, self._queues = options, queues
        self._space = f"rackhub-test-{os.getpid()}-{kind}-{next(SPACES)}"
        self._stack = contextlib.ExitStack()
        self._sockets: dict[int, socket.socket] = {}
        try:
            self._start(kind, program)
        except BaseException:
            self.close()
            raise

    def _start(self, kind: str, program: Path) -> None:
        directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="rh-")))
        with NetNS(self._space) as space:
            self._stack.callback(netns.remove, self._space)
            self._run(*WITHOUT_IPV6)
            self._run("ip", "link", "set", "lo", "up")  # BMv2 has a Thrift server there
            for port in PORTS:
                space.link("add", ifname=f"sw{port}", kind="veth", peer=f"h{port}")
                for end in (f"sw{port}", f"h{port}"):
                    index = space.link_lookup(ifname=end)[0]
                    space.link("set", index=index, state="up", mtu=9500, arp=False)
        for port in PORTS:
            for end in (f"sw{port}", f"h{port}"):
                off = ["tx", "off", "rx", "off", "tso", "off", "gso", "off", "gro", "off"]
                self._run("ethtool", "-K", end, *off)
            self._sockets[port] = self._stack.enter_context(self._open(f"h{port}"))
        interfaces = [word for port in PORTS for word in ("-i", f"{port}@sw{port}")]
        address = f"unix:{directory}/p4rt"
        command = [sys.executable, "-m", "switch"]
        extra = []
        if kind == "bmv2":
            command = [str(shutil.which("simple_switch_grpc")), "-L", "off"]
            extra = ["--thrift-port", str(THRIFT_PORT)]
        command += ["--device-id", str(DEVICE_ID), "--no-p4", *interfaces, *extra, *self._options]
        command += ["--", "--grpc-server-addr", address, "--priority-queues", str(self._queues)]
        self._log = Path(directory, "log").open("w+")  # noqa: SIM115  # closed with the stack
        self._stack.callback(self._log.close)
        process = subprocess.Popen(
            ["ip", "netns", "exec", self._space, *command],
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        self._stack.callback(self._end, process)
        self._wait_for(Path(directory, "p4rt"), process)
        self.connection: Connection = GrpcConnection(kind, address, DEVICE_ID)
        self.connection.open()
        self._stack.callback(self.connection.close)
        self.connection.push(self.plane.p4info.message, program.read_bytes())
        for port in PORTS:
            match = {"destination": (int.from_bytes(socket.inet_aton(f"{MARKER}{port}")), 32)}
            entry = self.plane.p4info.table_entry(
                "forwarding.routes", match, "forward", {"port": port, "mac": 0x020000000000 + port}
            )
            self.connection.write([insertion(entry)])

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """A context in which sockets are opened where the switch is."""
        netns.pushns(self._space)
        try:
            yield
        finally:
            netns.popns()

    def _run(self, *command: str) -> None:
        subprocess.run(
            ["ip", "netns", "exec", self._space, *command], check=True, capture_output=True
        )

    def _open(self, interface: str) -> socket.socket:
        with self.inside():
            opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        opened.bind((interface, 0))
        opened.setsockopt(263, 23, 1)  # SOL_PACKET, PACKET_IGNORE_OUTGOING
        try:
            opened.setsockopt(socket.SOL_SOCKET, 33, 1 << 23)  # SO_RCVBUFFORCE
        except PermissionError:  # in a user namespace the system's limit holds
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 23)
        opened.setblocking(False)
        return opened

    def _wait_for(self, path: Path, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not path.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                self._log.seek(0)
                raise RuntimeError(f"the switch did not start: {self._log.read()[-2000:]}")
            select.select([], [], [], 0.02)

    @staticmethod
    def _end(process: subprocess.Popen[bytes]) -> None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def exchange(
        self, port: int, frames: Sequence[bytes], complete: Callable[[Output], bool] | None = None
    ) -> Output:
        """See Target. Markers follow the frames on the same port, so nothing is still under way."""
        sender = self._sockets[port]
        for frame in frames:
            sender.send(frame)
        waiting: set[int] = set()
        if complete is None:
            waiting = set(PORTS)
            for other in PORTS:
                ip = IP(src=MARKER_SOURCE, dst=f"{MARKER}{other}")
                marker = Ether(dst="02:00:00:00:00:aa") / ip / UDP(sport=9, dport=9)
                sender.send(bytes(marker / Raw(b"marker")))
        output: Output = []
        deadline = time.monotonic() + WAIT_SECONDS
        while waiting or (complete is not None and not complete(output)):
            patience = 0.05 if complete is not None else deadline - time.monotonic()
            readable, _, _ = select.select(list(self._sockets.values()), [], [], max(0.0, patience))
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(output)} packets came out; markers missing: {waiting}")
            for number, opened in self._sockets.items():
                while opened in readable:
                    try:
                        frame = opened.recv(65536)
                    except BlockingIOError:
                        break
                    if frame.endswith(b"marker"):
                        waiting.discard(number)
                    else:
                        output.append((number, frame))
        return output

    def close(self) -> None:
        """End the process, remove the namespace."""
        self._stack.close()


def opened(kind: str, name: str = "aggregation", queues: int = PRIORITIES) -> Iterator[Target]:
    """The target of a kind ("in-process", "embedded", "bmv2") with one build, closed afterwards."""
    if kind == "in-process":
        target: InProcess | OnInterfaces = InProcess(name, queues)
    else:
        target = OnInterfaces(name, kind, queues=queues)
    try:
        yield target
    finally:
        target.close()


__all__ = ["MARKER", "PORTS", "InProcess", "OnInterfaces", "Output", "Packet", "Target", "build"]
