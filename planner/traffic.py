# SPDX-License-Identifier: Apache-2.0
"""What each placement and baseline puts on links, in closed form.

All loads are in copies of a tensor: 1 is U, its wire bytes, in the busier direction of the busiest
link of a class. n workers, S servers, w workers of a rack. Sources: PHub (SoCC'18, section 2.3) for
servers; a tree's edge carries U each way, which is the point of summing in the network; ring:
Patarasuk and Yuan (JPDC 2009); halving and doubling: Thakur, Rabenseifner and Gropp (IJHPCA 2005).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from controller.planning.levels import MOST_CHILDREN
from planner.network import SERVER, WORKER, Ends, ModelError, Network, joined_levels, uplink
from planner.routed import Counts, Slicing, busiest_load, busiest_pairs
from specs.placements import Kind

__all__ = ["Step", "Traffic", "baseline_traffic", "placement_traffic"]


@dataclass(frozen=True)
class Step:
    """A round of a baseline, which begins when the one before is done everywhere.

    share: of the tensor that each worker sends; flows: of these over the busiest link of a class.
    """

    share: float
    flows: dict[str, int]
    levels: int  # of uplinks, on the longest way


@dataclass(frozen=True)
class Traffic:
    """Of an iteration.

    loads: see the module. hops: links that the slowest chunk passes from a worker to the root, and
    back again, each with the copies of this chunk that share it. flows: tree edges that queue at
    the busiest link of a class. edges: links that one chunk needs, by class. switches: whether any
    sum. rooted: whether a switch is the root. served: what a server process takes in; meeting:
    copies of a chunk that it sums. shards: servers' links, between which slices are divided.
    colocated: whether they are workers'. placed: with these servers, where they sum alone; sources:
    what sends to them, workers or a worker for each ToR that sums. refused: why this project cannot
    run it; "": it can.
    """

    loads: dict[str, float]
    hops: tuple[tuple[str, float], ...] = ()
    flows: dict[str, int] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()
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
    """Of a placement with one of its trees. Raises ModelError where there is no closed form."""
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
        return _server_traffic(network, tors, slicing, at_tors=True)
    if tree == "none":
        return _server_traffic(network, network.workers, slicing, colocated=kind.colocated)
    return _core_traffic(network, slicing, server=tree == "core-server")


def _tree_traffic(network: Network, *, server: bool) -> Traffic:
    """Every edge of the tree carries U each way, whatever the number of workers.

    Under a server, sums go on from the root and results come back to it; where that way has a link
    with an edge of the tree in it, both are on it.
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
            # The way down to the server's rack; an edge of the tree has its part below it.
            inside = network.pods(level, with_workers)[network.pod(level, home)] > 0
            extra = 2.0 if inside and level < depth else 1.0
            name = uplink(level)
            loads[name] = max(loads.get(name, 0.0), extra)
            edges[name] = edges.get(name, 0) + 1
            hops.append((name, 1.0))
        for level in range(depth, top):  # up from a root that is below the way's top
            hops.append((uplink(level), 1.0))
        loads[SERVER] = 1.0
        edges[SERVER] = 1
        hops.append((SERVER, 1.0))
    flows = dict.fromkeys(loads, 1)
    tree = Traffic(loads, tuple(hops), flows, (), edges, True, not server)
    return replace(tree, served=1 / network.processes, meeting=1) if server else tree


def _server_traffic(
    network: Network,
    sources: Sequence[int],
    slicing: Slicing,
    *,
    at_tors: bool = False,
    colocated: bool = False,
) -> Traffic:
    """Each source, workers or ToRs, sends every server its share and gets it back.

    A pod with x of X sources and s of S servers has x (S - s)/S + (X - x) s/S copies to send up
    (contributions, then results) and as many to take. Routing parts destinations over its uplinks.
    """
    total, servers = sum(sources), sum(network.servers)
    loads: dict[str, float] = {WORKER: 1.0}
    flows, edges = {WORKER: 1}, {WORKER: network.count}
    process, link, whole = _shares(network, slicing)
    if colocated:
        # A host that is both sends itself nothing: as a worker it lacks its share of the tensor,
        # as a server one of n copies of it.
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
        loads, tuple(hops), flows, (), edges, at_tors, False,
        float(total * process.max() / whole), total, servers, colocated, refused,
        network, _tors(sources) if at_tors else network.ends(WORKER),
    )  # fmt: skip


