# SPDX-License-Identifier: Apache-2.0
"""Changes the chunk maps of running jobs: checks them, begins them, and keeps what holds."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable

from controller.jobs.epochs import Epochs
from controller.jobs.job import Job, JobError, Membership, Refusal, Role
from controller.jobs.moves import MOST_RECORDS, MoveRecord, check
from controller.jobs.remapping import AHEAD, Remap
from controller.jobs.resync import ResyncError
from protocol import jobs_pb2
from protocol.partition import Moved

__all__ = ["Remaps"]

log = logging.getLogger(__name__)


class Remaps:
    """The changes of chunk maps of all jobs. Callers hold the jobs' lock.

    advance: called with a job after a change, for what has waited for it.
    """

    def __init__(self, epochs: Epochs, advance: Callable[[Job], None]) -> None:
        self._epochs = epochs
        self._advance = advance

    def begin(
        self,
        job: Job,
        moved: Moved,
        reason: str,
        spares: frozenset[int] | None = None,
        ahead: int = AHEAD,
    ) -> Remap:
        """Begins to change a job's chunk map; returns the change.

        moved: slices and the numbers of the servers that they go to, in place of the current map.
        spares: servers that are spare from then on; None: as before. Those that get slices are
            none. ahead: as in Remap. Raises JobError if the job cannot change its map, or not now.
        """
        if not job.started or self.changing(job):
            raise JobError(Refusal.FAILED_PRECONDITION, f"{job} is changing; try again")
        places = [place for place in job.scheme.places if job.members[place].active]
        self._check(job, moved)
        deployment = self._epochs.deployment
        owners = deployment.owners(job, moved)
        count = sum(a != b for a, b in zip(owners, deployment.owners(job), strict=True))
        spares = (job.spares if spares is None else spares).difference(owners)
        job.remap = Remap(
            job.epoch,
            1 + secrets.randbelow(1 << 30),
            job.scheme.ranked(moved),
            [place for place in places if place.role is Role.WORKER],
            [place for place in places if place.role is Role.SERVER],
            ahead,
            before=job.scheme.ranked(job.moved),
            drains=job.optimizer is not None and job.in_step,
            apart=not job.in_step,
        )
        job.remapped = moved, spares
        job.asked_at = now = self._epochs.clock()
        version = 1 + (job.moves[-1].version if job.moves else 0)
        job.moving = MoveRecord(version, job.remap.number, job.epoch, reason, count, now)
        log.info("%s moves %d slice%s: %s", job, count, "s" * (count != 1), reason)
        return job.remap

    @staticmethod
    def changing(job: Job) -> bool:
        """Returns whether a job's members, plan or chunk map are changing: members that do not run
        its plan have yet to receive it."""
        if job.change is not None or job.join is not None or job.remap is not None:
            return True
        members = [job.members[place] for place in job.scheme.places]
        return any(member.active and member.epoch != job.epoch for member in members)

    def _check(self, job: Job, moved: Moved) -> None:
        slices = self._epochs.deployment.slices(job)
        for one, server in moved:
            if one >= slices or server not in job.scheme.servers:
                text = f"{job}: slice {one} cannot go to server {server}"
                raise JobError(Refusal.INVALID_ARGUMENT, text)

    def answer(self, job: Job, place: Membership, remapped: jobs_pb2.Remapped) -> None:
        """Handles a member's answer."""
        if job.remap is None:
            return
        before = job.remap.holds
        if job.remap.answer(place, remapped):
            job.asked_at = self._epochs.clock()
        self._look(job, before)

    def moved_here(self, job: Job, place: Membership, moved: jobs_pb2.MovedHere) -> None:
        """Takes a server's report of what it got; raises ResyncError for an impossible one."""
        if place.role is not Role.SERVER:
            raise ResyncError("parameters move to servers")
        try:
            check(moved)
        except ValueError as error:
            raise ResyncError(str(error)) from error
        known = [*job.moves, *([job.moving] if job.moving is not None else ())]
        for record in reversed(known):
            if (record.epoch, record.number) == (job.epoch, moved.number):
                record.take(place.rank, moved, self._epochs.clock())
                if record is not job.moving:
                    self._epochs.journal.save_move(job, record)
                return

    def left(self, job: Job, place: Membership) -> None:
        """Goes on without a member that has left."""
        if job.remap is not None:
            before = job.remap.holds
            job.remap.left(place)
            self._look(job, before)

    def _look(self, job: Job, before: bool | None) -> None:
        remap, record = job.remap, job.moving
        assert remap is not None
        assert record is not None
        if remap.holds and not before:
            # Workers learn it only now: a restarted controller gives out plans with this map.
            job.moved, job.spares = job.remapped
            job.served_map = job.moved
            record.from_round = remap.from_round
            job.moves = [*job.moves, record][-MOST_RECORDS:]
            self._epochs.journal.save(job)
            self._epochs.journal.save_move(job, record)
        if not remap.settled:
            return
        if remap.holds:
            job.instructions = self._epochs.deployment.instructions(job)
            record.seconds = max(record.seconds, self._epochs.clock() - record.began)
            self._epochs.journal.save_move(job, record)
            since = f"from round {remap.from_round}" if remap.from_round else "now"
            log.info("%s: the new chunk map holds %s", job, since)
        else:
            log.info("%s: workers were too fast for the new chunk map", job)
        job.remap = job.moving = None
        self._advance(job)
