# SPDX-License-Identifier: Apache-2.0
"""A topology as classes of links: enough to compute with for any number of hosts.

Classes are the links of workers, those of servers, and the uplinks of each level of switches. Of a
class the worst link counts: lowest rate and queue, longest delay, most loss, of both directions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from controller.planning.levels import MOST_CHILDREN
from topologies.model.ring import interleaved
from topologies.model.shape import Level
from topologies.model.topology import LinkQuality, Node, Topology

__all__ = ["SERVER", "WORKER", "Ends", "Line", "ModelError", "Network", "joined_levels", "uplink"]

WORKER, SERVER = "worker", "server"


def uplink(level: int) -> str:
    """Name of a class: links up from ToRs (level 0), from the lowest cores (1), and so on."""
    return f"uplink {level + 1}"


class ModelError(ValueError):
    """What no time can be computed for."""


@dataclass(frozen=True)
class Line:
    """A link of a class. rate: bit/s; delay: s; loss: of a packet, in one direction."""

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
        """Of this and a direction of a link, each in what it is worse in."""
        # What is corrupted is dropped at the end of its way, so that it counts as lost.
        loss = 1 - (1 - other.loss) * (1 - other.corrupt)
        return Line(
            min(self.rate, other.rate),
            max(self.delay, other.delay),
            max(self.loss, loss),
            min(self.queue_bytes, other.queue_bytes),
        )


@dataclass(frozen=True)
class Ends:
    """Links of hosts: the rack that each leads to, and the number by which routing shares them out
    over equal ways (``Addressing``).

    units: the link of each process on these hosts, by rank; none: one process at each link, in this
    order. first: how many of the links are the first host's.
    """

    racks: tuple[int, ...]
    numbers: tuple[int, ...]
    units: tuple[int, ...] = ()
    first: int = 1

    def of_first(self, links: int) -> Ends:
        """Those of the first host, at most so many."""
        units = tuple(link for link in self.units if link < links)
        return Ends(self.racks[:links], self.numbers[:links], units, links)


@dataclass(frozen=True)
class Network:
    """What carries a job.

    workers, servers: of the job in each rack; a server here is a link of a server host. levels: of
    cores, lowest first. lines: by class. uniform: whether all links of each class are alike.
    processes: at each server link, of the server that has least. mtu: bytes of an IP packet. known:
    the ends of links of workers and servers; where they are not, all hosts are taken to be there,
    rack by rack. Raises ModelError for no workers, or for racks that nothing joins.
    """

    workers: tuple[int, ...]
    servers: tuple[int, ...]
    levels: tuple[Level, ...]
    lines: dict[str, Line]
    uniform: bool = True
    processes: int = 1
    mtu: int = 1500
    known: Mapping[str, Ends] = field(default_factory=dict)

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
    def of(topology: Topology, workers: Sequence[str], servers: Sequence[str]) -> Network:
        """The part of a topology that a job with these hosts, by rank, is in."""
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
        )

    def ends(self, kind: str) -> Ends:
        """Of WORKER or SERVER, by rank."""
        if kind in self.known:
            return self.known[kind]
        counts = self.workers if kind == WORKER else self.servers
        racks = tuple(rack for rack, count in enumerate(counts) for _ in range(count))
        links = range(len(racks))
        return Ends(racks, tuple(links), tuple(links) * (1 if kind == WORKER else self.processes))

    @cached_property
    def in_racks(self) -> Ends:
        """Workers in the order of racks, which is that of baselines."""
        ends = self.ends(WORKER)
        pairs = sorted(zip(ends.racks, ends.numbers, strict=True), key=lambda pair: pair[1])
        return Ends(tuple(rack for rack, _ in pairs), tuple(number for _, number in pairs))

    def served_at(self, ends: Ends) -> Network:
        """The same with servers at these links."""
        counts = [0] * len(self.workers)
        for rack in ends.racks:
            counts[rack] += 1
        known = {WORKER: self.ends(WORKER), SERVER: ends}
        return replace(self, servers=tuple(counts), known=known)

    @property
    def count(self) -> int:
        """Workers."""
        return sum(self.workers)

    def pods(self, level: int, numbers: Sequence[int]) -> list[int]:
        """Sums of a number of each rack over what is below each bundle of uplinks of a level."""
        size = 1 if level == 0 else self.levels[level - 1].racks
        return [sum(numbers[at : at + size]) for at in range(0, len(numbers), size)]

    def pod(self, level: int, rack: int) -> int:
        """Which of these a rack is in."""
        return rack // (1 if level == 0 else self.levels[level - 1].racks)

    def ways(self, level: int) -> int:
        """Uplinks of a pod that routing spreads destinations over.

        Each switch takes a destination's number modulo its ways up (``Addressing.route``), so that
        switches in a row choose alike: the least common multiple is used, not the product.
        """
        return math.lcm(*(one.cores for one in self.levels[max(0, level - 1) : level + 1]))

    def top(self, numbers: Sequence[int]) -> int:
        """Levels of uplinks between racks that have any of a number; 0: they are one rack."""
        level = 0
        while sum(map(bool, self.pods(level, numbers))) > 1:
            level += 1
        return level

    def way(self, levels: int) -> list[str]:
        """Classes that a packet passes from a worker up through so many levels of uplinks."""
        return [WORKER, *(uplink(level) for level in range(levels))]


def _ends(topology: Topology, nodes: Sequence[Node], names: Sequence[str]) -> Ends:
    """Of all nodes of a kind those with these names, in this order."""
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
    """Racks and cores of each level's first pod, which none is larger than."""
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


def joined_levels(network: Network) -> int:
    """Levels of cores in a job's tree, by the rule of ``controller.planning.levels.join``.

    Pods alone are counted. Raises ModelError where the cores of a pod are too few, or a ToR has too
    many workers.
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
