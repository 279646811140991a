# SPDX-License-Identifier: Apache-2.0
"""Load of messages over TCP on every link, in closed form.

A collective (``planner.collectives``) consists of rounds of messages between members. A message is
sent as TCP segments, each a frame with its headers. Acknowledgements are frames without data: one
for every second segment, and one for the last of a message (RFC 1122, 4.2.3.2; RFC 5681, 4.2).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from planner.link_loads import Direction, Load, qualities, way
from protocol.ethernet import TCP_HEADERS
from topologies.model.addressing import Addressing, HostInterface

VALUE = 4  # bytes of a float32
_IP_AND_TCP = TCP_HEADERS - 14
_PIECE_SEGMENTS = 44  # 64 KiB, forwarded before the rest arrives
_PIECES = 8

Key = TypeVar("Key")
Pair: TypeAlias = tuple[int, int]
Round: TypeAlias = dict[Pair, list[int]]
"""Bytes of each message, by sender and receiver. A member sends those of a round when all messages
to it of earlier rounds have arrived."""


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


def piece(size: float, parts: int, segment: int, most: int = _PIECE_SEGMENTS) -> int:
    """Number of values that are forwarded before the rest of a part arrives: whole pairs of
    segments, since pairs are acknowledged. most: segments."""
    pairs = int(VALUE * size // parts) // segment // _PIECES // 2
    return 2 * max(1, min(pairs, most // 2)) * segment // VALUE


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

    def least_seconds(self, rounds: Sequence[Round], *, framing: bool) -> float:
        """Computes a lower bound of the seconds of the rounds, for any rates.

        Of the messages on a link in some consecutive rounds, none is sent before the earliest that
        a sender of them can have what it waits for, and after the last one its receiver's later
        messages remain; in between, the link carries all their bytes. The bound is the longest such
        sum over links and rounds (J. Carlier, EJOR 11, 1982: one machine with heads and tails).
        Members do not wait for a round to end everywhere, so the times of the busiest links of all
        rounds do not add up. Data is counted in full segments over all messages of a pair, and no
        acknowledgements, as the last ones come after the end and TCP may leave others out. Delays
        are not counted.

        framing: count the preamble, FCS and gap as well.
        """
        lines = qualities(self.addressing)
        times: list[_Times] = []
        for one in rounds:
            times.append({})
            for pair, messages in one.items():
                frames = -(-sum(messages) // self.segment)
                load = Load(sum(messages) + TCP_HEADERS * frames, frames)
                times[-1][pair] = {
                    link: load.seconds(lines[link].rate, framing=framing) for link in self.way(pair)
                }
        backwards = [{(to, at): spent for (at, to), spent in one.items()} for one in times[::-1]]
        waits = zip(times, _waits(times), reversed(_waits(backwards)), strict=True)
        # By link: of each round the earliest start, the seconds, and the least that remains.
        by_link: dict[Direction, list[tuple[float, float, float]]] = {}
        for spent, heads, tails in waits:
            for link, pairs in _by_link(spent).items():
                head = min(heads[source] for source, _ in pairs)
                tail = min(tails[target] for _, target in pairs)
                by_link.setdefault(link, []).append((head, sum(pairs.values()), tail))
        least = 0.0
        for parts in by_link.values():
            for first in range(len(parts)):
                head = tail = math.inf
                total = 0.0
                for earliest, seconds, remains in parts[first:]:
                    head, total, tail = min(head, earliest), total + seconds, min(tail, remains)
                    least = max(least, head + total + tail)
        return least

    def data(self, one: Round) -> dict[Direction, Load]:
        """Computes the load of a round's data in each direction of a link: in full segments over
        all messages of a pair, without acknowledgements."""
        found: dict[Direction, Load] = {}
        for pair, messages in one.items():
            frames = -(-sum(messages) // self.segment)
            for direction in self.way(pair):
                load = Load(sum(messages) + TCP_HEADERS * frames, frames)
                found.setdefault(direction, Load()).add(load)
        return found

    def windows(
        self, rounds: Sequence[Round], taken: Mapping[Direction, int] | None = None
    ) -> dict[Pair, float]:
        """Computes the segments each pair may have in flight without overflowing a queue.

        All of them, and their acknowledgements, may be in one queue at once; pairs whose frames
        pass a queue share it equally. Less than 2: the queue is too small.

        Args:
            taken: Bytes that others may have in a queue.
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
        for direction, count in (taken or {}).items():
            queues[direction] -= count
        return share_queues(ways, queues)


_Times: TypeAlias = dict[Pair, dict[Direction, float]]
"""Seconds of each pair's messages in a round on each link of their way."""


def _by_link(one: _Times) -> dict[Direction, dict[Pair, float]]:
    found: dict[Direction, dict[Pair, float]] = {}
    for pair, spent in one.items():
        for link, seconds in spent.items():
            found.setdefault(link, {})[pair] = seconds
    return found


def _waits(times: Sequence[_Times]) -> list[dict[int, float]]:
    """Computes for each round the least seconds until each member has the messages of earlier
    rounds. Those to a member share at least the last link of their ways."""
    found: list[dict[int, float]] = []
    since: dict[int, float] = defaultdict(float)
    for one in times:
        found.append(since)
        since = since.copy()
        to: dict[int, _Times] = {}
        for pair, spent in one.items():
            to.setdefault(pair[1], {})[pair] = spent
        for member, here in to.items():
            for pairs in _by_link(here).values():
                head = min(found[-1][source] for source, _ in pairs)
                since[member] = max(since[member], head + sum(pairs.values()))
    return found


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
