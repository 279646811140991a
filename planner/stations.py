# SPDX-License-Identifier: Apache-2.0
"""What a chunk passes: links and processors in a row, each of which works on one packet at a time.

Of C chunks over such a line, with W of them in flight, the last one is back after

    fill + (C - 1) step                      where the window does not limit,
    fill (1 + (C - 1) // W) + step ((C - 1) mod W)      where fill > W step does,

fill: the time of a single chunk from a worker to the root and back, when nothing else is under way
but the other workers' of the same chunk; step: the longest that any station works on a chunk. Both
are what d(k) = max(d(k - 1) + step, d(k - W) + fill) comes to.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from planner.network import Network
from protocol.ethernet import FRAMING, LEAST_ON_WIRE
from topologies.model.topology import Costs

__all__ = [
    "Station",
    "full_rate_slots",
    "host_seconds",
    "link_stations",
    "pipeline_seconds",
    "server_seconds",
    "traversal_seconds",
    "wire_bits",
]


@dataclass(frozen=True)
class Station:
    """seconds: for a packet. after: s from its end until the next station has it. copies: of the
    same chunk, which come together and wait for each other."""

    seconds: float
    after: float = 0.0
    copies: float = 1.0


def wire_bits(frame_bytes: int, costs: Costs) -> float:
    """What a frame occupies a link for; short ones are padded (IEEE 802.3, 3.2.8)."""
    return 8.0 * (max(frame_bytes, LEAST_ON_WIRE) + (FRAMING if costs.framing else 0))


def host_seconds(frame_bytes: int, costs: Costs) -> float:
    """Seconds that a worker's host spends on a frame, each way."""
    return costs.host_per_packet + costs.host_per_byte * frame_bytes


def server_seconds(payload_bytes: int, costs: Costs) -> float:
    """Seconds that a server process spends on a payload."""
    return 8 * payload_bytes / costs.server_rate if costs.server_rate else 0.0


def link_stations(
    network: Network,
    hops: Iterable[tuple[str, float]],
    frame_bytes: int,
    costs: Costs,
    *,
    beyond: bool = False,
) -> list[Station]:
    """Links of these classes, with so many copies on each, and the switches between them.

    beyond: and the one after the last.
    """
    bits = wire_bits(frame_bytes, costs)
    lines = [(network.lines[name], copies) for name, copies in hops]
    return [
        Station(
            bits / line.rate,
            line.delay + (costs.switch_latency if beyond or number < len(lines) else 0.0),
            copies,
        )
        for number, (line, copies) in enumerate(lines, 1)
    ]


def traversal_seconds(way: Sequence[Station]) -> float:
    """Seconds until the last copy of a chunk is through.

    Stations work at the same time: copies wait in line where that takes longest.
    """
    alone = sum(one.seconds + one.after for one in way)
    return alone + max((one.copies - 1) * one.seconds for one in way)


def pipeline_seconds(chunks: int, step: float, fill: float, window: int | None) -> float:
    """Seconds until the last of so many chunks is back; see the module."""
    if window is None or fill <= window * step:
        return fill + (chunks - 1) * step
    return fill * (1 + (chunks - 1) // window) + step * ((chunks - 1) % window)


def full_rate_slots(rate: float, round_trip: float, skew: float, packet_bits: float) -> int:
    """Slots that keep a link of that rate busy: 2 ceil(rate (RTT + skew) / packet bits).

    SwitchML (NSDI'21, section 3.6) has one of each for the bandwidth-delay product; the second is
    for results that may be asked for again.
    """
    # A hair less: 3.0000000000000004 packets are 3.
    return 2 * max(1, math.ceil(rate * (round_trip + skew) / packet_bits * (1 - 1e-12)))
