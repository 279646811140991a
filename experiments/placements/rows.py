# SPDX-License-Identifier: Apache-2.0
"""The rows of the table: jobs that differ only in placement, and the checks of their results.

All share one network. It has as many servers as workers, as PHub's formulas for sharded servers
assume, in a rack of their own, so that all their traffic passes the core. The model has 128 chunks
in four slices, an equal share for every server, of which hardly any exceed fixed point: those add
to the formulas.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from observability.messages.summary import FinishedJob
from planner.link_loads import Workload
from specs.jobspec import JobSpec
from specs.placements import KINDS, Kind, kind_of

RACKS, EACH, SERVERS = 2, 2, 4
WORKERS = RACKS * EACH
TOPOLOGY = f"""\
# Racks of workers, one of servers, and a core that all between them passes.
name: placements
defaults: {{rate: 50 Mbit/s}}
racks:
{f"  - {{workers: {EACH}}}{chr(10)}" * RACKS}  - {{workers: 0, servers: {SERVERS}}}
cores: 1
"""
ITERATIONS = 30
JOB: dict[str, Any] = {
    "workload": "digits",
    "hidden": [192, 97],
    "iterations": ITERATIONS,
    "batch": 512,
    "optimizer": {"name": "momentum", "rate": 0.05, "momentum": 0.9},
}
# Tolerance of link bytes, relative to what is expected, or to one tensor where nothing is expected.
TOLERANCE = 0.02


@dataclass(frozen=True)
class Row:
    """A placement and one of its trees, as named in job files."""

    placement: str
    tree: str

    @property
    def name(self) -> str:
        """The job's name."""
        return f"{self.placement}-{self.tree}"

    @property
    def kind(self) -> Kind:
        """The placement's kind."""
        found = kind_of(self.placement)
        assert found is not None
        return found

    @property
    def job(self) -> dict[str, Any]:
        """Returns the job file's content."""
        return {"name": self.name, **JOB, "placement": self.placement, "tree": self.tree}

    @property
    def servers(self) -> int:
        """The number of servers."""
        return min(self.kind.servers(WORKERS), WORKERS if self.kind.colocated else SERVERS)

    @property
    def racks_sum(self) -> bool:
        """True if ToRs sum, so that one copy leaves and one enters a rack."""
        return self.tree in ("two-level", "tor")

    def server_bytes(self, work: Workload) -> float:
        """Returns the expected bytes of a server host's links in the whole run, both directions,
        including initial parameters from all workers."""
        children = RACKS if self.tree == "tor" else 1  # of the server
        own = children * self.kind.copies(WORKERS, self.servers) * work.edge(work.chunks).bytes
        if work.start:
            own += 2 * WORKERS / self.servers * work.initial(work.chunks).bytes
        return own

    def rack_bytes(self, work: Workload) -> float:
        """Returns the expected bytes between a rack and the core in the whole run, per
        direction."""
        copies = 1 if self.racks_sum else EACH
        own = copies * work.edge(work.chunks).bytes
        return own + (EACH * work.initial(work.chunks).bytes if work.start else 0)


# Trees with two names on this topology appear once.
ROWS = tuple(Row(kind.name, tree) for kind in KINDS for tree in kind.trees if "-server" not in tree)


@dataclass(frozen=True)
class Line:
    """The result of a row on a target.

    matches: Weights and all losses equal the reference's.
    server: Mean bytes of a server host's links, both directions.
    up, down: Bytes between the last rack of workers and the core.
    problems: Failed checks.
    """

    placement: str
    tree: str
    target: str
    servers: int
    matches: bool | None
    server: float | None = None
    server_expected: float | None = None
    up: int | None = None
    down: int | None = None
    rack_expected: float | None = None
    tensor: int | None = None
    in_network: int | None = None
    in_float32: int | None = None
    again: int | None = None
    seconds: float | None = None
    run: str = ""
    problems: list[str] = field(default_factory=list)

    def message(self) -> dict[str, Any]:
        """Returns the JSON object."""
        return asdict(self)


def workload(spec: JobSpec, sizes: tuple[int, ...], lanes: int, chunks_per_slice: int) -> Workload:
    """Returns the workload of a row's job."""
    start = spec.optimizer.at == "servers"
    return Workload(sizes, lanes, spec.iterations, chunks_per_slice, start=start)


def judge(row: Row, target: str, work: Workload, summary: FinishedJob, where: str = "") -> Line:
    """Checks a row by its job's summary."""
    links = summary["links"]
    servers = [f"w{n}" if row.kind.colocated else f"s{n}" for n in range(row.servers)]
    rack, core = f"tor{RACKS - 1}", "core0"
    own = [link["bytes"] for link in links if {link["from"], link["to"]} & set(servers)]
    carried = [one for one in own if one is not None]
    up, down = (
        next(link["bytes"] for link in links if (link["from"], link["to"]) == ends)
        for ends in ((rack, core), (core, rack))
    )
    chunks = summary["chunks"]
    line = Line(
        row.placement,
        row.tree,
        target,
        row.servers,
        summary["matches_reference"],
        server=sum(carried) / row.servers if len(carried) == len(own) else None,
        server_expected=row.server_bytes(work),
        up=up,
        down=down,
        rack_expected=row.rack_bytes(work),
        tensor=work.edge(work.chunks).bytes,
        in_network=chunks["aggregated_in_network"],
        in_float32=chunks["in_float32"],
        again=chunks["retransmitted"],
        seconds=statistics.median(summary["seconds_per_iteration"]),
        run=where,
    )
    line.problems.extend(_problems(row, work, line))
    return line


def failed(row: Row, target: str, text: str) -> Line:
    """Returns the line of a job that failed."""
    return Line(row.placement, row.tree, target, row.servers, None, problems=[text])


def _problems(row: Row, work: Workload, line: Line) -> Iterator[str]:
    if line.matches is not True:
        yield "the weights are not the reference's"
    rounds = work.chunks * work.iterations
    summed = rounds - (line.in_float32 or 0) if row.tree != "none" else 0
    if line.in_network != summed:
        yield f"switches made {line.in_network} sums of chunks, not {summed}"
    for what, found, expected in (
        ("a server host has", line.server, line.server_expected),
        ("a rack sends", line.up, line.rack_expected),
        ("a rack gets", line.down, line.rack_expected),
    ):
        assert expected is not None
        allowed = TOLERANCE * (expected or work.edge(work.chunks).bytes)
        if found is None or abs(found - expected) > allowed:
            yield f"{what} {found} bytes, not {expected:.0f}"
