# SPDX-License-Identifier: Apache-2.0
"""The controller in virtual time, with the real fabric, job table, job service and monitor."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from controller.jobs.journal import Journal, NoJournal
from controller.jobs.registry import JobTable
from controller.p4rt.connection import (
    CLOSE_SECONDS,
    CONNECT_SECONDS,
    PUSH_SECONDS,
    REQUEST_SECONDS,
    DeviceConnection,
    SwitchError,
)
from controller.p4rt.dataplane import DataPlane
from controller.p4rt.entries import Entity
from controller.p4rt.fabric import Fabric
from controller.service.monitor import Monitor
from controller.service.servicer import JobService, look_after
from simulation.kernel.calls import Answering, CallError, ask
from simulation.kernel.engine import Engine
from simulation.kernel.processes import Process
from simulation.kernel.task_node import TaskNode
from simulation.links.trains import NEVER
from simulation.nodes.switch import SwitchNode
from switch.p4runtime.device import Device
from switch.p4runtime.streams import Stream
from switch.p4runtime.stubs import p4runtime_pb2
from topologies.model.addressing import Addressing
from topologies.model.topology import Topology

Result = TypeVar("Result")
Send = Callable[[Any], None]


class ControlNode(TaskNode):
    """The node of the controller.

    journal: file of its journal, so that it can be killed and started again; None: none.

    service: the job service while it answers, else None.
    table: its jobs, while it is up.
    process: the controller's.
    running: it was started and has not been killed since.
    """

    def __init__(
        self,
        engine: Engine,
        topology: Topology,
        addressing: Addressing,
        dataplane: DataPlane,
        switches: Mapping[str, SwitchNode],
        name: str = "controller",
    ) -> None:
        super().__init__(name)
        self._engine, self._switches = engine, switches
        self._made = partial(Fabric, topology, addressing, dataplane)
        self.journal: Path | None = None
        self._clear()

    def _clear(self) -> None:
        """Forgets all but the journal, as a new process does."""
        self.connections = {
            name: VirtualConnection(name, RemoteDevice(self._engine, self, switch))
            for name, switch in self._switches.items()
        }
        self.fabric = self._made(self.connections)
        self.service: JobService | None = None
        self.table: JobTable | None = None
        self.process = Process(self.name)
        self.running = False
        self._monitor: Monitor | None = None
        self._stopped = self.tasks.event()

    @property
    def answering(self) -> Answering | None:
        """The job service and its process, while it answers."""
        return None if self.service is None else Answering(self.service, self.process)

    def begin(self) -> None:
        """Brings up the fabric, then starts the job service."""
        self.running = True
        self.tasks.thread(self._bring_up, name="bring-up", process=self.process).start()

    def kill(self, how: str) -> None:
        """Kills the controller's process. Switches notice the end of their connections."""
        self.tasks.kill(self.process, how)
        streams = [connection.cut() for connection in self.connections.values()]
        self._clear()
        for stream in streams:
            if stream is not None:
                self.tasks.thread(stream.close, "closed").start()

    def cut(self, switch: str) -> None:
        """Ends the connection to a switch, which is dead or cannot be reached."""
        self.connections[switch].cut()

    def stop(self) -> None:
        """Stops the job service; call from a task of this node."""
        self._stopped.set()
        if self.service is not None:
            self.service.stop()
            self.service = None
        if self._monitor is not None:
            self._monitor.stop()
        self.fabric.close()

    def arrival(self) -> int:
        """Returns NEVER, as the controller receives calls but no packets."""
        return NEVER

    def arrive(self) -> None:
        """Implements TaskNode."""

    def _bring_up(self) -> None:
        fabric = self.fabric
        journal = NoJournal() if self.journal is None else Journal(self.journal)
        self.process.holds(lambda _: journal.close())
        term = journal.next_term()
        fabric.addressing = fabric.addressing.without(journal.gone())
        fabric.bring_up(keep=term > 1, term=term)
        self.table = table = JobTable(fabric, runtime=self.tasks, journal=journal)
        self._monitor = Monitor(table)
        self._monitor.start()
        self.tasks.thread(look_after, "jobs-expiry", (table, self._stopped)).start()
        self.service = JobService(table, math.inf)  # tasks wait, not threads


