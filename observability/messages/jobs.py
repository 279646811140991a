# SPDX-License-Identifier: Apache-2.0
"""Rows of jobs, as a testbed lists them."""

from __future__ import annotations

from typing import Literal, TypeAlias

# pydantic needs this TypedDict before Python 3.12.
from typing_extensions import NotRequired, TypedDict

Target: TypeAlias = Literal["embedded", "bmv2"]
Clock: TypeAlias = Literal["emulated", "virtual"]
JobState: TypeAlias = Literal["starting", "running", "checking", "done", "failed", "stopped"]


class JobHead(TypedDict):
    """Identity and state of a submitted job."""

    job: str
    """Name of the job."""
    number: int
    """Number of the job in packets; 0 before it has one."""
    state: JobState
    """State of the job."""
    reason: str
    """Why it failed or was stopped; empty otherwise."""


class JobProgress(TypedDict):
    """Progress of a submitted job. The optional keys exist once all workers have completed an
    iteration."""

    iteration: int
    """Iterations that all workers have completed."""
    iterations: int
    """Iterations that the job has."""
    passes: NotRequired[float]
    """Passes over the data."""
    loss: NotRequired[float | None]
    """Mean loss of the last iteration; null if the workload has none."""
    accuracy: NotRequired[float | None]
    """Share of the test set, when last measured."""
    chunks_per_second: NotRequired[float | None]
    """Chunks that each worker received, lately; null before it is known."""
    share_in_network: NotRequired[float]
    """Share of chunks that switches summed, 0 to 1."""


class SubmittedJob(JobHead, JobProgress):
    """A job that was submitted to a testbed."""

    workers: int
    """Number of workers, also of those that joined it later."""
    present: int | None
    """Workers that are in it now; null unless it runs."""
    tree: str
    """Tree that it has."""


class ExternalJob(TypedDict):
    """A job that a user's own program created, as far as the job service knows it."""

    job: str
    """Name of the job."""
    number: int
    """Number of the job in packets."""
    state: JobState | None
    """State of the job; null if unknown."""
    reason: str
    """What it waits for, or why it ended; empty if that is unknown."""
    workers: int
    """Number of workers that it began with."""
    present: int | None
    """Workers that are in it now; null unless it runs."""
    tree: str | None
    """Tree that it has; null if unknown."""
    plan_epoch: int | None
    """Number of its plan; null if unknown."""
    iteration: None
    """Unknown."""
    iterations: None
    """Unknown."""


class NewJob(TypedDict):
    """A job to create, in which processes work that its user starts."""

    name: str
    """Name of the job, which gets a number if it is taken."""
    workers: list[str]
    """Hosts, by rank."""
    servers: list[str]
    """Hosts, by rank."""
    tree: str
    """Word of ``protocol.trees``."""
    order: str
    """In which gradients are sent: a chunk scheduler."""


class CreatedJob(TypedDict):
    """A job that was created."""

    job: str
    """Name of the job."""
    number: int
    """Number of the job in packets."""
    nonce: str
    """Secret that admits to it."""


class ScaledServers(TypedDict):
    """A change of the servers that have slices of a job."""

    from_round: int
    """The first round with the new chunk map; 0 if workers are in rounds of their own: it holds for
    each from when it knows it."""
    slices: int
    """Slices that moved."""
    bytes: int
    """Bytes of their parameters, in whole chunks."""
    servers: list[str]
    """Server processes that have slices now."""
    spares: list[str]
    """Server processes that have none."""


class ScaledJob(TypedDict):
    """Changes of the servers and workers of a job by one order."""

    job: str
    """Name of the job."""
    servers: ScaledServers | None
    """The change of its servers; null if none was asked for."""
    workers: list[str] | None
    """Workers that are in it now; null if no change was asked for."""
    killed: list[str]
    """Workers that did not leave within half of the job's `patience` and were killed."""


class OtherJob(ExternalJob):
    """A job that was not submitted, in the summary of a run."""

    began: float
    """Seconds from the testbed's start until it was created."""
    ended: float
    """Seconds from the testbed's start until it ended, or until now."""
    alive: bool
    """Whether it had not ended."""


JobRow: TypeAlias = SubmittedJob | ExternalJob
