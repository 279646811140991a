# SPDX-License-Identifier: Apache-2.0
"""Bandwidth needs of placements: PHub's table for any network, and link loads for a topology.

The table evaluates the closed forms of ``planner.bandwidth``. For a topology, each placement's
trees are planned as the controller does, and the load of one iteration is added up for every
direction of every link (``planner.link_loads``); the slowest direction is the bottleneck.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

from controller.p4rt.dataplane import DataPlane
from controller.planning.tree_planner import PlanRefusedError, TreeKind, plan_trees
from planner.bandwidth import Model, minimum, uplink
from planner.link_loads import Direction, Load, Workload, expected, receivers
from protocol.ethernet import FRAMING
from protocol.propagation import USUAL
from specs import placements
from specs.jobfile import JobFile, Placement
from topologies.model.addressing import Addressing
from topologies.model.replica_order import units_by_rank

AS_THE_FILE_SAYS = "as the file says"


class ModelRow(TypedDict):
    """A model in PHub's table."""

    model: str
    bytes: float
    """Size of its gradients."""
    seconds: float
    """Computation time of an iteration."""
    bit_per_s: dict[str, float]
    """Rates, both directions together: of a server host by placement, of a worker's host
    (``worker``), of a rack's uplink without and with aggregation (``uplink``,
    ``uplink_aggregated``)."""


_LinkFrom = TypedDict("_LinkFrom", {"from": str})  # sending node


class LinkRow(_LinkFrom):
    """One direction of a link."""

    to: str
    """Receiving node."""
    bytes: int
    """Frames of an iteration, without FCS."""
    rate_bit_per_s: int


class NeedRow(TypedDict):
    """The load of a placement on the links of a topology."""

    placement: str
    tree: str
    servers: list[str]
    worker: LinkRow | None
    """Busiest direction at a worker's host that does not serve."""
    server: LinkRow | None
    """Busiest direction at a server's host."""
    uplink: LinkRow | None
    """Busiest direction between switches."""
    bottleneck: LinkRow | None
    """The slowest of the three."""
    seconds_on_links: float | None
    """Lower bound of an iteration's time, by the bottleneck."""
    fits: bool | None
    """Whether that is within the computation time; None if one of the two is unknown."""
    refused: str
    """Why the placement is impossible; empty if it is not."""


def table(models: Sequence[Model], workers: int, rack: int | None) -> list[ModelRow]:
    """Computes PHub's table, one row a model. rack: workers in a rack."""
    rows: list[ModelRow] = []
    for model in models:
        rates: dict[str, float] = {
            kind.name: minimum(model, workers, kind) for kind in placements.KINDS
        }
        rates["worker"] = 2 * model.rate
        if rack is not None:
            rates["uplink"] = uplink(model, rack, aggregated=False)
            rates["uplink_aggregated"] = uplink(model, rack, aggregated=True)
        rows.append(
            {
                "model": model.name,
                "bytes": model.size,
                "seconds": model.seconds,
                "bit_per_s": rates,
            }
        )
    return rows


@dataclass(frozen=True)
class Link:
    """The load of one iteration on one direction of a link.

    source, to: the nodes at its ends.
    bytes: frames without FCS.
    rate: bit/s.
    framing: bytes of preamble, FCS and gap, where these are counted.
    """

    source: str
    to: str
    bytes: int
    rate: int
    framing: int = 0

    @property
    def seconds(self) -> float:
        """Lower bound of the transfer time."""
        return 8 * (self.bytes + self.framing) / self.rate

    def message(self) -> LinkRow:
        """Converts it to JSON."""
        return {
            "from": self.source,
            "to": self.to,
            "bytes": self.bytes,
            "rate_bit_per_s": self.rate,
        }


def _row(link: Link | None) -> LinkRow | None:
    return None if link is None else link.message()


