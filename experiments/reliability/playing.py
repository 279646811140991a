# SPDX-License-Identifier: Apache-2.0
"""Runs scenarios on real processes, and holds what came of it against what must."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from experiments.reliability.scenarios import Course, Scenario
from testbed import faults
from testbed.launcher import LaunchError
from testbed.processes import ROOT
from testbed.run import run
from testbed.view import View
from topologies.spec import load as load_topology

Message = dict[str, Any]


@dataclass(frozen=True)
class Line:
    """A line of the table: what a scenario came to on a target.

    seconds: of the recovery, from the fault, or where it lasts its end; None: there was none.
    again: packets sent again. aggregating, partial: slots that the fault met, at least. problems:
    what should hold and does not.
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

    def message(self) -> Message:
        """As JSON takes it."""
        return asdict(self)


def write(course: Course, folder: Path) -> tuple[Path, Path]:
    """Writes the job and the faults of a course for `rackhub chaos`; returns both paths."""
    paths = []
    for name, content in (("job", course.job), ("faults", course.faults)):
        path = folder / f"{name}.yaml"
        text = yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=100)
        path.write_text(f"# SPDX-License-Identifier: Apache-2.0\n{text}")
        paths.append(path)
    return paths[0], paths[1]


def play(course: Course, target: str, folder: Path, view: View) -> list[Line]:
    """Runs a course in a testbed of its own; a line for each of its scenarios."""
    job, file = write(course, folder)
    topology = ROOT / "topologies" / f"{course.topology}.yaml"
    schedule = faults.schedule(faults.load(file), load_topology(topology))
    try:
        launched, _ = run(topology, [job], view, faults=schedule, target=target)
    except LaunchError as error:
        return [_failed(scenario, target, str(error)) for scenario in course.scenarios]
    summary: Message = json.loads(launched.run.summary.read_text())
    return list(judge(course.scenarios, target, summary, launched.run.path.name))


def judge(
    scenarios: Sequence[Scenario], target: str, summary: Message, where: str = ""
) -> Iterable[Line]:
    """What a run's summary says of each of the scenarios that it had, in their order."""
    rows = list(summary["faults"])
    for scenario in scenarios:
        mine = []
        for fault in scenario.faults:
            node = next((str(fault[k]) for k in ("kill", "stop", "repush") if k in fault), None)
            kind = next(kind for kind in faults.KINDS if kind in fault)
            found = [r for r in rows if r["kind"] == kind and node in (None, r["node"])][:1]
            rows = [row for row in rows if row not in found]
            mine += found
        yield _line(scenario, target, summary, mine, where)
    for row in rows:
        raise AssertionError(f"nobody asked for this: {row['node']} {row['what']}")


def _line(
    scenario: Scenario, target: str, summary: Message, rows: Sequence[Message], where: str
) -> Line:
    problems = []

    def must(holds: object, text: str) -> None:
        if not holds:
            problems.append(text)

    matches, holds = summary["matches_reference"], scenario.holds
    must(matches is True, "the weights are not the reference's")
    must(len(rows) == len(scenario.faults), "it did not come to every fault")
    for row in rows:
        what = f"{row['node']} {row['what']}"
        must(row["seconds"] is not None, f"the job has not gone on after: {what}")
        anew = (row["epoch_after"] or 0) > row["epoch_before"]
        if holds.epoch is not None and row["seconds"] is not None:
            must(anew == holds.epoch, f"planned anew: {anew}, though: {what}")
        must((row["seconds"] or 0) >= holds.least, f"sooner than can be: {what}")
    known = [row for row in rows if row["seconds"] is not None]
    again, met, partial, size = (
        sum(row[name] or 0 for row in known)
        for name in ("resent_packets", "aggregating", "partial", "resent_bytes")
    )
    must(again or not holds.again, "nothing was sent again")
    must(met or not holds.hits, "it met no slot that was AGGREGATING")
    must(partial or not holds.hits, "it met no slot that was PARTIAL")
    lasted = max((row["lasted"] or 0.0 for row in known), default=0.0)
    return Line(
        scenario.name,
        scenario.what,
        scenario.topology,
        target,
        matches,
        seconds=max((row["seconds"] - (row["lasted"] or 0.0) for row in known), default=None),
        lasted=lasted or None,
        again=again,
        bytes=size,
        aggregating=met,
        partial=partial,
        wall=summary["machine"].get("wall_seconds"),
        run=where,
        problems=problems,
    )


def _failed(scenario: Scenario, target: str, text: str) -> Line:
    return Line(scenario.name, scenario.what, scenario.topology, target, None, problems=[text])
