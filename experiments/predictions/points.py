# SPDX-License-Identifier: Apache-2.0
"""Networks and jobs on which the model is held against runs in virtual time, and how.

Bytes of a link are those of the whole run: the model's copies of a tensor, times what a copy is,
first round without payload included. An iteration's time is the mean of those after the first one,
which begins before all have contributed and finds exponents; with loss there are more of them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any

from controller.dataplane import SLICE_BYTES
from testbed.plans.analytic import Costs, Work, predictions
from testbed.plans.expected import HEADER_FRAME_BYTES
from testbed.plans.network import SERVER, WORKER, Network, uplink
from testbed.plans.placements import Tree, kind_of
from testbed.sweeps import code
from testbed.sweeps.execution import execute
from topologies.spec import parse
from topologies.topology import Topology

__all__ = ["POINTS", "Point", "Result", "measure"]

Message = dict[str, Any]


@dataclass(frozen=True)
class Point:
    """racks of so many workers each; servers: in a rack of their own, or beside the workers of the
    first rack if there is one rack. rate, up: bit/s of hosts' links and of uplinks (0: the same).
    delay: s. chunk, size: bytes. window: 0: the controller's. loss: of a packet on each link."""

    what: str
    placement: str = "inc"
    tree: str = "two-level"
    racks: int = 2
    workers: int = 4
    servers: int = 4
    rate: float = 10e9
    up: float = 0.0
    delay: float = 1e-6
    chunk: int = 8192
    size: int = 2 << 20
    window: int = 0
    loss: float = 0.0
    iterations: int = 3

    @property
    def within(self) -> float:
        """What its time is predicted within, relative: docs/plan.md says why."""
        if self.loss:
            return 0.5
        return 0.35 if self.what == "slices" else 0.03

    @property
    def name(self) -> str:
        """As the table has it: what is not as in the first one."""
        units = {
            "rate": ("Gbit/s", 1e9),
            "up": ("Gbit/s uplinks", 1e9),
            "delay": ("us of delay", 1e-6),
        }
        units |= {"chunk": ("KiB chunks", 1024), "size": ("KiB in all", 1024)}
        told = [f"`{self.placement}` (`{self.tree}`)"]
        for field in fields(self)[3:]:
            value, usual = getattr(self, field.name), field.default
            if value == usual or field.name == "iterations":
                continue
            unit, one = units.get(field.name, ("", 1))
            amount = f"{value / one:g}"
            told.append(f"{amount} {unit}" if unit else f"{field.name} {amount}")
        return ", ".join(told)

    @property
    def full_tree(self) -> Tree:
        """Its name in a job without a placement's word."""
        kind = kind_of(self.placement)
        assert kind is not None
        return kind.trees[self.tree]

    @property
    def topology(self) -> str:
        """The file."""
        racks = [f"{{workers: {self.workers}, count: {self.racks}}}"]
        if self.racks == 1:
            racks = [f"{{workers: {self.workers}, servers: {self.servers}}}"]
        else:
            racks.append(f"{{workers: 0, servers: {self.servers}}}")
        lines = [
            "name: point",
            f"defaults: {{rate: {self.rate:.0f} bit/s, delay: {self.delay * 1e6:g} us,"
            f" queue_bytes: 4 MiB, mtu: {1500 if self.chunk < 1400 else 9216}, loss: {self.loss}}}",
            f"racks: [{', '.join(racks)}]",
        ]
        if self.racks > 1:
            lines.append("cores: 1")
        if self.up:
            lines.append(f"uplinks: {{rate: {self.up:.0f} bit/s}}")
        return "\n".join(lines) + "\n"

    @property
    def job(self) -> str:
        """The file."""
        where = self.placement
        if where == "inc-server":  # whose servers would take steps, and there are none to take
            where = "{servers: [s0]}"
        window = f"window: {self.window}\n" if self.window else ""
        return (
            f"name: point\nworkload: layers\nlayers: [{self.size} B]\nseed: 1\n"
            f"iterations: {self.iterations}\npayload: none\nchunk_bytes: {self.chunk}\n{window}"
            f"placement: {where}\ntree: {self.full_tree}\n"
        )


