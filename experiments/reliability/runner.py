# SPDX-License-Identifier: Apache-2.0
"""Runs scenarios on real processes, or in virtual time, and checks their results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, cast

import yaml

from emulation.lifecycle.running import run
from experiments.common.script import VIRTUAL
from experiments.reliability.scenarios import Course, Scenario
from observability.messages.summary import FaultImpact, FinishedRun
from observability.progress_view import View
from simulation.running import run_virtually
from specs import fault_schedule
from specs import faultfile as faults
from specs.paths import ROOT
from testbed.errors import LaunchError
from topologies.model.spec import load as load_topology

YamlContent: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class Line:
    """A line of the table: the result of a scenario on a target.

    matches: Weights equal the reference's; None without a reference.
    seconds: Recovery time from the fault, or from its end if it lasts; None without recovery.
    again: Retransmitted packets.
    aggregating, partial: Slots the fault met in these phases, at least.
    problems: Failed checks.
    """

    scenario: str
    what: str
    topology: str
    target: str
    matches: bool | None
    seconds: float | None = None
    lasted: float | None = None
    again: int | None = None
    bytes: int | None = None
    aggregating: int | None = None
    partial: int | None = None
    wall: float | None = None
    run: str = ""
    problems: list[str] = field(default_factory=list)

    def message(self) -> dict[str, object]:
        """Returns the JSON object."""
        return asdict(self)


def write(job: YamlContent, faults_of_it: YamlContent, folder: Path) -> tuple[Path, Path]:
    """Writes a job and its faults as `rackhub chaos` reads them; returns both paths."""
    paths = []
    for name, content in (("job", job), ("faults", faults_of_it)):
        path = folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(content, sort_keys=False, width=100))
        paths.append(path)
    return paths[0], paths[1]


def play(course: Course, target: str, folder: Path, view: View) -> list[Line]:
    """Runs a course on a testbed of its own; returns a line for each of its scenarios."""
    given = {"name": "reliability", "faults": course.faults}
    try:
        job = course.job(virtual=target == VIRTUAL)
        summary, where = carry_out(course.topology, job, given, target, folder, view)
    except LaunchError as error:
        return [_failed(scenario, target, str(error)) for scenario in course.scenarios]
    return judge(course.scenarios, target, summary, where)


def carry_out(
    topology: str,
    job: YamlContent,
    faults_of_it: YamlContent,
    target: str,
    folder: Path,
    view: View,
    seed: int | None = None,
) -> tuple[FinishedRun, str]:
    """Runs a job under faults on a testbed of its own, or in virtual time; returns its summary and
    the run's name.

    Args:
        seed: Of the topology; None uses its file's.

    Raises:
        LaunchError: The job did not finish.
    """
    path, file = write(job, faults_of_it, folder)
    place = ROOT / "topologies" / f"{topology}.yaml"
    some = bool(faults_of_it.get("faults") or faults_of_it.get("random"))
    if target == VIRTUAL:
        directory, _ = run_virtually(
            place, [path], view, topology_seed=seed, faults=file if some else None
        )
        return cast(FinishedRun, directory.read_summary()), directory.path.name
    schedule: list[faults.Fault] = []
    if some:
        schedule = fault_schedule.schedule(faults.load(file), load_topology(place))
    launched, _ = run(place, [path], view, faults=schedule, target=target, topology_seed=seed)
    return cast(FinishedRun, launched.run.read_summary()), launched.run.path.name


def judge(
    scenarios: Sequence[Scenario], target: str, summary: FinishedRun, where: str = ""
) -> list[Line]:
    """Checks the scenarios of a run, in order, by its summary."""
    rows = list(summary["faults"])
    lines = []
    for scenario in scenarios:
        mine: list[FaultImpact] = []
        for fault in scenario.faults:
            kind = next(kind for kind in faults.KINDS if kind in fault)
            node = "every link" if kind == "impair" else fault[kind]
            found = [r for r in rows if (r["kind"], r["node"]) == (kind, node)][:1]
            rows = [row for row in rows if row not in found]
            mine += found
        lines.append(_line(scenario, target, summary, mine, where))
    for row in rows:
        lines[-1].problems.append(f"unexpected fault: {row['node']} {row['what']}")
    return lines


def _line(
    scenario: Scenario, target: str, summary: FinishedRun, rows: Sequence[FaultImpact], where: str
) -> Line:
    matches = summary["matches_reference"]
    recovered = [
        (seconds, row["lasted"] or 0.0) for row in rows if (seconds := row["seconds"]) is not None
    ]
    # Simultaneous faults share most retransmissions, and slots that the job gave up for the first
    # one look open to the next.
    again = max((row["resent_packets"] or 0 for row in rows), default=0)
    size = max((row["resent_bytes"] or 0 for row in rows), default=0)
    first = min(rows, key=lambda row: row["at"] or 0.0, default=None)
    line = Line(
        scenario.name,
        scenario.what,
        scenario.topology,
        target,
        matches,
        seconds=max((seconds - lasted for seconds, lasted in recovered), default=None),
        lasted=max((lasted for _, lasted in recovered), default=0.0) or None,
        again=again,
        bytes=size,
        aggregating=None if first is None else first["aggregating"],
        partial=None if first is None else first["partial"],
        wall=summary["machine"].get("wall_seconds"),
        run=where,
    )
    line.problems.extend(_problems(scenario, summary, rows, line))
    return line


def _problems(
    scenario: Scenario, summary: FinishedRun, rows: Sequence[FaultImpact], line: Line
) -> Iterator[str]:
    """Yields the failed checks of a scenario."""
    holds, chunks, plans = scenario.holds, summary["chunks"], summary["plans"]
    hits = holds.hits and line.target != VIRTUAL  # where slots are not read
    for row in rows:
        what = f"{row['node']} {row['what']}"
        if row["seconds"] is None:
            yield f"the job has not gone on after: {what}"
            continue
        replanned = (row["epoch_after"] or 0) > (row["epoch_before"] or 0)
        if holds.epoch not in (None, replanned):
            yield f"{'' if replanned else 'not '}replanned, unexpectedly, after: {what}"
    going = [row["seconds"] for row in rows if row["seconds"] is not None]
    joined = any(row["rejoined_after"] is not None for row in rows)
    sources = {row["from"][0] for row in summary["restored"] or () if row["from"] != row["server"]}
    for bad, text in (
        (line.matches is False, "the weights are not the reference's"),
        (
            line.matches is None and holds.restored != "worker",
            f"there is no reference: {summary['no_reference']}",
        ),
        (not summary["workers_agree"], "workers ended with different weights"),
        (
            # One may then restore it from the other.
            sources - {"s"} != set(holds.restored[:1]) - {"s"}
            or bool(sources) != bool(holds.restored),
            f"what servers lost came from {', '.join(sorted(sources)) or 'nowhere'}",
        ),
        (
            holds.detour and not any(plan["by_server"] for plan in plans),
            "no sums were made at servers",
        ),
        (
            holds.detour and not plans[-1]["by_switch"],
            "sums did not return to the network",
        ),
        (
            set(summary["lost_workers"]) != set(holds.lost),
            "it has not ended with the right workers",
        ),
        (holds.joins and not joined, "the worker did not rejoin the job"),
        (len(rows) != len(scenario.faults), "the job was over before all of its faults"),
        (max(going, default=0.0) < holds.least, f"it took less than {holds.least:g} s"),
        (holds.again and not line.again, "nothing was retransmitted"),
        (hits and not line.aggregating, "it met no slot that was AGGREGATING"),
        (hits and not line.partial, "it met no slot that was PARTIAL"),
        (holds.corrupted and not summary["wrong_checksum"], "nothing failed its check"),
        (
            holds.unfit and not 0 < chunks["in_float32"] == summary["reference_in_float32"],
            f"{chunks['in_float32']} chunks went to servers in float32, not"
            f" {summary['reference_in_float32']}",
        ),
    ):
        if bad:
            yield text


def _failed(scenario: Scenario, target: str, text: str) -> Line:
    return Line(scenario.name, scenario.what, scenario.topology, target, None, problems=[text])
