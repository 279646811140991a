# SPDX-License-Identifier: Apache-2.0
"""The compared switches: how to start each on the links and install its entries."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from benchmarks.common import BenchError, pin
from benchmarks.forwarding import builds, peers, routing, times, traffic
from benchmarks.forwarding.times import Times
from benchmarks.forwarding.traffic import Mode, Traffic
from controller.p4rt.connection import GrpcConnection, SwitchError
from controller.p4rt.entries import Entity, P4Info, insertion, multicast_group
from controller.p4rt.program import NodeKey, Program
from emulation.nodes.processes import describe, environment, python
from observability.processinfo import tail
from protocol.header import Op
from specs.p4program import SOURCES
from specs.paths import ROOT
from testbed.targets import BMV2, CPU_PORT, DEVICE_ID, bmv2

Kind = Literal["null", "embedded", "bmv2", "linux", "ovs"]
Name = Literal[
    "null", "embedded", "bmv2", "bmv2_lanes", "bmv2_bare", "bmv2_bare_lanes", "linux", "ovs"
]

OWN_PROGRAMS = builds.DIRECTORY / "build"
_SMALL_PROGRAMS = ROOT / "tests" / "p4"
_GROUP = 1
_BARE_SLOTS = 1024  # p4/bare.p4
_START_SECONDS = 30.0
_STOP_SECONDS = 10.0
# BMv2's queues hold 64 packets (testbed.targets).
_BMV2_WINDOW, _BMV2_TRAIN = 48, 16
# A core's backlog holds 1000 frames of all ports (net.core.netdev_max_backlog).
_LINUX_WINDOW, _LINUX_TRAIN = 192, 32
# Open vSwitch keeps its sockets' default buffers.
_OVS_WINDOW, _OVS_TRAIN = 64, 16
_NARROWER = {
    "bmv2": (_BMV2_WINDOW, _BMV2_TRAIN),
    "linux": (_LINUX_WINDOW, _LINUX_TRAIN),
    "ovs": (_OVS_WINDOW, _OVS_TRAIN),
}
_WRITTEN_AT_ONCE = 1000  # entries per request


@dataclass(frozen=True)
class Contender:
    """A switch. name: as in the report; program: its JSON without suffix, None without P4."""

    name: Name
    kind: Kind
    program: Path | None

    def modes(self) -> tuple[Mode, ...]:
        """The modes it is measured in."""
        if self.kind in ("linux", "ovs"):
            return routing.MODES
        sums: tuple[Mode, ...] = ("plain",) if self.kind == "bmv2" else ("gso", "plain", "tcp")
        return sums if self.name in _VARIANTS else (*sums, *routing.MODES)

    def traffic(self, mode: Mode, window: int) -> Traffic:
        """Returns its load. window: packets per port that fit its socket."""
        if mode == "tcp":
            return traffic.tcp(window)
        most, train = _NARROWER.get(self.kind, (window, None))
        window = min(window, most)
        if mode in routing.MODES:
            return routing.load(mode, window, self.kind != "null", train)
        answer = Op.RESULT if self.sums else Op.CONTRIBUTE
        return traffic.aggregation(mode == "gso", window, answer, train)

    def first_uses(self, load: Traffic) -> int:
        """Returns the number of slots or flows of a load; the first packet of each is slower."""
        if load.mode in routing.MODES:
            return len(load.varying[0]) // load.varying_bytes
        if self.kind == "null":
            return 0
        return slots_of(load.window) if self.sums else _BARE_SLOTS

    @property
    def sums(self) -> bool:
        """True if it answers aggregation traffic with the sums of all workers."""
        return self.program is not None and self.program.name.startswith("aggregation")

    def wrong(self, frame: bytes, mode: Mode) -> str | None:
        """Describes an error in the first worker's answer; None if it is right, or none is due."""
        if mode in routing.MODES:
            return None if self.kind == "null" else routing.wrong_route(frame, 0)
        return traffic.wrong_sum(frame) if self.sums and mode != "tcp" else None