_PLACEMENTS = (
    ("inc", "two-level"), ("inc", "core"), ("inc-server", "two-level"), ("inc-server", "tor"),
    ("inc-server", "core"), ("ncs", "none"), ("ncc", "none"), ("cs", "none"), ("cc", "none"),
)  # fmt: skip
_LOSSES = (1e-4, 1e-3)
POINTS = (
    *(Point("placement", placement, tree) for placement, tree in _PLACEMENTS),
    *(Point("racks", racks=racks) for racks in (1, 4, 8)),
    *(Point("workers", workers=workers) for workers in (1, 8, 16)),
    *(Point("rate", rate=rate) for rate in (100e6, 1e9, 100e9)),
    Point("slices", "ncs", "none", racks=1, chunk=1024, size=512 << 10),
    Point("slices", "cs", "none", chunk=1024, size=512 << 10),
    Point("uplinks", up=2.5e9),
    Point("uplinks", "ncs", "none", up=2.5e9),
    *(Point("chunk", chunk=chunk) for chunk in (1024, 4096)),
    *(Point("size", size=size) for size in (8 << 10, 64 << 10, 512 << 10, 8 << 20)),
    *(Point("delay", delay=delay) for delay in (10e-6, 100e-6)),
    *(Point("window", window=window) for window in (1, 4, 16)),
    *(Point("loss", size=512 << 10, loss=loss, iterations=100) for loss in _LOSSES),
)  # fmt: skip


@dataclass(frozen=True)
class Result:
    """Of a point. predicted, measured: s of an iteration; error: of the first, relative. bytes: by
    class of links, predicted and measured, of the whole run on its busiest direction."""

    point: Point
    predicted: float
    measured: float
    bytes: dict[str, tuple[float, int]]
    again: int

    @property
    def error(self) -> float:
        """Relative."""
        return self.predicted / self.measured - 1

    @property
    def wrong(self) -> dict[str, tuple[float, int]]:
        """Classes of links whose bytes are not those predicted."""
        if self.again:  # of these the model does not tell bytes
            return {}
        return {name: pair for name, pair in self.bytes.items() if abs(pair[0] - pair[1]) >= 1}

    def message(self) -> Message:
        """As JSON takes it."""
        return {**asdict(self), "error": self.error}


def measure(point: Point) -> Result:
    """Runs a point. Raises RuntimeError if it cannot be."""
    outcome = execute(code.digest(), point.topology, point.job, "here")
    if outcome.summary is None:
        raise RuntimeError(f"{point}: {outcome.error}\n{outcome.log}")
    summary = outcome.summary
    topology = parse(point.topology)
    frame = HEADER_FRAME_BYTES + point.chunk
    in_a_row = max(1, SLICE_BYTES // point.chunk)
    work = Work(math.ceil(point.size / point.chunk), frame, slice=in_a_row)
    workers = [node.name for node in topology.workers]
    servers = [node.name for node in topology.servers]
    network = Network.of(topology, workers, servers)
    costs = Costs(window=point.window)
    model = next(
        one
        for one in predictions(network, work, costs)
        if (one.placement, one.tree) == (point.placement, point.full_tree)
    )
    assert model.bytes is not None, model
    # A copy in the whole run, of a copy in an iteration.
    share = (point.iterations * frame + HEADER_FRAME_BYTES) / frame
    carried = dict(_busiest(topology, summary["links"]))
    return Result(
        point,
        model.seconds,
        statistics.fmean(summary["seconds_per_iteration"][1:]),
        {name: (share * load, carried.get(name, 0)) for name, load in model.bytes.items()},
        summary["chunks"]["retransmitted"],
    )


def _busiest(topology: Topology, links: list[Message]) -> Iterator[tuple[str, int]]:
    """Bytes of the busiest direction of each class."""
    nodes = topology.by_name
    found: dict[str, int] = {}
    for row in links:
        ends = [nodes[row["from"]], nodes[row["to"]]]
        low = min(ends, key=lambda node: (node.kind == "switch", node.level))
        name = {"worker": WORKER, "server": SERVER}.get(low.kind) or uplink(low.level - 1)
        found[name] = max(found.get(name, 0), row["bytes"])
    yield from found.items()
