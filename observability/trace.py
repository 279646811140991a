# SPDX-License-Identifier: Apache-2.0
"""Traces one chunk hop by hop through the captures of all switch ports.

The packets themselves show where a tree's nodes are and which child each bit stands for: the source
of a contribution is the child, and the last receiver of it is the node. So a trace needs no plan
and works across changes of epoch.
"""

from __future__ import annotations

import re
import struct
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from ipaddress import IPv4Address
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np

from observability.pcap import packets
from protocol.errors import Error
from protocol.frames import OVERHEAD, NotForHostsError, from_frame
from protocol.header import (
    HEADER,
    HEADER_BYTES,
    SERVER_PORTS,
    VERSION,
    Flag,
    Op,
)
from topologies.model.addressing import Addressing
from topologies.model.replica_order import host_of

_NAME = re.compile(r"(?P<interface>.+-eth\d+)_(?P<way>in|out)\.pcap")
_JOB = struct.Struct(">H")
_CHUNK = struct.Struct(">I")


class TraceError(Error):
    """Nothing can be traced; the text says why and what to do."""


@dataclass(frozen=True)
class _Header:
    """The header fields that a trace uses."""

    op: Op
    flags: int
    epoch: int
    stream: int
    sender: int
    seq: int
    children: int
    workers: int
    lanes: int
    node: int

    @staticmethod
    def of(payload: bytes) -> _Header | None:
        """Parses a UDP payload; returns None if it is no packet of the protocol."""
        if len(payload) < HEADER_BYTES:
            return None
        row = np.frombuffer(payload, HEADER, 1)[0]
        if row["version_op"] >> 4 != VERSION or int(row["version_op"] & 15) not in set(Op):
            return None
        names = [one.name for one in fields(_Header) if one.name != "op"]
        return _Header(Op(int(row["version_op"] & 15)), *(int(row[name]) for name in names))


# Sender and receiver, IPv4 source and destination by name, and the packet.
_OnLink: TypeAlias = tuple[str, str, str, str, _Header]


@dataclass
class Hop:
    """A packet on a link.

    time: ns since 1970 (in virtual time: since the run began), where it was captured first.
    sender, receiver: ends of the link.
    source, destination: nodes of the IPv4 addresses.
    length: bytes of its frame, without FCS.
    whole: the frame has its payload, which chunks without payload lack.
    between: both ends are switches.
    arrived: the switch at the other end captured it; None if that is a host.
    times: how often the same packet has been on this link, including this time.
    """

    time: int
    sender: str
    receiver: str
    source: str
    destination: str
    header: _Header
    length: int
    whole: bool
    between: bool
    arrived: bool | None = None
    times: int = 1


@dataclass
class Round:
    """All packets of one sequence number of a stream: an exponent round, or an iteration's sum."""

    epoch: int
    stream: int
    seq: int
    exponents: bool
    hops: list[Hop]
    iteration: int = 0

    @property
    def delivered(self) -> bool:
        """True if a result was sent to a host."""
        return any(hop.header.op is Op.RESULT and hop.arrived is None for hop in self.hops)


@dataclass
class Trace:
    """The captured packets of one chunk.

    rounds: in the order of their first packets.
    switches: names of all switches.
    places: name of the switch or server that is a tree node, by epoch, stream and node number.
    children: names of a node's children by their bits, by the same key.
    """

    rounds: list[Round]
    switches: frozenset[str]
    places: dict[tuple[int, int, int], str] = field(default_factory=dict)
    children: dict[tuple[int, int, int], dict[int, str]] = field(default_factory=dict)


def trace(folder: Path, addressing: Addressing, job: int, chunk: int) -> Trace:
    """Reads a chunk's packets from the captures in a folder.

    Raises ``TraceError`` if there are none, ``CaptureError``.
    """
    files = sorted(folder.rglob("*.pcap")) if folder.is_dir() else []
    if not files:
        raise TraceError(
            f"{folder.parent} has no captures: start the run with --pcap to trace its chunks"
        )
    hops = _hops(files, addressing, job, chunk)
    by_number: defaultdict[tuple[int, int, int], list[Hop]] = defaultdict(list)
    for hop in hops:
        header = hop.header
        by_number[header.epoch, header.stream, header.seq].append(hop)
    rounds = [Round(*key, _of_exponents(of), of) for key, of in by_number.items()]
    rounds.sort(key=lambda one: one.hops[0].time)
    _count_iterations(rounds)
    found = Trace(rounds, frozenset(node.name for node in addressing.topology.switches))
    _locate(found)
    return found


def _of_exponents(hops: Iterable[Hop]) -> bool:
    sent = [hop.header for hop in hops if hop.header.op in (Op.CONTRIBUTE, Op.RESULT)]
    return bool(sent) and all(header.lanes == 0 for header in sent)


def _count_iterations(rounds: Sequence[Round]) -> None:
    """Sets the iteration of each round: an epoch repeats rounds that had no result before it."""
    iteration, last = 0, None
    for one in rounds:
        if one.exponents:
            one.iteration = iteration + 1
            continue
        if last is None or one.epoch == last.epoch or last.delivered:
            iteration += 1
        one.iteration = iteration
        last = one


