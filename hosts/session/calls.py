# SPDX-License-Identifier: Apache-2.0
"""A worker's calls under way: which chunks each has submitted, and what has come of them.

No thread, socket or clock of its own. Sums of several calls come mixed; a call is done with its
last sum, whichever of the others are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYetError
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from hosts.data.reports import Completed
from hosts.data.tensors import Sums
from hosts.errors import StalledError
from hosts.session.stall_timeout import StallTimeout

Members = dict[int, tuple[int, ...]]
Workers = npt.NDArray[np.int64]
_T = TypeVar("_T")


class Call:
    """One push of keys: `numbers` of them in order, with so many chunks each (`counts`).

    future: of what `finish` makes of the sums, when all are there: of how many workers are in each
    chunk's, of who those are by their number, and of the first ticket. patience: how long it waits.
    """

    def __init__(
        self,
        numbers: Sequence[int],
        counts: Sequence[int],
        finish: Callable[[Workers, Members, int], Sums],
        patience: StallTimeout,
        future: Future[Sums],
    ) -> None:
        self.numbers = numbers
        self.patience = patience
        self.future = future
        self.future.set_running_or_notify_cancel()  # what is contributed cannot be taken back
        self.missing = sum(counts)
        self.first = self.round = self.before = 0
        self.members: Members = {}
        self._ends = np.cumsum(counts)
        self._finish = finish
        self._workers = np.zeros(self.missing, np.int64)

    def start(self, first: int, number: int, before: int) -> None:
        """It is submitted: the first ticket, the number of its round, and how many keys came before
        it in all."""
        self.first, self.round, self.before = first, number, before
        self.patience.begin()

    def take(self, completed: Completed) -> None:
        """Sums, of which some may be this call's."""
        at = completed.tickets - self.first
        mine = (at >= 0) & (at < len(self._workers))
        self._workers[at[mine]] = completed.workers[mine]
        self.missing -= int(np.count_nonzero(mine))

    @property
    def workers(self) -> list[int]:
        """The numbers of workers that there are in its sums."""
        found: list[int] = np.unique(self._workers).tolist()
        return found

    @property
    def awaited(self) -> int:
        """Which of its keys is the first without all sums."""
        chunk = int(np.argmin(self._workers))
        return int(np.searchsorted(self._ends, chunk, side="right"))

    def settle(self, error: BaseException | None = None) -> None:
        """It is done, or has failed: whoever waits for it goes on. Runs what they have asked to be
        called, so with no lock held."""
        if error is None:
            try:
                sums = self._finish(self._workers, self.members, self.first)
                self.future.set_result(sums)
                return
            except Exception as unexpected:
                error = unexpected
        self.future.set_exception(error)


class Calls:
    """Those that are not done, in order of submission."""

    def __init__(self) -> None:
        self.open: list[Call] = []

    def until_done(self, tickets: npt.NDArray[np.int64]) -> int:
        """How many of these sums come until the first call is done, that one included; (n,) their
        tickets in order, -1: of none."""
        most = len(tickets)
        if all(call.missing > most for call in self.open):
            return most
        places = self._places(tickets)
        for place, count in enumerate(np.bincount(places[places >= 0]).tolist()):
            missing = self.open[place].missing
            if count >= missing:
                most = min(most, int(np.flatnonzero(places == place)[missing - 1]) + 1)
        return most

    def take(self, completed: Completed) -> list[Call]:
        """Sums that have arrived; returns the calls that are done with them."""
        if not len(completed):
            return []
        if len(self.open) == 1:
            self.open[0].take(completed)
        else:
            for place in np.unique(self._places(completed.tickets)).tolist():
                if place >= 0:
                    self.open[place].take(completed)
        for call in self.open:
            call.patience.moved(call.missing)
        done = [call for call in self.open if not call.missing]
        if done:
            self.open = [call for call in self.open if call.missing]
        return done

    def _places(self, tickets: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
        """(n,) which open calls these may be of, as they have their tickets in order; -1: none."""
        firsts = np.array([call.first for call in self.open], np.int64)
        return np.asarray(np.searchsorted(firsts, tickets, side="right") - 1, np.intp)

    def clear(self) -> list[Call]:
        """None is under way any more; returns those that were."""
        cleared, self.open = self.open, []
        return cleared

    @property
    def next(self) -> float:
        """When to call `overdue`."""
        if not self.open:
            return math.inf
        return min(self.open[0].patience.next, *(call.patience.deadline for call in self.open))

    def overdue(self) -> tuple[Call, TimeoutError | StalledError] | None:
        """A call that has waited for too long, with what to tell it. Others may begin meanwhile."""
        calls = list(self.open)
        for call in calls:
            # What the oldest waits for the others do.
            if call is calls[0] or call.patience.late:
                try:
                    call.patience.look()
                except (TimeoutError, StalledError) as error:
                    return call, error
        return None

    @property
    def awaited(self) -> tuple[int, int] | None:
        """The first key without its sum: its place among all that were pushed, from 1, and its
        number. None: all have come."""
        if not self.open:
            return None
        call = self.open[0]
        return call.before + call.awaited + 1, call.numbers[call.awaited]


def result_of(future: Future[_T], timeout: float | None) -> _T:
    """Its result, or TimeoutError after so many seconds without; raises what it failed with."""
    try:
        return future.result(timeout)
    except NotYetError:
        if future.done():
            return future.result()
        raise TimeoutError(f"not done after {timeout} s") from None