@dataclass(frozen=True)
class Need:
    """The load of a placement on the links of a topology.

    worker, server: the busiest direction at any host of that kind; a host that is both counts as a
        server. None without such a host.
    uplink: the busiest direction between switches; None if unused.
    refused: why the placement is impossible; the other fields are then unset.
    """

    placement: str
    tree: str
    servers: tuple[str, ...] = ()
    worker: Link | None = None
    server: Link | None = None
    uplink: Link | None = None
    refused: str = ""

    @property
    def bottleneck(self) -> Link | None:
        """The slowest of the three."""
        links = [link for link in (self.worker, self.server, self.uplink) if link is not None]
        return max(links, key=lambda link: link.seconds, default=None)

    def message(self, seconds: float | None) -> NeedRow:
        """Converts it to JSON; seconds: computation time of an iteration, None if unknown."""
        slowest = self.bottleneck
        least = slowest.seconds if slowest is not None else None
        return {
            "placement": self.placement,
            "tree": self.tree,
            "servers": list(self.servers),
            "worker": _row(self.worker),
            "server": _row(self.server),
            "uplink": _row(self.uplink),
            "bottleneck": _row(slowest),
            "seconds_on_links": least,
            "fits": None if seconds is None or least is None else least <= seconds,
            "refused": self.refused,
        }


def needs(
    addressing: Addressing,
    sizes: Sequence[int],
    plane: DataPlane,
    workers: Sequence[str],
    file: JobFile | None,
    *,
    framing: bool = False,
) -> Iterator[Need]:
    """Yields the needs of each placement with each of its trees.

    sizes: elements of each tensor.
    file: the job file whose own placement comes first.
    framing: count the preamble, FCS and gap as well.
    """
    slices = plane.chunks_per_slice(file.spec.slice_size if file is not None else 0)
    how = file.spec.propagation if file is not None else USUAL
    work = Workload(tuple(sizes), plane.lanes, 1, slices, propagation=how)
    topology = addressing.topology
    if file is not None:
        place = file.place(topology).serving
        spec = file.spec
        yield _need(
            addressing, work, place, AS_THE_FILE_SAYS, spec.tree, spec.streams, framing=framing
        )
    for kind in placements.KINDS:
        servers = placements.hosts(kind, topology, workers).default
        for tree in dict.fromkeys(kind.trees.values()):
            place = Placement(tuple(workers), servers)
            yield _need(addressing, work, place, kind.name, tree, 0, framing=framing)


def _need(
    addressing: Addressing, work: Workload, place: Placement, name: str, tree: str, streams: int,
    *, framing: bool,
) -> Need:  # fmt: skip
    units = units_by_rank(addressing, place.servers)
    addresses, names = [unit.address for unit in units], [unit.name for unit in units]
    try:
        trees = plan_trees(
            addressing.topology,
            addressing,
            place.workers,
            addresses,
            TreeKind.of(tree),
            streams,
            propagation=work.propagation,
        )
    except PlanRefusedError as refusal:
        return Need(name, tree, place.servers, refused=str(refusal))
    once, twice = (
        expected(addressing, trees, names, replace(work, iterations=iterations))
        for iterations in (1, 2)
    )
    # The first iteration also finds the exponents; all later ones are like the second.
    loads = {
        way: Load(load.bytes - once[way].bytes, load.packets - once[way].packets)
        for way, load in twice.items()
    }
    found = _busiest(addressing, loads, place, FRAMING if framing else 0)
    return Need(
        name, tree, place.servers, found.get("worker"), found.get("server"), found.get("uplink")
    )


def _busiest(
    addressing: Addressing, loads: Mapping[Direction, Load], place: Placement, framing: int
) -> dict[str, Link]:
    """Finds the slowest direction at workers, at servers and between switches.

    framing: bytes added to each frame.
    """
    found: dict[str, Link] = {}
    ends = receivers(addressing)
    for way, load in loads.items():
        to, quality = ends[way]
        host = next(
            (name for name in (way.node, to) if name in (*place.workers, *place.servers)), ""
        )
        part = "server" if host in place.servers else "worker" if host else "uplink"
        link = Link(way.node, to, load.bytes, quality.rate, framing * load.packets)
        if part not in found or link.seconds > found[part].seconds:
            found[part] = link
    return found
