# SPDX-License-Identifier: Apache-2.0
"""Builds what a report shows, and the variables of its template, from a run's data."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import cast

from observability.messages.jobs import JobState, SubmittedJob
from observability.messages.report import (
    ChunkShares,
    ReportData,
    ReportedFault,
    ReportedJob,
    Verdict,
)
from observability.messages.summary import (
    Chunks,
    FaultImpact,
    FinishedMachine,
    JobSummary,
    PlanUse,
    is_finished,
)
from observability.report.charts import Axis, Line, Mark
from observability.report.loads import Loads, loads
from observability.report.model import Chart, ReportContext
from observability.report.reading import RunData
from observability.series import Curve, Series, ServerSample, covered
from observability.wording import count, sums, where_summed
from topologies.model.units import time_text
from topologies.model.wording import costs

# Switches drawn over time at most; those that held the most slots.
MOST_PANELS = 12
# External jobs listed at most; the newest.
MOST_OTHERS = 50
STYLES = 8
_FAR = 10.0
_FEWEST_SAMPLES = 2
_TIMES = {"wall_seconds": "wall time", "simulated_seconds": "simulating took"}
_COUNTS = {
    "queries": "queries about chunks",
    "congested": "results marked by ECN",
    "packets": "packets on links",
    "rounds": "rounds of the simulation",
}
_SECONDS = Axis("seconds since the first job ran")


def report_data(data: RunData) -> ReportData:
    """Returns all that a report of a run shows."""
    marks = _marks(data)
    return _data(data, loads(data.topology, data.links, _seconds(data)), marks)


def report_context(data: RunData) -> ReportContext:
    """Returns the variables of the template."""
    series, marks = data.series, _marks(data)
    found = loads(data.topology, data.links, _seconds(data))
    shown = _data(data, found, marks)
    others = len(shown["others"])
    shown["others"] = shown["others"][-MOST_OTHERS:]
    most = _most_held(series)
    chosen = sorted(most, key=lambda name: -most[name])[:MOST_PANELS]
    return ReportContext(
        data=shown,
        facts=_facts(data),
        drawing=found.drawing,
        classes=found.classes,
        others_left_out=others - len(shown["others"]),
        lost=sorted(
            {row["unknown"].removeprefix("packets: ") for row in data.links if row["unknown"]}
        ),
        undrawable=data.undrawable,
        curves=_curves(series, marks),
        slots=[one for one in _slots(series, marks) if one.title in chosen],
        slots_left_out=max(0, sum(map(bool, most.values())) - MOST_PANELS),
        slots_never=_never_held(series),
        servers=_servers(series, marks),
        machine=_machine(data.machine),
    )


def _data(data: RunData, found: Loads, marks: Sequence[Mark]) -> ReportData:
    facts, topology, series = data.facts, data.topology, data.series
    jobs = _jobs(data)
    return {
        "run": data.run.path.name,
        "topology": None if topology is None else topology.name,
        "workers": None if topology is None else len(topology.workers),
        "servers": None if topology is None else len(topology.servers),
        "switches": None if topology is None else len(topology.switches),
        "target": facts["target"],
        "clock": facts["clock"],
        "started": _started(data).isoformat(timespec="seconds"),
        "verdict": _verdict(data, jobs),
        "ended": data.ended,
        "jobs": jobs,
        "others": data.others,
        "links": found.rows,
        "of_rate": found.of_rate,
        "training": [one.data() for one in _curves(series, marks)],
        "slots": [one.data() for one in _slots(series, marks)],
        "server_loads": [one.data() for one in _servers(series, marks)],
        "faults": _faults(data.faults),
        "machine": cast(FinishedMachine, data.machine),
    }


def _marks(data: RunData) -> list[Mark]:
    return [_mark(one, one["at"]) for one in _faults(data.faults) if one["at"] is not None]


# --- the head ---


def _facts(data: RunData) -> list[str]:
    facts, topology = data.facts, data.topology
    parts = []
    if topology is not None:
        parts.append(f"topology {topology.name}")
        nodes = [count(len(topology.workers), "worker"), count(len(topology.servers), "server")]
        parts.append(", ".join([*nodes, count(len(topology.switches), "switch", "switches")]))
    parts.append(f"{facts['target']} target, {facts['clock']} clock")
    if topology is not None and facts["clock"] == "virtual" and (more := costs(topology.costs)):
        parts.append(more)
    parts.append(f"started {_started(data):%Y-%m-%d %H:%M:%S}")
    return parts


def _started(data: RunData) -> datetime:
    return datetime.fromtimestamp(data.run.began)


def _verdict(data: RunData, jobs: Sequence[ReportedJob]) -> Verdict:
    failure = data.failure
    if data.alive:
        return {"kind": "open", "text": "still up: this is what is known so far"}
    if failure is not None:
        about = failure.get("process")
        process = f" ({about})" if about else ""
        return {"kind": "bad", "text": f"failed: {failure['message']}{process}"}
    if data.ended:
        return {"kind": "bad", "text": "ended without a summary: it was killed"}
    if not jobs:
        others = len(data.others)
        more = f"; {count(others, 'job')} of other programs, see below" if others else ""
        return {"kind": "open", "text": f"no job was submitted{more}"}
    wrong = [job["name"] for job in jobs if job["matches"] is False]
    if wrong:
        return {
            "kind": "bad",
            "text": f"the weights of {', '.join(wrong)} differ from the reference's",
        }
    undone = [job["name"] for job in jobs if job["state"] != "done"]
    if undone:
        return {"kind": "open", "text": f"not done: {', '.join(undone)}"}
    unknown = [job for job in jobs if job["matches"] is None and job["summed"]]
    if unknown:
        names = ", ".join(job["name"] for job in unknown)
        reasons = {job["no_reference"] for job in unknown}
        why = reasons.pop() if len(reasons) == 1 else "each one has its reason below"
        text = f"done; whether the weights of {names} are right is not known: {why}"
        return {"kind": "open", "text": text}
    if not any(job["summed"] for job in jobs):
        text = "done: chunks only occupied the wire, so there are no sums to check"
        return {"kind": "plain", "text": text}
    return {"kind": "good", "text": "done: weights match the reference, bit by bit"}


# --- jobs ---


def _jobs(data: RunData) -> list[ReportedJob]:
    series, current = data.series, data.current
    done = [_job(row, current.get(row["job"])) for row in data.jobs]
    known = {row["job"] for row in data.jobs}
    done += [_from_live(row) for name, row in current.items() if name not in known]
    # A killed run has no summary, but a series up to its end.
    done += [_from_series(n, c) for n, c in series.jobs.items() if n not in known | set(current)]
    return done


def _unfinished(name: str, state: JobState, done: int, accuracy: float | None) -> ReportedJob:
    """Returns a job of which no more is known."""
    return {
        "name": name, "state": state, "reason": "", "tree": "", "workers": None, "servers": None,
        "iterations": None, "done": done, "accuracy": accuracy, "matches": None, "summed": True,
        "no_reference": "", "purpose": "", "median": None, "slowest": None, "machine": {},
        "chunks": None, "plans": [], "alongside": [], "lost_workers": {}, "left_workers": {},
        "rejoined_workers": {}, "restored": [], "moves": [], "server_times": [],
    }  # fmt: skip


def _job(row: JobSummary, current: SubmittedJob | None) -> ReportedJob:
    """Returns a job of the summary. current: its row from a live testbed."""
    if not is_finished(row):
        now = row if current is None else current
        reached = row["iterations_done"] if current is None else current["iteration"]
        return {
            **_unfinished(row["job"], now["state"], reached, row["accuracy"]),
            "reason": now["reason"],
            "tree": row["tree"],
            "workers": row["workers"],
            "servers": row["servers"],
            "iterations": row["iterations"],
            "summed": sums(row),
        }
    seconds, accuracy, summed = row["seconds_per_iteration"], row["test_accuracy"], sums(row)
    reached = len(seconds) + row.get("iterations_before", 0)
    return {
        **_unfinished(row["job"], row["state"], reached, accuracy),
        "reason": row["reason"],
        "tree": row["tree"],
        "workers": row["workers"],
        "servers": row["servers"],
        "iterations": row["iterations"],
        "matches": row["matches_reference"],
        "summed": summed,
        "no_reference": row["no_reference"] if summed else "",
        "purpose": "" if accuracy is not None else _purpose(row["workload"], summed=summed),
        "median": statistics.median(seconds) if seconds else None,
        "slowest": max(seconds) if seconds else None,
        "machine": row["machine"],
        "chunks": _chunks(row["chunks"], row["plans"]),
        "plans": row["plans"],
        "alongside": row["alongside"],
        "lost_workers": row["lost_workers"],
        "left_workers": row.get("left_workers", {}),
        "rejoined_workers": row["rejoined_workers"],
        "restored": row["restored"] or [],
        "moves": row.get("moves") or [],
        "server_times": row.get("server_times", []),
    }


def _purpose(workload: str, *, summed: bool) -> str:
    """Explains the purpose of a job that learns nothing."""
    text = f"It trains nothing: gradients of workload {workload} are all-reduced, for"
    if summed:
        return f"{text} their times and bytes; that sums are right is checked."
    return f"{text} their times and bytes; chunks have no payload, and are as long on the wire."


def _from_live(row: SubmittedJob) -> ReportedJob:
    return {
        **_unfinished(row["job"], row["state"], row["iteration"], row.get("accuracy")),
        "reason": row["reason"],
        "tree": row["tree"],
        "workers": row["workers"],
        "iterations": row["iterations"],
    }


def _from_series(name: str, curve: Curve) -> ReportedJob:
    state = curve.states[-1][1] if curve.states else "starting"
    reached = curve.iterations[-1].number if curve.iterations else 0
    measured = [one.accuracy for one in curve.iterations if one.accuracy is not None]
    return _unfinished(name, state, reached, measured[-1] if measured else None)


def _chunks(chunks: Chunks, plans: Sequence[PlanUse]) -> ChunkShares:
    network, server = where_summed(chunks, plans)
    total = network + server
    return {
        "network": network,
        "server": server,
        "share": network / total if total else None,
        "unknown": chunks["unknown"],
        "in_float32": chunks["in_float32"],
        "retransmitted": chunks["retransmitted"],
        "retransmitted_by_switches": chunks["retransmitted_by_switches"],
    }


# --- over time ---


def _seconds(data: RunData) -> float | None:
    """Returns the seconds in which a submitted job trained or an external job existed: links
    carried the bytes of all of them."""
    others = [(one["began"], one["ended"]) for one in data.others]
    finished = [job for job in data.jobs if is_finished(job)]
    spent = max((sum(job["seconds_per_iteration"]) for job in finished), default=0.0)
    if not data.series.spans and spent:  # only the duration is known
        return None if others else spent
    return covered([*data.series.spans, *others])


def _curves(series: Series, marks: Sequence[Mark]) -> list[Chart]:
    """Returns charts of loss and accuracy of all jobs, where they have values."""
    began = series.began
    curves = {name: curve for name, curve in series.jobs.items() if curve.iterations}
    if began is None or not curves:
        return []
    first = 0.0, None
    end = max(curve.iterations[-1].ended for curve in curves.values()) - began
    x = Axis(_SECONDS.title, 0.0, end)
    loss, accuracy = [], []
    for number, (name, curve) in enumerate(curves.items()):
        done = curve.iterations
        points = [(one.ended - began, one.loss) for one in done if one.loss is not None]
        loss.append(Line(name, points or [first], number % STYLES))
        measured = [(one.ended - began, one.accuracy) for one in done if one.accuracy is not None]
        accuracy.append(Line(name, measured or [first], number % STYLES, dots=True))
    legend = list(curves) if len(curves) > 1 else []
    rows = [
        ("Loss", "Mean over workers, each iteration when its last worker ended it.", loss,
         _loss_axis(loss)),
        ("Test accuracy", "Measured after each pass through the training set, each tenth"
         " of the job, and at the end.", accuracy,
         Axis("", 0.0, 1.0)),
    ]  # fmt: skip
    return [
        Chart(
            *(title, f"{title} of each job over time", lines, x, y, marks),
            legend=legend,
            note=note,
        )
        for title, note, lines, y in rows
        if any(value is not None for line in lines for _, value in line.points)
    ]


def _loss_axis(lines: Sequence[Line]) -> Axis:
    """Returns a logarithmic axis if losses differ by more than a factor, else a linear one."""
    values = [y for line in lines for _, y in line.points if y is not None and math.isfinite(y)]
    if values and min(values) > 0 and max(values) > _FAR * min(values):
        return Axis("loss (logarithmic)", log=True)
    return Axis("loss", 0.0)


def _most_held(series: Series) -> dict[str, int]:
    """Returns the most slots that jobs held in each switch, in the order of the topology."""
    most: dict[str, int] = {}
    for sample in series.samples:
        for name, slots in sample.switches.items():
            most[name] = max(most.get(name, 0), slots["held"] or 0)
    return most


def _never_held(series: Series) -> list[str]:
    """Returns the switches in which no job held slots; none if there are too few samples."""
    if series.began is None or len(series.samples) < _FEWEST_SAMPLES:
        return []
    return [name for name, most in _most_held(series).items() if not most]


def _slots(series: Series, marks: Sequence[Mark]) -> list[Chart]:
    """Returns a chart for each switch that held slots: slots held, and slots with open sums."""
    began = series.began
    if began is None or len(series.samples) < _FEWEST_SAMPLES:
        return []
    held: dict[str, list[tuple[float, float | None]]] = {}
    busy: dict[str, list[tuple[float, float | None]]] = {}
    for sample in series.samples:
        for name, slots in sample.switches.items():
            t = sample.t - began
            held.setdefault(name, []).append((t, slots["held"]))
            parts = slots["aggregating"], slots["partial"]
            known = None if parts[0] is None or parts[1] is None else parts[0] + parts[1]
            busy.setdefault(name, []).append((t, known))
    most = {name: count for name, count in _most_held(series).items() if count}
    x = Axis(_SECONDS.title, 0.0)
    y = Axis("slots", 0.0, max(most.values(), default=0) or 1.0)
    return [
        Chart(
            name,
            f"Slots of {name} over time: at most {most[name]} held",
            [
                Line("held by jobs", held[name], 0, step=True, area=True),
                Line("with a sum under way", busy[name], 1, dots=True),
            ],
            *(x, y, marks, 150.0),
        )
        for name in most
    ]


def _servers(series: Series, marks: Sequence[Mark]) -> list[Chart]:
    """Returns charts of what servers received and sent; none where that was nothing."""
    began = series.began
    if began is None:
        return []
    directions: list[tuple[str, Callable[[ServerSample], int | None]]] = [
        ("Received", lambda sample: sample["received_bytes"]),
        ("Sent", lambda sample: sample["sent_bytes"]),
    ]
    charts = []
    for title, bytes_of in directions:
        lines = _rates(series, bytes_of, began)
        if max((y for line in lines for _, y in line.points if y is not None), default=0) <= 0:
            continue
        about = f"Mbit/s that each server {title.lower()} over time"
        axes = Axis(_SECONDS.title, 0.0), Axis("Mbit/s", 0.0)
        names = [line.name for line in lines]
        charts.append(Chart(title, about, lines, *axes, marks, 150.0, names))
    return charts


def _rates(
    series: Series, bytes_of: Callable[[ServerSample], int | None], began: float
) -> list[Line]:
    """Returns a line for each server: Mbit/s between samples, None where a counter was reset."""
    points: dict[str, list[tuple[float, float | None]]] = {}
    for before, now in pairwise(series.samples):
        if now.t <= before.t:  # the end of a job adds a sample at once
            continue
        for name, counts in now.servers.items():
            earlier = before.servers.get(name)
            then, there = bytes_of(earlier) if earlier is not None else None, bytes_of(counts)
            rate = None
            if then is not None and there is not None and there >= then:
                rate = 8e-6 * (there - then) / (now.t - before.t)
            points.setdefault(name, []).append((now.t - began, rate))
    return [Line(name, there, n % STYLES) for n, (name, there) in enumerate(points.items())]


# --- faults ---


def _faults(rows: Sequence[FaultImpact]) -> list[ReportedFault]:
    """Returns each fault once, in the order of time."""
    found: dict[tuple[float | None, str, str, str], list[FaultImpact]] = {}
    for row in rows:
        found.setdefault((row["at"], row["kind"], row["node"], row["what"]), []).append(row)

    def begin(group: list[FaultImpact]) -> float:
        at = group[0]["at"]
        return -1.0 if at is None else at

    return [
        ReportedFault(
            number=number,
            at=first["at"],
            node=first["node"],
            what=first["what"],
            lasted=first["lasted"],
            aggregating=first["aggregating"],
            partial=first["partial"],
            rejoined_after=first["rejoined_after"],
            impacts=[row for row in group if row["job"] is not None],
        )
        for number, group in enumerate(sorted(found.values(), key=begin), start=1)
        for first in group[:1]
    ]


def _mark(fault: ReportedFault, at: float) -> Mark:
    title = f"{fault['number']}: {fault['node']} {fault['what']}"
    until = at + fault["lasted"] if fault["lasted"] else None
    return Mark(str(fault["number"]), at, title, until)


# --- the machine ---


def _machine(facts: Mapping[str, object]) -> list[tuple[str, str]]:
    rows = []
    for name, value in facts.items():
        if value is None:
            continue
        title = _COUNTS.get(name, name.replace("_", " "))
        if name == "cpu_waited" and isinstance(value, dict):
            title = "threads waiting for a CPU"
            rows.append((title, ", ".join(f"{k} {v:.2f}" for k, v in value.items())))
        elif isinstance(value, list):
            if value:
                rows.append((title, "; ".join(map(str, value))))
        elif isinstance(value, dict):
            rows.append((title, ", ".join(f"{k} {v}" for k, v in value.items() if v)))
        elif name == "cpu_busy" and isinstance(value, float):
            rows.append((title, f"{100 * value:.0f} %"))
        elif isinstance(value, bool):
            rows.append((title, "yes" if value else "no"))
        elif isinstance(value, float) and name.endswith("_seconds"):
            rows.append((_TIMES.get(name, title.removesuffix(" seconds")), time_text(value)))
        elif isinstance(value, float):
            rows.append((title, f"{value:,.1f}"))
        else:
            rows.append((title, f"{value:,}" if isinstance(value, int) else str(value)))
    return rows
