# SPDX-License-Identifier: Apache-2.0
"""Pipeline model of a chunk's way: a series of links and processors, each serving one packet.

With C chunks, W of them in flight, the last one is back after

    fill + (C - 1) step                      where the window does not limit,
    fill (1 + (C - 1) // W) + step ((C - 1) mod W)      where fill > W step does,

fill: the time of a single chunk from a worker to the root and back, without other chunks in flight;
step: the longest service time of a chunk at any station. Both solve the recurrence
d(k) = max(d(k - 1) + step, d(k - W) + fill).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from planner.network import Network
from protocol.ethernet import FRAMING, LEAST_ON_WIRE
from topologies.model.topology import Costs


@dataclass(frozen=True)
class Station:
    """A link or processor on a chunk's way.

    seconds: service time of a packet.
    after: seconds from the end of service until the next station has the packet.
    copies: packets of the same chunk that arrive together and queue.
    """

    seconds: float
    after: float = 0.0
    copies: float = 1.0


def wire_bits(frame_bytes: int, costs: Costs) -> float:
    """Computes a frame's bits on a link, with padding of short ones (IEEE 802.3, 3.2.8)."""
    return 8.0 * (max(frame_bytes, LEAST_ON_WIRE) + (FRAMING if costs.framing else 0))


def host_seconds(frame_bytes: int, costs: Costs) -> float:
    """Computes the seconds that a worker's host spends on a frame, each way."""
    return costs.host_per_packet + costs.host_per_byte * frame_bytes


def server_seconds(payload_bytes: int, costs: Costs) -> float:
    """Computes the seconds that a server process spends on a payload."""
    return 8 * payload_bytes / costs.server_rate if costs.server_rate else 0.0


def link_stations(
    network: Network,
    hops: Iterable[tuple[str, float]],
    frame_bytes: int,
    costs: Costs,
    *,
    beyond: bool = False,
) -> list[Station]:
    """Converts hops to stations: links and the switches between them.

    hops: class of each link and the copies of a chunk on it.
    beyond: include the switch after the last link.
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
    """Computes the seconds until the last copy of a chunk has passed all stations.

    Stations work in parallel: copies queue at the slowest of them only.
    """
    alone = sum(one.seconds + one.after for one in way)
    return alone + max((one.copies - 1) * one.seconds for one in way)


def pipeline_seconds(chunks: int, step: float, fill: float, window: int | None) -> float:
    """Computes the seconds until the last chunk is back, by the module's formula."""
    if window is None or fill <= window * step:
        return fill + (chunks - 1) * step
    return fill * (1 + (chunks - 1) // window) + step * ((chunks - 1) % window)


def full_rate_slots(rate: float, round_trip: float, skew: float, packet_bits: float) -> int:
    """Computes the slots that keep a link busy: 2 ceil(rate (RTT + skew) / packet bits).

    SwitchML (NSDI'21, section 3.6) needs the bandwidth-delay product once for slots in use, and
    once for results that may be requested again.
    """
    # Rounding error: 3.0000000000000004 packets are 3.
    return 2 * max(1, math.ceil(rate * (round_trip + skew) / packet_bits * (1 - 1e-12)))
