# SPDX-License-Identifier: Apache-2.0
"""Progress of a sweep, on a terminal or as lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from observability.record import shown
from observability.wording import count
from sweeps.conduct import AGAIN, State, pending
from sweeps.execution import Outcome
from sweeps.store import FAILED, Store
from sweeps.trials import Trial

_MINUTE = 60.0


def _left(seconds: float | None) -> str:
    if not seconds:  # unknown yet, or finished
        return ""
    if seconds < _MINUTE:
        return f", about {seconds:.0f} s left"
    hours, minutes = divmod(round(seconds / _MINUTE), 60)
    return f", about {f'{hours} h ' if hours else ''}{minutes} min left"


class SweepView:
    """Shows progress: a bar with the time left on a terminal, a line per trial elsewhere."""

    def __init__(self, console: Console, store: Store, listed: Sequence[Trial]) -> None:
        self.say: Callable[[str], None] = lambda text: console.print(
            text, soft_wrap=True, markup=False
        )
        before = len(listed) - len(pending(store, listed))
        self.say(
            f"{count(len(listed), 'trial')}, {before:,} of them done before\n"
            f"{shown(store.path.resolve())}"
        )
        self._bar = Progress(
            TextColumn("trials"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.description}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._terminal = console.is_terminal
        self._task = self._bar.add_task("", total=len(listed), completed=before)

    def __enter__(self) -> SweepView:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def take(self, state: State, trial: Trial, outcome: Outcome, became: str) -> None:
        """Reports the outcome of a trial. became: its state."""
        failed = f", {state.failed:,} failed" if state.failed else ""
        left = _left(state.left)
        self._bar.update(
            self._task, completed=state.over, description=(failed + left).removeprefix(", ")
        )
        if became in (FAILED, AGAIN):
            what = "failed" if became == FAILED else "failed, and is tried again"
            self.say(f"trial {trial.id} ({trial.label}) {what}: {outcome.error}")
        if not self._terminal and became != AGAIN:
            done = f"{state.over:,}/{state.trials:,} trials{failed}{left}"
            self.say(f"{done}: {trial.label or trial.id}, {outcome.seconds:.1f} s")
