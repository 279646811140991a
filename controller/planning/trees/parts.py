# SPDX-License-Identifier: Apache-2.0
"""Shared parts of tree planners: racks, children, ways to servers, and limits."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from ipaddress import IPv4Address
from typing import TypeAlias

from controller.planning.levels import MOST_CHILDREN, NotJoinedError, join
from controller.planning.tree import Child, Parent, PlanRefusedError, TreeNode
from topologies.model.addressing import Addressing
from topologies.model.topology import Topology

Ranks: TypeAlias = tuple[int, ...]
"""Servers of one stream."""


class ServersDisagreeError(PlanRefusedError):
    """Servers that share a stream lie in different directions; more streams would separate them."""


class Parts:
    """The members of a job on its network, and pieces of trees over them.

    racks: rank and name of the workers under each ToR.
    """

    def __init__(
        self,
        topology: Topology,
        addressing: Addressing,
        workers: Sequence[str],
        servers: Sequence[IPv4Address],
        rotation: int,
        avoid: Collection[str],
    ) -> None:
        self.topology = topology
        self.avoid = frozenset(avoid)
        self.addressing = addressing
        self.workers = list(enumerate(workers))
        self.servers = servers
        self.rotation = rotation
        racks: dict[str, list[tuple[int, str]]] = {}
        for rank, name in self.workers:
            tor = addressing.host_interfaces(name)[0].switch
            racks.setdefault(tor, []).append((rank, name))
        order = {node.name: position for position, node in enumerate(topology.switches)}
        self.racks = dict(sorted(racks.items(), key=lambda item: order[item[0]]))

    def under_server(self, nodes: list[TreeNode], first: int, servers: Ranks) -> list[TreeNode]:
        """Puts a server above a tree, whose root switch becomes its only child."""
        top, *below = nodes
        assert top.switch is not None
        ways = {self.way_from_server(top.switch, self.servers[rank]) for rank in servers}
        if len(ways) > 1:
            raise ServersDisagreeError(
                f"{top.switch} has different ways to {self.names(servers)} of one stream"
            )
        port, mac = ways.pop()
        top = replace(top, parent=Parent(first, 0, port, mac))
        child = self.switch_child(0, top, 0, "")
        return [TreeNode(first, None, servers, (child,), None), top, *below]

    def check_tors(self) -> None:
        """Refuses trees with a ToR that cannot take part."""
        tors = ", ".join(tor for tor in self.racks if tor in self.avoid)
        if tors:
            raise PlanRefusedError(f"{tors} cannot take part, and is the ToR of workers of the job")

    def avoided(self) -> str:
        """Names the switches that trees and routes avoid."""
        return ", ".join(sorted(self.avoid | self.addressing.missing))

    def workers_under(self, tor: str) -> tuple[Child, ...]:
        """Builds the children of a ToR."""
        children = []
        for sender, (rank, name) in enumerate(self.racks[tor]):
            link = self.addressing.host_interfaces(name)[0]
            children.append(Child(sender, name, rank, 0, 1, link.ipv4, link.switch_port, link.mac))
        return tuple(children)

    def switches_under(self, core: str, below: Sequence[TreeNode]) -> tuple[Child, ...]:
        """Builds the children of a core."""
        children = []
        for sender, node in enumerate(below):
            assert node.switch is not None
            down = self.addressing.ports_between(core, node.switch)[0]
            children.append(self.switch_child(sender, node, down.number, down.peer_mac))
        return tuple(children)

    def switch_child(self, sender: int, node: TreeNode, port: int, mac: str) -> Child:
        """Builds a switch as a child, by a port of its parent."""
        assert node.switch is not None
        address = self.addressing.switch_address(node.switch)
        return Child(sender, node.switch, None, node.node, node.workers, address, port, mac)

    def way_from_server(self, switch: str, server: IPv4Address) -> tuple[int, str]:
        """Port of a switch by which a server's packets to it arrive, and the MAC on the other side.

        A shortest path back is one forth, so sums that leave by this port reach the server.
        """
        host = self.addressing.interfaces[server]
        if host.switch == switch:
            return host.switch_port, host.mac
        return self._arrival_at(
            switch, self.addressing.path(host.switch, self._own(switch)), switch
        )

    def arrival(self, worker: str, server: IPv4Address, switch: str) -> tuple[int, str]:
        """Finds the port by which a worker's packets to a server arrive at a switch."""
        return self._arrival_at(switch, self.addressing.path(worker, server), server)

    def _arrival_at(
        self, switch: str, path: Sequence[str], towards: str | IPv4Address
    ) -> tuple[int, str]:
        destination = towards if isinstance(towards, IPv4Address) else self._own(towards)
        before = path[path.index(switch) - 1]
        out = self.addressing.route(before, destination).port
        there = self.addressing.port(before, out)
        return there.peer_number, there.mac

    def _own(self, switch: str) -> IPv4Address:
        return self.addressing.switch_address(switch)

    def names(self, servers: Sequence[int]) -> str:
        """Names the hosts of servers."""
        hosts = [self.addressing.interfaces[self.servers[rank]].node for rank in servers]
        return ", ".join(hosts)

    def joined(self, turn: int) -> list[dict[str, list[str]]]:
        """Selects the cores above the ToRs (``levels.join``)."""
        return join(self.topology, self.addressing, tuple(self.racks), turn, self.avoid)

    def check_flat(self, name: str) -> None:
        """Refuses a node with all workers as children if they are too many."""
        if len(self.workers) > MOST_CHILDREN:
            raise self._too_many(name, len(self.workers), of_racks=False)

    def check_children(self, node: TreeNode) -> None:
        """Refuses a node with too many children."""
        if len(node.children) > MOST_CHILDREN:
            of_racks = node.children[0].rank is None
            raise self._too_many(node.switch or "the server", len(node.children), of_racks=of_racks)

    def _too_many(self, name: str, children: int, of_racks: bool) -> PlanRefusedError:
        """Builds the error for a ToR's workers, a server's ToRs, or another node's workers."""
        tor = name if name in self.racks else None
        if of_racks:
            instead = f"use workers of at most {MOST_CHILDREN} racks"
        else:
            instead = "use at most that many workers there"
        if tor is None and max(map(len, self.racks.values())) <= MOST_CHILDREN:
            if len(self.racks) <= MOST_CHILDREN:
                instead += ", or tree two-level or tor, where each ToR is one child"
            elif self._can_be_joined():
                instead += ", or tree two-level or two-level-server, with cores above the ToRs"
        return PlanRefusedError(
            f"{name} would have {children} children, {MOST_CHILDREN} are possible; {instead}",
            "workers",
            tor,
        )

    def _can_be_joined(self) -> bool:
        try:
            self.joined(0)
        except NotJoinedError:
            return False
        return True
