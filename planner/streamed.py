# SPDX-License-Identifier: Apache-2.0
"""Predicts the baselines of `rackhub compare`: sums over TCP streams.

Bytes are those of segments and of acknowledgements the other way (``planner.flows``): a message of
b bytes has ceil(b / segment) segments and half as many acknowledgements. Times:

- ring: a piece is forwarded as soon as it arrives, so a part's pieces travel round the ring like
  chunks in a window of as many: ``pipeline_seconds`` of 2 (n - 1) parts, with one hop as `fill`.
- halving and doubling: each round takes the time of the slowest class of links plus the latency of
  a segment.
- servers: segment by segment (``segments``). With too many streams for that, the time of the
  busiest link. A server's first results wait for a piece of every worker; pieces from other racks
  queue behind the windows of those in its own.

Rounds do not begin everywhere at once: if the number of workers is no power of two, workers without
a partner to fold with share links with others, and the formula is too optimistic.

Losses cost the bandwidth of retransmissions but no timeouts, which favours the baselines.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from planner.analytic import HOST, Prediction, Setting, Work
from planner.flows import VALUE, piece, segment
from planner.network import SERVER, WORKER, Network
from planner.routed import Slicing
from planner.segments import simulate_streams
from planner.stations import (
    host_seconds,
    link_stations,
    pipeline_seconds,
    traversal_seconds,
    wire_bits,
)
from planner.traffic import Traffic, baseline_traffic, placement_traffic
from protocol.ethernet import TCP_HEADERS
from specs.placements import Kind, kind_of
from topologies.model.topology import Costs

__all__ = ["predict_baselines"]

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


class _BaselineModel:
    """Converts the data of an iteration to segments and their times."""

    def __init__(self, network: Network, work: Work, setting: Setting) -> None:
        self.network, self.work, self.costs = network, work, setting.costs
        self.segment = segment(network.mtu)
        self.frame = self.segment + TCP_HEADERS

    def message(self, data: float) -> SegmentedMessage:
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

    def way(self, levels: int, data: float, last: str = WORKER) -> float:
        """Computes the latency of a message's last segment, from a worker up `levels` levels of
        uplinks and down again."""
        frame = TCP_HEADERS + int(min(self.segment, data))
        up = self.network.way(levels)
        names = [*up, *reversed([last, *up[1:]])]
        host = host_seconds(frame, self.costs) * (2 if last == WORKER else 1)
        hops = [(name, 1.0) for name in names]
        return host + traversal_seconds(link_stations(self.network, hops, frame, self.costs))

    def predicted(
        self, name: str, busy: Mapping[str, float], total: float, loads: Mapping[str, float]
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
        )


def predict_baselines(network: Network, work: Work, setting: Setting) -> list[Prediction]:
    """Predicts ring, halving-doubling and parameter servers, by the names of `rackhub compare`.

    Parameter servers are left out without a server, sharded ones with a single one.
    """
    streams = _BaselineModel(network, work, setting)
    both = baseline_traffic(network)
    found = [_ring(streams, both["ring"]), _halving(streams, both["halving-doubling"])]
    for name, word, least in (("ps", "ncc", 1), ("sharded-ps", "ncs", 2)):
        kind = kind_of(word)
        if sum(network.servers) * network.processes >= least and kind is not None:
            found.append(_servers(streams, name, kind))
    return found


def _ring(streams: _BaselineModel, traffic: Traffic) -> Prediction:
    network, count = streams.network, streams.network.count
    if count == 1:
        return streams.predicted("ring", {WORKER: 0.0}, 0.0, {WORKER: 0})
    part = streams.message(streams.work.data_bytes / count)
    size = streams.piece(count)
    pieces = max(1, -int(-part.data // size))
    classes = [*traffic.loads, HOST]
    busy = {one: 2 * (count - 1) * streams.seconds(one, part) for one in classes}
    step = max(busy.values()) / (2 * (count - 1) * pieces)
    # The first segments of a piece propagate while the others are still being sent.
    segments = min(part.segments, size // streams.segment)
    ways = [streams.way(levels, part.data) for levels in range(len(network.levels) + 1)]
    hops = [ways[levels] for levels in _crossed(network)]
    once = sum(hops)
    least = min(first + second for first, second in pairwise([*hops, hops[0]]))
    mean = (2 * once - least) / (2 * (count - 1))  # all but two neighbours' hops a second time
    hop = mean + step * (segments - 1) / segments
    total = pipeline_seconds(2 * (count - 1) * pieces, step, hop, pieces)
    loads = dict.fromkeys(traffic.loads, 2 * (count - 1) * part.bytes)
    return streams.predicted("ring", busy, total, loads)


def _crossed(network: Network) -> list[int]:
    """Counts the levels of uplinks between each worker and its successor, in the order of racks."""
    racks = [rack for rack, count in enumerate(network.workers) if count]
    found = [0] * (network.count - len(racks))
    for rack, other in pairwise([*racks, racks[0]]):
        level = 0
        while rack != other and network.pod(level, rack) != network.pod(level, other):
            level += 1
        found.append(level)
    return found


def _halving(streams: _BaselineModel, traffic: Traffic) -> Prediction:
    busy: dict[str, float] = dict.fromkeys([*traffic.loads, HOST], 0.0)
    loads: dict[str, float] = dict.fromkeys(traffic.loads, 0.0)
    total = 0.0
    for step in traffic.steps:
        message = streams.message(streams.work.data_bytes * step.share)
        # A fold has one direction, and the other at the end; all other rounds are exchanges.
        fold = step.share == 1
        on_wire = replace(message, acks=0) if fold else message
        took = {one: streams.seconds(one, on_wire, flows) for one, flows in step.flows.items()}
        took[HOST] = streams.seconds(HOST, message)
        for one, seconds in took.items():
            busy[one] += seconds
        for one, flows in step.flows.items():
            loads[one] += flows * message.bytes / (2 if fold else 1)
        total += max(took.values()) * (1 - 1 / message.segments) + streams.way(
            step.levels, message.data
        )
    found = streams.predicted("halving-doubling", busy, total, loads)
    if traffic.steps and traffic.steps[0].share == 1:
        return replace(found, rough="workers are no power of two: up to 20 % longer")
    return found


def _servers(streams: _BaselineModel, name: str, kind: Kind) -> Prediction:
    network, ends = streams.network, streams.network.ends(SERVER)
    if kind.central:
        network = network.served_at(replace(ends.of_first(1), units=(0,)))
    traffic = placement_traffic(network, kind, "none", Slicing())
    shards = len(network.ends(SERVER).units)
    part = streams.message(streams.work.data_bytes / shards)
    pairs = {one: load * shards for one, load in traffic.loads.items()}
    busy = {one: streams.seconds(one, part, count) for one, count in pairs.items()}
    busy[HOST] = streams.seconds(HOST, part, shards)
    slowest = max(busy, key=lambda one: busy[one])
    segments = min(part.segments, streams.piece(shards) // streams.segment)
    window = min(
        network.lines[one].queue_bytes / (count * (streams.frame + TCP_HEADERS))
        for one, count in pairs.items()
    )
    racks = [count for count, here in zip(network.workers, network.servers, strict=True) if here]
    nearer = max(racks) % network.count / network.count  # of all workers; none if all are
    first = segments + nearer * int(min(part.segments, window))
    line = busy[slowest] * min(1.0, first / part.segments)
    levels = len(traffic.hops) // 2 - 1
    total = busy[slowest] + line + 2 * streams.way(levels, part.data, SERVER)
    size = max(1, streams.piece(shards) // streams.segment)
    last = streams.frame - (part.segments * streams.segment - math.ceil(part.data))
    followed = simulate_streams(network, streams.costs, part.segments, size, streams.frame, last)
    total = total if followed is None else max(followed, busy[slowest])
    loads = {one: count * part.bytes for one, count in pairs.items()}
    found = streams.predicted(name, busy, total, loads)
    if followed is None and levels:
        return replace(
            found, rough="too many streams to follow, which share links unequally: within 20 %"
        )
    return found
