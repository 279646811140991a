# SPDX-License-Identifier: Apache-2.0
"""A switch on veth pairs in network namespaces, for tests of ports."""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from switch.loader import load_program
from switch.pipeline import Pipeline
from switch.ports import PortOptions, Ports
from tests.namespaces import WITHOUT_IPV6

CLONE_NEWNET = 0x40000000
SOL_UDP = socket.IPPROTO_UDP
UDP_SEGMENT = 103
UDP_GRO = 104
SOL_PACKET, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING = 263, 15, 23
ETH_P_ALL = 3

CPU_PORT = 510
# Timeout in seconds, generous for busy machines.
PATIENCE = 60.0
DISCARD = 9  # the program sends UDP to this port to the CPU

Result = TypeVar("Result")

_libc = ctypes.CDLL(None, use_errno=True)


class Namespace:
    """A network namespace, held by a thread of its own. Sockets made in it work from anywhere."""

    def __init__(self) -> None:
        self._work: queue.Queue[tuple[Callable[[], Any], queue.Queue[Any]] | None] = queue.Queue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self.run(self._enter)
        self.id = self.run(threading.get_native_id)
        # The kernel finds the namespace of a thread by its number in `ip link ... netns`.
        self.ip("link set lo up")

    @staticmethod
    def _enter() -> None:
        if _libc.unshare(CLONE_NEWNET) < 0:
            code = ctypes.get_errno()
            raise PermissionError(code, f"network namespace: {os.strerror(code)}")

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            function, answer = item
            try:
                answer.put((function(), None))
            except BaseException as error:
                answer.put((None, error))

    def run(self, function: Callable[[], Result]) -> Result:
        """Calls the function in the namespace."""
        answer: queue.Queue[Any] = queue.Queue()
        self._work.put((function, answer))
        result, error = answer.get()
        if error is not None:
            raise error
        return cast(Result, result)

    def command(self, *words: str) -> str:
        def call() -> str:
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(f"{' '.join(words)}: {done.stderr}")
            return done.stdout

        return self.run(call)

    def ip(self, line: str) -> str:
        return self.command("ip", *line.split())

    def sends(self, interface: str) -> bool:
        """Tells whether the interface is up and no longer loses packets."""
        state = self.ip(f"link show {interface}")
        return "state UP" in state and "qdisc noop " not in state

    def socket(self, *arguments: int) -> socket.socket:
        made = self.run(lambda: socket.socket(*arguments))
        made.settimeout(PATIENCE)
        return made

    def close(self) -> None:
        self._work.put(None)
        self._thread.join()


