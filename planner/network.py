# SPDX-License-Identifier: Apache-2.0
"""Reduces a topology to classes of links, for closed forms over any number of hosts.

The classes are the links of workers, those of servers, and the uplinks of each level of switches. A
class has the worst values of its links in either direction: the lowest rate and queue, the longest
delay, the highest loss.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from controller.planning.levels import MOST_CHILDREN
from protocol.errors import Error
from topologies.model.replica_order import interleaved
from topologies.model.shape import Level
from topologies.model.topology import LinkQuality, Node, Topology

WORKER, SERVER = "worker", "server"
HOST, PROCESS = "worker's host", "server process"  # bottlenecks that are no links


def uplink(level: int) -> str:
    """Names the class of links up from ToRs (level 0), from the lowest cores (1), and so on."""
    return f"uplink {level + 1}"


class ModelError(Error, ValueError):
    """A setting for which the model has no closed form."""


@dataclass(frozen=True)
class Line:
    """The link that stands for a class.

    rate: bit/s.
    delay: seconds.
    loss: probability for a packet, in one direction.
    queue_bytes: capacity of its queue.
    """

    rate: float
    delay: float = 0.0
    loss: float = 0.0
    queue_bytes: float = math.inf

    def __post_init__(self) -> None:
        if not (self.rate > 0 and math.isfinite(self.rate)):
            raise ModelError(f"a rate of {self.rate} bit/s; allowed: above 0")
        if not (self.delay >= 0 and math.isfinite(self.delay)):
            raise ModelError(f"a delay of {self.delay} s; allowed: 0 and above")
        if not 0 <= self.loss < 1:
            raise ModelError(f"loss of {self.loss}; allowed: 0 to less than 1")

    def worst(self, other: LinkQuality) -> Line:
        """Combines the worse values of this and a direction of a link."""
        # Corrupted packets are dropped at the end of their way, so they count as lost.
        loss = 1 - (1 - other.loss) * (1 - other.corrupt)
        return Line(
            min(self.rate, other.rate),
            max(self.delay, other.delay),
            max(self.loss, loss),
            min(self.queue_bytes, other.queue_bytes),
        )


@dataclass(frozen=True)
class Ends:
    """Links of hosts.

    racks: the rack that each link leads to.
    numbers: the number by which routing spreads each link over equal-cost ways (``Addressing``).
    units: the link of each process on these hosts, by rank; empty: one process a link, in order.
    first: the number of links of the first host.
    """

    racks: tuple[int, ...]
    numbers: tuple[int, ...]
    units: tuple[int, ...] = ()
    first: int = 1

    def of_first(self, links: int) -> Ends:
        """Keeps only the first `links` links, those of the first host."""
        units = tuple(link for link in self.units if link < links)
        return Ends(self.racks[:links], self.numbers[:links], units, links)


@dataclass(frozen=True)
class Network:
    """The part of a network that a job uses.

    workers, servers: the job's hosts in each rack; a server here is a link of a server host.
    levels: levels of cores, lowest first.
    lines: links by class.
    uniform: all links of each class are alike.
    processes: processes at each server link, of the server with the fewest.
    mtu: bytes of an IP packet.
    known: the ends of workers' and servers' links; without them, hosts are numbered rack by rack.
    levelled: bit/s of servers' links, the mean, where a balancer gives several servers as much as
        their links carry, so that the slowest does not count; None: it does.

    Raises ModelError without workers, or for racks that no level joins.
    """

    workers: tuple[int, ...]
    servers: tuple[int, ...]
    levels: tuple[Level, ...]
    lines: dict[str, Line]
    uniform: bool = True
    processes: int = 1
    mtu: int = 1500
    known: Mapping[str, Ends] = field(default_factory=dict)
    levelled: float | None = None

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ModelError("no workers; allowed: 1 or more")
        if len(self.workers) != len(self.servers):
            raise ModelError(
                f"{len(self.workers)} racks of workers, {len(self.servers)} of servers"
            )
        if len(self.workers) > 1 and not (
            self.levels and self.levels[-1].racks >= len(self.workers)
        ):
            raise ModelError(f"no level of cores joins {len(self.workers)} racks")

    @staticmethod
    def of(
        topology: Topology,
        workers: Sequence[str],
        servers: Sequence[str],
        *,
        by_speed: bool = False,
    ) -> Network:
        """Extracts the part of a topology that a job with these hosts, by rank, uses.

        by_speed: a balancer has servers sum as much as their links carry.
        """
        chosen = {WORKER: frozenset(workers), SERVER: frozenset(servers)}
        counts = {kind: [0] * topology.racks for kind in chosen}
        nodes = topology.by_name
        seen: dict[str, set[LinkQuality]] = {}
        for link in topology.links:
            low = nodes[link.a]
            if low.kind == "switch":
                name = uplink(low.level - 1)
            elif low.name in chosen[low.kind]:
                name = low.kind
                assert low.rack is not None
                counts[name][low.rack] += 1
            else:
                continue
            seen.setdefault(name, set()).update((link.forward, link.backward))
        lines = {}
        for name, qualities in seen.items():
            line = Line(max(quality.rate for quality in qualities))
            for quality in qualities:
                line = line.worst(quality)
            lines[name] = line
        return Network(
            tuple(counts[WORKER]),
            tuple(counts[SERVER]),
            _levels(topology),
            lines,
            all(len(qualities) == 1 for qualities in seen.values()),
            min((nodes[name].processors for name in chosen[SERVER]), default=1),
            min(quality.mtu for qualities in seen.values() for quality in qualities),
            {
                WORKER: _ends(topology, topology.workers, workers),
                SERVER: _ends(topology, topology.servers, servers),
            },
            _mean_rate(topology, chosen[SERVER]) if by_speed and SERVER in lines else None,
        )

    def ends(self, kind: str) -> Ends:
        """Returns the links of WORKER or SERVER, by rank."""
        if kind in self.known:
            return self.known[kind]
        counts = self.workers if kind == WORKER else self.servers
        racks = tuple(rack for rack, count in enumerate(counts) for _ in range(count))
        links = range(len(racks))
        return Ends(racks, tuple(links), tuple(links) * (1 if kind == WORKER else self.processes))

    @cached_property
    def in_racks(self) -> Ends:
        """Links of workers in the order of racks, in which baselines rank them."""
        ends = self.ends(WORKER)
        pairs = sorted(zip(ends.racks, ends.numbers, strict=True), key=lambda pair: pair[1])
        return Ends(tuple(rack for rack, _ in pairs), tuple(number for _, number in pairs))

    def level(self) -> Network:
        """Copies the network with servers' links as a balancer's several servers have them."""
        if self.levelled is None:
            return self
        lines = {**self.lines, SERVER: replace(self.lines[SERVER], rate=self.levelled)}
        return replace(self, lines=lines)

    def served_at(self, ends: Ends) -> Network:
        """Copies the network with servers at these links."""
        counts = [0] * len(self.workers)
        for rack in ends.racks:
            counts[rack] += 1
        known = {WORKER: self.ends(WORKER), SERVER: ends}
        return replace(self, servers=tuple(counts), known=known)

    @property
    def count(self) -> int:
        """Number of workers."""
        return sum(self.workers)

    def pods(self, level: int, numbers: Sequence[int]) -> list[int]:
        """Sums the racks' numbers over the pods of a level, each below one bundle of uplinks."""
        size = 1 if level == 0 else self.levels[level - 1].racks
        return [sum(numbers[at : at + size]) for at in range(0, len(numbers), size)]

    def pod(self, level: int, rack: int) -> int:
        """Returns the index of a rack's pod at a level."""
        return rack // (1 if level == 0 else self.levels[level - 1].racks)

    def ways(self, level: int) -> int:
        """Counts the uplinks of a pod that routing spreads destinations over.

        Each switch takes a destination's number modulo its ways up (``Addressing.route``), so
        switches along a path choose alike: the count is the least common multiple, not the product.
        """
        return math.lcm(*(one.cores for one in self.levels[max(0, level - 1) : level + 1]))

    def top(self, numbers: Sequence[int]) -> int:
        """Counts the levels of uplinks between the racks with non-zero numbers; 0: one rack."""
        level = 0
        while sum(map(bool, self.pods(level, numbers))) > 1:
            level += 1
        return level

    def way(self, levels: int) -> list[str]:
        """Lists the classes that a packet passes from a worker up through `levels` uplinks."""
        return [WORKER, *(uplink(level) for level in range(levels))]


