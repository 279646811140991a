# SPDX-License-Identifier: Apache-2.0
"""Run directories of finished and running jobs, made by the production code; and snapshots."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from controller.planning.tree_planner import TreeKind, plan_trees
from emulation.jobs.recovery import FaultLog
from emulation.nodes.switchprocess import SwitchProcess
from observability import cpu_use, links, outcomes, record, results, series
from observability.cpu_use import Share
from observability.links import Carried
from observability.machine import machine_facts
from observability.progress import Iteration, Progress
from observability.record import RunDirectory
from observability.series import SeriesWriter
from observability.server_times import server_rows
from planner.link_loads import Direction, Workload, expected
from protocol import jobs_pb2
from protocol.outcomes import Outcome
from tests.conftest import ROOT
from topologies.model.addressing import Addressing
from topologies.model.spec import load

Message = dict[str, Any]
TOPOLOGY = ROOT / "topologies" / "two-racks.yaml"
WORKERS = tuple(f"w{rank}" for rank in range(8))
SERVERS = ("s0", "s1")
SWITCHES = ("tor0", "tor1", "core0")
ITERATIONS = 4
WORK = Workload(sizes=(25_600, 1), lanes=256, iterations=ITERATIONS, chunks_per_slice=32)
# Iterations begin every second; the last worker ends them a quarter before the next.
SECONDS = 0.75


def facts(**changes: Any) -> Message:
    """What a testbed is started with."""
    return {"topology": str(TOPOLOGY), "target": "embedded", "clock": "emulated", **changes}


@contextmanager
def begun(name: str = "small") -> Iterator[tuple[RunDirectory, SeriesWriter]]:
    """A run directory that is alive while the context lasts, and its series."""
    with record.create(name, chosen=False, facts=facts()) as run:
        yield run, SeriesWriter(run.path / series.FILE)


def train(writer: SeriesWriter, job: str = "digits", last: int = ITERATIONS) -> None:
    """Writes what a job that runs, and the testbed around it, are like over time."""
    writer.state(job, "running")
    progress = Progress(len(WORKERS), ITERATIONS)
    for iteration in range(1, last + 1):
        began = writer.started + iteration
        for rank in range(len(WORKERS)):
            report = {
                "iteration": iteration, "losses": [2.0 / iteration], "passes": iteration / 4,
                "spans": [(began, began + SECONDS)], "accuracy": iteration / 10,
                "statistics": {"completed": 1, "completed_direct": 0},
            }  # fmt: skip
            if progress.take(rank, report):
                writer.iterations(job, progress.latest)
        writer.sample({**snapshot(), "monotonic": began + 0.5})


def carried(*, beyond: int = 0, lost: str = "") -> list[Message]:
    """Rows of links that carried what they should, tor0 to core0 so many bytes more.

    lost: a switch that does not know what it has sent.
    """
    topology = load(TOPOLOGY)
    addressing = Addressing(topology)
    trees = plan_trees(
        topology, addressing, WORKERS, [addressing.address(s) for s in SERVERS], TreeKind.TWO_LEVEL
    )
    wanted = expected(addressing, trees, SERVERS, WORK)
    ends = [(p.switch, p.interface) for n in SWITCHES for p in addressing.ports(n)]
    ends += [
        (i.node, i.interface) for n in topology.hosts for i in addressing.host_interfaces(n.name)
    ]
    found = {}
    for node, interface in ends:
        way = Direction(node, interface)
        load_there = wanted.get(way)
        found[way] = Carried(load_there.bytes, load_there.packets) if load_there else Carried(0, 0)
        if node == lost:
            found[way] = Carried(None, None, f"{lost} has lost its counters")
    (up,) = addressing.ports_between("tor0", "core0")
    if beyond:
        way = Direction("tor0", up.interface)
        result = found[way]
        found[way] = Carried((result.bytes or 0) + beyond, result.packets)
    return links.rows(addressing, found, None if lost else wanted)


def faults(
    kinds: Sequence[tuple[str, str, str]] = (("kill", "tor0", "was killed"),),
) -> list[Message]:
    """Rows of faults that a job went on after, half a second after it ran and one later each."""

    async def nothing(_: Iterable[SwitchProcess]) -> outcomes.Counts:
        return {}

    async def play() -> list[Message]:
        log = FaultLog({}, nothing, WORK.frame_bytes)
        log.runs("digits", range(1), plan=1)
        for kind, node, what in kinds:
            fault = log.begin(kind, node, what, await log.snapshot())
            statistics = {
                "sent": 12, "completed": 10, "completed_direct": 0, "exponent_rounds": 1,
                "initial": 0,
            }  # fmt: skip
            spans = [(fault.began + 1, fault.began + 2)]
            log.progress("digits", 0, {"spans": spans, "plan": 2, "statistics": statistics})
        await log.settled()
        return log.rows()

    return [{**row, "at": n + 0.5} for n, row in enumerate(asyncio.run(play()))]


def job(name: str = "digits", *, matches: bool = True, **changes: Any) -> Message:
    """A job's part of a summary."""
    in_network = ITERATIONS * WORK.chunks
    plan = {"epoch": 1, "tree": "two-level", "roots": ["core0"], "chunks": in_network}
    statistics = {
        "sent": in_network, "retransmitted": 3, "completed": in_network, "completed_direct": 0,
        "exponent_rounds": 0, "initial": 0, "wrong_checksum": 0, "plans": [plan], "queries": 0,
        "congested": 0,
    }  # fmt: skip
    report = {
        "digest": "a", "accuracy": 0.9, "test_loss": 0.3, "data_sha256": "d",
        "seconds": [SECONDS] * ITERATIONS, "blocked": {},
    }  # fmt: skip
    reports: dict[int, Message] = {0: {**report, "statistics": statistics}}
    cpus = cpu_use.machine(0.5, {"tor0": Share(0.2, 0.1)}, 0)
    reference = {
        "digest": "a" if matches else "b", "accuracy": 0.9, "test_loss": 0.3, "in_float32": 0,
    }  # fmt: skip
    return {
        "job": name, "number": 1, "state": "done", "reason": "", "target": "embedded",
        "clock": "emulated", "topology": "two-racks", "racks": 2, "workers": len(WORKERS),
        "servers": len(SERVERS), "workload": "digits", "tree": "two-level",
        "iterations": ITERATIONS, "batch": 512, "seed": 1,
        **results.weights(WORKERS, reports, {}, reference),
        "rejoined_workers": {}, "workers_per_iteration": [len(WORKERS)] * ITERATIONS,
        "chunks": results.chunks(reports, in_network, "", 0, served=False),
        "plans": results.plans(reports), "shared_with": [], "alongside": [], "restored": [],
        "moves": [], "server_times": [], "key_times": [],
        "links": [], "machine": results.machine(reports, 3.0, cpus), **changes,
    }  # fmt: skip


