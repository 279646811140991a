# SPDX-License-Identifier: Apache-2.0
"""Handles members that leave: done, failed, reported dead, or silent beyond their lease."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from controller.jobs.arrivals import Arrivals
from controller.jobs.epochs import Epochs, words
from controller.jobs.job import Job, JobError, Membership, Refusal, Role
from controller.jobs.requests import QUOTED, said
from controller.jobs.resync import ResyncError
from protocol import jobs_pb2

__all__ = ["Departures"]

log = logging.getLogger(__name__)

LONGEST_REASON = 500


class Departures:
    """Departures of all jobs. ``fail`` ends a job for a reason. Callers hold the jobs' lock."""

    def __init__(
        self, epochs: Epochs, arrivals: Arrivals, fail: Callable[[Job, str], None]
    ) -> None:
        self.epochs = epochs
        self.arrivals = arrivals
        self.fail = fail

    def leave(
        self,
        job: Job,
        place: Membership,
        reason: str,
        results: Iterable[jobs_pb2.Result],
        levels: bytes,
        process: int,
        *,
        others_go_on: bool = False,
    ) -> None:
        """Handles ``JobTable.leave``."""
        member = job.members.get(place)
        if member is not None and member.process != process:
            return  # replaced by another process
        if job.state.over or (member is not None and (member.left or member.lost)):
            return
        why = said(reason, LONGEST_REASON)
        if member is not None and member.joining:
            self.arrivals.drop(job, place, f"left ({why or 'without a reason'})")
        elif reason:
            self.fail(job, f"{job.name(place)} gave up: {why}")
        elif not job.started or member is None:
            self.fail(job, f"{job.name(place)} left before the job started")
        elif place.role is Role.SERVER:
            member.left = True
            self.epochs.go_on(job, f"{job.name(place)} left while workers were running")
        else:
            try:
                self.epochs.leave(job, place, results, levels, others_go_on=others_go_on)
            except ResyncError as error:
                text = f"{job}: {job.name(place)}: {error}"
                raise JobError(Refusal.INVALID_ARGUMENT, text) from error
            log.info("%s: %s left", job, job.name(place))
            self.arrivals.left(job, place)

    def gone(self, job: Job, place: Membership, reason: str) -> None:
        """Handles ``JobTable.gone``."""
        member = job.members.get(place)
        if job.state.over or member is None or member.left or member.lost:
            return
        why = said(reason, LONGEST_REASON) or "is dead"
        if not job.started and place.role is Role.SERVER:
            # Another process may connect in its place, as if it were the first.
            log.error("%s: %s %s before the job started", job, job.name(place), why)
            del job.members[place]
            self.epochs.journal.save(job)
        elif not job.started:
            self.fail(job, f"{job.name(place)} {why}")
        elif member.joining:
            self.arrivals.drop(job, place, why)
        else:
            self.epochs.end_members(job, {place: why})

    def look_after(self, job: Job, now: float, join: float) -> None:
        """Continues a job without members that are silent or have left, or fails it.

        join: seconds from its creation within which all members have to connect.
        """
        silent = {
            place: member.ended or f"was not heard of for {now - member.heard:.0f} s"
            for place, member in job.members.items()
            if member.active and now - member.heard > job.lease
        }
        different = job.started and _different(job)
        if different:
            self.fail(job, different)
        elif job.started:
            self.epochs.look_after(job, silent)
            self.arrivals.look_after(job, now)
        elif silent:
            self.fail(job, words(job, silent))
        elif now - job.created > join:
            absent = ", ".join(job.name(place) for place in job.absent())
            self.fail(job, f"not in after {join:.0f} s: {absent}")


def _different(job: Job) -> str:
    """Describes the first two workers that push different keys, whose sums can never complete."""
    first: dict[int, tuple[Membership, str]] = {}
    for place, member in sorted(job.members.items(), key=lambda item: item[0].rank):
        number, key = member.awaited
        if number == 0 or not member.active or place.role is not Role.WORKER:
            continue
        other, theirs = first.setdefault(number, (place, key))
        if key != theirs:
            mine, theirs = said(key, QUOTED), said(theirs, QUOTED)
            return (
                f"all workers must push the same keys in the same order, and key {number} in that"
                f" order is {theirs!r} at {job.name(other)}, {mine!r} at {job.name(place)}"
            )
    return ""
