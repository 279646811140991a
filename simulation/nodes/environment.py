# SPDX-License-Identifier: Apache-2.0
"""The environment of programs at a host in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from ipaddress import IPv4Address
from typing import Any

from hosts.data.workspace import Workspace
from hosts.net.driver import Attachment, Visible
from hosts.net.environment import Connection, HostEnvironment
from hosts.net.pacer import BACKLOG, urgent_bytes
from protocol.frames import OVERHEAD
from protocol.header import HEADER_BYTES, SERVER_PORTS
from protocol.plan import Address
from protocol.shards_pb2_grpc import ShardServiceServicer
from simulation.kernel.calls import Answering, Stub
from simulation.kernel.engine import Engine
from simulation.kernel.processes import Process
from simulation.kernel.task_node import TaskNode
from simulation.nodes.endpoint import URGENT_BACKLOG, VirtualEndpoint
from simulation.nodes.host import HostNode
from simulation.nodes.transfers import LinkCarrier
from topologies.model.addressing import Addressing


class VirtualHostEnvironment(HostEnvironment):
    """Implements HostEnvironment in virtual time.

    controller: the node of the job service.
    service: returns the job service while it answers.
    shards: servers that answer other servers, by address.
    process: that of the programs.
    hosts: host nodes by name.
    payload: as in HostEnvironment.
    corrupts: links may corrupt packets.
    workspace: memory that all transports share, as one task runs at a time.
    """

    def __init__(
        self,
        engine: Engine,
        node: TaskNode,
        addressing: Addressing,
        controller: TaskNode,
        service: Callable[[], Answering | None],
        shards: dict[Address, Answering],
        hosts: Mapping[str, HostNode],
        payload: bool = True,
        corrupts: bool = False,
        process: Process | None = None,
        workspace: Workspace | None = None,
    ) -> None:
        self._workspace = workspace or Workspace()
        self.runtime = node.tasks
        self.header_room = OVERHEAD
        self.payload = payload
        self._engine, self._node, self._addressing = engine, node, addressing
        self._controller, self._service = controller, service
        self._shards = shards
        self._hosts = hosts
        self._corrupts = corrupts
        self._process = process

    def compute(self, seconds: float) -> None:
        """Implements HostEnvironment."""
        assert isinstance(self._node, HostNode)
        self._node.compute(seconds)

    def check_service(self, service: str) -> None:
        """Implements HostEnvironment."""

    def endpoint(self, address: str, **options: Any) -> VirtualEndpoint:
        """Implements HostEnvironment."""
        assert isinstance(self._node, HostNode)
        while (made := self._node.endpoint(address)).port in SERVER_PORTS:
            pass
        return made

    def expect(
        self,
        endpoint: Attachment,
        expected: Callable[[], tuple[float, float]],
        visible: Visible | None = None,
    ) -> None:
        """Implements HostEnvironment. A corrupted packet may lead to calls at any time."""
        assert isinstance(endpoint, VirtualEndpoint)
        if not self._corrupts:
            endpoint.expected, endpoint.visible = expected, visible

    def workspace(self) -> Workspace:
        """Implements HostEnvironment."""
        return self._workspace

    def backlog(
        self, rate: int, queue_bytes: int | None, payload: int, *, classes: bool = False
    ) -> float:
        """Returns a backlog so small that the queue of the host's link always has room."""
        if not rate or queue_bytes is None:
            return BACKLOG
        packet = payload + OVERHEAD + HEADER_BYTES
        room = max(payload, queue_bytes - 4 * packet)
        if classes:
            room = min(room, urgent_bytes(rate, packet, URGENT_BACKLOG))
        return min(BACKLOG, 8 * room / rate)

    def service(self, service: str) -> Connection:
        """Implements HostEnvironment."""
        stub = Stub(
            *(self._engine, self._node, self._controller, self._service),
            *(f"unix:{self._node.name}", self._process),
        )
        return Connection(stub, stub.close)

    def peer(self, address: Address) -> Connection:
        """Connects to a server; the source address is the host's first, or within a host the one
        called, as a kernel would choose it."""
        there = self._addressing.interfaces[IPv4Address(address.ipv4)]
        own = self._addressing.address(self._node.name)
        source = there.ipv4 if there.node == self._node.name else own
        find = self._shards.get
        target, peer = self._hosts[there.node], f"ipv4:{source}:0"
        carrier = None  # within a host there are no links
        if target is not self._node:
            assert isinstance(self._node, HostNode)
            ends = self._node.transfers, int(source), target.transfers, int(there.ipv4)
            carrier = LinkCarrier(*ends)
        stub = Stub(
            *(self._engine, self._node, target, lambda: find(address), peer, self._process),
            carrier,
        )
        return Connection(stub, stub.close)

    def answer(self, address: Address, servicer: ShardServiceServicer) -> Callable[[], None]:
        """Implements HostEnvironment."""
        if address in self._shards:
            raise OSError(0, f"cannot listen at {address} (TCP)")
        self._shards[address] = mine = Answering(servicer, self._process)

        def end() -> None:
            if self._shards.get(address) is mine:
                del self._shards[address]

        if self._process is not None:
            self._process.holds(lambda _: end())
        return end