class VirtualConnection(DeviceConnection):
    """A connection to a switch at another node, which may take too long to answer."""

    def __init__(self, name: str, device: RemoteDevice) -> None:
        super().__init__(name, cast(Device, device))
        self._remote = device

    def open(self, seconds: float | None = None) -> None:
        """Implements Connection."""
        self._remote.seconds = CONNECT_SECONDS if seconds is None else seconds
        super().open(seconds)

    def read(self, entities: Sequence[Entity], seconds: float = REQUEST_SECONDS) -> list[Entity]:
        """Implements Connection."""
        with self._connected():
            replies = self._remote.read(self._messages.read(entities), seconds)
            return [entity for reply in replies for entity in reply.entities]

    def cut(self) -> RemoteStream | None:
        """Ends it, at this end only; returns its stream, if it was open."""
        stream, self._stream = self._stream, None
        return cast("RemoteStream | None", stream)


class RemoteDevice:
    """A switch's Device for another node: each call has the latency of calls, each way.

    Calls raise SwitchError while the switch is down or unplugged, and if it is stopped for longer
    than they take at most.

    seconds: what messages of streams take at most.
    """

    seconds = CONNECT_SECONDS

    def __init__(self, engine: Engine, source: TaskNode, switch: SwitchNode) -> None:
        self.device_id = switch.device.device_id
        self._engine, self._source, self._switch = engine, source, switch

    def open_stream(self, send: Send) -> RemoteStream:
        """Implements Device."""
        engine, source, switch = self._engine, self._source, self._switch

        def later(message: Any) -> None:
            engine.post(switch, source, switch.now + engine.control_latency, lambda: send(message))

        stream = self._ask(lambda device: device.open_stream(later), self.seconds)
        return RemoteStream(stream, self)

    def set_forwarding_pipeline_config(self, request: Any) -> Any:
        """Implements Device."""
        return self._ask(
            lambda device: device.set_forwarding_pipeline_config(request), PUSH_SECONDS
        )

    def get_forwarding_pipeline_config(self, request: Any) -> Any:
        """Implements Device."""
        return self._ask(lambda device: device.get_forwarding_pipeline_config(request))

    def write(self, request: p4runtime_pb2.WriteRequest) -> None:
        """Implements Device."""
        self._ask(lambda device: device.write(request))

    def read(
        self, request: p4runtime_pb2.ReadRequest, seconds: float = REQUEST_SECONDS
    ) -> Sequence[p4runtime_pb2.ReadResponse]:
        """Implements Device."""
        return self._ask(lambda device: list(device.read(request)), seconds)

    def receive(self, stream: Stream, request: p4runtime_pb2.StreamMessageRequest) -> None:
        """Has one of its streams receive a message."""
        self._ask(lambda _: stream.receive(request), self.seconds)

    def close(self, stream: Stream) -> None:
        """Has one of its streams end, if need be later."""
        self._ask(lambda _: stream.close(), CLOSE_SECONDS, insists=True)

    def _ask(
        self,
        work: Callable[[Device], Result],
        seconds: float = REQUEST_SECONDS,
        *,
        insists: bool = False,
    ) -> Result:
        switch = self._switch

        def there() -> Result:
            if not switch.reachable:
                raise SwitchError(switch.name, "does not answer")
            return work(switch.device)

        try:
            return ask(self._engine, self._source, switch, there, seconds=seconds, insists=insists)
        except CallError as error:
            raise SwitchError(switch.name, error.details()) from error


class RemoteStream:
    """Implements switch.p4runtime.device.Stream for another node."""

    def __init__(self, stream: Stream, device: RemoteDevice) -> None:
        self._stream, self._device = stream, device

    def receive(self, request: p4runtime_pb2.StreamMessageRequest) -> None:
        """Implements Stream."""
        self._device.receive(self._stream, request)

    def close(self) -> None:
        """Implements Stream. It has ended already where the switch does not answer."""
        with suppress(SwitchError):
            self._device.close(self._stream)
