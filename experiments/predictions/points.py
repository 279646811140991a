# SPDX-License-Identifier: Apache-2.0
"""Networks and jobs on which predictions are compared with runs in virtual time.

Link bytes are those of the whole run: the model's copies of a tensor, times the bytes of a copy,
including the exponent round. An iteration's time is the mean without the first iteration, which
starts before all workers have connected and negotiates exponents, and of jobs whose transfers
overlap with computing without the second and the last; with loss there are more iterations.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial

from baselines import virtual
from baselines.comparison import Work as Compared
from baselines.contenders import contenders
from controller.p4rt.dataplane import SLICE_BYTES
from controller.planning.admission import Resources
from planner.collectives import COLLECTIVES
from planner.collectives.boxes import Boxes
from planner.iteration_time import Prediction, Setting, Work
from planner.job_work import work_of
from planner.link_loads import HEADER_FRAME_BYTES, Direction, receivers
from planner.network import SERVER, WORKER, Network, uplink
from planner.predictions import predictions
from protocol.header import LANE_BYTES
from specs import jobfile
from specs.p4program import HEADERS
from specs.placements import kind_of
from sweeps import code
from sweeps.execution import Order, execute
from testbed import preflight
from testbed.program import program_for, read_program
from topologies.model.addressing import Addressing
from topologies.model.spec import parse
from topologies.model.topology import Topology

__all__ = ["POINTS", "Point", "Result", "measure"]


@dataclass(frozen=True)
class Point:
    """A network and job.

    racks, workers: Racks of so many workers each.
    servers: In a rack of their own, or in the first rack if there is only one.
    beside: Number of workers' racks with a server each, instead.
    cores, costs: As in a topology file.
    rate, up: Bit/s of host links and of uplinks (0: the same).
    delay: Seconds.
    chunk, size: Bytes.
    window: 0 uses the controller's.
    loss: Probability per packet and link.
    model, iteration: Gradients of this model instead of `size`, and the seconds of its passes.
    schedule: As in a job file.
    """

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
    costs: str = ""
    iterations: int = 3
    beside: int = 0
    cores: str = "1"
    model: str = ""
    iteration: float = 0.0
    schedule: str = ""

    @property
    def within(self) -> float:
        """The relative tolerance of the predicted time (docs/results/plan-accuracy.md)."""
        if self.loss:  # a mean of few iterations
            return 0.25
        if self.placement == "halving-doubling" and self.fold:
            return 0.2
        if self.model:
            return 0.05
        if isinstance(COLLECTIVES.get(self.placement), Boxes):
            return 0.2
        return 0.05 if self.placement == "cs" or self.what == "beside" else 0.03

    @property
    def fold(self) -> bool:
        """True if halving-doubling needs a fold: workers are no power of two."""
        count = self.racks * self.workers
        return count & (count - 1) > 0

    @property
    def name(self) -> str:
        """The name in the table: what differs from the first point."""
        units = {
            "rate": ("Gbit/s", 1e9),
            "up": ("Gbit/s uplinks", 1e9),
            "delay": ("us of delay", 1e-6),
        }
        units |= {"beside": ("racks with a server each", 1)}
        units |= {"iteration": ("ms of passes", 1e-3)}
        units |= {"chunk": ("KiB chunks", 1024), "size": ("KiB in all", 1024)}
        parts = [f"`{self.placement}`" + (f" (`{self.tree}`)" if self.tree else "")]
        for field in fields(self)[3:]:
            value, usual = getattr(self, field.name), field.default
            if value == usual or field.name == "iterations":
                continue
            unit, one = units.get(field.name, ("", 1))
            amount = value if isinstance(value, str) else f"{value / one:g}"
            named = amount if field.name == "costs" else f"{field.name} {amount}"
            parts.append(f"{amount} {unit}" if unit else named)
        return ", ".join(parts)

    @property
    def full_tree(self) -> str:
        """The tree's name in a job file without `placement`."""
        kind = kind_of(self.placement)
        assert kind is not None
        return kind.trees[self.tree]

    @property
    def topology(self) -> str:
        """Returns the topology file."""
        racks = [f"{{workers: {self.workers}, count: {self.racks}}}"]
        if self.beside:
            racks = [f"{{workers: {self.workers}, servers: 1, count: {self.beside}}}"]
            if self.racks > self.beside:
                racks.append(f"{{workers: {self.workers}, count: {self.racks - self.beside}}}")
        elif self.racks == 1:
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
            lines.append(f"cores: {self.cores}")
        if self.up:
            lines.append(f"uplinks: {{rate: {self.up:.0f} bit/s}}")
        if self.costs:
            lines.append(f"costs: {{{self.costs}}}")
        return "\n".join(lines) + "\n"

    @property
    def job(self) -> str:
        """Returns the job file."""
        where = self.placement
        if where == "inc-server":  # whose servers would take steps, and there are none to take
            where = "{servers: [s0]}"
        window = f"window: {self.window}\n" if self.window else ""
        sizes = f"workload: layers\nlayers: [{self.size} B]\n"
        if self.model:
            sizes = f"workload: model\nmodel: {self.model}\n"
            sizes += f"compute: {{iteration: {self.iteration} s}}\n"
        if self.schedule:
            sizes += f"schedule: {{{self.schedule}}}\n"
        return (
            f"name: point\n{sizes}seed: 1\n"
            f"iterations: {self.iterations}\npayload: none\nchunk_bytes: {self.chunk}\n{window}"
            f"placement: {where}\ntree: {self.full_tree}\n"
        )


