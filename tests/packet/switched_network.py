# SPDX-License-Identifier: Apache-2.0
"""A whole testbed in one process and in virtual time: real programs, simulated links.

Every switch is the embedded target with the compiled P4 program, set up by the real controller
over P4Runtime messages; every host is the real transport or server. Only links are simulated: each
hop has a delay and may lose, duplicate, delay further (so reorder) and corrupt a packet.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from controller.connection import DeviceConnection
from controller.fabric import Fabric
from controller.job import Job, Key, Role
from controller.jobs import JobTable
from controller.trees import TreeKind
from hosts.server import ServerState
from hosts.transport import WorkerTransport
from protocol.exponents import Exponents
from protocol.frames import Interface, from_frame, from_frames, to_frames
from protocol.header import PORT, Batch
from protocol.outcomes import Outcome
from protocol.plan import Address, ServerPlan, WorkerPlan
from switch.p4runtime import Device
from tests.packet.targets import build
from topologies.addressing import Addressing, HostInterface
from topologies.topology import Topology

HOP_SECONDS = 0.001


@dataclass
class Faults:
    """Per packet and hop; `jitter` is the most extra delay in seconds."""

    loss: float = 0.0
    duplicate: float = 0.0
    jitter: float = 0.0


def octets(mac: str) -> bytes:
    return bytes.fromhex(mac.replace(":", ""))


class Host:
    """A machine behind one interface and UDP port."""

    def __init__(self, network: SwitchedNetwork, link: HostInterface, port: int, machine) -> None:
        self.network = network
        self.link = link
        self.port = port
        self.machine = machine
        self.wire = Interface(octets(link.mac), octets(link.gateway_mac), int(link.ipv4))
        self.alarm = math.inf

    def poke(self) -> None:
        """Sends what the machine wants to, as after packets or a submission."""
        self.network.stirred = True
        now = self.network.now
        for _ in range(10_000):
            batch, self.alarm = self.machine.poll(now)
            if batch is None:
                break
            for frame in to_frames(batch, self.wire, self.port):
                self.network.carry(self.link.switch, self.link.switch_port, frame)
            if self.alarm > now:
                break
        else:
            raise AssertionError(f"{self.link.node} never stops sending")
        if math.isfinite(self.alarm):
            alarm = max(self.alarm, now)
            self.network.at(alarm, lambda: self.poke() if self.alarm <= alarm else None)

    def receive(self, batch: Batch) -> None:
        self.machine.on_packets(self.network.now, batch)
        self.poke()


class SwitchedNetwork:
    """Switches, links and hosts of a topology, deterministic for a seed."""

    def __init__(self, topology: Topology, seed: int = 0, faults: Faults | None = None) -> None:
        self.now = 0.0
        self.hops = 0
        self.stirred = True  # a host acted since the last look at the condition
        self.topology = topology
        self.addressing = Addressing(topology)
        self.faults = faults or Faults()
        # May change a frame that enters a link, or drop it (None).
        self.tamper: Callable[[str, int, bytes], bytes | None] = lambda _node, _port, frame: frame
        self.trace: list[tuple[float, str, str, bytes]] = []
        self._random = random.Random(seed)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._hosts: dict[tuple[int, int], Host] = {}
        self._devices = {n.name: Device(1) for n in topology.switches}
        plane, _, _ = build("aggregation")
        connections = {name: DeviceConnection(name, d) for name, d in self._devices.items()}
        self.fabric = Fabric(topology, self.addressing, plane, connections)
        self.fabric.bring_up()
        self.jobs = JobTable(self.fabric, clock=lambda: self.now, lease=math.inf)
        self.servers: dict[str, ServerState] = {}

    def close(self) -> None:
        self.fabric.close()
        for device in self._devices.values():
            device.close()

    def start(
        self, name: str, workers: list[str], servers: list[str], kind: TreeKind, **options: int
    ) -> StartedJob:
        """Admits a job and lets all its members in."""
        table = self.jobs
        job = table.create(name, workers, servers, kind, **options)
        for rank, server in enumerate(servers):
            link = self.addressing.host_interfaces(server)[0]
            table.connect(job.nonce, Role.SERVER, rank, Address(int(link.ipv4), PORT))
        ports = [40000 + 100 * job.number + rank for rank in range(len(workers))]
        for rank, worker in enumerate(workers):
            link = self.addressing.host_interfaces(worker)[0]
            table.connect(job.nonce, Role.WORKER, rank, Address(int(link.ipv4), ports[rank]))
        for rank in range(len(workers)):
            table.init(job.nonce, rank, [Key(0, "all", 256)])
        for rank, server in enumerate(servers):
            plan = table.plan(job.nonce, Role.SERVER, rank)
            assert plan is not None
            if server not in self.servers:
                self.servers[server] = ServerState()
                self._attach(server, PORT, self.servers[server])
            self.servers[server].install(ServerPlan.from_message(plan))
            table.heartbeat(job.nonce, Role.SERVER, rank, plan.epoch)
        plans = [table.plan(job.nonce, Role.WORKER, rank) for rank in range(len(workers))]
        return StartedJob(self, job, [WorkerPlan.from_message(p) for p in plans], ports)

    def _attach(self, node: str, port: int, machine) -> Host:
        link = self.addressing.host_interfaces(node)[0]
        host = Host(self, link, port, machine)
        self._hosts[int(link.ipv4), port] = host
        return host

    def at(self, time: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._count), action))

    def run(self, until: Callable[[], bool], limit: float) -> bool:
        """Runs until a condition about hosts holds; False if `limit` (virtual s) comes first."""
        self.stirred = True
        while not (self.stirred and until()):
            self.stirred = False
            if not self._events or self._events[0][0] > limit:
                return False
            self.now, _, action = heapq.heappop(self._events)
            action()
        return True

    def carry(self, switch: str, port: int, frame: bytes) -> None:
        """A frame on its way to a switch's port."""
        self._hop(f"->{switch}", switch, port, frame, lambda f: self._at_switch(switch, port, f))

    def _hop(
        self, name: str, node: str, port: int, frame: bytes, arrive: Callable[[bytes], None]
    ) -> None:
        faults, draw = self.faults, self._random.random
        for _ in range(1 + (draw() < faults.duplicate)):
            if draw() < faults.loss:
                continue
            carried = self.tamper(node, port, frame)
            if carried is None:
                continue
            delay = HOP_SECONDS + draw() * faults.jitter
            self.at(self.now + delay, lambda f=carried: arrive(f))

    def _at_switch(self, switch: str, port: int, frame: bytes) -> None:
        self.hops += 1
        pipeline = self._devices[switch].pipeline
        assert pipeline is not None
        for out, sent in pipeline.inject(port, frame):
            end = self.addressing.port(switch, out)
            if end.peer_is_host:
                self._hop(switch, switch, out, sent, self._at_host)
            else:
                self.carry(end.peer, end.peer_number, sent)

    def _at_host(self, frame: bytes) -> None:
        datagram = from_frame(frame)
        host = self._hosts[datagram.destination]
        batch, malformed = from_frames([datagram], host.machine.lanes)
        assert malformed == 0
        host.receive(batch)

    def outcomes(self) -> dict[Outcome, int]:
        """Packets by outcome, over all switches; zeros left out."""
        total = dict.fromkeys(Outcome, 0)
        for node in self.topology.switches:
            counts = self.fabric.counts(node.name, "outcomes")
            for outcome in Outcome:
                total[outcome] += counts[outcome]
        return {outcome: count for outcome, count in total.items() if count}


class StartedJob:
    """A job whose workers have their plans."""

    def __init__(
        self, network: SwitchedNetwork, job: Job, plans: list[WorkerPlan], ports: list[int]
    ) -> None:
        self.network = network
        self.job = job
        self.plans = plans
        self._ports = ports
        self.transports: list[WorkerTransport] = []
        self._hosts: list[Host] = []

    @property
    def world(self) -> int:
        return len(self.plans)

    def open(self, chunks: int) -> None:
        """Gives every worker a transport for a key space of so many chunks."""
        for rank, plan in enumerate(self.plans):
            transport = WorkerTransport(plan, Exponents(chunks, self.world), link_rate=0)
            self.transports.append(transport)
            self._hosts.append(
                self.network._attach(self.job.workers[rank], self._ports[rank], transport)
            )

    def submit(self, rank: int, chunks, values, lanes) -> int:
        ticket = self.transports[rank].submit(chunks, values, lanes)
        self._hosts[rank].poke()
        return ticket

    @property
    def idle(self) -> bool:
        return all(transport.idle for transport in self.transports)
