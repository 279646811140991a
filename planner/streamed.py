# SPDX-License-Identifier: Apache-2.0
"""Converts the data of collectives to TCP segments, and those to times on classes of links.

Bytes are those of segments and of acknowledgements the other way (``planner.flows``): a message of
b bytes has ceil(b / segment) segments and half as many acknowledgements. Losses cost the bandwidth
of retransmissions but no timeouts, which favours the baselines.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from planner.flows import VALUE, piece, segment
from planner.iteration_time import Prediction, Setting, Work
from planner.network import HOST, WORKER, Network
from planner.stations import host_seconds, link_stations, traversal_seconds, wire_bits
from protocol.ethernet import TCP_HEADERS
from topologies.model.topology import Costs

_REFUSED = "a baseline, which is not run by a job's placement"


@dataclass(frozen=True)
class SegmentedMessage:
    """A message of `data` bytes as segments, and the frames that acknowledge them."""

    data: float
    segments: int
    acks: int

    @property
    def bytes(self) -> float:
        """Bytes of one direction, which also carries the other stream's acknowledgements."""
        return self.data + TCP_HEADERS * (self.segments + self.acks)

    def bits(self, costs: Costs) -> float:
        """Computes the bits on a link."""
        extra = wire_bits(TCP_HEADERS, costs) - 8 * TCP_HEADERS
        return 8 * self.bytes + extra * (self.segments + self.acks)

    def worked(self, costs: Costs) -> float:
        """Computes the seconds of a worker's host."""
        frames = costs.host_per_packet * (self.segments + self.acks)
        return frames + costs.host_per_byte * self.bytes


class StreamModel:
    """An iteration's data as segments, and their times."""

    def __init__(self, network: Network, work: Work, setting: Setting) -> None:
        self.network, self.work, self.costs = network, work, setting.costs
        self.segment = segment(network.mtu)
        self.frame = self.segment + TCP_HEADERS

    def message(self, data: float) -> SegmentedMessage:
        """Splits `data` bytes into segments."""
        segments = -int(-data // self.segment)
        return SegmentedMessage(data, segments, -(-segments // 2))

    def seconds(self, one: str, message: SegmentedMessage, copies: float = 1.0) -> float:
        """Computes the time of `copies` of a message on a class of links, or at HOST."""
        if one == HOST:
            return copies * message.worked(self.costs)
        line = self.network.lines[one]
        return copies * message.bits(self.costs) / (line.rate * (1 - line.loss))

    def piece(self, parts: int) -> int:
        """Computes the bytes of a part that are forwarded before the rest arrives."""
        return VALUE * piece(self.work.data_bytes / VALUE, parts, self.segment)

    def way(self, levels: int, data: float, last: str = WORKER, first: str = WORKER) -> float:
        """Computes the latency of a message's last segment, from a link of class `first` up
        `levels` levels of uplinks and down again to one of class `last`."""
        frame = TCP_HEADERS + int(min(self.segment, data))
        up = self.network.way(levels)
        names = [first, *up[1:], *reversed([last, *up[1:]])]
        host = host_seconds(frame, self.costs) * [first, last].count(WORKER)
        hops = [(name, 1.0) for name in names]
        return host + traversal_seconds(link_stations(self.network, hops, frame, self.costs))

    def prediction(
        self,
        name: str,
        busy: Mapping[str, float],
        total: float,
        loads: Mapping[str, float],
        rough: str = "",
    ) -> Prediction:
        """Builds the prediction; busy: seconds of work of each class; loads: bytes of each."""
        slowest = max(busy, key=lambda one: busy[one])
        total = max(total, busy[slowest])  # with few segments the formulas omit the last ones
        waits = total - busy[slowest]
        compute = self.work.compute
        return Prediction(
            name,
            "",
            compute + total,
            {"compute": compute, "bottleneck": busy[slowest], "fill": waits},
            {one: round(load) for one, load in loads.items()},
            slowest,
            limit="latency"
            if waits > busy[slowest]
            else "processor"
            if slowest == HOST
            else "link",
            refused=_REFUSED,
            rough=rough,
        )
