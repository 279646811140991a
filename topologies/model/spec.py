# SPDX-License-Identifier: Apache-2.0
"""Reads topology files: racks of hosts under ToR switches, joined by levels of core switches.

``load(path)`` reads a YAML file into a ``Topology``; ``TopologyError`` lists all problems with
file, line, field and allowed values. ``read(path)`` also keeps the places of fields in the file.
The format, explained in docs/reference/files.md::

    name: two-racks
    defaults: {rate: 20 Mbit/s, delay: 0 ms, queue_bytes: 128 KiB, ecn_bytes: 64 KiB, mtu: 1500}
    racks:
      - {workers: 4, servers: 1}          # tor0: w0..w3, s0
      - {workers: 4, servers: 1, server_cores: 2}  # tor1: w4..w7, s1 with two processes
      - {workers: 16, count: 3}           # tor2..tor4: w8..w55
    cores: 1                              # or levels: [2, 1], [{racks: 32, cores: 2}, 4]
    uplinks: {rate: 40 Mbit/s}            # links between switches
    links:
      - {ends: [w3, tor0], loss: 1 %}     # both directions of one link
      - {from: tor1, to: core0, rate: 5 Mbit/s}
      - {ends: [s1, tor0], add: true}     # one more link (and address) for a server
    costs: {switch_latency: 1 us}         # in virtual time
    seed: 0                               # of which packets links lose, duplicate, reorder, corrupt
    tls: false
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    model_validator,
)

from topologies.model.documents import (
    Document,
    DocumentError,
    Location,
    Name,
    Problem,
    errors_as,
    shown,
)
from topologies.model.documents import load as load_document
from topologies.model.documents import parse as parse_document
from topologies.model.quantity_fields import Fraction, Rate, Size, Time, duration, fraction, size
from topologies.model.shape import Level, Rack, Shape
from topologies.model.topology import MAX_PORTS, Costs, Link, LinkQuality, Node, Topology
from topologies.model.wording import few

__all__ = [
    "Link",
    "LinkQuality",
    "Node",
    "Problem",
    "Topology",
    "TopologyError",
    "TopologyFile",
    "load",
    "parse",
    "read",
]

# The address plan has a /24 for the workers of a rack and one for its server links.
MAX_WORKERS_PER_RACK = 250
# Limits of planning, far beyond the routes that a program holds (testbed.preflight).
MAX_RACKS = 8192
MAX_CORES = 1000
MAX_HOSTS = 1 << 17
MAX_LEVELS = 4  # of cores
# One server process a core at each interface, each with its own port (addressing.FIRST_PORT).
MAX_PROCESSORS = 10
MOST_BAD = 0.99  # share of packets that are lost, or corrupt

ETHERNET_HEADER = 14


class TopologyError(DocumentError):
    """An invalid topology file."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=False)


def _some_pass(share: float) -> float:
    if share > MOST_BAD:
        raise ValueError(
            f"{100 * share:.12g} % leaves too few packets for a run to get on; allowed: up to"
            f" {100 * MOST_BAD:g} % (a link that is down for a while is a fault, for `rackhub"
            " chaos`: {at: 2 s, impair: {ends: [w0, tor0], loss: 100 %}, for: 5 s})"
        )
    return share


# Lost and corrupt packets are retransmitted, so some packets must arrive.
_Passing = Annotated[float, fraction(f"{100 * MOST_BAD:g} %"), AfterValidator(_some_pass)]


class _Quality(_Strict):
    rate: Rate | None = None
    delay: Time | None = None
    queue_bytes: Size | None = None
    ecn_bytes: Size | None = None
    mtu: Annotated[int, size("128 B", "16370 B")] | None = None
    loss: _Passing | None = None
    duplicate: Fraction | None = None
    reorder: Fraction | None = None
    corrupt: _Passing | None = None


class _Costs(_Strict):
    framing: StrictBool = False
    switch_latency: Annotated[float, duration("0 s", "1 s", "1 us")] = 0.0
    host_per_packet: Annotated[float, duration("0 s", "1 s", "1 us")] = 0.0
    host_per_byte: Annotated[float, duration("0 s", "1 us", "0.1 ns")] = 0.0
    interrupt_interval: Annotated[float, duration("0 s", "1 s", "100 us")] = 0.0
    server_rate: Rate | None = None


class _Rack(_Strict):
    workers: int = Field(strict=True, ge=0, le=MAX_WORKERS_PER_RACK)
    servers: int = Field(default=0, strict=True, ge=0, le=MAX_WORKERS_PER_RACK)
    server_cores: int = Field(default=1, strict=True, ge=1, le=MAX_PROCESSORS)
    count: int = Field(default=1, strict=True, ge=1, le=MAX_RACKS)


