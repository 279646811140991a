# SPDX-License-Identifier: Apache-2.0
"""A whole testbed in one process and in virtual time: real programs, simulated links.

Every switch is the embedded target with the compiled P4 program, set up by the real controller
over P4Runtime messages; every host is the real transport or server. Only links are simulated: each
hop has a delay and may lose, duplicate, delay further (so reorder) and corrupt a packet. What the
controller does takes time, too: packets go on moving while it waits for a switch.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address

from controller.jobs.journal import Journal
from controller.jobs.registry import JobTable
from controller.p4rt.connection import DeviceConnection, SwitchError
from controller.p4rt.entries import Update
from controller.p4rt.fabric import Fabric
from hosts.data.snapshot import Snapshot
from hosts.server.chunk_fetches import MoveTask
from hosts.server.state import NotHereError, ServerState
from hosts.server.state import Update as Step
from protocol.frames import Datagram, Interface, from_frame, from_frames, to_frames
from protocol.header import Batch
from protocol.outcomes import Outcome
from protocol.plan import Address
from protocol.priorities import PRIORITIES
from switch.p4runtime.device import Device
from tests.impaired_links import Events, Impairments, send_all
from tests.packet.targets import build
from topologies.model.addressing import Addressing, HostInterface
from topologies.model.topology import Topology

HOP_SECONDS = 0.001
# Arrivals are on a grid, so that a host gets those of one moment together, as from a socket: this
# one, or the coarser one that divides the jitter by this.
TICK_SECONDS = 0.002
TICKS_PER_JITTER = 10
# The most that a Write takes until it is applied.
WRITE_SECONDS = 0.01
LEASE_SECONDS = 6.0
# Seconds until a server retries a message to another.
AGAIN_SECONDS = 0.2
# Share of answers to servers that take chunks over which the network loses.
LOST_ANSWERS = 0.1


@dataclass
class Seen:
    """A frame that entered a link at `time`; `fate` is its arrival time, or why it was lost."""

    time: float
    link: str
    frame: bytes
    fate: str


def octets(mac: str) -> bytes:
    return bytes.fromhex(mac.replace(":", ""))


class SimulatedConnection(DeviceConnection):
    """A switch's P4Runtime connection. Packets keep moving during a Write, and the connection may
    be cut while the switch keeps forwarding."""

    def __init__(self, name: str, device: Device, network: SwitchedNetwork) -> None:
        super().__init__(name, device)
        self.network = network
        self.cut = False

    def write(self, updates: Sequence[Update]) -> None:
        self.network.pass_time()
        if self.cut:
            raise SwitchError(self.name, "no answer")
        super().write(updates)


class Bell(threading.Condition):
    """The condition that the job table notifies of changes."""

    def __init__(self) -> None:
        super().__init__(threading.RLock())
        self.rang = False

    def notify_all(self) -> None:
        self.rang = True
        super().notify_all()


class Host:
    """A machine behind one interface and UDP port."""

    def __init__(self, network: SwitchedNetwork, link: HostInterface, port: int, machine) -> None:
        self.network = network
        self.link = link
        self.port = port
        self.machine = machine  # may be replaced
        self.wire = Interface(octets(link.mac), octets(link.gateway_mac), int(link.ipv4))
        self.alarm = math.inf
        self.dead = False
        self.after: Callable[[], None] = lambda: None  # called when it has acted
        self._inbox: list[Datagram] = []

    def poke(self) -> None:
        """Lets the machine send, as after packets or a submission."""
        if self.dead:
            return
        self.network.stirred = True
        self.alarm = send_all(self.machine, self.network.now, self._send)
        self.after()
        alarm = max(self.alarm, self.network.now)
        self.network.at_alarm(alarm, lambda: self.poke() if self.alarm <= alarm else None)

    def _send(self, batch: Batch) -> None:
        for frame in to_frames(batch, self.wire, self.port):
            self.network.carry(self.link.switch, self.link.switch_port, frame)

    def arrive(self, datagram: Datagram) -> None:
        """What comes at one moment is taken together."""
        if not self._inbox:
            self.network.at(self.network.now, self._read)
        self._inbox.append(datagram)

    def _read(self) -> None:
        datagrams, self._inbox = self._inbox, []
        if self.dead:
            return
        batch, malformed = from_frames(datagrams, self.machine.lanes)
        # A server that was just started knows of no job, so nothing with payload is well-formed.
        assert malformed == 0 or not self.machine.lanes
        self.receive(batch)

    def receive(self, batch: Batch) -> None:
        self.machine.on_packets(self.network.now, batch)
        self.poke()


class SwitchedNetwork(Events):
    """Switches, links and hosts of a topology, deterministic for a seed."""

    def __init__(
        self, topology: Topology, seed: int = 0, faults: Impairments | None = None
    ) -> None:
        super().__init__(seed)
        self.hops = 0
        self.stirred = True  # a host acted since the last look at the condition
        self.topology = topology
        self.addressing = Addressing(topology)
        self.faults = faults or Impairments()
        # May change a frame that enters a link, or drop it (None).
        self.tamper: Callable[[str, int, bytes], bytes | None] = lambda _node, _port, frame: frame
        self.between = 0.02  # seconds that a message from server to server takes at most
        # Called with what a server does to get chunks that a chunk map gives it: "asked", "given"
        # (its answer is on the way) and "taken".
        self.on_move: Callable[[str, Host, MoveTask], None] = lambda _stage, _host, _task: None
        self.trace: list[Seen] | None = None  # a list: every frame is noted there
        # Called after each call to the job table that has changed something.
        self.watchers: list[Callable[[], None]] = []
        self._attempts = itertools.count(1)  # of calls from server to server
        self._calling = False  # the controller is at work
        self._held: list[Callable[[], None]] = []  # calls that wait for it
        self._hosts: dict[tuple[int, int], Host] = {}
        self.servers: dict[str, ServerState] = {}
        self.devices = {n.name: Device(1, priority_queues=PRIORITIES) for n in topology.switches}
        self._inboxes: dict[str, list[tuple[int, bytes]]] = {name: [] for name in self.devices}
        plane, _, _ = build("aggregation")
        self.connections = {
            name: SimulatedConnection(name, d, self) for name, d in self.devices.items()
        }
        self.fabric = Fabric(topology, self.addressing, plane, self.connections)
        self.fabric.bring_up()
        self._bell = Bell()
        self.jobs = self._table(Journal())

    def _table(self, journal: Journal) -> JobTable:
        jobs = JobTable(self.fabric, clock=lambda: self.now, lease=LEASE_SECONDS, journal=journal)
        jobs.changed = jobs.roster.changed = self._bell
        return jobs

    def restart_controller(self) -> None:
        """Replaces the job table by another one with its journal. Only within a call."""
        self.jobs = self._table(self.jobs.journal)
        self._bell.rang = True

    def close(self) -> None:
        self.fabric.close()
        for device in self.devices.values():
            device.close()

    # -- time -------------------------------------------------------------------------------------

    def call(self, time: float, action: Callable[[], None]) -> None:
        """A call to the controller, which takes one at a time: `action` runs at `time` or later."""
        self.at(time, lambda: self._call(action))

    def _call(self, action: Callable[[], None]) -> None:
        if self._calling:
            self._held.append(action)
            return
        self._calling = True
        try:
            action()
        finally:
            self._calling = False
        held, self._held = self._held, []
        for waiting in held:
            self.call(self.now, waiting)
        if self._bell.rang:
            self._bell.rang = False
            self.stirred = True
            for watcher in self.watchers:
                watcher()

    def pass_time(self) -> None:
        """Runs packets and members for the duration of a Write."""
        if not self._calling:
            return
        self.run_for(self.random.random() * WRITE_SECONDS)

    def run(self, until: Callable[[], bool], limit: float) -> bool:
        """Runs until a condition about hosts holds; False if `limit` (virtual s) comes first."""
        self.stirred = True
        return super().run(until, limit)

    def may_have_changed(self) -> bool:
        stirred, self.stirred = self.stirred, False
        return stirred

    # -- links ------------------------------------------------------------------------------------

    def attach(self, node: str, port: int, machine, link: HostInterface | None = None) -> Host:
        """A process at a host's link, if it is not the first one."""
        link = link or self.addressing.host_interfaces(node)[0]
        host = Host(self, link, port, machine)
        self._hosts[int(link.ipv4), port] = host
        return host

    def server(self, name: str) -> ServerState:
        """A server process, which serves all jobs that it is in."""
        if name not in self.servers:
            self.servers[name] = ServerState()
            unit = self.addressing.unit(name)
            host = self.attach(unit.host, unit.port, self.servers[name], unit.interface)
            host.after = lambda: self._replicate(host)
        return self.servers[name]

    def server_host(self, name: str) -> Host:
        """The machine of a server process."""
        unit = self.addressing.unit(name)
        return self._hosts[int(unit.address), unit.port]

    def restart_server(self, name: str) -> ServerState:
        """Restarts the server's process with empty state."""
        host = self.server_host(name)
        host.machine = self.servers[name] = ServerState()
        host.dead = False
        return self.servers[name]

    def caller(self, host: str, called: Address) -> int:
        """IPv4 address that a connection comes from: the kernel takes that of the first route, and
        within a host the one that is called."""
        there = self.addressing.interfaces[IPv4Address(called.ipv4)]
        return called.ipv4 if there.node == host else int(self.addressing.address(host))

    # -- between servers: as over TCP, late but neither lost nor twice ----------------------------

    def _replicate(self, host: Host) -> None:
        for update in host.machine.take_updates():
            self._carry_update(host, host.machine, update)
        for task in host.machine.take_moves(self.now):
            self._move(host, host.machine, task)

    def _move(self, host: Host, state: ServerState, task: MoveTask) -> None:
        """Carries a server's request to another one, and the answer; either may be lost, and is
        then repeated."""

        def again() -> None:
            if state.wants(task) and not host.dead:
                self.at(self.now + AGAIN_SECONDS, lambda: self._move(host, state, task))

        def arrive() -> None:
            source = self._hosts[task.server.pair()]
            try:
                if source.dead or host.dead:
                    raise NotHereError("dead")
                caller = self.caller(host.link.node, task.server)
                part = source.machine.move(caller, task.to_message(next(self._attempts)))
            except NotHereError:
                again()
                return
            if self.random.random() < LOST_ANSWERS:
                again()
                return
            self.at(self.now + self.random.random() * self.between, lambda: answer(part))
            self.on_move("given", host, task)

        def answer(part: Snapshot) -> None:
            if not host.dead and host.machine is state:
                state.moved(task, [part] if len(part) else [], self.now)
                self.on_move("taken", host, task)
                host.poke()

        self.at(self.now + self.random.random() * self.between, arrive)
        self.on_move("asked", host, task)

    def _carry_update(self, host: Host, state: ServerState, update: Step) -> None:
        def arrive() -> None:
            backup = self._hosts[update.backup.pair()]
            try:
                if backup.dead or host.dead:
                    raise NotHereError("dead")
                source = self.caller(host.link.node, update.backup)
                backup.machine.replicate(update.job, update.epoch, source, update.snapshot)
            except NotHereError:
                if state.waits(update) and not host.dead:
                    self.at(
                        self.now + AGAIN_SECONDS, lambda: self._carry_update(host, state, update)
                    )
                return
            self.at(self.now + self.random.random() * self.between, answer)

        def answer() -> None:
            if not host.dead and host.machine is state:
                state.replicated(update)
                host.poke()

        self.at(self.now + self.random.random() * self.between, arrive)

    def carry(self, switch: str, port: int, frame: bytes) -> None:
        """Sends a frame over the link to a switch's port."""
        self._hop(f"->{switch}", switch, port, frame, lambda f: self._at_switch(switch, port, f))

    def _hop(
        self, name: str, node: str, port: int, frame: bytes, arrive: Callable[[bytes], None]
    ) -> None:
        faults = self.faults
        for passes in faults.copies(self.random):
            if not passes:
                self._note(name, frame, "lost")
                continue
            carried = self.tamper(node, port, frame)
            if carried is None:
                self._note(name, frame, "dropped by the test")
                continue
            time = self.now + HOP_SECONDS + faults.delay(self.random)
            tick = max(TICK_SECONDS, faults.jitter / TICKS_PER_JITTER)
            time = math.ceil(time / tick - 1e-6) * tick
            self._note(name, carried, f"arrives {time:.4f}")
            self.at(time, lambda f=carried: arrive(f))

    def _at_switch(self, switch: str, port: int, frame: bytes) -> None:
        """What comes at one moment is taken together."""
        inbox = self._inboxes[switch]
        if not inbox:
            self.at(self.now, lambda: self._forward(switch))
        inbox.append((port, frame))

    def _forward(self, switch: str) -> None:
        arrived, self._inboxes[switch] = self._inboxes[switch], []
        self.hops += len(arrived)
        pipeline = self.devices[switch].pipeline
        if pipeline is None:
            return  # it is down
        for out, sent in pipeline.inject_batch(*map(list, zip(*arrived, strict=True))):
            end = self.addressing.port(switch, out)
            if end.peer_is_host:
                self._hop(f"{switch}->{end.peer}", switch, out, sent, self._at_host)
            else:
                self.carry(end.peer, end.peer_number, sent)

    def _at_host(self, frame: bytes) -> None:
        datagram = from_frame(frame)
        host = self._hosts[datagram.destination]
        host.arrive(datagram)

    def _note(self, link: str, frame: bytes, fate: str) -> None:
        if self.trace is not None:
            self.trace.append(Seen(self.now, link, frame, fate))

    # -- switches that fail -----------------------------------------------------------------------

    def break_switch(self, name: str) -> None:
        """Stops a switch, which loses its state."""
        self.devices[name].close()
        self.devices[name] = self.connections[name].device = Device(1, priority_queues=PRIORITIES)
        self.connections[name].cut = True

    def repair_switch(self, name: str) -> None:
        """Restarts a switch with its program and initial entries. Only within a call."""
        connection = self.connections[name]
        connection.close()
        connection.cut = False
        connection.open()
        self.push_program(name)

    def push_program(self, name: str) -> None:
        """Pushes the program again, which clears registers and entries. Only within a call."""
        plane = self.fabric.dataplane
        self.connections[name].push(plane.p4info.message, plane.device_config)
        self.fabric.insert(name, self.fabric.base_entities(name))

    def outcomes(self) -> dict[Outcome, int]:
        """Returns non-zero packet counts by outcome, over all switches."""
        total: Counter[Outcome] = Counter()
        for node in self.topology.switches:
            total += self.fabric.outcomes(node.name)
        return dict(sorted(total.items()))
