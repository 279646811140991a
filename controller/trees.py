# SPDX-License-Identifier: Apache-2.0
"""Aggregation trees of a job: which switches and servers sum what, for every stream.

Workers address each chunk to its server, so a tree has to stand where those packets pass. A ToR is
always first on the way, and sends its sum up by a port of the plan's choice; a core without ToR
nodes below it must be on the route from every worker to every server of the stream. A server root
answers to a ToR's own address, and that answer must come in by the port that the sums leave by.

Everything here is a function of its arguments: the same job in the same place has the same trees.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from ipaddress import IPv4Address

from protocol.partition import servers_of
from topologies.addressing import Addressing, NoRouteError
from topologies.topology import Topology

__all__ = ["Child", "Parent", "PlanRefusedError", "Tree", "TreeKind", "TreeNode", "plan_trees"]

MOST_CHILDREN = 32  # one bit each in the packet's bitmap
MOST_STREAMS = 256  # the stream is one byte of the packet


class TreeKind(Enum):
    """Where sums are made; the numbers are those of the job service's ``Tree``."""

    TWO_LEVEL = 1  # ToRs under one core (one rack: the ToR alone)
    TOR = 2  # ToRs under the server
    CORE = 3  # one core, no ToR
    NONE = 4  # the server alone
    TWO_LEVEL_SERVER = 5  # ToRs under one core under the server
    CORE_SERVER = 6  # one core under the server, no ToR

    def __str__(self) -> str:
        """As job files spell it: two-level, tor, core, none, two-level-server, core-server."""
        return self.name.lower().replace("_", "-")

    @property
    def ends_at_server(self) -> bool:
        """Whether the root is a server, which can run an optimizer then."""
        return self not in (TreeKind.TWO_LEVEL, TreeKind.CORE)

    @staticmethod
    def of(text: str) -> TreeKind:
        """The kind that a job file spells so; ``KeyError`` when there is none."""
        return TreeKind[text.upper().replace("-", "_")]


class PlanRefusedError(Exception):
    """No such tree can be had; the text says why and what would be possible.

    ``field``: what of the job it is about: tree, streams or workers, then those at ``tor``.
    """

    def __init__(self, text: str, field: str = "tree", tor: str | None = None) -> None:
        super().__init__(text)
        self.field = field
        self.tor = tor


class _ServersDisagreeError(PlanRefusedError):
    """Servers that share a stream lie in different directions; more streams would part them."""


@dataclass(frozen=True)
class Child:
    """A child of a tree node, as its parent sees it."""

    sender: int  # child index
    name: str
    rank: int | None  # a worker's; None for a switch
    node: int  # a switch's node id; 0 for a worker
    workers: int  # below it, or 1
    address: IPv4Address
    port: int  # of the parent switch, towards the child; 0 under a server
    mac: str  # of the next hop there; "" under a server


@dataclass(frozen=True)
class Parent:
    """What is above a switch: the node, the child index there, and the way out."""

    node: int
    sender: int
    port: int
    mac: str


@dataclass(frozen=True)
class TreeNode:
    """An inner node. ``switch`` is None for a server root, which ``servers`` (ranks) then share.

    The servers of one stream share its chunks, each the root for those addressed to it.
    """

    node: int
    switch: str | None
    servers: tuple[int, ...]
    children: tuple[Child, ...]
    parent: Parent | None

    @property
    def workers(self) -> int:
        """Workers below."""
        return sum(child.workers for child in self.children)

    @property
    def full(self) -> int:
        """The bitmap with every child's bit set."""
        return (1 << len(self.children)) - 1


@dataclass(frozen=True)
class Tree:
    """One stream's tree, root first."""

    stream: int
    nodes: tuple[TreeNode, ...]

    @property
    def root(self) -> TreeNode:
        """The node without a parent."""
        return self.nodes[0]

    @property
    def switches(self) -> tuple[TreeNode, ...]:
        """The nodes that are switches."""
        return tuple(node for node in self.nodes if node.switch is not None)

    @cached_property
    def leaves(self) -> dict[int, tuple[TreeNode, Child]]:
        """Where each worker (by rank) hangs."""
        return {
            child.rank: (node, child)
            for node in self.nodes
            for child in node.children
            if child.rank is not None
        }


def plan_trees(
    topology: Topology,
    addressing: Addressing,
    workers: Sequence[str],
    servers: Sequence[IPv4Address],
    kind: TreeKind,
    streams: int = 0,
    rotation: int = 0,
    avoid: Collection[str] = (),
) -> tuple[Tree, ...]:
    """Trees of a job, one per stream.

    ``workers`` are host names by rank, ``servers`` addresses by rank. ``streams`` 0 takes the
    fewest that part servers lying in different directions. ``rotation`` shifts the choice among
    cores that would all do. Switches to ``avoid`` are no nodes of a tree, but packets may pass them
    (routes that do not are ``addressing``'s, see its ``without``). Raises ``PlanRefusedError``.
    """
    try:
        for server in servers:
            for worker in workers:
                addressing.path(worker, server)
        planner = _Planner(topology, addressing, workers, servers, rotation, avoid)
        return _planned(planner, workers, kind, streams)
    except NoRouteError as error:
        raise PlanRefusedError(str(error)) from error


