# SPDX-License-Identifier: Apache-2.0
"""Kills, stops and cuts off nodes in virtual time, and starts them again, by the rules of
emulation."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from functools import partial

from controller.jobs.job import JobError
from controller.jobs.registry import JobTable
from controller.p4rt.connection import DeviceConnection, SwitchError
from controller.p4rt.dataplane import DataPlane
from controller.p4rt.fabric import FabricError
from hosts.errors import ClientError
from simulation.errors import ProcessEndedError
from simulation.jobrun import VirtualJob
from simulation.kernel.calls import ask
from simulation.kernel.engine import Node
from simulation.kernel.processes import KILLED, Process
from simulation.kernel.task_node import TaskNode
from simulation.links.trains import SECOND, picoseconds
from simulation.network import Network
from simulation.nodes.host import HostNode
from simulation.nodes.switch import SwitchNode
from specs.faultfile import CONTROLLER, Fault

__all__ = ["STRIKES", "Strikes"]

log = logging.getLogger("virtual")

STRIKES = ("kill", "stop", "repush", "disconnect")
_RETRY_SECONDS = 0.01  # of orders to a controller that is not up
_TERM = 1 << 32  # of another client: above every election id of the controller, which outbids it


class Strikes:
    """Faults of processes and of connections to the controller; all methods are for tasks of the
    operator, and `begin` takes effect at a time (ps) that is a call away at least.

    tell: reports a text.
    renew: called when a restarted controller is up: it has to be given its orders again.
    """

    def __init__(
        self,
        network: Network,
        jobs: Sequence[VirtualJob],
        dataplane: DataPlane,
        tell: Callable[[str], None],
        renew: Callable[[], None],
    ) -> None:
        self._network, self._jobs, self._dataplane = network, jobs, dataplane
        self._tell, self._renew = tell, renew
        self._engine, self._operator = network.engine, network.operator
        self._ordering = self._operator.tasks.lock()
        self._stopped: dict[int, list[Process]] = {}  # by fault
        self._overflowed: dict[str, int] = {}  # packets, by switch

    def node(self, fault: Fault) -> Node:
        """Returns the node that a fault hits."""
        network = self._network
        if fault.node == CONTROLLER:
            return network.controller
        if fault.node in network.switches:
            return network.switches[fault.node]
        known = network.topology.by_name
        name = fault.node if fault.node in known else network.addressing.unit(fault.node).host
        return network.hosts[name]

    def begin(self, number: int, fault: Fault, at: int) -> Sequence[str] | None:
        """Has a fault happen; returns the names of the processes that it has killed, None if there
        was nothing to hit. Raises SwitchError if a program cannot be pushed."""
        node = self.node(fault)
        work: Callable[[], Sequence[str] | None]
        if isinstance(node, SwitchNode):
            work = partial(self._hit_switch, node, number, fault)
            if fault.kind == "disconnect":
                self._cut(fault.node, at)
        elif isinstance(node, HostNode):
            work = partial(self._hit_host, node, number, fault)
        else:
            work = partial(self._hit_controller, number, fault)
        return self._at(node, at, work, waits=fault.kind == "repush")

    def end(self, number: int, fault: Fault, at: int) -> int:
        """Ends a fault that lasts, at a time (ps) or as soon as possible; returns when."""
        node = self.node(fault)
        at = max(at, self._soonest)
        if isinstance(node, SwitchNode):
            over = partial(node.unplugged.discard, number)
            if fault.kind == "stop":
                over = partial(self._resume_switch, node, number)
            self._post(node, at, over)
        else:
            self._post(node, at, partial(self._resume, node, number))
        return at

    def follow(self, fault: Fault, killed: Sequence[str], began: int) -> None:
        """Reports killed processes to the controller and starts them again when they are due.
        Workers' jobs see to that themselves (`VirtualJob`)."""
        node = self.node(fault)
        if isinstance(node, HostNode) and node.name in self._network.workers_at:
            return
        if isinstance(node, SwitchNode):
            self._cut(node.name, self._soonest)
        if fault.node != CONTROLLER:
            for name in killed:
                self.order(partial(_died, name))
        if math.isinf(fault.seconds):
            return
        left = began + picoseconds(fault.seconds) - self._operator.now
        if left > 0:
            self._operator.tasks.sleep(left / SECOND)
        if isinstance(node, SwitchNode):
            self._post(node, self._soonest, node.start)
        elif isinstance(node, HostNode):
            for name in killed:
                self._rejoin(name)
        else:
            self._post(node, self._soonest, self._network.controller.begin)
            self._renew()

    def order(self, work: Callable[[JobTable], None]) -> None:
        """Has the controller carry out an order, once it is up; orders keep their order."""
        controller = self._network.controller

        def there() -> bool:
            if controller.table is None:
                return False
            try:
                work(controller.table)
            except (FabricError, SwitchError, JobError) as error:
                log.warning("an order was not carried out: %s", error)
            return True

        with self._ordering:
            while True:
                try:
                    if ask(
                        *(self._engine, self._operator, controller, there),
                        lambda: controller.process,
                    ):
                        return
                except ProcessEndedError:
                    pass
                self._operator.tasks.sleep(_RETRY_SECONDS)

    # --- at nodes ---

    def _hit_switch(self, switch: SwitchNode, number: int, fault: Fault) -> Sequence[str] | None:
        if not switch.up:
            return None
        if fault.kind == "kill":
            switch.kill()
            return [switch.name]
        if fault.kind == "stop":
            # It goes on when the operator, which has to hear of this first, can tell it to.
            least = switch.now + 2 * self._engine.control_latency
            switch.stop(number, max(switch.now + picoseconds(fault.seconds), least))
        elif fault.kind == "disconnect":
            switch.unplugged.add(number)
        else:
            other = DeviceConnection(switch.name, switch.device)
            other.term = _TERM
            other.open()
            other.push(self._dataplane.p4info.message, self._dataplane.device_config)
            other.close()
            switch.wiped += 1
        return []

    def _hit_host(self, host: HostNode, number: int, fault: Fault) -> Sequence[str] | None:
        network = self._network
        if host.name in network.workers_at:
            found = [
                (host.name, job.workers.members[host.name])
                for job in self._jobs
                if host.name in job.workers.members
            ]
        else:
            one = fault.node not in network.topology.by_name
            names = [fault.node] if one else network.topology.units_of(host.name)
            found = [(n, network.processes[n]) for n in names if n in network.processes]
        if not found:
            return None
        if fault.kind == "stop":
            self._stopped[number] = [process for _, process in found]
            for process in self._stopped[number]:
                host.tasks.stop(process)
            return []
        for job in self._jobs:
            if host.name in job.workers.members:
                job.workers.restart_delays[host.name] = fault.seconds
        for _, process in found:
            host.tasks.kill(process, KILLED)
        return [name for name, _ in found]

    def _hit_controller(self, number: int, fault: Fault) -> Sequence[str] | None:
        controller = self._network.controller
        if not controller.running:
            return None
        if fault.kind == "kill":
            controller.kill(KILLED)
            return [CONTROLLER]
        self._stopped[number] = [controller.process]
        controller.tasks.stop(controller.process)
        return []

    def _resume(self, node: Node, number: int) -> None:
        assert isinstance(node, TaskNode)
        for process in self._stopped.pop(number, ()):
            node.tasks.resume(process)

    def _resume_switch(self, switch: SwitchNode, number: int) -> None:
        switch.resume(number)
        # It takes the packets that have waited after calls of this time.
        self._engine.post(
            switch, switch, switch.now + self._engine.control_latency, partial(self._count, switch)
        )

    def _count(self, switch: SwitchNode) -> None:
        """Reports the packets for which a switch had no room while it was stopped."""
        lost = switch.overflowed - self._overflowed.get(switch.name, 0)
        if lost:
            self._overflowed[switch.name] = switch.overflowed
            text = f"{switch.name} had no room for {lost:,} packets while it was stopped"
            at = switch.now + self._engine.control_latency
            self._engine.post(switch, self._operator, at, partial(self._tell, text))

    # --- the operator's ---

    def _rejoin(self, server: str) -> None:
        """Starts a server again, which joins the jobs that name it."""
        for job in self._jobs:
            if server not in job.servers or job.workers.has_result:
                continue
            try:
                self._network.join(server, job.nonce, job.servers.index(server))
            except ClientError as error:
                self._tell(f"job {job.name} goes on without {server}: {error}")
            except ProcessEndedError as error:  # it was killed again: the next process joins
                log.info("job %s: %s", job.name, error)

    def _cut(self, switch: str, at: int) -> None:
        """Breaks the controller's connection to a switch."""
        controller = self._network.controller
        self._post(controller, at, partial(controller.cut, switch))

    def _at(
        self, node: Node, at: int, work: Callable[[], Sequence[str] | None], *, waits: bool = False
    ) -> Sequence[str] | None:
        """Runs work at a node at a time (ps); returns its result, or raises its SwitchError.

        waits: the work is a call, which a stopped switch answers later.
        """
        over = self._operator.tasks.event()
        results: list[Sequence[str] | SwitchError | None] = []

        def there() -> None:
            found: Sequence[str] | SwitchError | None
            if waits and node.put_off(there):
                return
            try:
                found = work()
            except SwitchError as error:
                found = error
            back = node.now + self._engine.control_latency
            self._engine.post(node, self._operator, back, lambda: arrive(found))

        def arrive(found: Sequence[str] | SwitchError | None) -> None:
            results.append(found)
            over.set()

        self._post(node, at, there)
        over.wait()
        if isinstance(results[0], SwitchError):
            raise results[0]
        return results[0]

    def _post(self, node: Node, at: int, work: Callable[[], None]) -> None:
        self._engine.post(self._operator, node, at, work)

    @property
    def _soonest(self) -> int:
        return self._operator.now + self._engine.control_latency


def _died(name: str, table: JobTable) -> None:
    table.outages.died(name, KILLED, table.clock())
