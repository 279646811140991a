# SPDX-License-Identifier: Apache-2.0
"""Expected load of each link, from a job's size and its trees alone.

With M chunks, T iterations and packets of ``full`` and ``head`` bytes (with and without payload),
one edge of an aggregation tree carries U = M (T full + head) bytes each way: every chunk goes up
once and its result comes down once in every iteration; a round without payload before the first
finds the exponents. An edge between switches carries U regardless of the number of workers below
it. A worker's link carries U, a server's link U for each child of the server's node (each of
several links the part of the processes at it). Where servers run the optimizer, initial parameters
come first: one more round without payload, then a packet with payload from every worker to the
chunk's server and back, which is not aggregated. Bytes count frames without FCS, as traffic control
does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import NamedTuple

import numpy as np

from controller.planning.tree_planner import Child, Tree, TreeNode
from protocol.ethernet import FRAMING
from protocol.frames import OVERHEAD
from protocol.header import HEADER_BYTES, LANE_BYTES
from protocol.partition import ChunkAssignment, Moved, shares
from protocol.propagation import USUAL, Propagation
from topologies.model.addressing import Addressing, Unit
from topologies.model.topology import LinkQuality

HEADER_FRAME_BYTES = OVERHEAD + HEADER_BYTES


class Direction(NamedTuple):
    """One direction of one link, by the interface that sends on it."""

    node: str
    interface: str


@dataclass
class Load:
    """Bytes and packets."""

    bytes: int = 0
    packets: int = 0

    def add(self, other: Load) -> None:
        """Adds another load to this."""
        self.bytes += other.bytes
        self.packets += other.packets

    def seconds(self, rate: float, *, framing: bool) -> float:
        """Computes its time on a link of `rate` bit/s; framing: with preamble, FCS and gap."""
        return 8 * (self.bytes + (FRAMING * self.packets if framing else 0)) / rate


@dataclass(frozen=True)
class Workload:
    """The tensors that a job sums.

    sizes: elements of each tensor.
    lanes: values of a chunk.
    iterations: number of sums.
    exponent_rounds: rounds before the first sum, in a job that does not know its exponents yet.
    start: initial parameters go to the servers first, always with an exponent round.
    pulls: results are announced without payload and workers request each.
    propagation: says how chunks are assigned to servers and streams.
    """

    sizes: tuple[int, ...]
    lanes: int
    iterations: int
    chunks_per_slice: int
    exponent_rounds: int = 1
    start: bool = False
    pulls: bool = False
    propagation: Propagation = USUAL

    def shares(self, servers: int, streams: int, moved: Moved = ()) -> ChunkAssignment:
        """Returns the assignment of chunks to so many servers and streams. moved: as in plans."""
        most = self.chunks_per_slice
        return shares(self.counts, most, servers, streams, self.propagation, moved)

    @property
    def counts(self) -> tuple[int, ...]:
        """Chunks of each tensor; a chunk never spans two tensors."""
        return tuple(-(-size // self.lanes) for size in self.sizes)

    @property
    def chunks(self) -> int:
        """Chunks of one iteration."""
        return sum(self.counts)

    @property
    def frame_bytes(self) -> int:
        """Size of a packet with payload, as a frame without FCS."""
        return HEADER_FRAME_BYTES + LANE_BYTES * self.lanes

    def edge(self, chunks: int) -> Load:
        """Computes the load of `chunks` chunks in one direction of a tree edge."""
        empty = 2 if self.start else self.exponent_rounds
        empty += self.iterations if self.pulls else 0
        return Load(
            chunks * (self.iterations * self.frame_bytes + empty * HEADER_FRAME_BYTES),
            chunks * (self.iterations + empty),
        )

    def initial(self, chunks: int) -> Load:
        """Computes the load of initial parameters in one direction between worker and server."""
        return Load(chunks * self.frame_bytes, chunks)


def expected(
    addressing: Addressing,
    trees: Sequence[Tree],
    servers: Sequence[str],
    workload: Workload,
) -> dict[Direction, Load]:
    """Computes the load of every link direction that the job uses.

    servers: names of the server processes by rank.
    """
    together = workload.shares(len(servers), len(trees)).together()
    loads: dict[Direction, Load] = {}
    for stream, server in np.argwhere(together.T).tolist():
        chunks = int(together[server, stream])
        load = workload.edge(chunks)
        tree = trees[stream]
        unit = addressing.unit(servers[server])
        for _, leaf in tree.leaves.values() if workload.start else ():
            for direction in (
                *way(addressing, leaf.name, unit.address, unit.host),
                *_way_from(addressing, unit, leaf),
            ):
                loads.setdefault(direction, Load()).add(workload.initial(chunks))
        for node, child in _edges(tree):
            below = tree.by_number.get(child.node) if child.rank is None else None
            for direction in _up(addressing, node, child, below, unit):
                loads.setdefault(direction, Load()).add(load)
            for direction in _down(addressing, node, child, unit):
                loads.setdefault(direction, Load()).add(load)
    return loads


def total(loads: Sequence[Mapping[Direction, Load]]) -> dict[Direction, Load]:
    """Sums the loads of several jobs."""
    result: dict[Direction, Load] = {}
    for one in loads:
        for direction, load in one.items():
            result.setdefault(direction, Load()).add(load)
    return result


def _edges(tree: Tree) -> Iterator[tuple[TreeNode, Child]]:
    for node in tree.nodes:
        for child in node.children:
            yield node, child


def _up(
    addressing: Addressing, node: TreeNode, child: Child, below: TreeNode | None, server: Unit
) -> Iterator[Direction]:
    """Yields the directions from a child to its node: a switch sends to its parent's port, and
    routing takes the packet from there. Contributions are addressed to the chunk's server."""
    at, end = child.name, node.switch or server.host
    if below is not None and below.parent is not None:
        port = addressing.port(child.name, below.parent.port)
        yield Direction(child.name, port.interface)
        at = port.peer
    yield from way(addressing, at, server.address, end)