def _planned(
    planner: _Planner, workers: Sequence[str], kind: TreeKind, streams: int
) -> tuple[Tree, ...]:
    addressing, servers = planner.addressing, planner.servers
    local = {addressing.interfaces[server].node for server in servers} & set(workers)
    if local and kind is not TreeKind.NONE:
        raise PlanRefusedError(
            f"{', '.join(sorted(local))}: worker and server on one host, whose packets to itself"
            f" pass no switch; tree {kind} needs servers on hosts without workers (tree"
            f" {TreeKind.NONE} does not)"
        )
    refusal = _ServersDisagreeError("")
    fitting = [n for n in range(1, len(servers) + 1) if len(servers) % n == 0 and n <= MOST_STREAMS]
    if streams > MOST_STREAMS:
        raise PlanRefusedError(f"{streams} streams; allowed: 1 to {MOST_STREAMS}", "streams")
    for count in [streams] if streams else fitting:
        try:
            return planner.plan(kind, count)
        except _ServersDisagreeError as error:
            refusal = error
    for count in fitting if streams else []:
        try:
            planner.plan(kind, count)
        except _ServersDisagreeError:
            continue
        text = f"{refusal}; a multiple of {count} streams would part them"
        raise PlanRefusedError(text, "streams")
    raise PlanRefusedError(str(refusal))


