# SPDX-License-Identifier: Apache-2.0
"""Reports of a job's processes, one JSON object a line on their standard output.

``encode`` and ``decode`` convert the reports of a worker (``testbed.worker``); ``decode`` checks
them, and yields dataclasses where these types have them.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from hosts.data.reports import ClientStatistics
from hosts.worker.explanation import Outline, Waiting
from observability.cpu_use import Share
from workloads.attendance import ParticipationReport


class StartedReport(TypedDict):
    """The worker has joined the job."""

    report: Literal["started"]
    plan: int
    """Epoch of its plan."""
    joined: bool
    """Whether it joined a job that was already running."""
    done: int
    """Iterations done before it joined, or by the checkpoint that the job continues."""


class ProgressReport(TypedDict):
    """Iterations since the last report."""

    report: Literal["progress"]
    iteration: int
    """The last one."""
    passes: float
    """Passes over the data."""
    losses: list[float | None]
    """Mean loss of the worker's batch in each iteration; None if the workload has none."""
    spans: list[tuple[float, float]]
    """Begin and end of each iteration in seconds, by the worker's clock."""
    plan: int
    """Epoch of its plan."""
    attendance: ParticipationReport
    """Which workers were in the sums."""
    accuracy: float | None
    """Share of the test set, if it was measured after the last iteration."""
    statistics: ClientStatistics
    """Counts since the process started."""


class WaitingReport(TypedDict):
    """The worker has waited for a chunk for a while."""

    report: Literal["waiting"]
    seconds: float
    """How long."""
    oldest: Waiting | None
    """The oldest chunk."""
    text: str
    """The same in words."""


class CheckpointReport(TypedDict):
    """The worker has written a checkpoint."""

    report: Literal["checkpoint"]
    iteration: int
    """Iteration after which it was written."""
    file: str
    """Path of the file."""


class FailedReport(TypedDict):
    """The worker ends with an error."""

    report: Literal["failed"]
    error: str
    """The error's text."""


class Scheduling(TypedDict):
    """CPU use of a process while it trained."""

    share: Share | None
    """None if it cannot be read."""
    dropped: int
    """Datagrams that its network namespace dropped at full receive buffers."""


class DoneReport(TypedDict):
    """The worker has done all iterations."""

    report: Literal["done"]
    digest: str
    """SHA-256 of its weights; empty without payload."""
    accuracy: float | None
    """Share of the test set."""
    test_loss: float | None
    """Mean cross entropy of the test set in nats."""
    data_sha256: str
    """SHA-256 of the data."""
    seconds: list[float]
    """Duration of each iteration in seconds."""
    statistics: ClientStatistics
    """Counts since the process started."""
    plan: int
    """Epoch of its plan."""
    blocked: dict[int, float]
    """Seconds for which changes of the chunk map held its rounds back, by the change's number."""
    attendance: ParticipationReport
    """Which workers were in the sums since the last report."""
    scheduling: Scheduling | None
    """CPU use of the process; None in virtual time."""


class LeftReport(TypedDict):
    """The worker has left the job, as it was asked to, and the others go on."""

    report: Literal["left"]
    iteration: int
    """The last one that it took part in."""
    attendance: ParticipationReport
    """Which workers were in the sums since the last report."""


class ActivityReport(TypedDict):
    """The answer to a query: what the worker does now."""

    report: Literal["outline"]
    doing: str
    """``starts``, ``computes`` or ``waits``."""
    seconds: float
    """How long."""
    iteration: int
    """Number of the iteration."""
    outline: Outline | None
    """Its chunks in flight; None while it is in no job."""


Report = (
    StartedReport
    | ProgressReport
    | WaitingReport
    | CheckpointReport
    | FailedReport
    | DoneReport
    | LeftReport
    | ActivityReport
)
_REPORT: TypeAdapter[Report] = TypeAdapter(Annotated[Report, Field(discriminator="report")])


def encode(report: Report) -> str:
    """Returns a report as JSON in a line."""
    return json.dumps(report, default=_plain)


def decode(line: str) -> Report:
    """Reads a report; raises ``ValueError`` if it is none."""
    return _REPORT.validate_json(line)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    raise TypeError(f"{type(value).__name__} is not JSON")