class _Level(_Strict):
    """A level of cores: a number for each pod of `racks` racks, or for all racks."""

    racks: int | None = Field(default=None, strict=True, ge=1, le=MAX_RACKS)
    cores: int = Field(strict=True, ge=1, le=MAX_CORES)

    @model_validator(mode="before")
    @classmethod
    def _number(cls, value: object) -> object:
        if isinstance(value, dict):
            return value
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(
                f"should be a whole number, not {shown(value)} (or a group, like"
                " {racks: 32, cores: 2}: 2 cores for each 32 racks)"
            )
        if not 1 <= value <= MAX_CORES:
            raise ValueError(f"should be 1 to {MAX_CORES}, not {value}")
        return {"cores": value}


class _LinkChange(_Quality):
    ends: list[str] | None = Field(default=None, min_length=2, max_length=2)
    from_: str | None = Field(default=None, alias="from")
    to: str | None = None
    add: StrictBool = False


def _levels(value: object) -> object:
    if isinstance(value, list):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return [value] if value else []
    raise ValueError(
        f"{shown(value)} should be a number of cores, like 2, or a list of them by level, like"
        " [4, 2]"
    )


class TopologySpec(_Strict):
    """The content of a topology file."""

    name: Name = Field(max_length=60)
    defaults: _Quality = _Quality()
    racks: list[_Rack] = Field(min_length=1, max_length=MAX_RACKS)
    cores: Annotated[list[_Level], BeforeValidator(_levels)] = Field(
        default=[], max_length=MAX_LEVELS
    )
    uplinks: _Quality = _Quality()
    links: list[_LinkChange] = []
    costs: _Costs = _Costs()
    seed: int = Field(default=0, strict=True, ge=0, lt=2**32)
    tls: StrictBool = False


@dataclass(frozen=True)
class TopologyFile:
    """A valid topology with the places of its fields in the file.

    ``refuse`` adds further problems, and ``check`` raises all of them.
    """

    topology: Topology
    # The places of each link's fields, forward and backward.
    places: tuple[tuple[dict[str, Location], dict[str, Location]], ...]
    racks: tuple[int, ...]  # which entry of the file's each rack is from
    document: Document[TopologySpec] = field(repr=False)

    def seeded(self, seed: int | None) -> TopologyFile:
        """Copies it with another seed; None keeps the file's."""
        if seed is None:
            return self
        return replace(self, topology=replace(self.topology, seed=seed))

    def refuse(self, place: Location, text: str) -> None:
        """Adds a problem, at most one for each field."""
        if not self.document.refused(place):
            self.document.refuse(place, text)

    def check(self) -> None:
        """Raises TopologyError if there are problems."""
        if self.document.problems:
            raise TopologyError(self.document.problems)

    def problem(self, place: Location, text: str) -> Problem:
        """Builds a problem of a field without adding it, such as for a warning."""
        return self.document.problem(place, text)


def load(path: str | Path) -> Topology:
    """Reads a topology file; raises TopologyError."""
    return read(path).topology


@errors_as(TopologyError)
def read(path: str | Path) -> TopologyFile:
    """Reads a topology file with the places of its fields; raises TopologyError."""
    return _build(load_document(path, TopologySpec))


@errors_as(TopologyError)
def parse(text: str, file: str = "<text>") -> Topology:
    """Reads a topology from text; raises TopologyError with ``file`` as the name."""
    return _build(parse_document(text, file, TopologySpec)).topology


_QUALITY_FIELDS = tuple(item.name for item in fields(LinkQuality))


