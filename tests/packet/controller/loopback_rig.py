# SPDX-License-Identifier: Apache-2.0
"""A controller with its job service over embedded switches and a server process per host, all in
one process. Members use loopback without switches: trees are `none`.

Hosts have addresses in 127/8, which Linux has on loopback without asking.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from ipaddress import IPv4Address
from pathlib import Path

from controller.jobs.registry import JobTable
from controller.p4rt.connection import DeviceConnection
from controller.p4rt.fabric import Fabric
from controller.service.servicer import JobServer
from hosts.net.udp import Endpoint
from hosts.server.process import ServerProcess
from protocol.header import PORT
from switch.p4runtime.device import Device
from tests.packet.targets import build
from topologies.model.addressing import Addressing
from topologies.model.spec import parse
from topologies.model.topology import Node, Topology

TOPOLOGY = parse("name: loopback\nracks: [{workers: 2, servers: 1}]\ncores: 0\n")


class LoopbackAddressing(Addressing):
    """Hosts at 127.NET.RACK+x.n."""

    def __init__(self, topology: Topology, net: int) -> None:
        self._net = net
        super().__init__(topology)

    def _host_address(self, host: Node, tor: Node) -> IPv4Address:
        _, rack, third, number = super()._host_address(host, tor).packed
        return IPv4Address(bytes((127, self._net, 2 * rack + third, number)))


class Loopback:
    """`table` is the controller's; `servers` are by host name."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self.service = f"unix:{path}"
        self.servers: dict[str, ServerProcess] = {}
        self.addressing, endpoints = self._bind(stack)
        devices = {node.name: Device(1) for node in TOPOLOGY.switches}
        connections = {name: DeviceConnection(name, d) for name, d in devices.items()}
        plane, _, _ = build("aggregation")
        self.fabric = Fabric(TOPOLOGY, self.addressing, plane, connections)
        self.fabric.bring_up()
        for device in devices.values():
            stack.callback(device.close)
        stack.callback(self.fabric.close)
        self.table = JobTable(self.fabric)
        stack.callback(JobServer(self.table, self.service).stop)
        for name, endpoint in endpoints.items():
            process = self.servers[name] = ServerProcess(endpoint, self.service)
            thread = threading.Thread(target=process.run, name=name)
            thread.start()
            stack.callback(thread.join)
            stack.callback(process.stop)

    def _bind(self, stack: ExitStack) -> tuple[LoopbackAddressing, dict[str, Endpoint]]:
        """Binds addresses with free server ports, so that tests can run in parallel."""
        for step in range(200):
            addressing = LoopbackAddressing(TOPOLOGY, 16 + (os.getpid() + step) % 200)
            with ExitStack() as opened:
                try:
                    endpoints = {
                        node.name: opened.enter_context(
                            Endpoint((str(addressing.address(node.name)), PORT))
                        )
                        for node in TOPOLOGY.servers
                    }
                except OSError:
                    continue
                stack.enter_context(opened.pop_all())
                return addressing, endpoints
        raise AssertionError(f"UDP port {PORT} is taken on 200 networks of loopback")

    def address(self, host: str) -> str:
        return str(self.addressing.address(host))

    def wait_for(self, condition: Callable[[], bool], seconds: float = 60) -> None:
        """Waits until the services' threads have made the condition true."""
        late = time.monotonic() + seconds
        pause = threading.Event()
        while not condition():
            assert time.monotonic() < late
            pause.wait(0.01)

    def serve(self, nonce: str) -> None:
        """Makes all servers join a job."""
        for rank, server in enumerate(self.servers.values()):
            server.join(nonce, rank)


@contextmanager
def loopback(path: Path) -> Iterator[Loopback]:
    with ExitStack() as stack:
        yield Loopback(path, stack)
