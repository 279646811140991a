# SPDX-License-Identifier: Apache-2.0
"""Reasons why a job waits: the answer to ``rackhub why``. Times are in seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:  # slow to import, and most commands import this file
    from hosts.worker.explanation import Outline


@dataclass(frozen=True)
class Activity:
    """Activity of a worker, as far as it is known.

    doing: starts, computes, waits; stopped, ended, silent.
    seconds: how long.
    iteration, outline: of its own answer; None if it has not answered.
    """

    worker: str
    doing: str
    seconds: float = 0.0
    iteration: int | None = None
    outline: Outline | None = None


_NodeIn = TypedDict("_NodeIn", {"in": list[str] | None})  # children whose contributions are in


class NodeState(_NodeIn):
    """A node of a chunk's tree, by its last reply to a worker."""

    node: str
    """Switch or server."""
    phase: str | None
    """Phase of its slot; None if no worker has heard of it."""
    missing: list[str]
    """Children whose contributions are missing."""
    seconds: float | None
    """Time since the first worker below it has sent."""
    told: str | None
    """Worker that it replied to."""
    heard: float | None
    """Time since that reply."""
    stuck: str | None
    """What is wrong with its process."""


class ChunkState(TypedDict):
    """The oldest chunk of a stream."""

    chunk: int
    stream: int
    seq: int
    epoch: int
    """Number of its plan."""
    kind: str
    """``hosts.worker.explanation.Waiting.kind``."""
    seconds: float | None
    """Time since the first worker has sent it."""
    timeouts: float
    """The same in RTO."""
    late: bool
    """Whether the job counts as waiting for it."""
    open: int
    """Chunks of the stream in flight, at the worker with the most."""
    causes: list[str]
    """What is waited for, from the root down."""
    nodes: list[NodeState]
    """Nodes of the tree, the root first; empty if the tree is unknown."""


class WorkerState(TypedDict):
    """Activity of a worker."""

    worker: str
    doing: str
    seconds: float
    """How long."""
    iteration: int | None
    says: str
    """The same in words."""
    last: str | None
    """Kind of the last packet that it sent for the oldest chunk: CONTRIBUTE or QUERY."""
    ago: float | None
    """Time since then."""
    sent: int | None
    """How often it sent its contribution."""


class Explanation(TypedDict):
    """Reason why a job waits, if it does."""

    waits: bool
    seconds: float
    """Age of the oldest chunk."""
    reason: str
    """Why it waits, or how it ended."""
    change: str
    """What a change of epoch waits for; empty if there is none."""
    epoch: int | None
    """Number of the plan; 0 or None if unknown."""
    chunks: list[ChunkState]
    """Oldest chunk of each stream, the latest one first."""
    workers: list[WorkerState] | None
    """By rank; None for a job whose workers cannot be queried."""


class JobExplanation(Explanation):
    """Reason why a named job waits, if it does."""

    job: str
    state: str | None
