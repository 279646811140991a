# SPDX-License-Identifier: Apache-2.0
"""The switches that are compared: how each is started on the links, and given its entries."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from controller.connection import GrpcConnection, SwitchError
from controller.entries import Entity, P4Info, insertion, multicast_group
from protocol.header import Op
from testbed.bench.common import BenchError, pin
from testbed.bench.forwarding import builds, traffic
from testbed.bench.forwarding.traffic import Mode, Traffic
from testbed.nodes.dataplane import SOURCES
from testbed.nodes.processes import ROOT, describe, environment, python, tail
from testbed.nodes.targets import BMV2, CPU_PORT, DEVICE_ID, bmv2

Kind = Literal["null", "embedded", "bmv2"]


OWN_PROGRAMS = builds.DIRECTORY / "build"
_SMALL_PROGRAMS = ROOT / "tests" / "p4"
_GROUP = 1
_BARE_SLOTS = 1024  # p4/bare.p4
_START_SECONDS = 30.0
_STOP_SECONDS = 10.0
# BMv2's queues hold 64 packets (testbed.nodes.targets), whatever is under way.
_BMV2_WINDOW, _BMV2_TRAIN = 48, 16


@dataclass(frozen=True)
class Contender:
    """name: as in the report. program: its JSON, without the ending; None: it has none."""

    name: str
    kind: Kind
    program: Path | None

    def modes(self) -> tuple[Mode, ...]:
        """What it is measured with."""
        return ("plain",) if self.kind == "bmv2" else ("gso", "plain", "tcp")

    def traffic(self, mode: Mode, window: int) -> Traffic:
        """What it is loaded with; window: packets of a port that its socket surely holds."""
        if mode == "tcp":
            return traffic.tcp(window)
        answer = Op.RESULT if self.checked else Op.CONTRIBUTE
        if self.kind == "bmv2":
            return traffic.aggregation(False, min(window, _BMV2_WINDOW), answer, _BMV2_TRAIN)
        return traffic.aggregation(mode == "gso", window, answer)

    def slots(self, window: int) -> int:
        """That its program uses under such a load; the first use of each takes longer."""
        if self.kind == "null":
            return 0
        return slots_of(window) if self.checked else _BARE_SLOTS

    @property
    def checked(self) -> bool:
        """Whether it answers with sums of all workers."""
        return self.program is not None and self.program.name.startswith("aggregation")


def build(name: str) -> Path:
    """A build of the data plane."""
    return SOURCES / "build" / name


NULL = Contender("null", "null", None)
EMBEDDED = Contender("embedded", "embedded", build("aggregation"))
BMV2_CONTENDERS = (
    Contender("bmv2", "bmv2", build("aggregation")),
    Contender("bmv2_lanes", "bmv2", OWN_PROGRAMS / "aggregation_lanes"),
    Contender("bmv2_bare", "bmv2", OWN_PROGRAMS / "bare"),
    Contender("bmv2_bare_lanes", "bmv2", OWN_PROGRAMS / "bare_lanes"),
)
ROUTER = _SMALL_PROGRAMS / "router"


def contenders(names: Sequence[str]) -> list[Contender]:
    """Those that were asked for, or all that this machine has. Raises BenchError."""
    installed = [NULL, EMBEDDED, *(BMV2_CONTENDERS if bmv2() else ())]
    known = {one.name: one for one in installed}
    for name in names:
        if name not in known:
            raise BenchError(f"{name}: there is no {BMV2} on PATH that could run it")
    return [known[name] for name in names] if names else installed


@contextlib.contextmanager
def running(
    contender: Contender, load: Traffic, interfaces: Sequence[str], cores: tuple[int, int]
) -> Iterator[int]:
    """A contender on its core, ready to forward what it is loaded with; its process id. Raises
    BenchError.

    cores: that of the contender, and this process's own.
    """
    with tempfile.TemporaryDirectory(prefix="rh-bench-") as folder:
        log = Path(folder, "log")
        address = f"unix:{folder}/p4"
        command = _command(contender, load.mode, interfaces, address)
        with log.open("wb") as output:
            pin(cores[0])  # what is started inherits it, with all its threads
            try:
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=output,
                    env=environment(),
                )  # fmt: skip
            finally:
                pin(cores[1])
        try:
            with _given(contender, load, address, process, log):
                yield process.pid
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
        how = {"gso": ["--gso"], "plain": [], "tcp": ["--gso", "--cross"]}[mode]
        # As many as stay in the cache.
        batch = "8" if mode != "plain" else "64"
        return [*python("testbed.bench.forwarding.null"), *interfaces, *how, "--batch", batch]
    ports = [w for n, name in enumerate(interfaces, 1) for w in ("-i", f"{n}@{name}")]
    if contender.kind == "embedded":
        command = [*python("switch"), "-L", "info", *(["--plain"] if mode == "plain" else [])]
    else:
        command = [BMV2, "-L", "off"]
    command += [*ports, "--no-p4", "--device-id", str(DEVICE_ID)]
    return [*command, "--", "--grpc-server-addr", address, "--cpu-port", str(CPU_PORT)]


@contextlib.contextmanager
def _given(
    contender: Contender, load: Traffic, address: str, process: subprocess.Popen[bytes], log: Path
) -> Iterator[None]:
    """Its program and entries; until then nothing is sent."""
    if contender.kind != "bmv2":
        assert process.stdout is not None
        if process.stdout.readline() != b"ready\n":
            raise BenchError(f"{contender.name} did not start:\n{tail(log)}")
    if contender.program is None:
        yield
        return
    program = ROUTER if load.mode == "tcp" else contender.program
    p4info = P4Info.load(program.with_suffix(".p4info.txtpb"))
    switch = GrpcConnection(contender.name, address, DEVICE_ID)
    try:
        switch.open(_START_SECONDS)
        switch.push(p4info.message, program.with_suffix(".json").read_bytes())
        if load.mode == "tcp":
            switch.write([insertion(one) for one in routes(p4info)])
        elif contender.checked:
            switch.write([insertion(one) for one in tree(p4info, load.window)])
    except SwitchError as error:
        raise BenchError(f"{contender.name}: {error}\n{tail(log)}") from error
    try:
        yield
    finally:
        switch.close()


def slots_of(window: int) -> int:
    """Twice as many as the window, rounded up to a power of two."""
    return 2 << (window - 1).bit_length()


def tree(p4info: P4Info, window: int) -> list[Entity]:
    """The switch as the root of four workers; window: packets of one that may be under way."""
    entry = p4info.table_entry
    stream = {"job": traffic.JOB, "epoch": traffic.EPOCH, "stream": traffic.STREAM}
    node = {**stream, "node": traffic.NODE}
    children = range(traffic.PORTS)
    entities = [multicast_group(_GROUP, [(child + 1, child + 1) for child in children])]
    for child in children:
        key = {**node, "sender": child, "ingress_port": child + 1}
        address = traffic.WORKER_ADDRESSES + child
        values = {"source": address, "workers": 1}
        entities.append(entry("aggregation.children", key, "worker", values))
        values = {
            "destination": address,
            "udp_port": traffic.WORKER_UDP_PORTS + child,
            "mac": traffic.WORKER_MACS + child,
            "node": 0,
        }
        key = {**stream, "child": child}
        entities.append(entry("receivers.children", key, "address", values))
    values = {
        "base": 0,
        "mask": slots_of(window) - 1,
        "full": (1 << len(children)) - 1,
        "group": _GROUP,
    }
    return [*entities, entry("aggregation.nodes", node, "root", values)]


def routes(p4info: P4Info) -> list[Entity]:
    """Of the router: to every worker, and what is for the server to the first."""
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