_PLACEMENTS = (
    ("inc", "two-level"), ("inc", "core"), ("inc-server", "two-level"), ("inc-server", "tor"),
    ("inc-server", "core"), ("ncs", "none"), ("ncc", "none"), ("cs", "none"), ("cc", "none"),
)  # fmt: skip
# Node costs: a switch latency of 1 us; hosts and servers slower or faster than links.
_COSTS = (
    ("inc", "two-level", "framing: true, switch_latency: 1 us"),
    ("inc", "two-level", "host_per_packet: 0.5 us, host_per_byte: 0.1 ns"),
    ("inc", "two-level", "host_per_packet: 0.5 us, host_per_byte: 1.3 ns"),
    ("inc-server", "two-level", "server_rate: 40 Gbit/s"),
    ("inc-server", "tor", "server_rate: 4 Gbit/s"),
    ("ncs", "none", "framing: true, switch_latency: 1 us, host_per_packet: 0.5 us"),
    ("ncs", "none", "server_rate: 4 Gbit/s"),
    ("cs", "none", "host_per_packet: 0.5 us, host_per_byte: 1.3 ns, server_rate: 4 Gbit/s"),
)
_BASELINES = (
    *(
        # What switches sum has the usual program's chunks.
        Point("baselines", n, "", beside=2 * isinstance(c, Boxes), chunk=8192 >> 3 * c.switched)
        for n, c in COLLECTIVES.items()
    ),
    Point("baselines", "box-ring", "", 4, beside=4, up=2.5e9),
    Point("baselines", "box-switch", "", 4, beside=4, chunk=1024, up=2.5e9),
    Point("baselines", "ring", "", size=64 << 10),  # dominated by latency
    Point("baselines", "ring", "", workers=3, chunk=1024, costs="framing: true"),
    Point("baselines", "halving-doubling", "", workers=3, chunk=1024),
    Point(
        "baselines", "halving-doubling", "", costs="host_per_packet: 0.5 us, host_per_byte: 1.3 ns"
    ),
    Point("baselines", "ps", "", up=2.5e9),
)
# Servers beside some of 16 workers, under two levels of cores or several cores; few slices.
_TWO = "[{racks: 2, cores: 1}, 1]"
_BESIDE = (
    *(
        Point("beside", placement, tree, 4, window=window, size=512 << 10, beside=2, cores=_TWO)
        for placement, tree, window in (
            ("ncs", "none", 2), ("ncs", "none", 8), ("ncc", "none", 1), ("cs", "none", 2)
        )
    ),
    Point("beside", "ncs", "none", 4, size=72 << 10, beside=2, cores="2"),
    Point("beside", "ncs", "none", 4, size=72 << 10, beside=3, cores="2", up=2.5e9),
    Point("beside", "sharded-ps", "", 4, beside=2, cores=_TWO),
)  # fmt: skip
# Gradients that layers push one after another, by policy; four machines as in P3's evaluation.
_SLICES = "slice: 40000, release: slice"
_WHOLE = "slice: whole, assign: hashed, release: slice"
_FOUR = partial(Point, "overlap", workers=4, model="googlenet-224-full", iteration=0.04)
_OVERLAP = tuple(
    _FOUR(placement, tree, racks, rate=rate, window=window, schedule=schedule, iterations=5)
    for placement, tree, racks, rate, window, schedule in (
        ("inc", "two-level", 2, 10e9, 256, ""),
        ("inc", "two-level", 2, 4e9, 256, ""),
        ("inc", "two-level", 2, 4e9, 256, "order: priority, slice: 40000"),
        ("inc-server", "tor", 2, 4e9, 32, "order: priority, classes: 2, slice: 40000"),
        ("ncs", "none", 1, 4e9, 256, ""),
        ("ncs", "none", 1, 4e9, 256, f"order: priority, {_SLICES}"),
        ("ncs", "none", 2, 10e9, 32, f"order: priority, classes: 2, {_SLICES}"),
        ("cs", "none", 1, 4e9, 256, f"order: fifo, {_WHOLE}"),
        ("cs", "none", 1, 4e9, 256, f"order: fifo, {_SLICES}"),
        ("cs", "none", 1, 4e9, 256, f"order: priority, {_SLICES}"),
        ("cs", "none", 1, 4e9, 256, f"order: credit, {_SLICES}"),
        ("cs", "none", 1, 15e9, 256, f"order: fifo, {_WHOLE}"),
        ("cs", "none", 1, 15e9, 256, f"order: priority, {_SLICES}"),
    )
)
POINTS = (
    *(Point("placement", placement, tree) for placement, tree in _PLACEMENTS),
    *(Point("racks", racks=racks) for racks in (1, 4, 8)),
    *(Point("workers", workers=workers) for workers in (1, 8, 16)),
    *(Point("rate", rate=rate) for rate in (100e6, 1e9, 100e9)),
    *(Point("slices", kind, "none", racks=1, chunk=1024, size=512 << 10) for kind in ("ncs", "cs")),
    Point("slices", "ncs", "none", racks=1, workers=8, servers=8, chunk=1024, size=512 << 10),
    Point("slices", "ncs", "none", racks=1, chunk=1024, size=512 << 10, window=32),
    Point("slices", "cs", "none", chunk=1024, size=512 << 10),
    Point("slices", "cs", "none", racks=1, workers=8, chunk=1024, size=512 << 10, window=128),
    Point("uplinks", up=2.5e9),
    Point("uplinks", "ncs", "none", up=2.5e9),
    *(Point("chunk", chunk=chunk) for chunk in (1024, 4096)),
    *(Point("size", size=size) for size in (8 << 10, 64 << 10, 512 << 10, 8 << 20)),
    *(Point("delay", delay=delay) for delay in (10e-6, 100e-6)),
    *(Point("window", window=window) for window in (1, 4, 16)),
    *(Point("costs", placement, tree, costs=costs) for placement, tree, costs in _COSTS),
    *_BASELINES,
    *_BESIDE,
    *_OVERLAP,
    Point("loss", size=512 << 10, loss=1e-3, iterations=30),
    Point("loss", loss=1e-3, iterations=16),
)  # fmt: skip


