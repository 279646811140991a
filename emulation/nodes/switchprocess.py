# SPDX-License-Identifier: Apache-2.0
"""Starts switches of either target, waits until they serve, and reads their port counters."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emulation.nodes.processes import Process, Processes, python
from observability.pcap import header
from protocol.priorities import PRIORITIES
from testbed.targets import BMV2, CPU_PORT, DEVICE_ID, Target
from topologies.model.addressing import Addressing, SwitchPort

# BMv2 listens for Thrift on every address of the network namespace, which is the sandbox's own.
_FIRST_THRIFT_PORT = 9090
_READY_SECONDS = 30.0
_LOOK_SECONDS = 0.02
_ANSWER_SECONDS = 10.0


@dataclass(frozen=True)
class PortCounters:
    """Packets and bytes (frames without FCS, each segment counted) in and out of a switch port.

    dropped: packets dropped at a full output queue.
    overrun: frames lost because the switch did not fetch them in time.
    """

    rx_packets: int
    rx_bytes: int
    tx_packets: int
    tx_bytes: int
    dropped: int
    overrun: int = 0


class SwitchProcess:
    """One switch: its process, its P4Runtime address and its port counters.

    starts: how often it was started.
    wiped: how often its program's counters were reset, as far as is known.
    """

    def __init__(self, name: str, target: Target, ports: tuple[SwitchPort, ...]) -> None:
        self.name = name
        self.target = target
        self.ports = ports
        self.process: Process | None = None
        self.starts = 0
        self.wiped = 0
        self._away = 0  # `unplugged` contexts that are open
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._counters: asyncio.Future[dict[str, dict[str, int]]] | None = None
        self._asking = asyncio.Lock()  # answers carry no id of their request

    @property
    def address(self) -> str:
        """Its P4Runtime address, relative to the run directory."""
        return f"unix:sockets/{self.name}"

    @property
    def reached(self) -> str:
        """The address of its P4Runtime socket at the moment, also while ``unplugged``."""
        return f"{self.address}.unplugged" if self._away else self.address

    @contextlib.contextmanager
    def unplugged(self) -> Iterator[None]:
        """Context in which no client can connect at its address; open connections stay.

        A restart meanwhile makes it reachable again.
        """
        start = self.starts
        self._move(1)
        try:
            yield
        finally:
            if self.starts == start:
                self._move(-1)

    def _move(self, change: int) -> None:
        before = self.reached
        self._away += change
        if self.reached != before:
            # A process that was killed before it bound has no socket.
            with contextlib.suppress(FileNotFoundError):
                _path(before).rename(_path(self.reached))

    @property
    def serving(self) -> bool:
        """True if it runs and P4Runtime listens."""
        return self.process is not None and self.process.running and self._ready.done()

    @property
    def counting(self) -> int:
        """A number that changes when its port counters are reset (BMv2's never are)."""
        return self.starts if self.target == "embedded" else 0

    def start(
        self,
        processes: Processes,
        number: int,
        pcap: Path | None,
        survived: Callable[[Process], bool] | None = None,
    ) -> None:
        """Starts the switch, or restarts it after its end; raises ``ProcessError``.

        number: index of the switch, for its Thrift port.
        pcap: folder for captures; each restart gets a subfolder.
        """
        self.starts += 1
        self.wiped += 1
        if self._ready.done():
            self._ready = asyncio.get_running_loop().create_future()
        # A killed process leaves its socket behind.
        _path(self.reached).unlink(missing_ok=True)
        self._away = 0
        if pcap is not None and self.starts > 1:
            pcap = pcap / f"{self.name}-start-{self.starts}"
            pcap.mkdir()
        if self.target == "embedded":
            command = [*python("switch"), "-L", "info", *self._ports_as_paced()]
        else:
            port = str(_FIRST_THRIFT_PORT + number)
            command = [BMV2, "-L", "off", "--thrift-port", port, *self._ports()]
        command += ["--no-p4", "--device-id", str(DEVICE_ID)]
        if pcap is not None:
            command += ["--pcap", str(pcap)] if self.target == "embedded" else [f"--pcap={pcap}"]
        command += ["--", "--grpc-server-addr", self.address, "--cpu-port", str(CPU_PORT)]
        command += ["--priority-queues", str(PRIORITIES)]  # others are dropped
        self.process = processes.start(self.name, command, on_line=self._line, survived=survived)

    async def ready(self, processes: Processes) -> None:
        """Waits until P4Runtime listens; raises ``ProcessError`` or ``TimeoutError``."""
        looking = asyncio.ensure_future(self._look()) if self.target == "bmv2" else None
        try:
            await processes.until(self._ready, _READY_SECONDS, f"{self.name} to serve P4Runtime")
        finally:
            if looking is not None:
                looking.cancel()

    async def _look(self) -> None:
        """Polls until P4Runtime listens: BMv2 buffers the output that says so."""
        path = _path(self.address)
        while not self._ready.done():
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_unix_connection(path)
                writer.close()
                self._ready.set_result(None)
                return
            await asyncio.sleep(_LOOK_SECONDS)

    async def counters(self) -> dict[int, PortCounters] | None:
        """Reads the counters of every port; returns None if no process has them.

        Raises ``TimeoutError`` if the switch does not answer.
        """
        if self.target == "bmv2":
            return {port.number: _interface_counters(port.interface) for port in self.ports}
        async with self._asking:
            process = self.process
            if process is None or not self.serving:
                return None
            self._counters = asyncio.get_running_loop().create_future()
            process.signal(signal.SIGUSR1)
            either: list[asyncio.Future[Any]] = [self._counters, process.exited]
            await asyncio.wait(either, timeout=_ANSWER_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if process.exited.done():
                return None
            if not self._counters.done():
                raise TimeoutError(f"{self.name} does not report its port counters")
            counters = self._counters.result()
        return {
            port.number: PortCounters(
                rx_packets=counters[str(port.number)]["rx_packets"],
                rx_bytes=counters[str(port.number)]["rx_bytes"],
                tx_packets=counters[str(port.number)]["tx_packets"],
                tx_bytes=counters[str(port.number)]["tx_bytes"],
                dropped=counters[str(port.number)]["tx_queue_full"],
                overrun=counters[str(port.number)]["rx_overrun"],
            )
            for port in self.ports
        }

    def _line(self, line: str) -> None:
        if line == "ready" and not self._ready.done():
            self._ready.set_result(None)
        elif line.startswith("{") and self._counters is not None and not self._counters.done():
            self._counters.set_result(json.loads(line)["ports"])

    def _ports(self) -> list[str]:
        return [word for port in self.ports for word in ("-i", f"{port.number}@{port.interface}")]

    def _ports_as_paced(self) -> list[str]:
        words = self._ports()
        for port in self.ports:
            words += ["--port-rate", f"{port.number}={port.outgoing.rate}"]
            words += ["--port-queue", f"{port.number}={port.outgoing.queue_bytes}"]
            if port.peer_is_host:  # its token bucket releases a frame when transmission begins
                words += ["--port-rate-in", f"{port.number}={port.incoming.rate}"]
        return words


def _path(address: str) -> Path:
    return Path(address.removeprefix("unix:"))


def _interface_counters(interface: str) -> PortCounters:
    """Reads the kernel's counters; BMv2's interfaces see no segment trains, so frames are exact."""
    folder = Path("/sys/class/net", interface, "statistics")

    def read(name: str) -> int:
        return int((folder / name).read_text())

    return PortCounters(
        rx_packets=read("rx_packets"),
        rx_bytes=read("rx_bytes"),
        tx_packets=read("tx_packets"),
        tx_bytes=read("tx_bytes"),
        dropped=read("tx_dropped"),
    )


def complete_captures(folder: Path) -> None:
    """Writes a pcap header to empty captures.

    BMv2 writes the header with the first packet, so the capture of an idle port has none.
    """
    for capture in folder.rglob("*.pcap"):
        if capture.stat().st_size == 0:
            capture.write_bytes(header())


def switches(addressing: Addressing, target: Target) -> dict[str, SwitchProcess]:
    """Returns the switches of a topology, by name; not started."""
    return {
        node.name: SwitchProcess(node.name, target, addressing.ports(node.name))
        for node in addressing.topology.switches
    }