def _tors(workers: Sequence[int]) -> Ends:
    """Of ToRs with workers, which routing counts as it does racks."""
    racks = tuple(rack for rack, count in enumerate(workers) if count)
    return Ends(racks, racks)


def _shares(network: Network, slicing: Slicing) -> tuple[Counts, Counts, int]:
    """What server processes, and links of servers, have of a tensor, and all of it."""
    ends = network.ends(SERVER)
    process = slicing.loads_by_process(len(ends.units))
    link = np.zeros(len(ends.racks), np.int64)
    np.add.at(link, list(ends.units), process)
    return process, link, int(process.sum())


def _core_traffic(network: Network, slicing: Slicing, *, server: bool) -> Traffic:
    """Unsummed up to one core: w copies on a rack's uplink; one from there to a server."""
    if len(network.levels) != 1:
        raise ModelError(f"modelled for one level of cores, here are {len(network.levels)}")
    together = sum(
        a * b for a, b in zip(network.workers, network.servers, strict=True)
    )  # servers beside workers
    most = max(network.workers)
    # Servers behind different cores are in different streams, each of which has its core.
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
    tree = Traffic(loads, tuple(hops), flows, (), edges, True, not server, refused=refused)
    share = 1 / sum(network.servers) / network.processes
    return replace(tree, served=share, meeting=1) if server else tree


def baseline_traffic(network: Network) -> dict[str, Traffic]:
    """Ring all-reduce, and recursive halving and doubling, of workers in the order of racks.

    Ring: 2 (n - 1) steps of U/n to the next one. Halving and doubling: the n' <= n workers, a power
    of two, exchange halves of what is left with those 1, 2, 4.. ranks away, and back; the n - n'
    others first give all they have to a neighbour, and get the result in the end.
    """
    n = network.count
    if n == 1:
        return {"ring": Traffic({WORKER: 0.0}), "halving-doubling": Traffic({WORKER: 0.0})}
    top = network.top(network.workers)
    flows = {WORKER: 1, **{uplink(level): 1 for level in range(top)}}
    ring = Traffic(
        dict.fromkeys(flows, 2 * (n - 1) / n), steps=(Step(1 / n, flows, top),) * (2 * (n - 1))
    )
    return {"ring": ring, "halving-doubling": _halving_traffic(network, top)}


def _halving_traffic(network: Network, top: int) -> Traffic:
    n = network.count
    core = 1 << (n.bit_length() - 1)
    extra = n - core
    # Ranks 2i and 2i + 1 of the first pairs are one until the end.
    ranks = np.concatenate([np.arange(0, 2 * extra, 2), np.arange(2 * extra, n)])
    steps: list[Step] = []
    if extra:
        fold = np.arange(0, 2 * extra, 2)
        steps.append(_step(network, fold + 1, fold, 1.0, top))
    share, distance = 0.5, 1
    while distance < core:
        partners = ranks[np.arange(core) ^ distance]
        steps.append(_step(network, ranks, partners, share, top))
        share, distance = share / 2, distance * 2
    whole = (*steps, *reversed(steps))
    loads: dict[str, float] = {WORKER: 2 * (core - 1) / core}
    if extra:  # a neighbour sends the result and gets a tensor more; each direction has one of them
        loads[WORKER] += 1.0
    for level in range(top):
        name = uplink(level)
        loads[name] = sum(step.share * step.flows.get(name, 0) for step in whole)
    return Traffic(loads, steps=whole)


def _step(
    network: Network,
    source: npt.NDArray[np.intp],
    to: npt.NDArray[np.intp],
    share: float,
    top: int,
) -> Step:
    """From each of these workers to another one."""
    flows = {WORKER: 1}
    levels = 0
    for level in range(top):
        most = busiest_pairs(network, level, source, to)
        if not most:
            break
        flows[uplink(level)], levels = most, level + 1
    return Step(share, flows, levels)
