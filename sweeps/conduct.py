# SPDX-License-Identifier: Apache-2.0
"""Conducts a sweep: submits trials to a crew, retries failures, stores results."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from sweeps.execution import Outcome
from sweeps.store import DONE, FAILED, Store
from sweeps.trials import Trial

ATTEMPTS = 2
AGAIN = "again"  # state of a trial that failed and is run once more


class Crew(Protocol):
    """Runs trials, ``slots`` at a time."""

    slots: int

    def submit(self, trial: Trial) -> None:
        """Adds a trial; there must be a free slot."""

    def next(self) -> tuple[Trial, Outcome]:
        """Waits until a trial is over and returns its outcome."""

    def close(self) -> None:
        """Ends all running trials at once."""


@dataclass
class State:
    """Progress of a sweep. before: trials done before this call; seconds: duration of this call."""

    trials: int
    before: int
    done: int = 0
    failed: int = 0
    again: int = 0
    seconds: float = 0.0

    @property
    def over(self) -> int:
        """Trials that are done or have failed for good."""
        return self.before + self.done + self.failed

    @property
    def left(self) -> float | None:
        """Estimated seconds to go; None before the first trial is over."""
        came = self.done + self.failed
        return self.seconds * (self.trials - self.over) / came if came else None


def pending(store: Store, trials: Sequence[Trial]) -> list[Trial]:
    """Returns the trials that are not done, including failed ones."""
    results = ((one, store.result(one)) for one in trials)
    return [one for one, result in results if result is None or result["state"] != DONE]


def conduct(
    store: Store,
    trials: Sequence[Trial],
    crew: Callable[[], Crew],
    tell: Callable[[State, Trial, Outcome, str], None],
) -> State:
    """Runs all pending trials, each failing one twice, and reports each outcome.

    Args:
        crew: Creates the crew; called only if a trial is pending.
    """
    todo = pending(store, trials)
    state = State(len(trials), len(trials) - len(todo))
    if not todo:
        return state
    began = time.monotonic()
    attempts: Counter[str] = Counter()
    at_work = crew()
    try:
        for trial in todo:
            at_work.submit(trial)
        while state.over < state.trials:
            trial, outcome = at_work.next()
            attempts[trial.id] += 1
            state.seconds = time.monotonic() - began
            if outcome.summary is None and attempts[trial.id] < ATTEMPTS:
                state.again += 1
                tell(state, trial, outcome, AGAIN)
                at_work.submit(trial)
                continue
            result = store.keep(trial, outcome, attempts[trial.id])
            state.failed += result["state"] == FAILED
            state.done += result["state"] == DONE
            tell(state, trial, outcome, result["state"])
    finally:
        at_work.close()
    return state