@dataclass(frozen=True)
class Result:
    """The result of a point.

    predicted, measured: Seconds per iteration.
    bytes: By class of links, predicted and measured, on its busiest direction in the whole run.
    """

    point: Point
    predicted: float
    measured: float
    bytes: dict[str, tuple[float, float]]
    again: int

    @property
    def error(self) -> float:
        """The relative error of the prediction."""
        return self.predicted / self.measured - 1

    @property
    def wrong(self) -> dict[str, tuple[float, float]]:
        """Classes of links with other bytes than predicted."""
        if self.again:  # the model does not predict bytes of retransmissions
            return {}
        return {name: pair for name, pair in self.bytes.items() if not self._right(*pair)}

    def _right(self, predicted: float, carried: float) -> bool:
        more = carried - predicted
        if self.point.placement in COLLECTIVES:
            # Shares of a tensor may differ by a value, and so by a segment.
            return abs(more) < max(1, 0.01 * carried)
        # A waiting worker may query, and is answered: packets of headers only.
        questions = round(more / HEADER_FRAME_BYTES)
        return 0 <= questions <= 0.05 * carried / HEADER_FRAME_BYTES and (
            abs(more - questions * HEADER_FRAME_BYTES) < 1
        )

    def message(self) -> dict[str, object]:
        """Returns the JSON object."""
        return {**asdict(self), "error": self.error}


