# SPDX-License-Identifier: Apache-2.0
"""Plans the aggregation trees of a job: the switches and servers that sum each stream.

Workers address each chunk to its server, so the nodes of a tree must be on the path of these
packets. A ToR is always the first switch, and sends its sum up by a port that the plan chooses, as
every core above it does (``controller.planning.levels`` selects these). A core without ToR nodes
below it must be on the route from every worker to every server of the stream. A server root answers
to a switch's own address, and the answer must arrive by the port that the sums leave by.

Plans are deterministic: they depend on the arguments alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from ipaddress import IPv4Address

from controller.planning.levels import MOST_CHILDREN, NotJoinedError, join
from controller.planning.tree import Child, Parent, PlanRefusedError, Tree, TreeNode
from protocol.partition import servers_of
from protocol.trees import TreeKind
from topologies.model.addressing import Addressing, NoRouteError
from topologies.model.topology import Topology

__all__ = ["Child", "Parent", "PlanRefusedError", "Tree", "TreeKind", "TreeNode", "plan_trees"]

MOST_STREAMS = 256  # the stream is one byte of the packet
MOST_NODES = (1 << 16) - 1  # of all streams, as of workers: both are two bytes


class _ServersDisagreeError(PlanRefusedError):
    """Servers that share a stream lie in different directions; more streams would separate them."""


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
    """Plans the trees of a job, one per stream.

    workers: host names by rank.
    servers: addresses by rank.
    streams: number of streams; 0: the fewest that separate servers in different directions.
    rotation: rotates the choice among equivalent cores.
    avoid: switches that are no nodes of a tree, though packets may pass them (to route around a
        switch, use ``Addressing.without``).

    Raises PlanRefusedError.
    """
    try:
        planner = _Planner(topology, addressing, workers, servers, rotation, avoid)
        first = [members[0][1] for members in planner.racks.values()]
        ways = [(worker, server) for server in servers[:1] for worker in first]
        for worker, server in (*ways, *((first[0], server) for server in servers)):
            addressing.check_way(worker, server)
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
    if len(workers) > MOST_NODES:
        text = f"{len(workers)} workers; a sum says of how many it is, up to {MOST_NODES}"
        raise PlanRefusedError(text, "workers")
    if kind in (TreeKind.NONE, TreeKind.CORE, TreeKind.CORE_SERVER):
        planner.check_flat("the server" if kind is TreeKind.NONE else "the core")
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
            if len(nodes) * streams > MOST_NODES:
                raise PlanRefusedError(
                    f"{streams} streams with {len(nodes)} tree nodes each; all together have up to"
                    f" {MOST_NODES}",
                    "streams",
                )
            for node in nodes:
                self._check_children(node)
            trees.append(Tree(stream, tuple(nodes)))
            first += len(nodes)
        return tuple(trees)

    # --- the kinds; each returns the nodes of one stream, ids from `first`, root first ---

    def _two_level(self, first: int, stream: int, servers: tuple[int, ...]) -> list[TreeNode]:
        self._check_tors()
        try:
            levels = self._joined(self.rotation + stream)
        except NotJoinedError as error:
            other = len(self.racks) <= MOST_CHILDREN and not error.crowded
            text = f"{error}; try tree tor" if other else str(error)
            raise PlanRefusedError(text, "cores" if error.crowded else "tree") from error
        below = {name: names for level in levels for name, names in level.items()}
        (root,) = levels[-1] if levels else self.racks
        order = [root]
        for name in order:
            order += below.get(name, ())
        numbers = {name: first + position for position, name in enumerate(order)}
        parents = {
            name: (core, sender)
            for core, names in below.items()
            for sender, name in enumerate(names)
        }
        nodes: dict[str, TreeNode] = {}
        for name in reversed(order):
            children = self._switches_under(name, [nodes[one] for one in below.get(name, ())])
            parent = None
            if name in parents:
                core, sender = parents[name]
                up = self.addressing.ports_between(name, core)[0]
                parent = Parent(numbers[core], sender, up.number, up.peer_mac)
            children = children or self._workers_under(name)
            nodes[name] = TreeNode(numbers[name], name, (), children, parent)
        return [nodes[name] for name in order]

    def _joined(self, turn: int) -> list[dict[str, list[str]]]:
        return join(self.topology, self.addressing, tuple(self.racks), turn, self.avoid)

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
        """Puts a server above a tree, whose root switch becomes its only child."""
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

    def _switches_under(self, core: str, below: Sequence[TreeNode]) -> tuple[Child, ...]:
        children = []
        for sender, node in enumerate(below):
            assert node.switch is not None
            down = self.addressing.ports_between(core, node.switch)[0]
            children.append(self._switch_child(sender, node, down.number, down.peer_mac))
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

    def _names(self, servers: Sequence[int]) -> str:
        hosts = [self.addressing.interfaces[self.servers[rank]].node for rank in servers]
        return ", ".join(hosts)

    def check_flat(self, name: str) -> None:
        """Refuses a node with all workers as children if they are too many."""
        if len(self.workers) > MOST_CHILDREN:
            raise self._too_many(name, len(self.workers), of_racks=False)

    def _check_children(self, node: TreeNode) -> None:
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
            self._joined(0)
        except NotJoinedError:
            return False
        return True
