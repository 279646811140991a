# SPDX-License-Identifier: Apache-2.0
"""A sweep from its first trial to its last, whoever runs them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sweeps.execution import Outcome
from sweeps.store import DONE, FAILED, Store
from sweeps.trials import Trial

Message = dict[str, Any]
ATTEMPTS = 2


class Crew(Protocol):
    """Runs trials, ``slots`` at a time."""

    slots: int

    def submit(self, trial: Trial) -> None:
        """One more to run."""

    def next(self) -> tuple[Trial, Outcome]:
        """Blocks until one is over."""

    def close(self) -> None:
        """Ends it all at once."""


@dataclass
class State:
    """How far a sweep is. before: trials that were done when it began; seconds: of this call."""

    trials: int
    before: int
    done: int = 0
    failed: int = 0
    again: int = 0
    seconds: float = 0.0

    @property
    def over(self) -> int:
        """Trials that need no more work."""
        return self.before + self.done + self.failed

    @property
    def left(self) -> float | None:
        """Seconds to go, if trials take as long as until now; None before the first is over."""
        came = self.done + self.failed
        return self.seconds * (self.trials - self.over) / came if came else None


def pending(store: Store, trials: Sequence[Trial]) -> list[Trial]:
    """Those that are not done: failed ones are tried again."""
    return [one for one in trials if (store.result(one) or {}).get("state") != DONE]


def conduct(
    store: Store,
    trials: Sequence[Trial],
    crew: Callable[[], Crew],
    tell: Callable[[State, Trial, Message], None],
) -> State:
    """Runs what is not done, and what fails once more; tells of each outcome. crew: is asked for
    only if there is anything to run."""
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
                tell(state, trial, {"state": "again", **outcome.to_message()})
                at_work.submit(trial)
                continue
            result = store.keep(trial, outcome, attempts[trial.id])
            state.failed += result["state"] == FAILED
            state.done += result["state"] == DONE
            tell(state, trial, result)
    finally:
        at_work.close()
    return state
