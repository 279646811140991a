# SPDX-License-Identifier: Apache-2.0
"""Builds a topology in virtual time: switches, hosts, the controller and their links."""

from __future__ import annotations

from collections.abc import Callable, Set
from functools import partial
from pathlib import Path

from controller.p4rt.dataplane import DataPlane
from hosts.data.array_pool import keep_freed
from hosts.data.workspace import Workspace
from hosts.server.process import ServerProcess
from hosts.session.job_service import Service
from observability.links import Carried
from planner.link_loads import Direction
from protocol.plan import Address
from simulation.kernel.calls import Answering, ask
from simulation.kernel.engine import Engine, Node
from simulation.kernel.processes import Process
from simulation.kernel.task_node import TaskNode
from simulation.links.link import Link, LinkSpec
from simulation.links.trains import NEVER, SECOND, picoseconds
from simulation.nodes.control import ControlNode
from simulation.nodes.environment import VirtualHostEnvironment
from simulation.nodes.host import HostNode
from simulation.nodes.switch import SwitchNode
from simulation.nodes.switch_group import SwitchGroup
from topologies.model.addressing import Addressing
from topologies.model.topology import LinkQuality, Topology

SERVICE = "unix:virtual"  # the job service's address for hosts; no socket exists


class Operator(TaskNode):
    """The node that runs jobs; it has no links."""

    def arrival(self) -> int:
        """Implements TaskNode."""
        return NEVER

    def arrive(self) -> None:
        """Implements TaskNode."""


