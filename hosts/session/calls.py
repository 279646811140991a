# SPDX-License-Identifier: Apache-2.0
"""A worker's calls under way: the chunks that each has submitted, and the sums that have arrived.

No thread, socket or clock of its own. Sums of several calls arrive mixed; a call is done with its
last sum, in any order of calls.
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
from protocol.header import distinct

Members = dict[int, tuple[int, ...]]
Workers = npt.NDArray[np.int64]
_T = TypeVar("_T")


class Call:
    """One push of keys: `numbers` of them in order.

    ends: (keys,) where each key's chunks end among all.
    finish: makes the result of all sums, given the number of workers in each chunk, their members
        by that number, and the first ticket.
    future: of that result.
    patience: bounds the wait.
    """

    def __init__(
        self,
        numbers: Sequence[int],
        ends: npt.NDArray[np.int64],
        finish: Callable[[Workers, Members, int], Sums],
        patience: StallTimeout,
        future: Future[Sums],
    ) -> None:
        self.numbers = numbers
        self.patience = patience
        self.future = future
        self.future.set_running_or_notify_cancel()  # a contribution cannot be withdrawn
        self.missing = int(ends[-1])
        self.first = self.round = self.before = 0
        self.members: Members = {}
        self._ends = ends
        self._finish = finish
        self._workers = np.zeros(self.missing, np.int64)

    def start(self, first: int, number: int, before: int) -> None:
        """Records the submission: its first ticket, its round, and the number of keys pushed before
        it."""
        self.first, self.round, self.before = first, number, before
        self.patience.begin()

    def take(self, tickets: npt.NDArray[np.int64], workers: int) -> None:
        """Takes sums of so many workers, by their tickets, of which some may be this call's."""
        at = tickets - self.first
        if len(at) and (at.min() < 0 or at.max() >= len(self._workers)):
            at = at[(at >= 0) & (at < len(self._workers))]
        self._workers[at] = workers
        self.missing -= len(at)

    @property
    def workers(self) -> list[int]:
        """Returns the distinct numbers of workers in its sums."""
        return distinct(self._workers)

    @property
    def awaited(self) -> int:
        """Returns the index of its first key without all sums."""
        chunk = int(np.argmin(self._workers))
        return int(np.searchsorted(self._ends, chunk, side="right"))

    def settle(self, error: BaseException | None = None) -> None:
        """Completes the future, with an error if there is one. This runs callbacks: hold no
        lock."""
        if error is None:
            try:
                sums = self._finish(self._workers, self.members, self.first)
                self.future.set_result(sums)
                return
            except Exception as unexpected:
                error = unexpected
        self.future.set_exception(error)


class Calls:
    """The unfinished calls `open`, in order of submission.

    fewest: the least number of sums that may complete one; 0 without any.
    """

    def __init__(self) -> None:
        self.open: list[Call] = []
        self.fewest = 0
        self._deadline = math.inf

    def add(self, call: Call) -> None:
        """Adds a call that has begun."""
        self.open.append(call)
        self._count()

    def _count(self) -> None:
        self.fewest = min([call.missing for call in self.open], default=0)
        self._deadline = min([call.patience.deadline for call in self.open], default=math.inf)

    def until_done(self, tickets: npt.NDArray[np.int64]) -> tuple[int, bool]:
        """Returns the number of these sums up to the first that completes a call, that one
        included, and whether there is one.

        tickets: (n,) in order of arrival, -1: of no call.
        """
        most = len(tickets)
        if self.fewest > most:
            return most, False
        places, ends = self._places(tickets), False
        for place, count in enumerate(np.bincount(places[places >= 0]).tolist()):
            missing = self.open[place].missing
            if count >= missing:
                most = min(most, int(np.flatnonzero(places == place)[missing - 1]) + 1)
                ends = True
        return most, ends

    def take(self, completed: Completed, arrived: float) -> list[Call]:
        """Takes sums, the last of which arrived at this time; returns the calls that they
        complete."""
        if not len(completed):
            return []
        taking = self.open
        if len(taking) > 1:
            places = np.unique(self._places(completed.tickets)).tolist()
            taking = [self.open[place] for place in places if place >= 0]
        for sums in completed.epochs:
            for call in taking:
                call.take(sums.found["ticket"], sums.workers)
        self.fewest = min([self.fewest, *(call.missing for call in taking)])
        done = [call for call in taking if not call.missing]
        if done:
            self.open = [call for call in self.open if call.missing]
            self._count()
        if self.open:  # the others wait for the oldest
            self.open[0].patience.moved(self.open[0].missing, arrived)
        return done

    def _places(self, tickets: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
        """Returns the index of the open call (n,) that each ticket belongs to, -1 if none."""
        firsts = np.array([call.first for call in self.open], np.int64)
        return np.asarray(np.searchsorted(firsts, tickets, side="right") - 1, np.intp)

    def clear(self) -> list[Call]:
        """Removes and returns all open calls."""
        cleared, self.open = self.open, []
        self._count()
        return cleared

    @property
    def next(self) -> float:
        """Returns the time of the next call of `overdue`."""
        if not self.open:
            return math.inf
        return min(self.open[0].patience.next, self._deadline)

    def overdue(self) -> tuple[Call, TimeoutError | StalledError] | None:
        """Returns a call that has waited too long, with its error. Other calls may begin
        meanwhile."""
        calls = list(self.open)
        for call in calls:
            # The other calls wait for the oldest.
            if call is calls[0] or call.patience.late:
                call.patience.missing = call.missing
                try:
                    call.patience.look()
                except (TimeoutError, StalledError) as error:
                    return call, error
        return None

    @property
    def awaited(self) -> tuple[int, int] | None:
        """Returns the first key without its sum: its position among all pushed keys, from 1, and
        its number; None if all sums have arrived."""
        if not self.open:
            return None
        call = self.open[0]
        return call.before + call.awaited + 1, call.numbers[call.awaited]


def result_of(future: Future[_T], timeout: float | None) -> _T:
    """Returns the future's result; raises its error, or TimeoutError after `timeout` seconds."""
    try:
        return future.result(timeout)
    except NotYetError:
        if future.done():
            return future.result()
        raise TimeoutError(f"not done after {timeout} s") from None
