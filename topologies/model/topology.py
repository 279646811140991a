# SPDX-License-Identifier: Apache-2.0
"""Topologies: nodes, links and the quality of each direction of a link."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

Kind = Literal["worker", "server", "switch"]
# Ports have 9 bits; the last ones are the drop port, the CPU port and those that a target adds.
MAX_PORTS = 500


@dataclass(frozen=True)
class LinkQuality:
    """One direction of a link. Impairments are probabilities per packet."""

    rate: int = 20_000_000  # bit/s
    delay: float = 0.0  # s
    queue_bytes: int = 128 * 1024
    ecn_bytes: int = 64 * 1024  # mark above this backlog; 0: never
    mtu: int = 1500  # bytes of IP packet
    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    corrupt: float = 0.0

    @property
    def impaired(self) -> bool:
        """True if it loses, duplicates, reorders or corrupts packets."""
        return any((self.loss, self.duplicate, self.reorder, self.corrupt))


@dataclass(frozen=True)
class Costs:
    """Costs in virtual time besides the transmission of frames.

    framing: count preamble, FCS and gap of each frame.
    switch_latency: seconds from a packet's arrival until it is queued.
    host_per_packet, host_per_byte: seconds of a worker's host for each sent and received frame.
    interrupt_interval: hosts hand arrived frames to programs at multiples of these seconds, as a
        network card does that coalesces interrupts.
    server_rate: bit/s of payloads that a server process handles; None: unlimited.
    """

    framing: bool = False
    switch_latency: float = 0.0
    host_per_packet: float = 0.0
    host_per_byte: float = 0.0
    interrupt_interval: float = 0.0
    server_rate: int | None = None


@dataclass(frozen=True)
class Node:
    """A host or a switch. ``level``: 0 hosts, 1 ToRs, 2.. cores; ``rack``: None for cores.

    ``processors``: cores of a server at each interface, with a server process on each.
    """

    name: str
    kind: Kind
    rack: int | None
    level: int
    index: int  # among the nodes with the same letters: 3 in w3
    processors: int = 1


@dataclass(frozen=True)
class Link:
    """``a`` is the lower end (host or lower switch); ``forward`` is a to b, ``backward`` b to a."""

    a: str
    b: str
    forward: LinkQuality
    backward: LinkQuality

    def other(self, name: str) -> str:
        """Returns the end other than ``name``."""
        return self.b if name == self.a else self.a

    def quality_from(self, name: str) -> LinkQuality:
        """Returns the quality of the direction that leaves ``name``."""
        return self.forward if name == self.a else self.backward


@dataclass(frozen=True)
class Topology:
    """A valid topology. The order of nodes and links is fixed and determines all derived values.

    seed: seeds the choice of packets that links lose, duplicate, reorder and corrupt.
    """

    name: str
    nodes: tuple[Node, ...]
    links: tuple[Link, ...]
    tls: bool
    source: str  # the file it was read from
    costs: Costs = Costs()
    seed: int = 0

    @cached_property
    def impaired(self) -> bool:
        """True if any link is impaired (LinkQuality)."""
        return any(link.forward.impaired or link.backward.impaired for link in self.links)

    @cached_property
    def least_mtu(self) -> int:
        """Bytes of an IP packet that every link carries; 0 without links."""
        ends = (end for link in self.links for end in (link.forward, link.backward))
        return min((end.mtu for end in ends), default=0)

    @cached_property
    def by_name(self) -> dict[str, Node]:
        """Nodes by name."""
        return {node.name: node for node in self.nodes}

    @cached_property
    def workers(self) -> tuple[Node, ...]:
        """Worker hosts, w0 first."""
        return tuple(node for node in self.nodes if node.kind == "worker")

    @cached_property
    def servers(self) -> tuple[Node, ...]:
        """Server hosts, s0 first."""
        return tuple(node for node in self.nodes if node.kind == "server")

    @cached_property
    def hosts(self) -> tuple[Node, ...]:
        """Workers, then servers."""
        return self.workers + self.servers

    @cached_property
    def switches(self) -> tuple[Node, ...]:
        """ToR switches, then cores from the lowest level up."""
        return tuple(node for node in self.nodes if node.kind == "switch")

    @cached_property
    def tors(self) -> tuple[Node, ...]:
        """ToR switches, one per rack."""
        return tuple(node for node in self.switches if node.rack is not None)

    @cached_property
    def cores(self) -> tuple[Node, ...]:
        """Core switches, lowest level first."""
        return tuple(node for node in self.switches if node.rack is None)

    @cached_property
    def racks(self) -> int:
        """Number of racks."""
        return len(self.tors)

    def units_of(self, host: str) -> tuple[str, ...]:
        """Names a host's server processes: the host's own name, or s0.0, s0.1.. if it has several.

        A worker's host can have one.
        """
        node = self.by_name[host]
        count = len(self.links_of(host)) * node.processors if node.kind == "server" else 1
        return (host,) if count == 1 else tuple(f"{host}.{number}" for number in range(count))

    def links_of(self, name: str) -> tuple[Link, ...]:
        """Lists the links of a node in the topology's order."""
        return self._links_of.get(name, ())

    @cached_property
    def _links_of(self) -> dict[str, tuple[Link, ...]]:
        found: dict[str, list[Link]] = {}
        for link in self.links:
            found.setdefault(link.a, []).append(link)
            found.setdefault(link.b, []).append(link)
        return {name: tuple(links) for name, links in found.items()}
