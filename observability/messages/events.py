# SPDX-License-Identifier: Apache-2.0
"""Events of running jobs, and who watches them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol, TypeAlias, TypedDict

from typing_extensions import NotRequired

from observability.messages.jobs import JobProgress
from topologies.model.documents import Problem


class StateEvent(TypedDict):
    """A job has changed its state."""

    event: Literal["starting", "running", "checking", "done"]
    job: str


class ProgressEvent(JobProgress):
    """All workers of a job have completed an iteration."""

    event: Literal["progress"]
    job: str


class WaitingEvent(TypedDict):
    """A job waits."""

    event: Literal["waiting"]
    job: str
    seconds: float
    """How long."""
    virtual: NotRequired[Literal[True]]
    """The seconds are of virtual time."""
    why: str


class Within(TypedDict):
    """Progress of a job, also within an iteration."""

    iterations: int
    """Iterations that it has."""
    iterations_done: float
    """Iterations that all workers have done, with the share of the current one."""
    virtual_seconds: NotRequired[float]
    """In virtual time: the time."""
    wall_seconds: NotRequired[float]
    """In virtual time: real time that the simulation has taken."""
    left_seconds: NotRequired[float | None]
    """In virtual time: real time until the job is done; None if unknown."""


class WithinEvent(Within):
    """A job in virtual time proceeds within an iteration."""

    event: Literal["within"]
    job: str


class FaultEvent(TypedDict):
    """A fault has happened; it is reported once for each job that it affects."""

    event: Literal["fault"]
    job: str
    number: int
    """Number of the fault."""
    text: str


Event: TypeAlias = StateEvent | ProgressEvent | WaitingEvent | WithinEvent | FaultEvent
EmitEvent: TypeAlias = Callable[[Event], None]


class Watcher(Protocol):
    """Follows a run."""

    def note(self, text: str) -> None:
        """Takes a text about the run."""

    def warn(self, problem: Problem) -> None:
        """Takes a warning about its files."""

    def event(self, message: Event) -> None:
        """Takes an event of a job."""


def ended_by(error: BaseException) -> str:
    """Returns what ended a run, by the exception: Ctrl-C, or a signal with a ``name``."""
    return f"ended by {getattr(error, 'name', 'SIGINT')}"
