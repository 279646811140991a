# SPDX-License-Identifier: Apache-2.0
"""Runs a job with a trace, and reads from it how busy a machine's link was, both ways."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from observability.record import RunDirectory
from simulation import session
from simulation.tracing.events import TraceFile
from sweeps.execution import JOB, Order, write_files
from testbed.errors import JobError
from testbed.program import program_for
from topologies.model.spec import read as read_topology

__all__ = ["run"]

WORKER = "w0"
BINS = 160  # of an iteration
_ITERATION = 3  # the first one also agrees on exponents, and the second suffers from that
_MICROSECOND = 1e-6

Event = Mapping[str, Any]


def run(directory: RunDirectory, order: Order) -> dict[str, Any]:
    """Runs an order's job; returns its summary with `link_use`.

    `link_use` is about the third iteration, from the end of a forward pass to the end of the next:
    `seconds` of it; the percentage of each of its equal parts in which the first worker's machine
    sent (`send`) and received (`receive`); the begin and end of its computations in seconds
    (`backward`, `forward`, lists of pairs).
    """
    write_files(directory, order)
    jobs = [directory.path / JOB]
    plane = program_for(jobs)[2]
    checked = session.check(read_topology(directory.topology), jobs, plane)
    (directory.path / "testbed.json").write_text(json.dumps({"name": checked.topology.name}))
    path = directory.path / "trace.json"
    with TraceFile(path) as trace:
        if not session.Session(checked, plane, directory, lambda _: None, trace=trace).execute():
            raise JobError("the weights differ from the reference's")
    return {**directory.read_summary(), "link_use": link_use(json.loads(path.read_text()))}


def link_use(events: Sequence[Event]) -> dict[str, Any]:
    """Returns what `run` says of a trace."""
    names = {one["pid"]: one["args"]["name"] for one in events if one.get("name") == "process_name"}
    computed = _computed([one for one in events if names.get(one["pid"]) == WORKER])
    begin = max(end for _, end in computed["forward", _ITERATION])
    end = max(end for _, end in computed["forward", _ITERATION + 1])
    found: dict[str, Any] = {"seconds": end - begin}
    for what, iteration in (("backward", _ITERATION), ("forward", _ITERATION + 1)):
        spans = sorted(computed[what, iteration])
        found[what] = [(one - begin, other - begin) for one, other in spans]
    for way in ("send", "receive"):
        found[way] = _shares(_levels(events, names, way), begin, end)
    return found


def _computed(events: Sequence[Event]) -> dict[tuple[str, int], list[tuple[float, float]]]:
    """Returns spans of computations, by pass and iteration."""
    found: dict[tuple[str, int], list[tuple[float, float]]] = {}
    begun: dict[int, Event] = {}
    for one in events:
        if one["ph"] == "B":
            begun[one["tid"]] = one
        elif one["ph"] == "E":
            first = begun.pop(one["tid"])
            if first["cat"] == "compute":
                key = first["name"].split()[0], first["args"]["iteration"]
                times = first["ts"] * _MICROSECOND, one["ts"] * _MICROSECOND
                found.setdefault(key, []).append(times)
    return found


def _levels(
    events: Sequence[Event], names: Mapping[int, str], way: str
) -> list[tuple[float, float]]:
    """Returns when the utilization of the worker's link changes, and to which percentage."""
    found = []
    for one in events:
        if one["ph"] == "C" and one["name"].endswith(", busy"):
            receiver = one["name"].removesuffix(", busy").rpartition(" to ")[2]
            if (names[one["pid"]] if way == "send" else receiver) == WORKER:
                found.append((one["ts"] * _MICROSECOND, one["args"]["%"]))
    return sorted(found)


def _shares(levels: Sequence[tuple[float, float]], begin: float, end: float) -> list[float]:
    """Returns the mean level of each part of a time."""
    width = (end - begin) / BINS
    sums = [0.0] * BINS
    ends = [time for time, _ in levels[1:]] + [end]
    for (time, level), until in zip(levels, ends, strict=True):
        at, until = max(time, begin) - begin, min(until, end) - begin
        while at < until:
            number = min(BINS - 1, int(at / width + 1e-9))
            stop = min(until, (number + 1) * width) if number < BINS - 1 else until
            sums[number] += level * (stop - at)
            at = stop
    return [round(one / width, 2) for one in sums]