def _ends(topology: Topology, nodes: Sequence[Node], names: Sequence[str]) -> Ends:
    """Builds the links of the hosts `names`, in this order, of all `nodes` of their kind."""
    places: dict[str, list[tuple[int, int]]] = {}  # racks and numbers of each host's links
    number = 0
    racks = {tor.name: tor.index for tor in topology.tors}
    for node in nodes:
        places[node.name] = here = []
        for link in topology.links_of(node.name)[: None if node.kind == "server" else 1]:
            here.append((racks[link.b], number))
            number += 1
    links: list[tuple[int, int]] = []
    units: list[int] = []
    hosts: list[str] = []
    for name in names:
        own = range(len(links), len(links) + len(places[name]))
        links += places[name]
        units += [*own] * topology.by_name[name].processors
        hosts += [name] * (len(units) - len(hosts))
    if len(set(hosts)) < len(hosts):
        units = [units[position] for position in interleaved(hosts)]
    first = len(places[names[0]]) if names else 0
    return Ends(tuple(r for r, _ in links), tuple(n for _, n in links), tuple(units), first)


def _levels(topology: Topology) -> tuple[Level, ...]:
    """Returns the racks and cores of each level's first pod, which is the largest."""
    leading = [topology.tors[0].name]
    racks = 1
    levels: list[Level] = []
    nodes = topology.by_name
    while True:
        ups = list(
            dict.fromkeys(
                link.b
                for name in leading
                for link in topology.links_of(name)
                if link.a == name and nodes[link.b].kind == "switch"
            )
        )
        if not ups:
            return tuple(levels)
        under = {link.a for link in topology.links_of(ups[0]) if link.b == ups[0]}
        racks *= -(-len(under) // len(leading))
        levels.append(Level(min(racks, topology.racks), len(ups)))
        leading = ups


def _mean_rate(topology: Topology, hosts: Collection[str]) -> float:
    """Returns the mean rate of hosts' links, each in its slower direction."""
    rates = [
        min(link.forward.rate, link.backward.rate) for link in topology.links if link.a in hosts
    ]
    return sum(rates) / len(rates)


def joined_levels(network: Network) -> int:
    """Counts the levels of cores in a job's tree as ``controller.planning.levels.join`` does.

    Only pods are considered. Raises ModelError where a pod has too few cores, or a ToR too many
    workers.
    """
    most = max(network.workers)
    if most > MOST_CHILDREN:
        raise ModelError(f"a ToR would have {most} children, {MOST_CHILDREN} are possible")
    members = [min(count, 1) for count in network.workers]  # switches of the tree, by rack
    depth = 0
    while sum(members) > 1:
        level = network.levels[depth]
        here = [sum(members[at : at + level.racks]) for at in range(0, len(members), level.racks)]
        parts = [-(-count // MOST_CHILDREN) for count in here]
        if max(parts) > level.cores:
            raise ModelError(
                f"{level.cores} cores of a pod at level {depth + 1} would have {max(here)}"
                f" children, {MOST_CHILDREN} for each are possible"
            )
        members = [0] * len(members)
        for pod, count in enumerate(parts):
            members[pod * level.racks] = count
        depth += 1
        if depth == len(network.levels) and sum(members) > 1:
            raise ModelError(
                f"{sum(members)} cores of the last level would each be a root; one more level is"
                " needed"
            )
    return depth