@dataclass
class _Direction:
    """A direction of a link under construction: the value and place of each field."""

    values: dict[str, float]
    places: dict[str, Location]

    def apply(self, quality: _Quality, place: Location) -> None:
        for name in _QUALITY_FIELDS:
            value = getattr(quality, name)
            if value is not None:
                self.values[name] = value
                self.places[name] = (*place, name)

    def copy(self) -> _Direction:
        return _Direction(dict(self.values), dict(self.places))

    def finish(self, document: Document[TopologySpec], ends: str) -> LinkQuality:
        # By default, mark above half the queue.
        queue = self.values.get("queue_bytes", LinkQuality.queue_bytes)
        quality = LinkQuality(**{"ecn_bytes": queue // 2, **self.values})  # type: ignore[arg-type]
        frame = quality.mtu + ETHERNET_HEADER
        place = self.places.get("queue_bytes", self.places.get("mtu", ()))
        if quality.queue_bytes < frame and not document.refused(place):
            document.refuse(
                place,
                f"a queue of {quality.queue_bytes} B holds no packet of MTU {quality.mtu}"
                f" ({ends}); allowed: at least {frame} B",
            )
        place = self.places.get("ecn_bytes", place)
        if quality.ecn_bytes > quality.queue_bytes and not document.refused(place):
            document.refuse(
                place,
                f"ecn_bytes of {quality.ecn_bytes} would never mark in a queue of"
                f" {quality.queue_bytes} B ({ends}); allowed: 0 (never) to that",
            )
        return quality


@dataclass
class _Draft:
    """A link under construction."""

    a: str
    b: str
    forward: _Direction
    backward: _Direction


def _build(document: Document[TopologySpec]) -> TopologyFile:
    content = document.content
    shape = _shape(document)
    nodes = shape.nodes()
    drafts = _meshed(content, nodes, shape)
    _change_links(document, {node.name: node for node in nodes}, drafts)
    document.check()
    _check_ports(document, drafts)
    links = tuple(
        Link(
            draft.a,
            draft.b,
            draft.forward.finish(document, f"{draft.a} to {draft.b}"),
            draft.backward.finish(document, f"{draft.b} to {draft.a}"),
        )
        for draft in drafts
    )
    document.check()
    costs = Costs(**content.costs.model_dump())
    topology = Topology(
        content.name, tuple(nodes), links, content.tls, document.file, costs, content.seed
    )
    places = tuple((draft.forward.places, draft.backward.places) for draft in drafts)
    entries = tuple(n for n, entry in enumerate(content.racks) for _ in range(entry.count))
    return TopologyFile(topology, places, entries, document)


def _shape(document: Document[TopologySpec]) -> Shape:
    """Builds the shape; raises DocumentError before anything of its size is allocated."""
    content = document.content
    racks = sum(entry.count for entry in content.racks)
    hosts = sum((entry.workers + entry.servers) * entry.count for entry in content.racks)
    if racks > MAX_RACKS:
        document.refuse(("racks",), f"{racks} racks; allowed: up to {MAX_RACKS}")
    if hosts > MAX_HOSTS:
        document.refuse(("racks",), f"{hosts} workers and servers; allowed: up to {MAX_HOSTS}")
    document.check()
    for number, entry in enumerate(content.racks):
        if "server_cores" in entry.model_fields_set and not entry.servers:
            document.refuse(
                ("racks", number, "server_cores"), "no servers in this rack; leave it out"
            )
    if not any(entry.workers for entry in content.racks):
        document.refuse(("racks",), "no workers in any rack; a job needs at least one")
    if not any(entry.servers for entry in content.racks):
        document.refuse(("racks",), "no servers in any rack; a job needs at least one")
    shape = Shape(
        [
            Rack(entry.workers, entry.servers, entry.server_cores)
            for entry in content.racks
            for _ in range(entry.count)
        ],
        _pods(document, racks),
    )
    if racks > 1 and not shape.levels:
        document.refuse(("cores",), f"{racks} racks and no core to join them; allowed: 1 or more")
    if shape.cores > MAX_CORES:
        document.refuse(("cores",), f"{shape.cores} cores; allowed: up to {MAX_CORES}")
    name, ports = shape.most_ports()
    if ports > MAX_PORTS:
        document.refuse(("racks",), f"{name} would have {ports} ports; allowed: up to {MAX_PORTS}")
    document.check()
    return shape


def _pods(document: Document[TopologySpec], racks: int) -> list[Level]:
    """Builds the levels of cores, with the racks of a pod in each."""
    levels: list[Level] = []
    for number, entry in enumerate(document.content.cores):
        place: Location = ("cores", number, "racks")
        size = racks if entry.racks is None else min(entry.racks, racks)
        below = levels[-1].racks if levels else 1
        if (size % below and size < racks) or size < below:
            document.refuse(
                place,
                f"pods of {size} racks are not made of those of {below} below them; allowed:"
                f" multiples of {below}, or no `racks` for one pod of all",
            )
            break
        levels.append(Level(size, entry.cores))
    else:
        if levels and levels[-1].racks < racks:
            document.refuse(
                ("cores", len(levels) - 1),
                f"pods of {levels[-1].racks} racks, and nothing joins {racks} racks; one more level"
                f" would: cores: [.., 1], or `racks` of at least {racks}",
            )
    return levels


def _meshed(content: TopologySpec, nodes: list[Node], shape: Shape) -> list[_Draft]:
    """Builds the links of the shape: hosts to their ToR, and between switches."""
    host_link = _Direction({}, {})
    host_link.apply(content.defaults, ("defaults",))
    uplink = host_link.copy()
    uplink.apply(content.uplinks, ("uplinks",))
    hosts: dict[int | None, list[str]] = {}
    for node in nodes:
        if node.level == 0:
            hosts.setdefault(node.rack, []).append(node.name)
    drafts = [
        _Draft(name, f"tor{rack}", host_link.copy(), host_link.copy())
        for rack in range(len(shape.racks))
        for name in hosts.get(rack, ())
    ]
    return drafts + [
        _Draft(lower, upper, uplink.copy(), uplink.copy()) for lower, upper in shape.uplinks()
    ]


def _change_links(
    document: Document[TopologySpec], nodes: dict[str, Node], drafts: list[_Draft]
) -> None:
    """Applies ``links:``; each entry changes an existing link, or adds one to a server."""
    seen: dict[tuple[str, str, str], int] = {}
    joining: dict[frozenset[str], list[_Draft]] = {}
    for draft in drafts:
        joining.setdefault(frozenset((draft.a, draft.b)), []).append(draft)
    content = document.content
    host_link = _Direction({}, {})
    host_link.apply(content.defaults, ("defaults",))
    for number, change in enumerate(content.links):
        place: Location = ("links", number)
        ends = _ends(document, place, change, nodes)
        if ends is None:
            continue
        if change.add:
            added = _add_link(document, place, change, nodes, ends, host_link)
            if added is not None:
                drafts.append(added)
                joining.setdefault(frozenset(ends), []).append(added)
            continue
        matching = joining.get(frozenset(ends))
        if not matching:
            linked = [d.b if d.a == ends[0] else d.a for d in drafts if ends[0] in (d.a, d.b)]
            document.refuse(
                place, f"{ends[0]} and {ends[1]} are not linked; {ends[0]} has {few(linked)}"
            )
            continue
        ways = [ends] if change.ends is None else [ends, (ends[1], ends[0])]
        for name in _QUALITY_FIELDS:
            for way in ways if getattr(change, name) is not None else []:
                first = seen.setdefault((*way, name), document.line((*place, name)))
                if first != document.line((*place, name)):
                    text = f"already given for {way[0]} to {way[1]} on line {first}"
                    document.refuse((*place, name), text)
        for draft in matching:
            if (draft.a, draft.b) in ways:
                draft.forward.apply(change, place)
            if (draft.b, draft.a) in ways:
                draft.backward.apply(change, place)


def _ends(
    document: Document[TopologySpec], place: Location, change: _LinkChange, nodes: dict[str, Node]
) -> tuple[str, str] | None:
    names: list[Location]
    if change.ends is not None and change.from_ is None and change.to is None:
        ends, names = (change.ends[0], change.ends[1]), [("ends", 0), ("ends", 1)]
    elif change.ends is None and change.from_ is not None and change.to is not None:
        ends, names = (change.from_, change.to), [("from",), ("to",)]
    else:
        text = "name the link by `ends: [a, b]`, or one direction of it by `from: a` and `to: b`"
        document.refuse(place, text)
        return None
    known = True
    for name, where in zip(ends, names, strict=True):
        if name not in nodes:
            document.refuse(
                (*place, *where), f"no node {shown(name)}; nodes are {few(list(nodes))}"
            )
            known = False
    return ends if known else None


def _add_link(
    document: Document[TopologySpec],
    place: Location,
    change: _LinkChange,
    nodes: dict[str, Node],
    ends: tuple[str, str],
    host_link: _Direction,
) -> _Draft | None:
    host, tor = sorted(ends, key=lambda name: nodes[name].level)
    if change.ends is None or nodes[host].kind != "server" or nodes[tor].level != 1:
        text = "only a further link of a server to a ToR can be added: `ends: [s0, tor1]`"
        document.refuse((*place, "add"), text)
        return None
    both = host_link.copy()
    both.apply(change, place)
    return _Draft(host, tor, both, both.copy())


def _check_ports(document: Document[TopologySpec], drafts: list[_Draft]) -> None:
    ports: dict[str, int] = {}
    for draft in drafts:
        for name in (draft.a, draft.b):
            ports[name] = ports.get(name, 0) + 1
    for name, count in ports.items():
        if count > MAX_PORTS:
            document.refuse(
                ("racks",), f"{name} would have {count} ports; allowed: up to {MAX_PORTS}"
            )
        if name.startswith("s") and count > MAX_WORKERS_PER_RACK:
            document.refuse(
                ("links",), f"{name} has {count} links; allowed: {MAX_WORKERS_PER_RACK}"
            )