class Network:
    """The simulated network of a topology under one program. Nothing runs before `begin`.

    servers: running server processes by name, and processes: their processes.
    framing: count the framing of frames, whatever the topology says.
    priorities: serve packets by strict priority on all links and at servers' processors.
    fragile: switches may be killed, with what waits in their queues, or stopped.
    host: the class of hosts.
    together: run switches as one node where possible, which is faster.
    corrupts: links may corrupt packets, by the topology or by faults.
    """

    def __init__(
        self,
        topology: Topology,
        addressing: Addressing,
        dataplane: DataPlane,
        *,
        framing: bool = False,
        priorities: bool = False,
        fragile: bool = False,
        engine: Engine | None = None,
        host: type[HostNode] = HostNode,
    ) -> None:
        keep_freed()
        self.topology, self.addressing = topology, addressing
        self.together = True
        ends = [end for link in topology.links for end in (link.forward, link.backward)]
        self.corrupts = any(end.corrupt for end in ends)
        self.engine = engine or Engine()
        latency = picoseconds(topology.costs.switch_latency)
        self.switches = {
            node.name: SwitchNode(node.name, latency=latency) for node in topology.switches
        }
        self._payload = dataplane.sums
        self.hosts = {
            node.name: host(node.name, addressing, payload=self._payload) for node in topology.hosts
        }
        self.servers: dict[str, ServerProcess] = {}
        self.operator = Operator("operator")
        self.processes: dict[str, Process] = {}
        self._shards: dict[Address, Answering] = {}
        self._workspace = Workspace()
        self._links: dict[Direction, Link] = {}
        self._receivers: dict[Direction, str] = {}
        self.controller = ControlNode(self.engine, topology, addressing, dataplane, self.switches)
        nodes: list[Node] = [*self.switches.values(), *self.hosts.values()]
        for host_node in self.hosts.values():
            host_node.by_priority = priorities
        for node in (*nodes, self.controller, self.operator):
            self.engine.add(node)
        self._task_nodes = [*self.hosts.values(), self.controller, self.operator]
        self._between: list[tuple[SwitchNode, int, SwitchNode, int, Link]] = []
        self._connect(
            partial(
                LinkSpec.of,
                framing=framing or topology.costs.framing,
                priorities=priorities or fragile,
            )
        )
        self.engine.on_begin = self._unite

    def _unite(self) -> None:
        """Groups the switches if possible, and lets the group report observed links."""
        switches = list(self.switches.values())
        for switch in switches:
            if any(port.out.on_departure is not None for port in switch.ports.values()):
                switch.lines.watch()
        if self.together and SwitchGroup.possible(switches, self._between):
            engine = self.engine
            group = SwitchGroup(switches, self._between, engine.control_latency, engine.threads)
            engine.unite(group, switches)

    def _connect(self, spec_of: Callable[[LinkQuality], LinkSpec]) -> None:
        for node in self.topology.hosts:
            for end in self.addressing.host_interfaces(node.name):
                there, back = self.engine.connect(
                    self.hosts[node.name],
                    end.number,
                    self.switches[end.switch],
                    end.switch_port,
                    spec_of(end.outgoing),
                    spec_of(end.incoming),
                )
                self._links[Direction(node.name, end.interface)] = there
                port = self.addressing.port(end.switch, end.switch_port)
                self._links[Direction(end.switch, port.interface)] = back
                self._receivers[Direction(node.name, end.interface)] = end.switch
                self._receivers[Direction(end.switch, port.interface)] = node.name
        for node in self.topology.switches:
            for port in self.addressing.ports(node.name):
                way = Direction(port.switch, port.interface)
                if port.peer_is_host or way in self._links:
                    continue
                there, back = self.engine.connect(
                    self.switches[port.switch],
                    port.number,
                    self.switches[port.peer],
                    port.peer_number,
                    spec_of(port.outgoing),
                    spec_of(port.incoming),
                )
                self._links[way] = there
                self._links[Direction(port.peer, port.peer_interface)] = back
                self._receivers[way] = port.peer
                self._receivers[Direction(port.peer, port.peer_interface)] = port.switch
                one, other = self.switches[port.switch], self.switches[port.peer]
                self._between.append((one, port.number, other, port.peer_number, there))
                self._between.append((other, port.peer_number, one, port.number, back))

    @property
    def workers_at(self) -> Set[str]:
        """Names of workers' hosts."""
        return {node.name for node in self.topology.workers}

    def node(self, name: str) -> Node:
        """Returns a switch or a host."""
        return self.switches[name] if name in self.switches else self.hosts[name]

    def environment(self, node: TaskNode, process: Process | None = None) -> VirtualHostEnvironment:
        """Returns the environment of programs at a host, of a process if it can be killed."""
        return VirtualHostEnvironment(
            self.engine,
            node,
            self.addressing,
            self.controller,
            lambda: self.controller.answering,
            self._shards,
            self.hosts,
            self._payload,
            self.corrupts,
            process,
            self._workspace,
        )

    def join(self, name: str, nonce: str, rank: int) -> int:
        """Has a server process, started if necessary, join a job; returns the job's number.

        Call from a task of the operator. Raises ClientError if the job service refuses,
        ProcessEndedError if the process is killed meanwhile.
        """
        host = self.hosts[self.addressing.unit(name).host]
        return ask(
            self.engine,
            self.operator,
            host,
            lambda: self.servers[name].join(nonce, rank),
            lambda: self._serving(name),
        )

    def _serving(self, name: str) -> Process:
        """Returns the process of a server, started if necessary; at its host."""
        if name not in self.servers:
            unit = self.addressing.unit(name)
            node = self.hosts[unit.host]
            self.processes[name] = process = Process(name)
            process.holds(lambda _: self._forget(name))
            endpoint = node.endpoint(str(unit.address), unit.port, process)
            rate = unit.interface.outgoing.rate
            environment = self.environment(node, process)
            server = ServerProcess(endpoint, SERVICE, rate, environment)
            self.servers[name] = server
            environment.expect(endpoint, server.expected, server.visible)
            node.tasks.thread(server.run, name=f"server-{name}", process=process).start()
        return self.processes[name]

    def _forget(self, name: str) -> None:
        del self.servers[name], self.processes[name]

    def play(self, service: Service, work: Callable[[int, str, Service], None]) -> None:
        """Joins a job's servers and runs `work` (rank, host, job) for all its workers to the end.

        Call from a task of the operator.
        """
        for rank, name in enumerate(service.servers):
            self.join(name, service.nonce, rank)
        workers = [
            self.operator.tasks.thread(work, args=(rank, node.name, service))
            for rank, node in enumerate(self.topology.workers)
        ]
        for one in workers:
            one.start()
        for one in workers:
            one.join()

    def carried(self) -> dict[Direction, Carried]:
        """Counts the frames (without FCS) sent in each direction of each link."""
        counted = {way: link.counters for way, link in self._links.items()}
        return {
            way: Carried(one.sent_bytes, one.sent, dropped=one.dropped)
            for way, one in counted.items()
        }

    def capture(self, folder: Path) -> None:
        """Captures the packets of each switch port from now on. Raises OSError."""
        for node in self.topology.switches:
            for port in self.addressing.ports(node.name):
                self.switches[node.name].capture(port.number, port.interface, folder)

    def links(self) -> dict[Direction, Link]:
        """Maps each direction, by its sender, to its link."""
        return dict(self._links)

    def receivers(self) -> dict[Direction, str]:
        """Maps each direction to the node at its other end."""
        return dict(self._receivers)

    def stop(self) -> None:
        """Stops servers and controller in order; call from a task of the operator."""
        for name, server in list(self.servers.items()):
            host = self.hosts[self.addressing.unit(name).host]
            ask(self.engine, self.operator, host, server.stop)
        ask(self.engine, self.operator, self.controller, self.controller.stop)

    def where(self) -> str:
        """Formats the time, node and name of the running task."""
        node = self.engine.running
        if isinstance(node, TaskNode) and node.tasks.running is not None:
            return f"{node.now / SECOND:.9f} {node.name} {node.tasks.running.name}"
        return "-"

    @property
    def ending(self) -> bool:
        """True while a process is being killed."""
        node = self.engine.running
        return isinstance(node, TaskNode) and node.tasks.ending and not node.tasks.closed

    def close(self) -> None:
        """Ends all tasks and frees the switches."""
        for node in self._task_nodes:
            node.tasks.close()
        for link in self._links.values():
            if link.passed is not None:
                _ = link.counters  # collect the final counts
                link.passed = None
        for switch in self.switches.values():
            switch.close()