def build(name: str) -> Path:
    """Returns the path of a data plane build."""
    return SOURCES / "build" / name


_VARIANTS = ("bmv2_lanes", "bmv2_bare", "bmv2_bare_lanes")  # of one way to sum
NULL = Contender("null", "null", None)
EMBEDDED = Contender("embedded", "embedded", build("aggregation"))
BMV2_CONTENDERS = (
    Contender("bmv2", "bmv2", build("aggregation")),
    Contender("bmv2_lanes", "bmv2", OWN_PROGRAMS / "aggregation_lanes"),
    Contender("bmv2_bare", "bmv2", OWN_PROGRAMS / "bare"),
    Contender("bmv2_bare_lanes", "bmv2", OWN_PROGRAMS / "bare_lanes"),
)
LINUX = Contender("linux", "linux", None)
OVS = Contender("ovs", "ovs", None)
ROUTER = _SMALL_PROGRAMS / "router"


def contenders(names: Sequence[str]) -> list[Contender]:
    """Returns the named contenders, or all that this machine has. Raises BenchError."""
    no_bmv2 = f"there is no {BMV2} on PATH that could run it"
    lacking: dict[str, str] = {one.name: no_bmv2 for one in BMV2_CONTENDERS}
    lacking["linux"] = "only root can choose the core that forwards (/sys/class/net/*/queues)"
    lacking["ovs"] = f"no {peers.OVS} (Debian: openvswitch-switch), or /dev/net/tun needs root"
    installed = [
        NULL,
        EMBEDDED,
        *(BMV2_CONTENDERS if bmv2() else ()),
        *([LINUX] if peers.has_linux() else ()),
        *([OVS] if peers.has_ovs() else ()),
    ]
    known = {one.name: one for one in installed}
    for name in names:
        if name not in known:
            raise BenchError(f"{name}: {lacking[name]}")
    return [known[name] for name in names] if names else installed


