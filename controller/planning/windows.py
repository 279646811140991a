# SPDX-License-Identifier: Apache-2.0
"""Chooses the window, the number of chunks that a stream keeps in flight.

It is large enough to keep a worker's link busy for a round trip, and no larger than the queues on
the path hold: with a window of W, a link queues at most W frames for each sum that crosses it.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address

from controller.planning.tree_planner import Tree, TreeNode
from topologies.model.addressing import Addressing, SwitchPort
from topologies.model.topology import LinkQuality

MOST = 64
# Workers that share a machine are scheduled milliseconds apart.
SKEW = 0.02

# A directed link: the node it leaves, and which of that node's ports.
_Hop = tuple[str, int]


@dataclass(frozen=True)
class TreeLink:
    """A direction of a link that tree edges use.

    node, peer: its ends.
    up: it carries contributions; otherwise results.
    quality: its rate, delay and queue.
    senders: the children that send the contributions, with the number of their streams here.
    """

    node: str
    peer: str
    up: bool
    quality: LinkQuality
    senders: Counter[str]


def tree_links(
    addressing: Addressing, trees: Sequence[Tree], servers: Sequence[IPv4Address]
) -> Iterator[TreeLink]:
    """Yields both directions of every link that trees use; ``servers`` are addresses by rank."""
    ways = _Ways(addressing, servers)
    senders: defaultdict[_Hop, Counter[str]] = defaultdict(Counter)
    for tree in trees:
        for node in tree.nodes:
            for child in node.children:
                for hop in ways.below(node, child.sender):
                    senders[hop][child.name] += 1
    for hop, counted in senders.items():
        peer = ways.peer(hop)
        there, back = ways.both_ways(hop)
        yield TreeLink(hop[0], peer, True, there, counted)
        yield TreeLink(peer, hop[0], False, back, counted)


def choose_window(
    addressing: Addressing,
    trees: Sequence[Tree],
    servers: Sequence[IPv4Address],
    frame_bytes: int,
    most: int = MOST,
    queue_packets: int | None = None,
) -> int:
    """Chooses the window (a power of two) for every stream of a job.

    servers: addresses by rank.
    frame_bytes: size of a full contribution with its Ethernet header.
    queue_packets: capacity of a switch port's queue where the target counts packets; half of it is
        reserved for probes, their answers and other traffic.
    """
    ways = _Ways(addressing, servers)
    wanted = 1
    for tree in trees:
        for rank in tree.leaves:
            hops = [ways.quality(hop) for hop in ways.to_root(tree, rank)]
            wanted = max(wanted, _frames_in_flight(hops, frame_bytes))
    held = most
    for one in tree_links(addressing, trees, servers):
        flows = one.senders.total()
        held = min(held, one.quality.queue_bytes // (flows * frame_bytes))
        if queue_packets is not None:
            held = min(held, queue_packets // (2 * flows))
    enough = 1 << (wanted - 1).bit_length()
    return min(enough, _power_of_two_below(held), _power_of_two_below(most))


def _frames_in_flight(hops: Sequence[LinkQuality], frame_bytes: int) -> int:
    """Computes the frames that fill the slowest link of a path for a round trip."""
    bits = 8 * frame_bytes
    round_trip = 2 * sum(hop.delay + bits / hop.rate for hop in hops)
    slowest = min(hop.rate for hop in hops)
    return math.ceil(slowest * (round_trip + SKEW) / bits)


def _power_of_two_below(number: int) -> int:
    return 1 << (max(number, 1).bit_length() - 1)


class _Ways:
    """Links between the nodes of a tree."""

    def __init__(self, addressing: Addressing, servers: Sequence[IPv4Address]) -> None:
        self.addressing = addressing
        self.servers = servers

    def below(self, node: TreeNode, sender: int) -> set[_Hop]:
        """Finds the links from a child up to its parent (for a server root: to all its servers)."""
        child = node.children[sender]
        if node.switch is None:
            return {
                hop for rank in node.servers for hop in self._links(child.name, self.servers[rank])
            }
        if child.rank is None:
            up = self.addressing.port(node.switch, child.port)
            return {(up.peer, up.peer_number)}
        # A worker addresses its packets to a server, but they end at the node.
        host = self.addressing.host_interfaces(child.name)[0]
        if host.switch == node.switch:
            return {(child.name, 0)}
        port = self.addressing.port(node.switch, child.port)
        return {(child.name, 0), *self._to_core(child.name, node.switch, port)}

    def to_root(self, tree: Tree, rank: int) -> list[_Hop]:
        """Lists the links from a worker to the root of its tree."""
        node, child = tree.leaves[rank]
        hops = list(self.below(node, child.sender))
        while node.parent is not None:
            sender = node.parent.sender
            node = tree.by_number[node.parent.node]
            hops += self.below(node, sender)
        return hops

    def peer(self, hop: _Hop) -> str:
        """Returns the node at the end of a hop."""
        name, number = hop
        if self.addressing.topology.by_name[name].level == 0:
            return self.addressing.host_interfaces(name)[number].switch
        return self.addressing.port(name, number).peer

    def quality(self, hop: _Hop) -> LinkQuality:
        """Returns the quality of a hop in its direction."""
        return self.both_ways(hop)[0]

    def both_ways(self, hop: _Hop) -> tuple[LinkQuality, LinkQuality]:
        """Returns the qualities of a hop's link in the hop's direction and the opposite one."""
        name, number = hop
        if self.addressing.topology.by_name[name].level == 0:
            host = self.addressing.host_interfaces(name)[number]
            return host.outgoing, host.incoming
        port = self.addressing.port(name, number)
        return port.outgoing, port.incoming

    def _to_core(self, worker: str, core: str, last: SwitchPort) -> Iterator[_Hop]:
        """Yields the links between switches from a worker to a core for those of its packets to
        servers that arrive there by the link `last`."""
        arrival = (last.peer, last.peer_number)
        for server in self.servers:
            passed = self.addressing.path(worker, server)
            if core not in passed:
                continue
            before = passed[: passed.index(core)]
            hops = [(name, self.addressing.route(name, server).port) for name in before]
            if hops[-1] == arrival:
                yield from hops

    def _links(self, name: str, server: IPv4Address) -> Iterator[_Hop]:
        """Yields the links from a worker or switch to a server's interface."""
        if self.addressing.topology.by_name[name].level == 0:
            yield (name, 0)
        for switch in self.addressing.path(name, server):
            yield (switch, self.addressing.route(switch, server).port)