def other(number: int, name: str = "mine", **changes: Any) -> Message:
    """A job that was not submitted, as a summary has it (``emulation.jobs.external_jobs``)."""
    return {
        "job": name, "number": number, "state": "done", "reason": "", "workers": 8,
        "present": None, "tree": "two-level", "plan_epoch": 1, "iteration": None,
        "iterations": None, "began": 1.0, "ended": 4.0, "alive": False, **changes,
    }  # fmt: skip


def summary(**changes: Any) -> Message:
    """A summary of one job that is done."""
    jobs = changes.pop("jobs", [job()])
    first = {key: value for key, value in (jobs[0] if jobs else {}).items() if key != "machine"}
    whole = {
        **first, "name": "small", "shaping": [], "links": carried(), "jobs": jobs, "others": [],
        "faults": [],
        "machine": {**machine_facts("embedded"), **(jobs[0].get("machine", {}) if jobs else {})},
        **changes,
    }  # fmt: skip
    return dict(json.loads(json.dumps(whole)))


def finished(**changes: Any) -> RunDirectory:
    """A run that is over, with the summary's fields changed."""
    with begun() as (run, writer):
        train(writer)
        writer.state("digits", "done")
        run.write_summary(summary(**changes))
    return run


def snapshot(**changes: Any) -> Message:
    """What ``emulation.jobs.snapshot`` tells of a testbed, here two-racks with a job.

    That it is of the same shape as a real one is seen to in tests/network/test_testbed.py.
    """
    slots = {"total": 8192, "held": 64, "aggregating": 5, "partial": 2}
    counts = {one.name.lower(): 0 for one in Outcome} | {"claimed": 70, "added": 210}
    return {
        "name": "small", "topology": "two-racks", "target": "embedded", "clock": "emulated",
        "seconds_up": 12.5, "monotonic": 1000.0, "controller": True,
        "switches": [
            {"name": n, "up": True, "slots": slots, "outcomes": counts, "cpu_seconds": 1.5}
            for n in SWITCHES
        ],
        "servers": [
            {"name": n, "up": True, "received_bytes": 4000, "sent_bytes": 2000,
             "receive_rate": 20_000_000, "send_rate": 20_000_000, "cpu_seconds": 0.5,
             "processes": [{"name": n, "up": True, "cpu_seconds": 0.5}]}
            for n in SERVERS
        ],
        "jobs": [
            {"job": "digits", "number": 1, "state": "running", "reason": "", "workers": 8,
             "present": 8, "tree": "two-level", "plan_epoch": 1, "window": 32,
             "slots": dict.fromkeys(SWITCHES, 64), "iteration": 3, "iterations": 100,
             "passes": 1.0, "loss": 0.25, "accuracy": 0.5, "chunks_per_second": 900.0,
             "share_in_network": 0.75, "servers": server_times()}
        ],
        **changes,
    }  # fmt: skip


def server_times() -> list[Message]:
    """Of a job that is measured: s0 is slow, and s1 has reported no times of its own."""
    values = {
        "waited": 0.012, "handled": 0.01, "queued": 0.008, "optimized": 0.0, "holding": 2.5,
        "summing": 7.0, "received": 1e6, "sent": 2e6, "sums": 40.0,
    }  # fmt: skip
    unknown = dict.fromkeys(
        ("handled", "queued", "optimized", "holding", "summing", "received", "sent"), math.nan
    )
    slow = jobs_pb2.ServerTimes(server="s0", rounds=9, blamed=0.3, straggles=True, **values)
    other = jobs_pb2.ServerTimes(server="s1", rounds=9, waited=0.002, blamed=0.1, **unknown)
    return list(server_rows(jobs_pb2.Job(times=[slow, other])))


def done(*numbers: int) -> list[Iteration]:
    """Iterations of a job."""
    return [Iteration(n, float(n), 1.0 / n, None) for n in numbers]


def write_lines(path: Path, rows: Sequence[Message]) -> None:
    """A series as it may be found."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