@contextlib.contextmanager
def running(
    contender: Contender, load: Traffic, interfaces: Sequence[str], cores: tuple[int, int]
) -> Iterator[Callable[[], Times]]:
    """Runs a contender on its core, ready to forward its load; yields a reader of its CPU times.

    Args:
        cores: The contender's, and this process's own.

    Raises:
        BenchError
    """
    with tempfile.TemporaryDirectory(prefix="rh-bench-") as folder:
        if contender.kind == "linux":
            with peers.linux(interfaces, cores[0]) as spent:
                yield spent
            return
        if contender.kind == "ovs":
            with peers.ovs(interfaces, Path(folder), cores) as spent:
                yield spent
            return
        log = Path(folder, "log")
        address = f"unix:{folder}/p4"
        command = _command(contender, load.mode, interfaces, address)
        with log.open("wb") as output:
            pin(cores[0])  # inherited by the process and all its threads
            try:
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=output,
                    env=environment(),
                )  # fmt: skip
            finally:
                pin(cores[1])
        try:
            with _given(contender, load, address, process, log):
                yield partial(times.of_process, process.pid)
                if process.poll() is not None:
                    raise BenchError("it ended while it was measured")
        except BenchError as error:
            if process.poll() is None:
                raise
            how = describe(process.returncode)
            raise BenchError(f"{contender.name} {how}:\n{tail(log)}") from error
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.communicate(timeout=_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


def _command(
    contender: Contender, mode: Mode, interfaces: Sequence[str], address: str
) -> list[str]:
    if contender.kind == "null":
        whole = mode in ("gso", "tcp")
        how = ["--gso"] if whole else []
        how += ["--cross"] if mode not in ("gso", "plain") else []
        batch = "8" if whole else "64"  # fits the cache
        return [*python("benchmarks.forwarding.null"), *interfaces, *how, "--batch", batch]
    ports = [w for n, name in enumerate(interfaces, 1) for w in ("-i", f"{n}@{name}")]
    if contender.kind == "embedded":
        command = [
            *python("switch"),
            "-L",
            "info",
            *(["--plain"] if mode not in ("gso", "tcp") else []),
        ]
    else:
        command = [BMV2, "-L", "off"]
    command += [*ports, "--no-p4", "--device-id", str(DEVICE_ID)]
    return [*command, "--", "--grpc-server-addr", address, "--cpu-port", str(CPU_PORT)]


@contextlib.contextmanager
def _given(
    contender: Contender, load: Traffic, address: str, process: subprocess.Popen[bytes], log: Path
) -> Iterator[None]:
    """Installs program and entries; nothing is sent before."""
    if contender.kind != "bmv2":
        assert process.stdout is not None
        if process.stdout.readline() != b"ready\n":
            raise BenchError(f"{contender.name} did not start:\n{tail(log)}")
    if contender.program is None:
        yield
        return
    p4info, program, entries = _program(contender.program, load)
    switch = GrpcConnection(contender.name, address, DEVICE_ID)
    try:
        switch.open(_START_SECONDS)
        switch.push(p4info.message, program)
        for first in range(0, len(entries), _WRITTEN_AT_ONCE):
            some = entries[first : first + _WRITTEN_AT_ONCE]
            switch.write([insertion(one) for one in some])
    except SwitchError as error:
        raise BenchError(f"{contender.name}: {error}\n{tail(log)}") from error
    try:
        yield
    finally:
        switch.close()


def _program(path: Path, load: Traffic) -> tuple[P4Info, bytes, list[Entity]]:
    """Returns the load for a switch with this program: a router has one of its own."""
    if load.mode in routing.MODES:
        p4info, compiled = routing.program(ROUTER)
        return p4info, compiled, routing.entries(p4info)
    path = ROUTER if load.mode == "tcp" else path
    p4info = P4Info.load(path.with_suffix(".p4info.txtpb"))
    entries: list[Entity] = []
    if load.mode == "tcp":
        entries = routes(p4info)
    elif path.name.startswith("aggregation"):
        entries = tree(p4info, load.window)
    return p4info, path.with_suffix(".json").read_bytes(), entries


def slots_of(window: int) -> int:
    """Returns twice the window, rounded up to a power of two."""
    return 2 << (window - 1).bit_length()


def tree(p4info: P4Info, window: int) -> list[Entity]:
    """Returns entries that make the switch the root of four workers. window: of a worker."""
    program = Program(p4info)
    key = NodeKey(traffic.JOB, traffic.EPOCH, traffic.STREAM, traffic.NODE)
    children = range(traffic.PORTS)
    entities = [
        program.needs(impaired=False, guarded=False, marked_above=None),
        multicast_group(_GROUP, [(child + 1, child + 1) for child in children]),
    ]
    for child in children:
        address, port = traffic.WORKER_ADDRESSES + child, traffic.WORKER_UDP_PORTS + child
        entities += [
            program.child(key, child, child + 1, address, workers=1, is_switch=False),
            program.receiver(key, child, address, port, traffic.WORKER_MACS + child, node=0),
        ]
    window = slots_of(window) // 2
    return [*entities, program.node(key, 0, window, len(children), _GROUP, up=None)]


def routes(p4info: P4Info) -> list[Entity]:
    """Returns the router's entries: to each worker, and for the server's address to the first."""
    hops = [(traffic.WORKER_ADDRESSES + worker, worker) for worker in range(traffic.PORTS)]
    return [
        p4info.table_entry(
            "routes",
            {"hdr.ipv4.destination": (address, 32)},
            "forward",
            {"port": worker + 1, "next_hop": traffic.WORKER_MACS + worker},
        )
        for address, worker in [*hops, (traffic.SERVER_ADDRESS, 0)]
    ]
