# SPDX-License-Identifier: Apache-2.0
"""Load of messages over TCP on every link, in closed form.

A collective (``planner.collectives``) consists of rounds of messages between members. A message is
sent as TCP segments, each a frame with its headers. Acknowledgements are frames without data: one
for every second segment, and one for the last of a message (RFC 1122, 4.2.3.2; RFC 5681, 4.2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from planner.link_loads import Direction, Load, qualities, way
from protocol.ethernet import FRAMING, TCP_HEADERS
from topologies.model.addressing import Addressing, HostInterface
from topologies.model.topology import LinkQuality

VALUE = 4  # bytes of a float32
_IP_AND_TCP = TCP_HEADERS - 14
_PIECE_SEGMENTS = 44  # 64 KiB, forwarded before the rest arrives
_PIECES = 8

Key = TypeVar("Key")
Pair: TypeAlias = tuple[int, int]
Round: TypeAlias = dict[Pair, list[int]]
"""Bytes of each message, by sender and receiver; a round begins when the one before has ended."""


def bounds(size: int, parts: int) -> list[int]:
    """Returns the boundaries of `parts` parts of `size` values, as equal as possible."""
    return [size * part // parts for part in range(parts + 1)]


def part_bytes(size: int, parts: int) -> list[int]:
    """Returns the bytes of each of `parts` parts of `size` values."""
    ends = bounds(size, parts)
    return [VALUE * (ends[i + 1] - ends[i]) for i in range(parts)]


def segment(mtu: int) -> int:
    """Bytes of data in a full segment; whole values."""
    return (mtu - _IP_AND_TCP) // VALUE * VALUE


def piece(size: float, parts: int, segment: int) -> int:
    """Number of values that are forwarded before the rest of a part arrives: whole pairs of
    segments, since pairs are acknowledged."""
    pairs = int(VALUE * size // parts) // segment // _PIECES // 2
    return 2 * min(max(1, pairs), _PIECE_SEGMENTS // 2) * segment // VALUE


@dataclass(frozen=True)
class Wires:
    """The links between members, in both directions, and the load of each pair on them.

    ends: the interface of each member. segment: data bytes of a full segment.
    """

    addressing: Addressing
    ends: Sequence[HostInterface]
    segment: int

    def way(self, pair: Pair) -> list[Direction]:
        """Lists the directions from one member to another."""
        source, target = (self.ends[member] for member in pair)
        rest = way(self.addressing, source.switch, target.ipv4, target.node)
        return [Direction(source.node, source.interface), *rest]

    def loads(self, one: Round) -> dict[Direction, Load]:
        """Computes the load (frames without FCS) of a round in each direction of a link."""
        found: dict[Direction, Load] = {}
        for (source, target), messages in one.items():
            segments = [-(-size // self.segment) for size in messages]
            acks = sum(-(-count // 2) for count in segments)
            data = Load(sum(messages) + TCP_HEADERS * sum(segments), sum(segments))
            for pair, load in (
                ((source, target), data),
                ((target, source), Load(TCP_HEADERS * acks, acks)),
            ):
                for direction in self.way(pair):
                    found.setdefault(direction, Load()).add(load)
        return found

    def windows(self, rounds: Sequence[Round]) -> dict[Pair, float]:
        """Computes the segments each pair may have in flight without overflowing a queue.

        All of them, and their acknowledgements, may be in one queue at once; pairs whose frames
        pass a queue share it equally. Less than 2: the queue is too small.
        """
        pairs = {pair for one in rounds for pair in one}
        ways = {
            pair: [
                *((direction, self.segment + TCP_HEADERS) for direction in self.way(pair)),
                *((direction, TCP_HEADERS) for direction in self.way((pair[1], pair[0]))),
            ]
            for pair in sorted(pairs)
        }
        queues = {way: one.queue_bytes for way, one in qualities(self.addressing).items()}
        return share_queues(ways, queues)


def share_queues(
    ways: Mapping[Pair, Sequence[tuple[Key, int]]], queues: Mapping[Key, float]
) -> dict[Pair, float]:
    """Computes the segments of each pair for which all queues on its way have room.

    ways: queues that a segment of each pair and its acknowledgement pass, and their bytes there.
    """
    wanted: dict[Key, int] = {}
    for passed in ways.values():
        for key, size in passed:
            wanted[key] = wanted.get(key, 0) + size
    return {pair: min(queues[key] / wanted[key] for key, _ in way) for pair, way in ways.items()}


def seconds(
    rounds: Sequence[Mapping[Direction, Load]],
    lines: Mapping[Direction, LinkQuality],
    *,
    framing: bool,
) -> float:
    """Lower bound in seconds for the rounds: each takes the time of its busiest link.

    framing: count the preamble, FCS and gap as well.
    """

    def time(way: Direction, load: Load) -> float:
        extra = FRAMING * load.packets if framing else 0
        return 8 * (load.bytes + extra) / lines[way].rate

    return sum(max(time(*one) for one in loads.items()) for loads in rounds if loads)
