# SPDX-License-Identifier: Apache-2.0
"""The variables of the report's template (``page.html``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from observability.messages.jobs import JobState, OtherJob
from observability.messages.summary import FaultImpact, PlanUse, Restored
from observability.report.loads import Loads


@dataclass(frozen=True)
class Verdict:
    """A run's outcome as a line of text."""

    kind: Literal["good", "bad", "open", "plain"]
    text: str


@dataclass(frozen=True)
class ChunkShares:
    """Where a job's chunks were summed. share: of those that switches summed."""

    network: int
    server: int
    share: float | None
    unknown: str
    in_float32: int
    retransmitted: int
    retransmitted_by_switches: int | None


@dataclass(frozen=True)
class ReportedJob:
    """A job in the report.

    done: completed iterations. median, slowest: seconds of an iteration.
    matches: ``JobQuality.matches_reference``. summed: chunks have a payload.
    purpose: purpose of a job that learns nothing.
    """

    name: str
    state: JobState
    reason: str
    tree: str
    workers: int | None
    servers: int | None
    iterations: int | None
    done: int
    accuracy: float | None
    matches: bool | None = None
    summed: bool = True
    no_reference: str = ""
    purpose: str = ""
    median: float | None = None
    slowest: float | None = None
    machine: Mapping[str, object] = field(default_factory=dict)
    chunks: ChunkShares | None = None
    plans: Sequence[PlanUse] = ()
    alongside: Sequence[str] = ()
    lost_workers: Mapping[str, str] = field(default_factory=dict)
    rejoined_workers: Mapping[str, int] = field(default_factory=dict)
    restored: Sequence[Restored] = ()


@dataclass(frozen=True)
class Chart:
    """A chart with its caption. legend: names of its lines; empty if none is needed."""

    title: str
    svg: str
    legend: Sequence[str] = ()
    note: str = ""


@dataclass(frozen=True)
class ReportedFault:
    """A fault with its impact on each job; ``number`` is its place in time, from 1."""

    number: int
    at: float | None
    node: str
    what: str
    lasted: float | None
    aggregating: int | None
    partial: int | None
    rejoined_after: float | None
    impacts: list[FaultImpact]


@dataclass(frozen=True)
class ReportContext:
    """The variables of the template.

    ended: why the run failed, with the end of a log.
    others_left_out, slots_left_out: number of jobs and switches that are not shown.
    lost: why counters of links are unknown.
    slots_never: switches in which no job held slots.
    machine: titles and values.
    """

    directory: str
    facts: list[str]
    verdict: Verdict
    ended: str
    jobs: list[ReportedJob]
    others: list[OtherJob]
    others_left_out: int
    loads: Loads
    lost: list[str]
    undrawable: str
    curves: list[Chart]
    slots: list[Chart]
    slots_left_out: int
    slots_never: list[str]
    servers: list[Chart]
    faults: list[ReportedFault]
    machine: list[tuple[str, str]]
