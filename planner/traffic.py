# SPDX-License-Identifier: Apache-2.0
"""Load of each placement on classes of links, in closed form.

Loads are in copies of a tensor: 1 is U, its wire bytes, in the busier direction of the busiest link
of a class. n workers, S servers, w workers of a rack. Servers: PHub (SoCC'18, section 2.3); an edge
of an aggregation tree carries U each way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from controller.planning.levels import MOST_CHILDREN
from planner.network import SERVER, WORKER, Ends, ModelError, Network, joined_levels, uplink
from planner.routed import Counts, Slicing, busiest_load
from specs.placements import Kind


@dataclass(frozen=True)
class Traffic:
    """The traffic of an iteration.

    loads: copies of a tensor, by class of links.
    hops: links that the slowest chunk passes from a worker to the root, and back again, each with
        the copies of this chunk that share it.
    flows: tree edges that queue at the busiest link of a class.
    edges: links that one chunk needs, by class.
    switches: some switch aggregates.
    rooted: a switch is the root.
    served: copies of a tensor that a server process receives.
    meeting: copies of a chunk that it sums.
    shards: links of servers that share the slices.
    colocated: servers run on workers' hosts.
    placed: the network with the chosen servers, where only servers sum at the root.
    sources: senders to these servers: workers, or one worker for each ToR that sums.
    refused: why it cannot run; "" if it can.
    """

    loads: dict[str, float]
    hops: tuple[tuple[str, float], ...] = ()
    flows: dict[str, int] = field(default_factory=dict)
    edges: dict[str, int] = field(default_factory=dict)
    switches: bool = False
    rooted: bool = False
    served: float = 0.0
    meeting: int = 0
    shards: int = 1
    colocated: bool = False
    refused: str = ""
    placed: Network | None = None
    sources: Ends | None = None


def placement_traffic(network: Network, kind: Kind, tree: str, slicing: Slicing) -> Traffic:
    """Computes the traffic of a placement with one of its trees.

    Raises ModelError where there is no closed form.
    """
    if kind.colocated:
        ends = network.ends(WORKER)
        network = network.served_at(ends.of_first(1) if kind.central else ends)
    elif not sum(network.servers):
        raise ModelError("no servers in this network")
    elif kind.central or kind.single:
        ends = network.ends(SERVER)
        flat = tree in ("none", "tor") or network.top(network.workers) == 0
        network = network.served_at(ends.of_first(ends.first if flat else 1))
    if tree in ("two-level", "two-level-server") and not (
        tree == "two-level-server" and network.top(network.workers) == 0
    ):
        return _tree_traffic(network, server=tree == "two-level-server")
    if tree in ("tor", "two-level-server"):
        tors = [min(count, 1) for count in network.workers]
        return server_traffic(network, tors, slicing, at_tors=True)
    if tree == "none":
        return server_traffic(network, network.workers, slicing, colocated=kind.colocated)
    if tree in ("core", "core-server"):
        return _core_traffic(network, slicing, server=tree == "core-server")
    raise ModelError(f"no closed form for tree {tree}")


def _tree_traffic(network: Network, *, server: bool) -> Traffic:
    """Computes the traffic of an aggregation tree: each edge carries U each way.

    With a server above the root, sums continue to the server and results come back; a link that
    this path shares with an edge of the tree carries both.
    """
    depth = joined_levels(network)
    loads: dict[str, float] = dict.fromkeys(network.way(depth), 1.0)
    edges = {WORKER: network.count}
    for level in range(depth):
        edges[uplink(level)] = sum(map(bool, network.pods(level, network.workers)))
    hops = [(name, 1.0) for name in network.way(depth)]
    if server:
        home = next(rack for rack, count in enumerate(network.servers) if count)
        with_workers = [bool(sum_) for sum_ in network.workers]
        both = [bool(a) or bool(b) for a, b in zip(network.workers, network.servers, strict=True)]
        top = network.top(both)
        for level in range(top):
            # The path down to the server's rack shares links with edges to workers below it.
            inside = network.pods(level, with_workers)[network.pod(level, home)] > 0
            extra = 2.0 if inside and level < depth else 1.0
            name = uplink(level)
            loads[name] = max(loads.get(name, 0.0), extra)
            edges[name] = edges.get(name, 0) + 1
            hops.append((name, 1.0))
        for level in range(depth, top):  # up from a root below the top of the path
            hops.append((uplink(level), 1.0))
        loads[SERVER] = 1.0
        edges[SERVER] = 1
        hops.append((SERVER, 1.0))
    flows = dict.fromkeys(loads, 1)
    tree = Traffic(loads, tuple(hops), flows, edges, True, not server)
    return replace(tree, served=1 / network.processes, meeting=1) if server else tree


def server_traffic(
    network: Network,
    sources: Sequence[int],
    slicing: Slicing,
    *,
    at_tors: bool = False,
    colocated: bool = False,
) -> Traffic:
    """Computes the traffic where each source sends every server its share and gets it back.

    A pod with x of X sources and s of S servers sends x (S - s)/S + (X - x) s/S copies up
    (contributions and results) and receives as many. Routing spreads destinations over its uplinks.
    """
    total, servers = sum(sources), sum(network.servers)
    loads: dict[str, float] = {WORKER: 1.0}
    flows, edges = {WORKER: 1}, {WORKER: network.count}
    process, link, whole = _shares(network, slicing)
    if colocated:
        # A host that is both sends nothing to itself: as a worker it omits its share of the
        # tensor, as a server one of the n copies of that share.
        own = 1 + (network.count - 2) * link / whole
        loads[WORKER] = max(float(own.max()), float(servers < network.count))
        flows[WORKER] = max(total - 1, 1)
    else:
        loads[SERVER] = float(total * link.max() / whole)
        flows[SERVER] = edges[SERVER] = total
    both = [a + b for a, b in zip(network.workers, network.servers, strict=True)]
    top = network.top(both)
    for level in range(top):
        name = uplink(level)
        crossing, at_once = 0.0, 1
        pods = zip(network.pods(level, sources), network.pods(level, network.servers), strict=True)
        for x, s in pods:
            leaving, entering = x * (servers - s) / servers, (total - x) * s / servers
            crossing += leaving + entering
            at_once = max(at_once, x if s < servers else 0, total - x if s else 0)
        loads[name] = busiest_load(network, level, sources, link, at_tors=at_tors) / whole
        flows[name], edges[name] = at_once, math.ceil(crossing)
    way = network.way(top)
    last = WORKER if colocated else SERVER
    hops = [(WORKER, 1.0), *((name, float(flows[name])) for name in way[1:])]
    hops += [(name, float(flows[name])) for name in [*reversed(way[1:]), last]]
    refused = ""
    if total > MOST_CHILDREN:
        refused = f"a server would have {total:,} children, {MOST_CHILDREN} are possible"
    elif at_tors and max(network.workers) > MOST_CHILDREN:
        refused = f"a ToR would have {max(network.workers)} children, {MOST_CHILDREN} are possible"
    return Traffic(
        loads, tuple(hops), flows, edges, at_tors, False,
        float(total * process.max() / whole), total, servers, colocated, refused,
        network, _tors(sources) if at_tors else network.ends(WORKER),
    )  # fmt: skip


def _tors(workers: Sequence[int]) -> Ends:
    """Returns the ToRs with workers, which routing numbers like racks."""
    racks = tuple(rack for rack, count in enumerate(workers) if count)
    return Ends(racks, racks)


def _shares(network: Network, slicing: Slicing) -> tuple[Counts, Counts, int]:
    """Computes the chunks of each server process, of each server link, and of all."""
    ends = network.ends(SERVER)
    process = slicing.loads_by_process(len(ends.units))
    link = np.zeros(len(ends.racks), np.int64)
    np.add.at(link, list(ends.units), process)
    return process, link, int(process.sum())


def _core_traffic(network: Network, slicing: Slicing, *, server: bool) -> Traffic:
    """Computes the traffic where only a core sums: w copies on a rack's uplink, one to a server."""
    if len(network.levels) != 1:
        raise ModelError(f"modelled for one level of cores, here are {len(network.levels)}")
    together = sum(
        a * b for a, b in zip(network.workers, network.servers, strict=True)
    )  # servers beside workers
    most = max(network.workers)
    # Each stream has its own core, and servers behind different cores are in different streams.
    _, shares, whole = _shares(network, slicing)
    ways = np.zeros(network.ways(0), np.int64)
    np.add.at(ways, np.array(network.ends(SERVER).numbers) % len(ways), shares)
    loads = {WORKER: 1.0, uplink(0): float(most * ways.max() / whole)}
    edges = {WORKER: network.count, uplink(0): network.count}
    hops: list[tuple[str, float]] = [(WORKER, 1.0), (uplink(0), float(most))]
    if server:
        loads[SERVER] = 1.0
        edges[SERVER] = 1
        edges[uplink(0)] += 1
        hops += [(uplink(0), 1.0), (SERVER, 1.0)]
    refused = ""
    if together:
        refused = "servers are in racks of workers, whose packets to them pass no core"
    elif network.count > MOST_CHILDREN:
        refused = f"the core would have {network.count:,} children, {MOST_CHILDREN} are possible"
    flows = dict.fromkeys(loads, 1) | {uplink(0): most}
    tree = Traffic(loads, tuple(hops), flows, edges, True, not server, refused=refused)
    share = 1 / sum(network.servers) / network.processes
    return replace(tree, served=share, meeting=1) if server else tree