def measure(point: Point) -> Result:
    """Runs a point. Raises RuntimeError if it fails."""
    return _compared(point) if point.placement in COLLECTIVES else _ran(point)


def _ran(point: Point) -> Result:
    outcome = execute(code.digest(), Order(point.topology, point.job), "here")
    if outcome.summary is None:
        raise RuntimeError(f"{point}: {outcome.error}\n{outcome.log}")
    summary = outcome.summary
    times = summary["seconds_per_iteration"]
    topology = parse(point.topology)
    model = _model(point, topology)
    frame = HEADER_FRAME_BYTES + point.chunk
    # Scales a copy in an iteration to the whole run.
    share = (point.iterations * frame + HEADER_FRAME_BYTES) / frame
    links = [(row["from"], row["to"], row["bytes"] or 0) for row in summary["links"]]
    carried = _busiest(topology, links)
    return Result(
        point,
        model.seconds,
        # With priorities the second suffers from the first. No forward pass follows on the last.
        statistics.fmean(times[2:-1] if point.model else times[1:]),
        {name: (share * load, carried.get(name, 0)) for name, load in model.bytes.items()},
        summary["chunks"]["retransmitted"],
    )


def _model(point: Point, topology: Topology) -> Prediction:
    chunks = math.ceil(point.size / point.chunk)
    in_a_row = max(1, SLICE_BYTES // point.chunk)
    work = Work(chunks, HEADER_FRAME_BYTES + point.chunk, 0.0, in_a_row, point.size)
    if point.model:
        plane = read_program(*HEADERS.files(), point.chunk // LANE_BYTES)
        work = work_of(jobfile.parse(point.job), plane)
    workers = [node.name for node in topology.workers]
    servers = [node.name for node in topology.servers]
    found = predictions(
        Network.of(topology, workers, servers), work, Setting(topology.costs, window=point.window)
    )
    tree = "" if point.placement in COLLECTIVES else point.full_tree
    model = next(one for one in found if (one.placement, one.tree) == (point.placement, tree))
    assert model.bytes, model
    return model


def _compared(point: Point) -> Result:
    """Runs a point as `rackhub compare` does."""
    topology = parse(point.topology)
    addressing = Addressing(topology)
    plane = program_for([])[2]
    file = jobfile.parse(f"{{name: point, iterations: 1, batch: {len(topology.workers)}}}")
    resources = Resources((node.name for node in topology.switches), plane.slots)
    plan = preflight.admit(file, file.place(topology), 0, addressing, resources, plane, None)
    work = Compared((point.size // 4,), point.iterations)
    (one,) = contenders((point.placement,), addressing, plan, plane, work)
    outcome = virtual.play(one, addressing, plan, plane, work, framing=topology.costs.framing)
    row = outcome.row(addressing, framing=topology.costs.framing)
    links = []
    to = receivers(addressing)
    for link in row["links"]:
        way = Direction(link["from"], link["interface"])
        links.append((way.node, to[way][0], link["bytes"] or 0))
    carried = _busiest(topology, links)
    model = _model(point, topology)
    loads = {name: (float(load), carried.get(name, 0)) for name, load in model.bytes.items()}
    return Result(point, model.seconds, row["seconds"], loads, 0)


def _busiest(topology: Topology, links: Sequence[tuple[str, str, float]]) -> dict[str, float]:
    """Returns the bytes of the busiest direction of each class. links: ends and bytes."""
    nodes = topology.by_name
    found: dict[str, float] = {}
    for source, to, carried in links:
        ends = [nodes[source], nodes[to]]
        low = min(ends, key=lambda node: (node.kind == "switch", node.level))
        name = {"worker": WORKER, "server": SERVER}.get(low.kind) or uplink(low.level - 1)
        found[name] = max(found.get(name, 0), carried)
    return found
