# SPDX-License-Identifier: Apache-2.0
"""Predicts the time of an iteration in closed form, also for networks too large to simulate.

A chunk passes a series of links and processors (``stations``). The worst link stands for its class
(``network``); the placement determines the load of each class (``traffic``). Where servers sum
without in-network aggregation, single packets are simulated instead (``packets``), and parcels of
chunks where layers take time or gradients have an order (``overlap``).
docs/explanation/planning.md lists what the model leaves out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypedDict

from controller.planning.windows import MOST, SKEW
from planner.link_loads import HEADER_FRAME_BYTES
from planner.losses import LossProfile, may_repeat_timeouts, mean_loss_delay
from planner.network import HOST, PROCESS, SERVER, WORKER, ModelError, Network
from planner.overlap import overlapped_at_servers, overlapped_in_tree
from planner.packets import simulate_servers
from planner.parcels import Exchange, Layers
from planner.queues import describe_overflow, queue_frames
from planner.routed import Slicing
from planner.stations import (
    Station,
    full_rate_slots,
    host_seconds,
    link_stations,
    pipeline_seconds,
    server_seconds,
    traversal_seconds,
    wire_bits,
)
from planner.traffic import Traffic, placement_traffic
from protocol.propagation import USUAL, Propagation
from specs import placements
from topologies.model.topology import Costs


@dataclass(frozen=True)
class Work:
    """The data that one iteration sums.

    chunks: number of chunks.
    frame_bytes: size of a chunk's frame, without FCS.
    compute: seconds of computation before the exchange.
    slice: consecutive chunks that go to the same server.
    data_bytes: size of the values alone, which baselines send; 0: the payload of all chunks.
    counts: chunks of each tensor if there are several; a slice never spans two of them.
    layers: times of layers, with which computation and exchange overlap.
    propagation: the order of chunks, and which server has which slice.
    streams: of each class of urgency.
    """

    chunks: int
    frame_bytes: int
    compute: float = 0.0
    slice: int = 1
    data_bytes: int = 0
    counts: tuple[int, ...] = ()
    layers: Layers | None = None
    propagation: Propagation = USUAL
    streams: int = 1

    def __post_init__(self) -> None:
        if not self.data_bytes:
            object.__setattr__(self, "data_bytes", self.chunks * self.payload_bytes)
        for name in ("chunks", "frame_bytes", "slice"):
            if getattr(self, name) < 1:
                raise ModelError(f"{name} of {getattr(self, name)}; allowed: 1 or more")
        if self.compute < 0:
            raise ModelError(f"{self.compute} s to compute; allowed: 0 and above")
        if self.counts and sum(self.counts) != self.chunks:
            raise ModelError(f"{self.chunks} chunks, of tensors of {sum(self.counts)}")
        if self.layers is not None and len(self.layers.of_tensor) != len(self.counts):
            raise ModelError(
                f"layers of {len(self.layers.of_tensor)} tensors, and {len(self.counts)} tensors"
            )

    @property
    def windows(self) -> int:
        """Number of streams, each of which has a window and slots of its own."""
        return self.streams * self.propagation.classes

    @property
    def payload_bytes(self) -> int:
        """Bytes of a frame that a server adds up."""
        return max(0, self.frame_bytes - HEADER_FRAME_BYTES)

    def exchange(self, window: int) -> Exchange | None:
        """Returns what is simulated in parcels; None if chunks are alike and leave together."""
        if self.layers is None and self.propagation == USUAL:
            return None
        counts = self.counts or (self.chunks,)
        together = Layers((0.0,), (self.compute,), (0,) * len(counts))
        return Exchange(
            self.layers or together, counts, self.slice, self.propagation, window, self.streams,
            self.frame_bytes, self.payload_bytes,
        )  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """Costs and limits besides the links.

    costs: processing costs of nodes and frames, from the topology.
    skew: seconds between the first and the last worker at a chunk.
    window: chunks of a stream in flight; 0: the controller's choice.
    slots: slots of a switch; 0: unlimited.
    """

    costs: Costs = field(default_factory=Costs)
    skew: float = 0.0
    window: int = 0
    slots: int = 0


class PredictionRow(TypedDict):
    """A prediction as JSON."""

    placement: str
    tree: str
    seconds: float | None
    """Time of an iteration; None if the placement is impossible."""
    seconds_of: dict[str, float]
    """Its components."""
    bytes_on: dict[str, int]
    """Bytes by class of links, in the busier direction of the busiest link."""
    bottleneck: str
    """Class of links, or the processor, that limits it."""
    limited_by: str
    """compute, latency, link, processor, window or loss."""
    window_chunks: int
    slots_needed: int
    """Slots of a switch for the full rate."""
    slots_taken: int
    """Slots of two windows of every stream."""
    refused: str
    """Why the placement cannot run; empty if it can."""
    rough: str
    """Why the time is approximate; empty if it is not."""


@dataclass(frozen=True)
class Prediction:
    """The predicted iteration of a placement, or of a baseline, which has no tree.

    seconds: time of an iteration; 0 without `bytes`.
    parts: its components in seconds.
    bytes: by class of links, in the busier direction of the busiest link.
    bottleneck: the class of links, HOST or PROCESS.
    slots_needed: slots of a switch for the full rate; slots_taken: those of two windows of every
        stream.
    limit: compute, latency, link, processor, window or loss.
    refused: why the placement cannot run; "" if it can.
    rough: why the time is approximate; "" if it is not.
    """

    placement: str
    tree: str
    seconds: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)
    bottleneck: str = ""
    window: int = 0
    slots_needed: int = 0
    slots_taken: int = 0
    limit: str = ""
    refused: str = ""
    rough: str = ""

    @property
    def name(self) -> str:
        """The name in tables."""
        return f"{self.placement} ({self.tree})" if self.tree else self.placement

    def message(self) -> PredictionRow:
        """Converts it to JSON: seconds, bytes, and windows in chunks."""
        return {
            "placement": self.placement,
            "tree": self.tree,
            "seconds": self.seconds if self.bytes else None,
            "seconds_of": self.parts,
            "bytes_on": self.bytes,
            "bottleneck": self.bottleneck,
            "limited_by": self.limit,
            "window_chunks": self.window,
            "slots_needed": self.slots_needed,
            "slots_taken": self.slots_taken,
            "refused": self.refused,
            "rough": self.rough,
        }


def predict_placements(
    network: Network, work: Work, setting: Setting, *, only: str = ""
) -> list[Prediction]:
    """Predicts every placement with each of its trees.

    only: The name of a placement, to predict no other.
    """
    slicing = Slicing(work.counts or (work.chunks,), work.slice, work.propagation)
    found = []
    for kind in placements.KINDS:
        if only not in ("", kind.name):
            continue
        for tree in dict.fromkeys(kind.trees.values()):
            try:
                traffic = placement_traffic(network, kind, tree, slicing)
                level = network.level() if traffic.shards > 1 else network
                traffic = placement_traffic(level, kind, tree, slicing)
            except ModelError as error:
                found.append(Prediction(kind.name, tree, refused=str(error)))
                continue
            found.append(_predict(level, work, setting, kind.name, tree, traffic))
    return found


def _predict(
    network: Network, work: Work, setting: Setting, name: str, tree: str, traffic: Traffic
) -> Prediction:
    lines, costs = network.lines, setting.costs
    bits = wire_bits(work.frame_bytes, costs)
    host, process = host_seconds(work.frame_bytes, costs), server_seconds(work.payload_bytes, costs)
    alone = {one: load * bits / lines[one].rate for one, load in traffic.loads.items()}
    steps = {one: took / (1 - lines[one].loss) for one, took in alone.items()}
    for one, took in ((HOST, traffic.loads[WORKER] * host), (PROCESS, traffic.served * process)):
        alone[one] = steps[one] = took
    slowest = max(steps, key=lambda one: steps[one])
    step = steps[slowest]
    there, back = (
        traversal_seconds(_stations(network, work, traffic, costs, up=up)) for up in (True, False)
    )
    fill = there + back + setting.skew
    window = setting.window or _window(network, work, traffic)
    edges = tuple((lines[one].loss, count) for one, count in traffic.edges.items() if one in lines)
    refused = traffic.refused
    lossy = LossProfile(edges, len(traffic.hops))
    again = mean_loss_delay(work.chunks, step, fill, window, lossy, steps.get(WORKER))

    # In the queues of servers that sum alone, packet order determines the time. A single server
    # beside a worker that no window limits is the exception: its links are always busy.
    alone_there = traffic.colocated and traffic.shards == 1 and fill <= window * step
    follows = traffic.placed is not None and not refused and not alone_there

    def moving(steps: Mapping[str, float], again: float) -> float:
        if not follows:
            return pipeline_seconds(work.chunks, max(steps.values()), fill, window)
        assert traffic.placed is not None
        assert traffic.sources is not None
        return simulate_servers(
            traffic.placed, traffic.sources, work.chunks, work.slice, window, work.frame_bytes,
            work.payload_bytes, costs, step=max(steps.values()), skew=setting.skew,
            colocated=traffic.colocated, lossy=again > 0,
        )  # fmt: skip

    exchange = None if refused else work.exchange(window)
    if exchange is None:
        lossless = moving(alone, 0.0)
        moved = moving(steps, again) + again if again else lossless
    else:
        total = _overlapped(exchange, traffic, setting, step, fill)
        lossless, moved = total - work.compute, total - work.compute + again
    busy = work.chunks * alone[slowest]
    way = max(0.0, fill - alone[slowest])  # a chunk's latency without its time at the bottleneck
    # The slots and the window that the rate of the slowest link needs.
    rate = bits / step if step else 0.0
    needed = full_rate_slots(rate, fill - setting.skew, setting.skew, bits)
    taken = 2 * window * work.windows if traffic.switches else 0
    if not refused and setting.slots and taken > setting.slots:
        of = f" of each of {work.windows} streams" if work.windows > 1 else ""
        refused = f"a window of {window}{of} takes {taken} slots, a switch has {setting.slots}"
    rest = lossless - way - busy
    waiting = max(0.0, rest)
    if exchange is not None and fill <= window * step:
        way, waiting = way + waiting, 0.0  # for whole slices, or for more urgent ones
    parts = {
        "compute": work.compute, "bottleneck": busy, "fill": way, "window": waiting,
        "loss": moved - lossless, "overlap": 0.0 if exchange is None else min(0.0, rest),
    }  # fmt: skip
    limit = "latency" if way > busy + waiting else "link" if slowest in lines else "processor"
    limit = "window" if waiting > max(busy, way) / 100 else limit
    limit = "compute" if exchange is not None and moved < work.compute / 100 else limit
    rough = ""
    if not refused and (full := _describe_queue(network, work, traffic, window)):
        rough = full
    if may_repeat_timeouts(work.chunks, window, lossy):
        rough = "many retransmissions are lost as well: some iterations take far longer"
    return Prediction(
        name,
        tree,
        work.compute + moved,
        parts,
        _bytes(traffic, work),
        slowest,
        window,
        needed if traffic.switches else 0,
        taken,
        "loss" if parts["loss"] > moved / 100 else limit,
        refused,
        rough,
    )


def _overlapped(
    exchange: Exchange, traffic: Traffic, setting: Setting, step: float, fill: float
) -> float:
    """Computes the seconds of an iteration that is simulated in parcels.

    step, fill: seconds of a chunk at the slowest station of a tree, and alone.
    """
    if traffic.placed is None or traffic.sources is None:
        return overlapped_in_tree(exchange, step, fill)
    return overlapped_at_servers(
        traffic.placed, traffic.sources, exchange, setting.costs, skew=setting.skew,
        colocated=traffic.colocated,
    )  # fmt: skip


def _stations(
    network: Network, work: Work, traffic: Traffic, costs: Costs, *, up: bool
) -> list[Station]:
    """Lists the stations of a chunk from a worker to where it is summed, or back."""
    host = host_seconds(work.frame_bytes, costs)
    sums = float(traffic.meeting)
    way = [
        Station(host),
        *link_stations(
            network, traffic.hops, work.frame_bytes, costs, beyond=up and traffic.rooted
        ),
    ]
    if traffic.colocated:
        way.append(Station(host, copies=max(1.0, sums - 1)))
    if up and sums:
        way.append(Station(server_seconds(work.payload_bytes, costs), copies=sums))
    return way


def _window(network: Network, work: Work, traffic: Traffic) -> int:
    """Chooses the window of one stream as ``choose_window`` of the controller does, by classes of
    links."""
    bits = 8 * work.frame_bytes
    names = [name for name, _ in traffic.hops]
    lines = [network.lines[name] for name in names]
    round_trip = 2 * sum(line.delay + bits / line.rate for line in lines)
    wanted = math.ceil(min(line.rate for line in lines) * (round_trip + SKEW) / bits)
    held = min(
        network.lines[name].queue_bytes / (flows * work.windows * work.frame_bytes)
        for name, flows in traffic.flows.items()
    )
    held = MOST if math.isinf(held) else max(1, int(held))
    return min(1 << (wanted - 1).bit_length(), 1 << (held.bit_length() - 1), MOST)


def _describe_queue(network: Network, work: Work, traffic: Traffic, window: int) -> str:
    """Describes a switch queue that can overflow; "" if there is none.

    A worker's own queue delays it but drops nothing, and a single flow arrives no faster than it
    leaves.
    """
    for name, flows in traffic.flows.items():
        where = {WORKER: "a worker's link", SERVER: "a server's link"}.get(name, "an uplink")
        held = queue_frames(network.lines[name].queue_bytes, work.frame_bytes)
        meeting = flows * min(window * work.windows, work.chunks)
        if flows > 1 and (text := describe_overflow(f"a queue of {where}", held, meeting)):
            return text
    return ""


def _bytes(traffic: Traffic, work: Work) -> dict[str, int]:
    return {
        name: round(load * work.chunks * work.frame_bytes) for name, load in traffic.loads.items()
    }
