# SPDX-License-Identifier: Apache-2.0
"""Builds a topology of Mininet hosts and veth links in a sandbox.

Hosts have network namespaces of their own; switches share the sandbox's. Names, MACs and addresses
are those of the address plan. A token bucket (htb) with a queue bounded in bytes shapes each host's
interface. The embedded target paces its own ports, and holds a frame from a host until its last bit
would have arrived. A bucket on one of BMv2's ports would block all its ports, so there every link
passes through a namespace in the middle, ``wires``, that shapes it, by priority as the switch's
queues are, and is invisible to both ends.

Import this module only in a sandbox: Mininet looks at the system as it is imported.
"""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from mininet.log import setLogLevel
from mininet.net import Mininet
from mininet.node import Host, Switch

from emulation.network.namespaces import NO_IPV6
from emulation.network.shaping import (
    FORWARD_PROBE,
    forward,
    reshape,
    shape,
    shape_by_priority,
    unshape,
)
from topologies.model.addressing import Addressing, HostInterface
from topologies.model.topology import LinkQuality, Topology

# Importing Mininet makes its logger class that of all loggers created later.
logging.setLoggerClass(logging.Logger)

# With checksum and segmentation offload, a reader without vnet headers (BMv2's libpcap) would get
# frames of 64 KB and packets with empty checksums.
_OFFLOADS_OFF = "tx off rx off sg off tso off gso off gro off tx-udp-segmentation off"


_WIRES = "wires"
# For interfaces in the middle, which forward every frame and whose address is never used.
_ANY_MAC = "02:00:00:00:00:01"


class NetworkError(Exception):
    """The network cannot be built; the text has the node, the command and its output."""


class QuietHost(Host):  # type: ignore[misc]
    """A Mininet host whose interfaces send nothing by themselves."""

    def startShell(self, mnopts: str | None = None) -> None:  # noqa: N802
        """Starts the node's shell and disables IPv6 before it has an interface."""
        super().startShell(mnopts)
        self.cmd(NO_IPV6)


class ForeignSwitch(Switch):  # type: ignore[misc]
    """A switch with interfaces only; Mininet does not run its process."""

    def start(self, controllers: object) -> None:
        """Does nothing; ``ProcessSupervisor`` starts the process."""

    def stop(self, deleteIntfs: bool = True) -> None:  # noqa: N803
        """Ends the node's shell, with its interfaces."""
        super().stop(deleteIntfs)


@dataclass(frozen=True)
class NodeProcess:
    """A process whose namespaces commands at a node join (``mnexec``)."""

    name: str
    pid: int
    in_namespace: bool

    def command(self, program: Iterable[str]) -> list[str]:
        """Returns the command line that runs a program at this node."""
        return ["mnexec", "-a", str(self.pid), *program] if self.in_namespace else [*program]

    def run(self, script: str) -> str:
        """Runs a shell script at this node and returns its output; raises ``NetworkError``."""
        # As input: an argument may have 128 KiB, and links of four racks take more lines.
        result = subprocess.run(
            self.command(["sh", "-exs"]), input=script, capture_output=True, text=True
        )
        if result.returncode != 0:
            trace = "\n".join(result.stderr.strip().splitlines()[-3:])
            raise NetworkError(f"{self.name}: cannot configure its network:\n{trace}")
        return result.stdout


