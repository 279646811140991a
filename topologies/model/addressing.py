# SPDX-License-Identifier: Apache-2.0
"""Ports, interface names, MACs, IPv4 addresses and routes of a topology.

The plan follows from the topology alone, so the network's builder and its controller agree on it
without communication:

- switch ports count from 1 in the order of the topology's links: hosts first, then uplinks;
- interfaces are ``<node>-eth<n>``: n is the port number at a switch and counts from 0 at a host;
- workers are 10.<rack>.0.<n>, server interfaces 10.<rack>.1.<n> (rack of the ToR they lead to),
  ToRs 10.255.0.<n>, cores 10.255.1.<n>, n counting from 1; of racks, ToRs and cores beyond 250 each
  next 250 have the next two numbers in the third byte: rack 250's workers are 10.0.2.<n>;
- a server's host has a process for each of its cores at each interface: at that interface's address
  and UDP port ``FIRST_PORT`` + core;
- a host has /32 addresses and a default route through ``GATEWAY``, which its static ARP entry maps
  to the MAC of the ToR port, so that no switch needs to know ARP;
- routes are shortest paths; destinations are spread over equal ones, alike at every switch: one by
  one, but workers rack by rack in networks of more than ``_SPREAD`` addresses.
  ``without`` gives routes that avoid some switches; all else stays the same. Where no path is left,
  the unrestricted route stays: a switch that is back is then reached even through one that cannot
  be written. Neighbouring addresses with the same next hop share a prefix (``prefixes``).
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

from topologies.model.prefixes import aggregated
from topologies.model.topology import Link, LinkQuality, Node, Topology

GATEWAY = IPv4Address("10.255.255.254")
_PER_BYTE = 250  # the most numbers in one byte of an address
FIRST_PORT = 47110
# Beyond so many addresses the workers of a rack take the same one of equal paths, so that a prefix
# leads to all of them, and routes remain few whichever switches are missing.
_SPREAD = 4096
LONGEST_INTERFACE_NAME = 15  # IFNAMSIZ - 1 of linux/if.h

_LETTERS = {"worker": 0x01, "server": 0x02}


class NoRouteError(LookupError):
    """No path between two nodes; the text names them and the missing switches."""


@dataclass(frozen=True)
class HostInterface:
    """One interface of a host; ``gateway_mac`` is the MAC of its switch port."""

    node: str
    number: int
    interface: str
    mac: str
    ipv4: IPv4Address
    switch: str
    switch_port: int
    gateway_mac: str
    outgoing: LinkQuality  # host to switch
    incoming: LinkQuality  # switch to host
    link: Link


@dataclass(frozen=True)
class Unit:
    """A server process: one core of a host at one of its interfaces.

    ``name``: the host's, or ``s0.1`` where it has several, counted interface by interface.
    """

    name: str
    host: str
    interface: HostInterface
    core: int

    @property
    def address(self) -> IPv4Address:
        """The address that it listens at."""
        return self.interface.ipv4

    @property
    def port(self) -> int:
        """The UDP and TCP port that it listens at."""
        return FIRST_PORT + self.core


@dataclass(frozen=True)
class SwitchPort:
    """One port of a switch and the other end of its link."""

    switch: str
    number: int
    interface: str
    mac: str
    peer: str
    peer_interface: str
    peer_number: int  # port of a switch, interface number of a host
    peer_mac: str
    peer_is_host: bool
    outgoing: LinkQuality  # away from this switch
    incoming: LinkQuality  # towards this switch
    link: Link


@dataclass(frozen=True)
class Route:
    """A next hop: the output port and the MAC at its other end."""

    port: int
    mac: str


@dataclass(frozen=True)
class _End:
    """One end of a link: the node, its port or interface number (9 bits) and its MAC."""

    node: Node
    number: int

    @property
    def interface(self) -> str:
        return f"{self.node.name}-eth{self.number}"

    @property
    def mac(self) -> str:
        """Locally administered unicast: 02, kind (or 0x10 + level), node index, interface.

        The index has two bytes, and what is above them in the upper bits of the interface's two.
        """
        kind = _LETTERS.get(self.node.kind, 0x10 + self.node.level)
        above, index = divmod(self.node.index, 1 << 16)
        last = above << 9 | self.number
        high, low = divmod(index, 256)
        return f"02:{kind:02x}:{high:02x}:{low:02x}:{last >> 8:02x}:{last & 255:02x}"


class Addressing:
    """The address plan of a topology; ``ValueError`` when a name would not fit an interface."""

    gateway = GATEWAY

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self._interfaces: dict[str, list[HostInterface]] = {n.name: [] for n in topology.hosts}
        self._ports: dict[str, list[SwitchPort]] = {n.name: [] for n in topology.switches}
        self._server_links = [0] * topology.racks
        self._workers = [0] * topology.racks
        for link in topology.links:
            self._connect(link)
        self._units = {u.name: u for n in topology.hosts for u in self.units(n.name)}
        self._interface_of = {i.ipv4: i for n in topology.hosts for i in self._interfaces[n.name]}
        self._switch_at = {self.switch_address(n.name): n.name for n in topology.switches}
        self._by_rack = len(self._interface_of) + len(self._switch_at) > _SPREAD
        self._between = {
            name: [port for port in ports if not port.peer_is_host]
            for name, ports in self._ports.items()
        }
        self._rank = self._ranks()
        self._ascending = sorted(self.destinations)
        self._numbers = [int(destination) for destination in self._ascending]
        self._blocks = self._blocks_of(self._ascending)
        self._missing: frozenset[str] = frozenset()
        self._whole = self  # with no switch missing
        self._distances: dict[str, dict[str, int]] = {}
        self._prefixes: dict[str, Mapping[IPv4Network, Route]] = {}
        self._parts: dict[str, str] = {}  # connected component of each switch, named by a member

    def _blocks_of(self, ascending: list[IPv4Address]) -> list[tuple[int, int, str]]:
        """Returns the blocks of neighbouring addresses at one switch: the index of the first, that
        behind the last, and the switch."""
        blocks: list[tuple[int, int, str]] = []
        for at, destination in enumerate(ascending):
            target = self.attached_to(destination)
            if blocks and blocks[-1][2] == target:
                blocks[-1] = blocks[-1][0], at + 1, target
            else:
                blocks.append((at, at + 1, target))
        return blocks

    def without(self, switches: Collection[str]) -> Addressing:
        """Returns the same plan with routes that avoid these switches, and only these."""
        other = copy.copy(self)
        other._missing = frozenset(switches)
        other._distances, other._parts, other._prefixes = {}, {}, {}
        return other

    @property
    def missing(self) -> frozenset[str]:
        """Switches that routes avoid."""
        return self._missing

    # --- hosts ---

    def host_interfaces(self, node: str) -> tuple[HostInterface, ...]:
        """Lists the interfaces of a host; the first has the default route."""
        return tuple(self._interfaces[node])

    def address(self, node: str) -> IPv4Address:
        """Returns a node's main address: a host's first, a switch's own."""
        if node in self._interfaces:
            return self._interfaces[node][0].ipv4
        return self.switch_address(node)

    def units(self, host: str) -> tuple[Unit, ...]:
        """Lists the server processes that a host has, or a worker's host can have."""
        node = self.topology.by_name[host]
        ends = self._interfaces[host][: None if node.kind == "server" else 1]
        places = [(end, core) for end in ends for core in range(node.processors)]
        names = self.topology.units_of(host)
        return tuple(Unit(name, host, *place) for name, place in zip(names, places, strict=True))

    def unit(self, name: str) -> Unit:
        """Finds a server process by its name; raises KeyError if there is none."""
        return self._units[name]

    def known(self, name: str) -> bool:
        """True if a node, or a server process, has this name."""
        return name in self.topology.by_name or name in self._units

    @property
    def interfaces(self) -> dict[IPv4Address, HostInterface]:
        """All host interfaces by address."""
        return self._interface_of

    # --- switches ---

    def switch_address(self, switch: str) -> IPv4Address:
        """Returns a switch's own address: the source of its sums and destination of results."""
        node = self.topology.by_name[switch]
        more, index = divmod(node.index, _PER_BYTE)
        third = 2 * more + (0 if node.rack is not None else 1)
        return IPv4Address(bytes((10, 255, third, index + 1)))

    def ports(self, switch: str) -> tuple[SwitchPort, ...]:
        """Lists the ports of a switch, from number 1."""
        return tuple(self._ports[switch])

    def port(self, switch: str, number: int) -> SwitchPort:
        """Returns a port of a switch; raises IndexError if there is none of that number."""
        if not 1 <= number <= len(self._ports[switch]):
            raise IndexError(f"{switch} has ports 1 to {len(self._ports[switch])}, not {number}")
        return self._ports[switch][number - 1]

    def ports_between(self, switch: str, neighbour: str) -> tuple[SwitchPort, ...]:
        """Lists the ports of a switch that are linked to a neighbour."""
        return tuple(port for port in self._ports[switch] if port.peer == neighbour)

    # --- routes ---

    @property
    def destinations(self) -> tuple[IPv4Address, ...]:
        """Every routed address: host interfaces, then the switches' own."""
        return (*self.interfaces, *(self.switch_address(n.name) for n in self.topology.switches))

    def attached_to(self, destination: IPv4Address) -> str:
        """Returns the switch of an address: the ToR of a host interface, or the switch itself."""
        if destination in self.interfaces:
            return self.interfaces[destination].switch
        return self._switch_at[destination]

    def routes(self, switch: str) -> dict[IPv4Address, Route]:
        """Maps every address but the switch's own to its next hop, without missing switches.

        Where no such path exists, the next hop is that of the whole network.
        """
        runs = self._runs(switch)
        ends = [*(start for start, _ in runs[1:]), len(self._ascending)]
        return {
            destination: way
            for (start, way), end in zip(runs, ends, strict=True)
            if way is not None
            for destination in self._ascending[start:end]
        }

    def prefixes(self, switch: str) -> Mapping[IPv4Network, Route]:
        """Returns the routes as few prefixes (``aggregated``)."""
        found = self._prefixes.get(switch)
        if found is None:
            found = self._prefixes[switch] = aggregated(self._numbers, self._runs(switch))
        return found

    @property
    def most_prefixes(self) -> int:
        """The most prefixes that a switch may have, whichever switches are missing.

        A ToR has one for each of its workers; one leads to all workers of another rack, if they
        share a path. Of all other addresses each may need its own.
        """
        others = len(self.destinations) - 1
        if not self._by_rack:
            return others
        shared = [count - 1 for count in self._workers if count]
        return others - sum(shared) + max(shared, default=0)

    def _runs(self, switch: str) -> list[tuple[int, Route | None]]:
        """Returns next hops of all addresses, in their order: the index of the first one of a run,
        and the next hop of the run; None for the switch's own.

        Unrestricted and restricted routes form no loop: where a switch has no path left, neither
        has any neighbour but the missing ones.
        """
        runs: list[tuple[int, Route | None]] = []
        routes_to: dict[str, list[Route]] = {}
        for first, end, target in self._blocks:
            routes = routes_to.get(target)
            if routes is None:
                nearer = self._nearer(switch, target) or self._whole._nearer(switch, target)
                routes = [Route(port.number, port.peer_mac) for port in nearer]
                routes_to[target] = routes
            # One route leads to all addresses of a block.
            for at in range(first, first + 1 if len(routes) == 1 else end):
                way = self._way(switch, target, self._ascending[at], routes)
                if not runs or runs[-1][1] != way:
                    runs.append((at, way))
        return runs

    def _way(
        self, switch: str, target: str, destination: IPv4Address, routes: list[Route]
    ) -> Route | None:
        """Returns the next hop to an address at a target, one of the routes to it."""
        if routes:
            return routes[self._rank[destination] % len(routes)]
        if target == switch and destination in self._interface_of:
            host = self._interface_of[destination]
            return Route(host.switch_port, host.mac)
        return None

    def route(self, switch: str, destination: IPv4Address) -> Route:
        """Returns the next hop towards an address.

        Raises KeyError for an unknown address or the switch's own, NoRouteError without a path.
        """
        if destination not in self._rank:
            raise KeyError(f"no node has the address {destination}")
        target = self.attached_to(destination)
        if target == switch:
            host = self.interfaces[destination]  # KeyError: a switch has no route to itself
            return Route(host.switch_port, host.mac)
        nearer = self._nearer(switch, target)
        if not nearer:
            raise self._no_route(switch, target)
        chosen = nearer[self._rank[destination] % len(nearer)]
        return Route(chosen.number, chosen.peer_mac)

    def _nearer(self, switch: str, target: str) -> list[SwitchPort]:
        """Lists the ports that begin a shortest path to another switch; empty without a path."""
        hops = self._hops_to(target)
        if switch not in hops:
            return []
        return [port for port in self._between[switch] if hops.get(port.peer) == hops[switch] - 1]

    def path(self, source: str, destination: IPv4Address) -> tuple[str, ...]:
        """Lists the switches on a packet's path from ``source``.

        ``source`` is a switch, or a host, whose packets leave by its first interface. Raises
        NoRouteError without a path.
        """
        passed = [self.check_way(source, destination)]
        while passed[-1] != self.attached_to(destination):
            out = self.route(passed[-1], destination).port
            passed.append(self.port(passed[-1], out).peer)
        return tuple(passed)

    def check_way(self, source: str, destination: IPv4Address) -> str:
        """Returns the first switch of ``path``; raises NoRouteError without a path."""
        switch = self._interfaces[source][0].switch if source in self._interfaces else source
        self._parts = parts = self._parts or self._all_parts()
        target = self.attached_to(destination)
        if switch not in parts or parts[switch] != parts.get(target):
            raise self._no_route(source, self._name(destination))
        return switch

    # --- construction ---

    def _ranks(self) -> dict[IPv4Address, int]:
        """Numbers the addresses, to spread destinations over equal paths.

        Workers (or their racks), server interfaces and switches are counted separately, so that n
        servers (or ToRs) use n different cores if there are as many.
        """
        ranks: dict[IPv4Address, int] = {}
        for group in (self.topology.workers, self.topology.servers):
            addresses = [i.ipv4 for node in group for i in self._interfaces[node.name]]
            ranks.update({address: rank for rank, address in enumerate(addresses)})
        if self._by_rack:
            for node in self.topology.workers:
                assert node.rack is not None
                ranks[self._interfaces[node.name][0].ipv4] = node.rack
        for switch in self.topology.switches:
            ranks[self.switch_address(switch.name)] = switch.index
        return ranks

    def _connect(self, link: Link) -> None:
        nodes = self.topology.by_name
        low = _End(nodes[link.a], self._next_number(nodes[link.a]))
        high = _End(nodes[link.b], self._next_number(nodes[link.b]))
        for end in (low, high):
            if len(end.interface) > LONGEST_INTERFACE_NAME:
                raise ValueError(
                    f"interface name {end.interface} is longer than {LONGEST_INTERFACE_NAME}"
                    " characters, which Linux refuses"
                )
        self._ports[link.b].append(self._switch_port(high, low, link))
        if link.a in self._ports:
            self._ports[link.a].append(self._switch_port(low, high, link))
        else:
            self._interfaces[link.a].append(
                HostInterface(
                    node=link.a,
                    number=low.number,
                    interface=low.interface,
                    mac=low.mac,
                    ipv4=self._host_address(low.node, high.node),
                    switch=link.b,
                    switch_port=high.number,
                    gateway_mac=high.mac,
                    outgoing=link.forward,
                    incoming=link.backward,
                    link=link,
                )
            )

    def _next_number(self, node: Node) -> int:
        if node.name in self._ports:
            return len(self._ports[node.name]) + 1
        return len(self._interfaces[node.name])

    def _host_address(self, host: Node, tor: Node) -> IPv4Address:
        assert tor.rack is not None
        counts = self._workers if host.kind == "worker" else self._server_links
        counts[tor.rack] += 1
        more, rack = divmod(tor.rack, _PER_BYTE)
        third = 2 * more + (0 if host.kind == "worker" else 1)
        return IPv4Address(bytes((10, rack, third, counts[tor.rack])))

    @staticmethod
    def _switch_port(own: _End, peer: _End, link: Link) -> SwitchPort:
        return SwitchPort(
            switch=own.node.name,
            number=own.number,
            interface=own.interface,
            mac=own.mac,
            peer=peer.node.name,
            peer_interface=peer.interface,
            peer_number=peer.number,
            peer_mac=peer.mac,
            peer_is_host=peer.node.level == 0,
            outgoing=link.quality_from(own.node.name),
            incoming=link.quality_from(peer.node.name),
            link=link,
        )

    def _name(self, address: IPv4Address) -> str:
        if address in self._interface_of:
            return self._interface_of[address].node
        return self._switch_at[address]

    def _no_route(self, source: str, target: str) -> NoRouteError:
        gone = ", ".join(sorted(self._missing)) or "any switch that links them"
        return NoRouteError(f"no way from {source} to {target} without {gone}")

    def _hops_to(self, target: str) -> dict[str, int]:
        """Counts the hops to a switch from all switches with a path; cached by target, as a job
        uses few of a large network's switches."""
        if target not in self._distances:
            self._distances[target] = self._search(target)
        return self._distances[target]

    def _all_parts(self) -> dict[str, str]:
        parts: dict[str, str] = {}
        for node in self.topology.switches:
            if node.name not in parts:
                parts.update(dict.fromkeys(self._search(node.name), node.name))
        return parts

    def _search(self, target: str) -> dict[str, int]:
        if target in self._missing:
            return {}
        hops = {target: 0}
        waiting = deque([target])
        while waiting:
            switch = waiting.popleft()
            for peer in (port.peer for port in self._between[switch]):
                if peer not in hops and peer not in self._missing:
                    hops[peer] = hops[switch] + 1
                    waiting.append(peer)
        return hops
