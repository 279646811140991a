# SPDX-License-Identifier: Apache-2.0
"""Baselines as `rackhub compare` runs them, in closed form: sums over streams framed like TCP.

Bytes are those of their messages' segments, and of frames that acknowledge them the other way
(``planner.flows``); a message of b bytes is ceil(b / segment) of the first and half as
many of the second. Times:

- ring: a piece goes on as soon as it is there, so a part's pieces follow each other round the ring
  like chunks in a window of that many: ``pipeline`` of 2 (n - 1) parts, with a hop for `fill`.
- halving and doubling: rounds, each of which takes as long as the slowest class of links, and a
  segment's way.
- servers: segment by segment (``segments``), unless streams are too many: then the busiest link has
  all to carry. Before a server's first results leave, a piece has
  come from everybody; those in other racks wait in line behind the windows of those in its own.

Rounds do not begin everywhere at once: where workers are no power of two, those that have nobody to
fold with share links with those that do, and what the formula says is too quick.

What is lost costs the bandwidth of what is sent again and no timeouts, which favours baselines.
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
    """So many bytes in segments, and the frames that acknowledge them."""

    data: float
    segments: int
    acks: int

    @property
    def bytes(self) -> float:
        """In both directions together: streams the other way have as much in theirs."""
        return self.data + TCP_HEADERS * (self.segments + self.acks)

    def bits(self, costs: Costs) -> float:
        """That a link has to carry."""
        extra = wire_bits(TCP_HEADERS, costs) - 8 * TCP_HEADERS
        return 8 * self.bytes + extra * (self.segments + self.acks)

    def worked(self, costs: Costs) -> float:
        """Seconds of a worker's host."""
        frames = costs.host_per_packet * (self.segments + self.acks)
        return frames + costs.host_per_byte * self.bytes


class _BaselineModel:
    """What is to be summed, in segments."""

    def __init__(self, network: Network, work: Work, setting: Setting) -> None:
        self.network, self.work, self.costs = network, work, setting.costs
        self.segment = segment(network.mtu)
        self.frame = self.segment + TCP_HEADERS

    def message(self, data: float) -> SegmentedMessage:
        segments = -int(-data // self.segment)
        return SegmentedMessage(data, segments, -(-segments // 2))

    def seconds(self, one: str, message: SegmentedMessage, copies: float = 1.0) -> float:
        """That links of a class, or a worker's host, have to do with so many of a message."""
        if one == HOST:
            return copies * message.worked(self.costs)
        line = self.network.lines[one]
        return copies * message.bits(self.costs) / (line.rate * (1 - line.loss))

    def piece(self, parts: int) -> int:
        """Bytes of a part that go on before the rest has come."""
        return VALUE * piece(self.work.data_bytes / VALUE, parts, self.segment)

    def way(self, levels: int, data: float, last: str = WORKER) -> float:
        """Seconds of a message's last segment, from a worker up so many levels of uplinks and down
        again."""
        frame = TCP_HEADERS + int(min(self.segment, data))
        up = self.network.way(levels)
        names = [*up, *reversed([last, *up[1:]])]
        host = host_seconds(frame, self.costs) * (2 if last == WORKER else 1)
        hops = [(name, 1.0) for name in names]
        return host + traversal_seconds(link_stations(self.network, hops, frame, self.costs))

    def predicted(
        self, name: str, busy: Mapping[str, float], total: float, loads: Mapping[str, float]
    ) -> Prediction:
        """busy: s that each class has to do. loads: bytes."""
        slowest = max(busy, key=lambda one: busy[one])
        total = max(total, busy[slowest])  # of few segments the formulas leave out the last ones
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
    """Ring, halving and doubling, and servers, with the names that `rackhub compare` has for them.

    Those with servers are left out where there are none, or one for all.
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
    # A piece's first segments are on their way while the others still leave.
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
    """Levels of uplinks between each worker and the next one, in the order of racks."""
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
        # The fold goes one way, and in the end the other; all else is an exchange.
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