def _locate(found: Trace) -> None:
    """Finds the places of tree nodes and their children's bits from the contributions to them."""
    ends: defaultdict[tuple[int, int, int], Counter[str]] = defaultdict(Counter)
    for one in found.rounds:
        last: dict[tuple[str, _Header], Hop] = {}
        for hop in one.hops:
            if hop.header.op is Op.CONTRIBUTE and not hop.header.flags & Flag.DIRECT:
                last[hop.source, hop.header] = hop
        for hop in last.values():
            key = one.epoch, one.stream, hop.header.node
            ends[key][hop.receiver] += 1
            found.children.setdefault(key, {})[hop.header.sender] = hop.source
    found.places = {key: counter.most_common(1)[0][0] for key, counter in ends.items()}


class _Names:
    """Maps addresses to names of switches, hosts, or server processes of a host."""

    def __init__(self, addressing: Addressing) -> None:
        self._nodes = {int(address): i.node for address, i in addressing.interfaces.items()}
        for node in addressing.topology.switches:
            self._nodes[int(addressing.switch_address(node.name))] = node.name
        self._units = {
            (int(unit.address), unit.port): unit.name
            for node in addressing.topology.servers
            for unit in addressing.units(node.name)
        }

    def of(self, address: tuple[int, int]) -> str:
        """Returns the name for an IPv4 address and UDP port."""
        known = self._units.get(address) or self._nodes.get(address[0])
        return known or str(IPv4Address(address[0]))


def _hops(files: Sequence[Path], addressing: Addressing, job: int, chunk: int) -> list[Hop]:
    """Returns the packets of a chunk on all links, in order of time."""
    ports = {p.interface: p for n in addressing.topology.switches for p in addressing.ports(n.name)}
    names = _Names(addressing)
    hops: list[Hop] = []
    arrivals: defaultdict[_OnLink, list[int]] = defaultdict(list)
    for path in files:
        match = _NAME.fullmatch(path.name)
        port = ports.get(match["interface"]) if match else None
        if match is None or port is None:
            continue
        inwards = match["way"] == "in"
        sender, receiver = (port.peer, port.switch) if inwards else (port.switch, port.peer)
        for one in _packets_of(path, job, chunk):
            who, whom, header = names.of(one.source), names.of(one.destination), one.header
            if inwards and not port.peer_is_host:
                # The sending switch captured it, too.
                arrivals[sender, receiver, who, whom, header].append(one.time)
                continue
            arrived = True if inwards else None
            between = not port.peer_is_host
            # Of several processes of a host, the sending or receiving one.
            first = who if inwards and host_of(who) == sender else sender
            last = whom if not inwards and host_of(whom) == receiver else receiver
            size = one.length, one.whole
            hops.append(Hop(one.time, first, last, who, whom, header, *size, between, arrived))
    hops.sort(key=lambda hop: hop.time)
    _compare(hops, arrivals)
    return hops


def _compare(hops: Iterable[Hop], arrivals: Mapping[_OnLink, list[int]]) -> None:
    """Sets ``times`` of all packets, and ``arrived`` of those between switches.

    arrivals: times at which switches captured packets of other switches.
    """
    seen: Counter[_OnLink] = Counter()
    between: defaultdict[_OnLink, list[Hop]] = defaultdict(list)
    for hop in hops:
        key = hop.sender, hop.receiver, hop.source, hop.destination, hop.header
        # A worker flags retransmissions.
        same = replace(hop.header, flags=hop.header.flags & ~Flag.RETRANSMIT)
        repeated = (*key[:4], same)
        seen[repeated] += 1
        hop.times = seen[repeated]
        if hop.between:
            between[key].append(hop)
    for key, sent in between.items():
        times = sorted(arrivals.get(key, []))
        for number, hop in enumerate(sent):
            left = len(sent) - number
            # Links keep the order: an arrival after a retransmission may be either packet.
            hop.arrived = bool(times) and (len(times) >= left or times[0] < sent[number + 1].time)
            del times[: int(hop.arrived)]


class _Packet(NamedTuple):
    """A packet of a capture; ends are (IPv4 address, UDP port), other fields as of `Hop`."""

    time: int
    source: tuple[int, int]
    destination: tuple[int, int]
    header: _Header
    length: int
    whole: bool


def _packets_of(path: Path, job: int, chunk: int) -> Iterator[_Packet]:
    """Yields one chunk's packets in a capture."""
    jobs = slice(OVERHEAD + 2, OVERHEAD + 4)
    chunks = slice(OVERHEAD + 12, OVERHEAD + 16)
    of_job, of_chunk = _JOB.pack(job), _CHUNK.pack(chunk)

    def wanted(frame: memoryview) -> bool:
        return frame[chunks] == of_chunk and frame[jobs] == of_job

    for time, frame, length in packets(path, wanted):
        try:
            datagram = from_frame(frame, length)
        except NotForHostsError:
            continue
        header = _Header.of(datagram.payload)
        ports = datagram.source[1], datagram.destination[1]
        if header is not None and any(port in SERVER_PORTS for port in ports):
            ends = datagram.source, datagram.destination
            yield _Packet(time, *ends, header, length, len(frame) == length)
