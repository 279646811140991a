# SPDX-License-Identifier: Apache-2.0
"""The known jobs, the lock that guards them, their numbers and the limits on their count."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from controller.jobs.epochs import LAST_EPOCH
from controller.jobs.job import Job, JobError, Refusal
from controller.jobs.journal import Journal
from protocol.runtime import REAL, Runtime

__all__ = ["MOST_ALIVE", "MOST_JOBS", "MOST_WAITING", "REMEMBERED", "Roster"]

log = logging.getLogger(__name__)

MOST_JOBS = (1 << 16) - 1
# Limits on jobs that are not over, and on those of them that wait for members. Further requests are
# refused until some have ended or timed out.
MOST_ALIVE = 256
MOST_WAITING = 64
# Ended jobs that are kept, so that late callers learn how they ended.
REMEMBERED = 64


class Roster:
    """The jobs of a fabric. Callers of all methods but ``busy`` hold ``changed``.

    jobs: oldest first.
    join: seconds within which members have to connect.
    """

    def __init__(
        self, journal: Journal, clock: Callable[[], float], join: float, runtime: Runtime = REAL
    ) -> None:
        self.changed = runtime.condition()
        self.jobs: list[Job] = []
        self._journal = journal
        self._clock = clock
        self._join = join
        self._last_number = journal.last_number
        self._used = journal.used()  # last epoch of jobs that are over, by number

    def place_for(self, namespace: str) -> tuple[int, int]:
        """Returns the number and first plan epoch for a new job of that name.

        Raises JobError if the name is taken or there are too many jobs.
        """
        if any(job.namespace == namespace and not job.state.over for job in self.jobs):
            text = f"a job named {namespace!r} is alive; stop it or choose another namespace"
            raise JobError(Refusal.ALREADY_EXISTS, text)
        self._check_room()
        return self._next_number()

    def add(self, job: Job) -> None:
        """Adds a job with the number that ``place_for`` returned."""
        self._last_number = job.number
        self.jobs.append(job)

    def alive(self, number: int) -> Job:
        """Finds the job of that number that is not over; raises JobError if there is none."""
        found = [job for job in self.jobs if job.number == number and not job.state.over]
        if not found:
            raise JobError(Refusal.FAILED_PRECONDITION, f"no job {number} is alive")
        return found[0]

    def over(self, job: Job) -> None:
        """Records that a job is over, and forgets the oldest jobs that are."""
        self._used[job.number] = job.epoch
        over = [other for other in self.jobs if other.state.over and not other.held]
        for forgotten in over[:-REMEMBERED]:
            self.jobs.remove(forgotten)
            self._journal.drop(forgotten, forget=True)

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Holds the lock for an operation that may take long while switches are written.

        Members cannot be heard meanwhile, so their leases are extended by the same time.
        """
        with self.changed:
            began = self._clock()
            try:
                yield
            finally:
                took = self._clock() - began
                for job in self.jobs if took else ():
                    for member in job.members.values():
                        member.heard += took
                self.changed.notify_all()

    def forgive(self, seconds: float) -> None:
        """Extends all deadlines by a time in which members could not be heard."""
        log.warning("stopped for %.0f s: members have as much longer for everything", seconds)
        for job in self.jobs:
            job.created += seconds
            job.asked_at += seconds
            job.left_at += seconds
            for member in job.members.values():
                member.heard += seconds

    # --- inside ---

    def _check_room(self) -> None:
        """Raises JobError if there are too many jobs for another one."""
        alive = [job for job in self.jobs if not job.state.over]
        waiting = [job for job in alive if not job.started]
        for jobs, most, how in (
            (alive, MOST_ALIVE, "alive"),
            (waiting, MOST_WAITING, f"waiting for members, which have {self._join:.0f} s to come"),
        ):
            if len(jobs) >= most:
                text = f"{len(jobs)} jobs are {how}: the limit; {jobs[0]} is the oldest"
                raise JobError(Refusal.RESOURCE_EXHAUSTED, text)

    def _next_number(self) -> tuple[int, int]:
        """Finds a job number and plan epoch that no slot of any switch has seen."""
        held = {job.number for job in self.jobs if not job.state.over or job.held}
        for step in range(1, MOST_JOBS + 1):
            number = (self._last_number + step - 1) % MOST_JOBS + 1
            epoch = self._used.get(number, 0) + 1
            if number not in held and epoch <= LAST_EPOCH:
                return number, epoch
        raise JobError(Refusal.RESOURCE_EXHAUSTED, f"{MOST_JOBS} jobs are alive, the limit")
