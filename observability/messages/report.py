# SPDX-License-Identifier: Apache-2.0
"""The data of a run that ``rackhub report`` shows, as its page has them and ``--json`` prints them.

Its JSON schema is generated from these types, like that of the summary.
"""

from __future__ import annotations

from typing import Literal

# pydantic needs this TypedDict before Python 3.12.
from typing_extensions import TypedDict

from observability.messages.jobs import Clock, JobState, OtherJob, Target
from observability.messages.servers import ServerTimes
from observability.messages.summary import (
    FaultImpact,
    FinishedMachine,
    JobMachine,
    LoadMove,
    Nothing,
    PlanUse,
    Restored,
    UnfinishedMachine,
)


class Verdict(TypedDict):
    """A run's outcome."""

    kind: Literal["good", "bad", "open", "plain"]
    """`good`: every job is done and right; `bad`: the run failed, or weights are wrong; `plain`:
    done, and there are no sums to check; `open`: anything else."""
    text: str
    """The same in words."""


class ChunkShares(TypedDict):
    """Places where a job's chunks were summed."""

    network: int
    """Chunks summed by switches."""
    server: int
    """Chunks summed by servers alone."""
    share: float | None
    """Share that switches summed, 0 to 1; null without chunks."""
    unknown: str
    """Why these are a worker's count instead of switches'; empty if they are not."""
    in_float32: int
    """Chunks summed in float32."""
    retransmitted: int
    """Packets that workers and switches retransmitted."""
    retransmitted_by_switches: int | None
    """Packets that switches retransmitted; null if unknown."""


class ReportedJob(TypedDict):
    """A submitted job."""

    name: str
    """Name of the job."""
    state: JobState
    """State of the job."""
    reason: str
    """Why it failed or was stopped; empty otherwise."""
    tree: str
    """Kind of tree; empty if unknown."""
    workers: int | None
    """Number of workers; null if unknown."""
    servers: int | None
    """Number of servers; null if unknown."""
    iterations: int | None
    """Iterations that it has; null if unknown."""
    done: int
    """Iterations that are complete."""
    accuracy: float | None
    """Share of the test set; null if unknown."""
    matches: bool | None
    """Whether its weights are those of the reference, bit by bit; null if unknown."""
    summed: bool
    """Whether its chunks have a payload."""
    no_reference: str
    """Why `matches` is null; empty if it is not, or if the job is not done."""
    purpose: str
    """What it is for if it learns nothing; empty otherwise."""
    median: float | None
    """Median duration of an iteration in seconds; null if unknown."""
    slowest: float | None
    """Longest duration of an iteration in seconds; null if unknown."""
    machine: JobMachine | Nothing
    """Results that depend on the machine; empty if the job is not done."""
    chunks: ChunkShares | None
    """Where its chunks were summed; null if it is not done."""
    plans: list[PlanUse]
    """Plans that it has had."""
    alongside: list[str]
    """Jobs that ran meanwhile."""
    lost_workers: dict[str, str]
    """How workers ended that it went on without, by name."""
    left_workers: dict[str, int]
    """The last iteration of each worker that left when it was asked to, by name."""
    rejoined_workers: dict[str, int]
    """How often workers came back, by name."""
    restored: list[Restored]
    """Chunks that servers got when plans changed."""
    moves: list[LoadMove]
    """Moves of load between its servers."""
    server_times: list[ServerTimes]
    """What was measured of its servers; empty unless it is measured."""


class LinkLoad(TypedDict):
    """A link direction: frames without FCS, by the sender's counters."""

    sender: str
    """Sending node, or its interface where links run in parallel."""
    to: str
    """Receiving node."""
    bytes: int | None
    """Bytes; null if a counter was lost."""
    packets: int | None
    """Packets; null if a counter was lost."""
    expected_bytes: int | None
    """Bytes by the closed form; null where it does not apply."""
    unknown: str
    """Why a count is null; empty if none is."""
    share: float | None
    """Load, as a share of the link's rate, or (see `of_rate`) of the largest load; null if
    unknown."""
    level: int | None
    """Class of the load, from 0, which is nothing, to 5; null if unknown."""
    deviation: str
    """Of the bytes from the expected ones, as text; empty if one of them is unknown."""
    off: bool
    """Whether they deviate by more than 2 %."""


class ChartLine(TypedDict):
    """A curve."""

    name: str
    """Name of the curve."""
    points: list[tuple[float, float | None]]
    """x and y, in the order of x; y is null where it is unknown."""


class ChartData(TypedDict):
    """A chart."""

    title: str
    """What it shows: a quantity, or the node whose slots these are."""
    x: str
    """Quantity and unit of x."""
    y: str
    """Quantity and unit of y; empty for a share, 0 to 1."""
    lines: list[ChartLine]
    """Its curves."""


class ReportedFault(TypedDict):
    """A fault with its effect on each job."""

    number: int
    """Place in time, from 1."""
    at: float | None
    """Seconds since the first job ran; null if none did."""
    node: str
    """Node or link."""
    what: str
    """What happened, in words."""
    lasted: float | None
    """Duration in seconds; null if it did not end."""
    aggregating: int | None
    """Slots of switches in AGGREGATING at the fault, at least."""
    partial: int | None
    """Slots in PARTIAL, at least."""
    rejoined_after: float | None
    """Seconds until the worker that a job lost had rejoined; null if none did."""
    impacts: list[FaultImpact]
    """Effect on each job that ran."""


class ReportData(TypedDict):
    """Content of a report of a run. All that is over time counts in seconds from the start of the
    first job."""

    run: str
    """Name of the run directory."""
    topology: str | None
    """Name of the topology; null if its file cannot be read."""
    workers: int | None
    """Number of workers' hosts; null if the topology is unknown."""
    servers: int | None
    """Number of servers' hosts; null if the topology is unknown."""
    switches: int | None
    """Number of switches; null if the topology is unknown."""
    target: Target
    """Target of switches."""
    clock: Clock
    """Clock of the run."""
    started: str
    """Local time, ISO 8601."""
    verdict: Verdict
    """The outcome."""
    ended: str
    """Why the run failed, with the end of a log; empty if it did not."""
    jobs: list[ReportedJob]
    """Submitted jobs."""
    others: list[OtherJob]
    """Jobs of users' own programs."""
    links: list[LinkLoad]
    """What each direction of a link carried."""
    of_rate: bool
    """Whether loads are shares of the links' rates, else of the largest load."""
    training: list[ChartData]
    """Loss and test accuracy of each job."""
    slots: list[ChartData]
    """Slots that jobs held in each switch, and those with a sum under way; without switches in
    which no job held any."""
    server_loads: list[ChartData]
    """What servers received and sent."""
    faults: list[ReportedFault]
    """Faults, in the order of time."""
    machine: FinishedMachine | UnfinishedMachine | Nothing
    """The machine; empty if unknown."""
