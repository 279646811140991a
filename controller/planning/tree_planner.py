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

from collections.abc import Collection, Sequence
from ipaddress import IPv4Address

from controller.planning.stream_numbers import most_streams, stream_numbers
from controller.planning.tree import Child, Parent, PlanRefusedError, Tree, TreeNode
from controller.planning.trees.parts import Parts, ServersDisagreeError
from controller.planning.trees.registry import PLANNERS
from protocol.partition import servers_of
from protocol.propagation import USUAL, Propagation
from protocol.trees import TreeKind
from topologies.model.addressing import Addressing, NoRouteError
from topologies.model.topology import Topology

__all__ = ["Child", "Parent", "PlanRefusedError", "Tree", "TreeKind", "TreeNode", "plan_trees"]

MOST_NODES = (1 << 16) - 1  # of all streams, as of workers: both are two bytes


def plan_trees(
    topology: Topology,
    addressing: Addressing,
    workers: Sequence[str],
    servers: Sequence[IPv4Address],
    kind: TreeKind,
    streams: int = 0,
    rotation: int = 0,
    avoid: Collection[str] = (),
    propagation: Propagation = USUAL,
) -> tuple[Tree, ...]:
    """Plans the trees of a job, one per stream.

    workers: host names by rank.
    servers: addresses by rank.
    streams: number of streams of each class of urgency; 0: the fewest that separate servers in
        different directions.
    rotation: rotates the choice among equivalent cores.
    avoid: switches that are no nodes of a tree, though packets may pass them (to route around a
        switch, use ``Addressing.without``).
    propagation: says how many classes there are. All have the same trees, and streams of their
        own, so that no chunk waits for a slot of a lower class.

    Raises PlanRefusedError.
    """
    try:
        parts = Parts(topology, addressing, workers, servers, rotation, avoid)
        first = [members[0][1] for members in parts.racks.values()]
        ways = [(worker, server) for server in servers[:1] for worker in first]
        for worker, server in (*ways, *((first[0], server) for server in servers)):
            addressing.check_way(worker, server)
        return _planned(parts, workers, kind, streams, propagation)
    except NoRouteError as error:
        raise PlanRefusedError(str(error)) from error


def _planned(
    parts: Parts, workers: Sequence[str], kind: TreeKind, streams: int, propagation: Propagation
) -> tuple[Tree, ...]:
    addressing, servers = parts.addressing, parts.servers
    local = {addressing.interfaces[server].node for server in servers} & set(workers)
    if local and kind is not TreeKind.NONE:
        raise PlanRefusedError(
            f"{', '.join(sorted(local))}: worker and server on one host, whose packets to itself"
            f" pass no switch; tree {kind} needs servers on hosts without workers (tree"
            f" {TreeKind.NONE} does not)"
        )
    refusal = ServersDisagreeError("")
    most = most_streams(propagation)
    fitting = [n for n in range(1, len(servers) + 1) if len(servers) % n == 0 and n <= most]
    if len(workers) > MOST_NODES:
        text = f"{len(workers)} workers; a sum says of how many it is, up to {MOST_NODES}"
        raise PlanRefusedError(text, "workers")
    if streams > most:
        raise PlanRefusedError(f"{streams} streams of a class; allowed: 1 to {most}", "streams")
    for count in [streams] if streams else fitting:
        try:
            return _plan(parts, kind, count, propagation)
        except ServersDisagreeError as error:
            refusal = error
    for count in fitting if streams else []:
        try:
            _plan(parts, kind, count, propagation)
        except ServersDisagreeError:
            continue
        text = f"{refusal}; a multiple of {count} streams would part them"
        raise PlanRefusedError(text, "streams")
    raise PlanRefusedError(str(refusal))


def _plan(parts: Parts, kind: TreeKind, streams: int, propagation: Propagation) -> tuple[Tree, ...]:
    trees: list[Tree] = []
    first = 1
    numbers = stream_numbers(propagation, streams)
    for position, number in enumerate(numbers):
        stream = position % streams
        ranks = servers_of(stream, streams, len(parts.servers))
        nodes = PLANNERS[kind](parts, first, stream, ranks)
        if len(nodes) * len(numbers) > MOST_NODES:
            raise PlanRefusedError(
                f"{len(numbers)} streams with {len(nodes)} tree nodes each; all together have up to"
                f" {MOST_NODES}",
                "streams",
            )
        for node in nodes:
            parts.check_children(node)
        trees.append(Tree(number, tuple(nodes), position // streams))
        first += len(nodes)
    return tuple(trees)
