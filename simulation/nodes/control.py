# SPDX-License-Identifier: Apache-2.0
"""The controller in virtual time, with the real fabric, job table, job service and monitor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

from controller.jobs.registry import JobTable
from controller.p4rt.connection import DeviceConnection
from controller.p4rt.dataplane import DataPlane
from controller.p4rt.fabric import Fabric
from controller.service.monitor import Monitor
from controller.service.servicer import JobService, look_after
from simulation.kernel.calls import ask
from simulation.kernel.engine import Engine, Node
from simulation.kernel.task_node import TaskNode
from simulation.links.trains import NEVER
from switch.p4runtime.device import Device
from switch.p4runtime.stubs import p4runtime_pb2
from topologies.model.addressing import Addressing
from topologies.model.topology import Topology

Result = TypeVar("Result")
Send = Callable[[Any], None]


class ControlNode(TaskNode):
    """The node of the controller.

    service: the job service while it answers, else None.
    table: its jobs, once it is up.
    """

    def __init__(
        self,
        engine: Engine,
        topology: Topology,
        addressing: Addressing,
        dataplane: DataPlane,
        switches: Mapping[str, tuple[Node, Device]],
        name: str = "controller",
    ) -> None:
        super().__init__(name)
        connections = {
            switch: DeviceConnection(switch, cast(Device, RemoteDevice(engine, self, node, device)))
            for switch, (node, device) in switches.items()
        }
        self.fabric = Fabric(topology, addressing, dataplane, connections)
        self.service: JobService | None = None
        self.table: JobTable | None = None
        self._monitor: Monitor | None = None
        self._stopped = self.tasks.event()

    def begin(self) -> None:
        """Brings up the fabric, then starts the job service."""
        self.tasks.thread(self._bring_up, name="bring-up").start()

    def stop(self) -> None:
        """Stops the job service; call from a task of this node."""
        self._stopped.set()
        if self.service is not None:
            self.service.stop()
            self.service = None
        if self._monitor is not None:
            self._monitor.stop()
        self.fabric.close()

    def impair(self, links: Mapping[frozenset[str], Mapping[str, float]]) -> None:
        """Impairs these links, and no others (`Fabric.impair`); call from a task of this node."""
        assert self.table is not None
        self.table.outages.impair(links)

    def arrival(self) -> int:
        """Returns NEVER, as the controller receives calls but no packets."""
        return NEVER

    def arrive(self) -> None:
        """Implements TaskNode."""

    def _bring_up(self) -> None:
        self.fabric.bring_up()
        self.table = table = JobTable(self.fabric, runtime=self.tasks)
        self._monitor = Monitor(table)
        self._monitor.start()
        self.tasks.thread(look_after, "jobs-expiry", (table, self._stopped)).start()
        self.service = JobService(table)


class RemoteDevice:
    """A switch's Device for another node: each call has the latency of calls, each way."""

    def __init__(self, engine: Engine, source: TaskNode, node: Node, device: Device) -> None:
        self.device_id = device.device_id
        self._engine, self._source, self._node = engine, source, node
        self._device = device

    def open_stream(self, send: Send) -> RemoteStream:
        """Implements Device."""
        return RemoteStream(self._ask(lambda: self._device.open_stream(send)), self._ask)

    def set_forwarding_pipeline_config(self, request: Any) -> Any:
        """Implements Device."""
        return self._ask(lambda: self._device.set_forwarding_pipeline_config(request))

    def get_forwarding_pipeline_config(self, request: Any) -> Any:
        """Implements Device."""
        return self._ask(lambda: self._device.get_forwarding_pipeline_config(request))

    def write(self, request: p4runtime_pb2.WriteRequest) -> None:
        """Implements Device."""
        self._ask(lambda: self._device.write(request))

    def read(self, request: p4runtime_pb2.ReadRequest) -> Sequence[p4runtime_pb2.ReadResponse]:
        """Implements Device."""
        return self._ask(lambda: list(self._device.read(request)))

    def _ask(self, work: Callable[[], Result]) -> Result:
        return ask(self._engine, self._source, self._node, work)


class RemoteStream:
    """Implements switch.p4runtime.device.Stream for another node."""

    def __init__(self, stream: Any, remote: Callable[[Callable[[], Any]], Any]) -> None:
        self._stream, self._ask = stream, remote

    def receive(self, request: p4runtime_pb2.StreamMessageRequest) -> None:
        """Implements Stream."""
        self._ask(lambda: self._stream.receive(request))

    def close(self) -> None:
        """Implements Stream."""
        self._ask(self._stream.close)