def _down(
    addressing: Addressing, node: TreeNode, child: Child, server: Unit
) -> Iterator[Direction]:
    """Yields the directions from a node to a child: the child table's hop, then routed ones."""
    if node.switch is None:
        yield from _way_from(addressing, server, child)
        return
    port = addressing.port(node.switch, child.port)
    yield Direction(node.switch, port.interface)
    yield from way(addressing, port.peer, child.address, child.name)


def _way_from(addressing: Addressing, server: Unit, child: Child) -> Iterator[Direction]:
    """Yields the directions from a server process, by its own interface, to a child."""
    if server.host == child.name:
        return
    yield Direction(server.host, server.interface.interface)
    yield from way(addressing, server.interface.switch, child.address, child.name)


def receivers(addressing: Addressing) -> dict[Direction, tuple[str, LinkQuality]]:
    """Maps each direction of each link to the node that receives, and to its quality."""
    topology = addressing.topology
    hosts = (end for node in topology.hosts for end in addressing.host_interfaces(node.name))
    ports = (port for node in topology.switches for port in addressing.ports(node.name))
    return {
        **{Direction(one.node, one.interface): (one.switch, one.outgoing) for one in hosts},
        **{Direction(one.switch, one.interface): (one.peer, one.outgoing) for one in ports},
    }


def qualities(addressing: Addressing) -> dict[Direction, LinkQuality]:
    """Maps each direction of each link to its quality."""
    return {way: quality for way, (_, quality) in receivers(addressing).items()}


def way(
    addressing: Addressing, source: str, destination: IPv4Address, end: str
) -> Iterator[Direction]:
    """Yields the directions that a routed packet passes from `source` to `end`.

    Raises ValueError where the routes to `destination` do not reach `end`.
    """
    at = source
    passed: set[str] = set()
    while at != end:
        if at in passed:
            raise ValueError(f"no way from {source} to {end} by the routes to {destination}")
        passed.add(at)
        if addressing.topology.by_name[at].kind == "switch":
            port = addressing.port(at, addressing.route(at, destination).port)
            yield Direction(at, port.interface)
            at = port.peer
        else:
            interface = addressing.host_interfaces(at)[0]
            yield Direction(at, interface.interface)
            at = interface.switch