class _Planner:
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

    def plan(self, kind: TreeKind, streams: int) -> tuple[Tree, ...]:
        make: dict[TreeKind, Callable[[int, int, tuple[int, ...]], list[TreeNode]]] = {
            TreeKind.TWO_LEVEL: self._two_level,
            TreeKind.TOR: self._tor,
            TreeKind.CORE: self._core,
            TreeKind.NONE: self._none,
            TreeKind.TWO_LEVEL_SERVER: self._two_level_under_server,
            TreeKind.CORE_SERVER: self._core_under_server,
        }
        trees: list[Tree] = []
        first = 1
        for stream in range(streams):
            ranks = servers_of(stream, streams, len(self.servers))
            nodes = make[kind](first, stream, ranks)
            for node in nodes:
                self._check_children(node)
            trees.append(Tree(stream, tuple(nodes)))
            first += len(nodes)
        return tuple(trees)

    # --- the kinds; each returns the nodes of one stream, ids from `first`, root first ---

    def _two_level(self, first: int, stream: int, servers: tuple[int, ...]) -> list[TreeNode]:
        self._check_tors()
        if len(self.racks) == 1:
            (tor,) = self.racks
            return [TreeNode(first, tor, (), self._workers_under(tor), None)]
        above = [
            core.name
            for core in self.topology.cores
            if core.name not in self.avoid | self.addressing.missing
            and all(self.addressing.ports_between(tor, core.name) for tor in self.racks)
        ]
        if not above:
            tors = ", ".join(self.racks)
            but = f" (but for {self._avoided()})" if self._avoided() else ""
            raise PlanRefusedError(f"no core{but} is linked to all of {tors}; try tree tor")
        core = above[(self.rotation + stream) % len(above)]
        children, below = [], []
        for sender, tor in enumerate(self.racks):
            up = self.addressing.ports_between(tor, core)[0]
            parent = Parent(first, sender, up.number, up.peer_mac)
            node = TreeNode(first + 1 + sender, tor, (), self._workers_under(tor), parent)
            below.append(node)
            children.append(self._switch_child(sender, node, up.peer_number, up.mac))
        return [TreeNode(first, core, (), tuple(children), None), *below]

    def _tor(self, first: int, stream: int, servers: tuple[int, ...]) -> list[TreeNode]:
        self._check_tors()
        children, below = [], []
        for sender, tor in enumerate(self.racks):
            ways = {self._way_from_server(tor, self.servers[rank]) for rank in servers}
            if len(ways) > 1:
                raise _ServersDisagreeError(
                    f"stream {stream} has servers {self._names(servers)}, to which {tor} has"
                    " different ways"
                )
            port, mac = ways.pop()
            parent = Parent(first, sender, port, mac)
            node = TreeNode(first + 1 + sender, tor, (), self._workers_under(tor), parent)
            below.append(node)
            children.append(self._switch_child(sender, node, 0, ""))
        return [TreeNode(first, None, servers, tuple(children), None), *below]

    def _core(self, first: int, stream: int, servers: tuple[int, ...]) -> list[TreeNode]:
        cores = [core.name for core in self.topology.cores]
        if not cores:
            raise PlanRefusedError(
                f"{self.topology.name} has no core, which tree core needs; use two-level or tor"
            )
        common = set(cores)
        for _, worker in self.workers:
            for rank in servers:
                passed = self.addressing.path(worker, self.servers[rank])
                if not set(cores) & set(passed):
                    raise PlanRefusedError(
                        f"packets from {worker} to {self._names((rank,))} pass no core, only"
                        f" {', '.join(passed)}; tree core needs servers in racks where the job has"
                        " no workers, two-level and tor do not"
                    )
                common &= set(passed)
        if not common:
            raise _ServersDisagreeError(
                f"tree core: no core is on the way from all workers to {self._names(servers)}"
            )
        if not common - self.avoid:
            raise PlanRefusedError(f"tree core without {self._avoided()}: no other core would do")
        core = min(common - self.avoid, key=cores.index)
        children = []
        for sender, (rank, worker) in enumerate(self.workers):
            ways = {self._arrival(worker, self.servers[server], core) for server in servers}
            if len(ways) > 1:
                raise _ServersDisagreeError(
                    f"stream {stream} has servers {self._names(servers)}, and {worker} reaches"
                    f" {core} differently for each"
                )
            port, mac = ways.pop()
            address = self.addressing.address(worker)
            children.append(Child(sender, worker, rank, 0, 1, address, port, mac))
        return [TreeNode(first, core, (), tuple(children), None)]

    def _none(self, first: int, stream: int, servers: tuple[int, ...]) -> list[TreeNode]:
        children = tuple(
            Child(sender, name, rank, 0, 1, self.addressing.address(name), 0, "")
            for sender, (rank, name) in enumerate(self.workers)
        )
        return [TreeNode(first, None, servers, children, None)]

    def _two_level_under_server(
        self, first: int, stream: int, servers: tuple[int, ...]
    ) -> list[TreeNode]:
        if len(self.racks) == 1:
            return self._tor(first, stream, servers)
        return self._under_server(self._two_level(first + 1, stream, servers), first, servers)

    def _core_under_server(
        self, first: int, stream: int, servers: tuple[int, ...]
    ) -> list[TreeNode]:
        return self._under_server(self._core(first + 1, stream, servers), first, servers)

    # --- pieces ---

    def _under_server(
        self, nodes: list[TreeNode], first: int, servers: tuple[int, ...]
    ) -> list[TreeNode]:
        """The same tree with its root, a switch, as the only child of a server."""
        top, *below = nodes
        assert top.switch is not None
        ways = {self._way_from_server(top.switch, self.servers[rank]) for rank in servers}
        if len(ways) > 1:
            raise _ServersDisagreeError(
                f"{top.switch} has different ways to {self._names(servers)} of one stream"
            )
        port, mac = ways.pop()
        top = replace(top, parent=Parent(first, 0, port, mac))
        child = self._switch_child(0, top, 0, "")
        return [TreeNode(first, None, servers, (child,), None), top, *below]

    def _check_tors(self) -> None:
        tors = ", ".join(tor for tor in self.racks if tor in self.avoid)
        if tors:
            raise PlanRefusedError(f"{tors} cannot take part, and is the ToR of workers of the job")

    def _avoided(self) -> str:
        return ", ".join(sorted(self.avoid | self.addressing.missing))

    def _workers_under(self, tor: str) -> tuple[Child, ...]:
        children = []
        for sender, (rank, name) in enumerate(self.racks[tor]):
            link = self.addressing.host_interfaces(name)[0]
            children.append(Child(sender, name, rank, 0, 1, link.ipv4, link.switch_port, link.mac))
        return tuple(children)

    def _switch_child(self, sender: int, node: TreeNode, port: int, mac: str) -> Child:
        assert node.switch is not None
        address = self.addressing.switch_address(node.switch)
        return Child(sender, node.switch, None, node.node, node.workers, address, port, mac)

    def _way_from_server(self, switch: str, server: IPv4Address) -> tuple[int, str]:
        """Port of a switch by which a server's packets to it arrive, and the MAC on the other side.

        A shortest path back is one forth, so sums that leave by this port reach the server.
        """
        host = self.addressing.interfaces[server]
        if host.switch == switch:
            return host.switch_port, host.mac
        return self._arrival_at(
            switch, self.addressing.path(host.switch, self._own(switch)), switch
        )

    def _arrival(self, worker: str, server: IPv4Address, switch: str) -> tuple[int, str]:
        """Port of a switch on the way from a worker to a server by which its packets arrive."""
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

    def _names(self, servers: Sequence[int]) -> str:
        hosts = [self.addressing.interfaces[self.servers[rank]].node for rank in servers]
        return ", ".join(hosts)

    def _check_children(self, node: TreeNode) -> None:
        if len(node.children) <= MOST_CHILDREN:
            return
        tor = node.switch if node.switch in self.racks else None
        of_racks = node.children[0].rank is None
        instead = f"use workers of at most {MOST_CHILDREN} racks"
        if not of_racks:
            instead = "use at most that many workers there"
            largest = max(map(len, self.racks.values()))
            if tor is None and max(largest, len(self.racks)) <= MOST_CHILDREN:
                instead += ", or tree two-level or tor, where each ToR is one child"
        raise PlanRefusedError(
            f"{node.switch or 'the server'} would have {len(node.children)} children,"
            f" {MOST_CHILDREN} are possible; {instead}",
            "workers",
            tor,
        )