class Rig:
    """A namespace with a switch's interfaces s1.., each the end of a host's eth0 in another one.

    Host n has 10.0.0.n/24, MAC 02:00:00:00:00:0n and static ARP of all others.
    """

    def __init__(self, hosts: int, mtu: int = 1500) -> None:
        self.switch = Namespace()
        self.hosts: dict[int, Namespace] = {}
        for n in range(1, hosts + 1):
            host = self.hosts[n] = Namespace()
            self.link(n, host, mtu)
        for n, host in self.hosts.items():
            for other in self.hosts:
                if other != n:
                    host.ip(f"neigh add {address(other)} lladdr {mac(other)} dev eth0")

    def link(self, n: int, host: Namespace, mtu: int = 1500) -> None:
        for namespace in (self.switch, host):
            namespace.command(*WITHOUT_IPV6)
        self.switch.ip(
            f"link add s{n} mtu {mtu} type veth peer name eth0 mtu {mtu} address {mac(n)} "
            f"netns {host.id}"
        )
        self.switch.ip(f"link set s{n} up")
        host.ip(f"addr add {address(n)}/24 dev eth0")
        host.ip("link set eth0 up")
        # The kernel starts to send a moment after an interface has come up, and loses until then.
        for place, name in ((self.switch, f"s{n}"), (host, "eth0")):
            wait_for(partial(place.sends, name), f"{name} sends")

    def raw(self, n: int, *, offloads: bool = False) -> socket.socket:
        """A packet socket on host n's eth0, deaf to its own; with offload headers if asked."""
        made = self.hosts[n].socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        made.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
        made.setsockopt(SOL_PACKET, PACKET_VNET_HDR, int(offloads))
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self.hosts[n].run(lambda: made.bind(("eth0", ETH_P_ALL)))
        return made

    def udp(self, n: int, port: int = 0) -> socket.socket:
        made = self.hosts[n].socket(socket.AF_INET, socket.SOCK_DGRAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self.hosts[n].run(lambda: made.bind((address(n), port)))
        return made

    def close(self) -> None:
        for host in self.hosts.values():
            host.close()
        self.switch.close()


@dataclass
class Setup:
    rig: Rig
    pipeline: Pipeline
    ports: Ports


def wired() -> Pipeline:
    """Wires 1-2 and 3-4; what the CPU port sends leaves through 2."""
    program = load_program(Path(__file__).parents[2] / "p4" / "ports.json")
    pipeline = Pipeline(program, priority_queues=8)
    for a, b in ((1, 2), (2, 1), (3, 4), (4, 3), (CPU_PORT, 2)):
        pipeline.insert("Switch.wires", [a], "Switch.forward", [b])
    return pipeline


@contextlib.contextmanager
def switched(
    options: Mapping[int, Mapping[str, Any]] | None = None,
    *,
    hosts: int = 2,
    mtu: int = 1500,
    program: Callable[[], Pipeline] = wired,
    **more: Any,
) -> Iterator[Setup]:
    """Hosts 1.. on ports 1.. (s1..) of a running switch.

    options: {port: fields of PortOptions}; more: keyword arguments of Ports.
    """
    with contextlib.ExitStack() as stack:
        rig = Rig(hosts, mtu)
        stack.callback(rig.close)
        pipeline = program()
        stack.callback(pipeline.close)
        chosen = {n: PortOptions(f"s{n}", **(options or {}).get(n, {})) for n in rig.hosts}
        ports = Ports(pipeline, chosen, **more)
        stack.callback(ports.stop)
        rig.switch.run(ports.start)
        yield Setup(rig, pipeline, ports)


def address(n: int) -> str:
    return f"10.0.0.{n}"


def mac(n: int) -> str:
    return f"02:00:00:00:00:{n:02x}"


def pattern(length: int) -> bytes:
    """Returns bytes without short repetitions."""
    return bytes((i * 31 + i // 253) & 255 for i in range(length))


def checksum(data: bytes) -> int:
    """The Internet checksum of RFC 1071."""
    words = struct.unpack(f"!{(len(data) + 1) // 2}H", data + b"\0" * (len(data) % 2))
    total: int = sum(words)
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def udp_frame(
    source: int,
    destination: int,
    payload: bytes,
    *,
    number: int = 0,
    summed: bool = True,
    ttl: int = 64,
    port: int = 4000,
) -> bytes:
    """Ethernet, IPv4 and UDP from one host to another; number: the IPv4 identification."""
    ends = socket.inet_aton(address(source)) + socket.inet_aton(address(destination))
    udp = struct.pack("!4H", 4000, port, 8 + len(payload), 0) + payload
    if summed:
        found = checksum(ends + struct.pack("!2H", 17, len(udp)) + udp) or 0xFFFF
        udp = udp[:6] + struct.pack("!H", found) + udp[8:]
    ip = struct.pack("!2B3H2BH", 0x45, 0, 20 + len(udp), number, 0x4000, ttl, 17, 0) + ends
    ip = ip[:10] + struct.pack("!H", checksum(ip)) + ip[12:]
    macs = bytes.fromhex((mac(destination) + mac(source)).replace(":", ""))
    return macs + b"\x08\x00" + ip + udp


def send_train(sender: socket.socket, to: tuple[str, int], size: int, data: bytes) -> None:
    """One system call, cut into datagrams of `size` bytes by the kernel or another GSO."""
    sender.sendmsg([data], [(SOL_UDP, UDP_SEGMENT, struct.pack("=H", size))], 0, to)


def receive_datagrams(receiver: socket.socket, count: int) -> list[bytes]:
    """`count` datagrams; those that arrive joined (UDP_GRO) are taken apart."""
    found: list[bytes] = []
    while len(found) < count:
        data, ancillary, *_ = receiver.recvmsg(1 << 17, 64)
        size = next(
            (
                struct.unpack("=i", value[:4])[0]
                for level, kind, value in ancillary
                if (level, kind) == (SOL_UDP, UDP_GRO)
            ),
            len(data),
        )
        found += [data[at : at + size] for at in range(0, len(data), size)] or [b""]
    return found


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Returns when the condition holds; fails the test if it does not in time."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"not within {PATIENCE} s: {what}"
        time.sleep(0.005)