class Network:
    """The emulated network: built by its constructor, ended by ``stop``.

    offloads: whether interfaces keep segmentation and checksum offload. The embedded target reads
    and writes such frames; BMv2 needs offloads off. Raises ``NetworkError``.
    """

    def __init__(self, topology: Topology, addressing: Addressing, *, offloads: bool) -> None:
        self.topology = topology
        self.addressing = addressing
        self.offloads = offloads
        setLogLevel("warning")
        # Keeps Mininet from raising limits of the whole machine (fixLimits).
        Mininet.inited = True
        self._net = Mininet(
            topo=None, controller=None, switch=ForeignSwitch, host=QuietHost, build=False
        )
        self._nodes: dict[str, Any] = {}
        self._wires: list[str] = []  # shell lines for the middle namespace
        # By the sender and its interface: interfaces of the middle namespace that shape it.
        self._middle: dict[tuple[str, str], str] = {}
        self.shaping = "hosts: htb; switch ports: paced by the target"
        try:
            self._build()
        except BaseException:
            self.stop()
            raise

    def node(self, name: str) -> NodeProcess:
        """Returns the process whose namespaces a node has. Raises ``KeyError``."""
        node = self._nodes[name]
        return NodeProcess(name, node.pid, bool(node.inNamespace))

    def run(self, name: str, script: str) -> str:
        """Runs a shell script at a node and returns its output; raises ``NetworkError``."""
        return self.node(name).run(script)

    def slow(self, node: str, interface: str, factor: float) -> None:
        """Has a node send at 1 / factor of its link's rate through an interface; 1: as before.

        A switch that paces its ports gets a bucket behind them for that time. Raises
        ``NetworkError``.
        """
        if (node, interface) in self._middle:
            place, shaped = _WIRES, self._middle[node, interface]
        elif node in self.topology.by_name and self.topology.by_name[node].kind != "switch":
            place, shaped = node, interface
        elif self.offloads:
            place, shaped = node, ""
        else:
            raise NetworkError(f"{node}: its ports are not shaped here")
        quality = self._quality(node, interface)
        slowed = max(1000, round(quality.rate / factor))
        if shaped:
            lines = [reshape(shaped, slowed, quality)]
        elif factor == 1:
            lines = [unshape(interface)]
        else:
            lines = shape(interface, replace(quality, rate=slowed))
        self.run(place, "\n".join(lines))

    def _quality(self, node: str, interface: str) -> LinkQuality:
        if self.topology.by_name[node].kind != "switch":
            ends = self.addressing.host_interfaces(node)
            return next(end.outgoing for end in ends if end.interface == interface)
        ports = self.addressing.ports(node)
        return next(port.outgoing for port in ports if port.interface == interface)

    def stop(self) -> None:
        """Ends the nodes' shells; the kernel removes interfaces with the sandbox."""
        for node in self._nodes.values():
            node.terminate()
        self._nodes.clear()

    def _build(self) -> None:
        for host in self.topology.hosts:
            self._nodes[host.name] = self._net.addHost(host.name, ip=None)
        for number, switch in enumerate(self.topology.switches, start=1):
            self._nodes[switch.name] = self._net.addSwitch(
                switch.name, inNamespace=False, dpid=f"{number:x}"
            )
        if not self.offloads:
            self._find_wires()
        for host in self.topology.hosts:
            for end in self.addressing.host_interfaces(host.name):
                port = self.addressing.port(end.switch, end.switch_port)
                self._link(
                    end.node, end.number, end.interface, end.mac, end.switch, port.number,
                    port.interface, port.mac, None, port.outgoing,
                )  # fmt: skip
        for switch in self.topology.switches:
            for port in self.addressing.ports(switch.name):
                if port.peer_is_host or (port.switch, port.number) > (port.peer, port.peer_number):
                    continue
                self._link(
                    port.switch, port.number, port.interface, port.mac, port.peer, port.peer_number,
                    port.peer_interface, port.peer_mac, port.outgoing, port.incoming,
                )  # fmt: skip
        for host in self.topology.hosts:
            self.run(host.name, "\n".join(self._host_lines(host.name)))
        if self._wires:
            self.run(_WIRES, "\n".join(self._wires))
        ports = [p for s in self.topology.switches for p in self.addressing.ports(s.name)]
        lines = []
        for port in ports:
            mtu = max(port.outgoing.mtu, port.incoming.mtu)
            lines.append(f"ip link set dev {port.interface} mtu {mtu} up")
            if not self.offloads:
                lines.append(f"ethtool -K {port.interface} {_OFFLOADS_OFF} >/dev/null")
        if ports:
            self.run(ports[0].switch, "\n".join(lines))

    def _find_wires(self) -> None:
        """Creates the namespace in the middle of all links, if the kernel can forward there."""
        self._nodes[_WIRES] = self._net.addHost(_WIRES, ip=None)
        try:
            self.run(_WIRES, FORWARD_PROBE)
            self.shaping = "hosts: htb; switch ports: htb in the middle of the link"
        except NetworkError as error:
            self._nodes.pop(_WIRES).terminate()
            self.shaping = f"hosts: htb; switch ports: NOT shaped ({str(error).splitlines()[-1]})"

    def _link(
        self, a: str, a_port: int, a_name: str, a_mac: str, b: str, b_port: int, b_name: str,
        b_mac: str, forth: LinkQuality | None, back: LinkQuality,
    ) -> None:  # fmt: skip
        """Links two interfaces.

        forth, back: shaping from a to b (None: a shapes itself) and from b to a.
        """
        if _WIRES not in self._nodes:
            self._pair((a, a_port, a_name, a_mac), (b, b_port, b_name, b_mac))
            return
        number = len(self._wires)
        near, far = f"x{number}a", f"x{number}b"
        self._pair((a, a_port, a_name, a_mac), (_WIRES, 2 * number, near, None))
        self._pair((_WIRES, 2 * number + 1, far, None), (b, b_port, b_name, b_mac))
        lines = []
        self._middle[b, b_name] = near
        if forth is not None:
            self._middle[a, a_name] = far
        for name, quality in ((near, back), (far, forth)):
            lines.append(f"ethtool -K {name} {_OFFLOADS_OFF} >/dev/null")
            lines.append(f"ip link set dev {name} mtu {max(back.mtu, (forth or back).mtu)} up")
            lines += shape_by_priority(name, quality) if quality is not None else []
        lines += [*forward(near, far), *forward(far, near)]
        self._wires.append("\n".join(lines))

    def _pair(
        self, a: tuple[str, int, str, str | None], b: tuple[str, int, str, str | None]
    ) -> None:
        """Adds a veth pair; each end: node, port number, interface name, MAC (None: any)."""
        try:
            self._net.addLink(
                self._nodes[a[0]],
                self._nodes[b[0]],
                port1=a[1],
                port2=b[1],
                intfName1=a[2],
                intfName2=b[2],
                addr1=a[3] or _ANY_MAC,
                addr2=b[3] or _ANY_MAC,
            )
        except Exception as error:  # Mininet raises plain Exception
            raise NetworkError(f"cannot link {a[2]} to {b[2]}: {error}") from error

    def _host_lines(self, host: str) -> list[str]:
        lines = ["ip link set dev lo up"]
        for end in self.addressing.host_interfaces(host):
            mtu = max(end.outgoing.mtu, end.incoming.mtu)
            lines.append(f"ip link set dev {end.interface} mtu {mtu} up")
            if not self.offloads:
                lines.append(f"ethtool -K {end.interface} {_OFFLOADS_OFF} >/dev/null")
            lines.append(f"ip address add {end.ipv4}/32 dev {end.interface}")
            lines += shape(end.interface, end.outgoing)
            lines += self._route_lines(end)
        return lines

    def _route_lines(self, end: HostInterface) -> list[str]:
        gateway, interface = self.addressing.gateway, end.interface
        neighbour = f"{gateway} lladdr {end.gateway_mac} dev {interface} nud permanent"
        # Each further interface has a routing table, so that it answers from its own address.
        table = "" if end.number == self.addressing.host_interfaces(end.node)[0].number else (
            f" table {100 + end.number}"
        )  # fmt: skip
        lines = [
            f"ip neighbour replace {neighbour}",
            f"ip route add {gateway} dev {interface} scope link src {end.ipv4}{table}",
            f"ip route add default via {gateway} dev {interface} src {end.ipv4}{table}",
        ]
        if table:
            lines.append(f"ip rule add from {end.ipv4}{table}")
        return lines
