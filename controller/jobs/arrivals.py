# SPDX-License-Identifier: Apache-2.0
"""Lets new processes join running jobs: checks them, and starts and ends attempts to join.

A new process in a worker's place waits until no change of epoch is under way. All workers then stop
at a round boundary and one transfers its state to the new one (``joining``), which becomes a member
with the next plan epoch. Any other change takes precedence. A server is replaced at once by a
process without state; the next plan epoch transfers its shards to it.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable

from controller.jobs.epochs import ANSWER_SECONDS, LONGEST_REASON, Epochs
from controller.jobs.job import Job, JobError, Member, Membership, Refusal, Role
from controller.jobs.joining import Join
from controller.jobs.requests import check_enrolment, said
from controller.planning.tree_planner import PlanRefusedError
from protocol import jobs_pb2
from protocol.call_status import LOST
from protocol.plan import Address

__all__ = ["Arrivals"]

log = logging.getLogger(__name__)


class Arrivals:
    """Joins of all jobs. Callers hold the jobs' lock."""

    def __init__(self, epochs: Epochs, clock: Callable[[], float]) -> None:
        self.epochs = epochs
        self.clock = clock

    def replace(self, job: Job, place: Membership, address: Address, process: int) -> None:
        """Replaces a member by a new process; the old one is lost at once.

        Raises JobError if the new one cannot join.
        """
        before = job.members[place]
        if job.started and place.role is Role.SERVER:
            now = self.clock()
            job.members[place] = Member(address, now, process=process, since=now)
            self.epochs.lose_ended(job)
            self.epochs.begin(job, f"{job.name(place)} has restarted")
            return
        if job.started:
            self._check(job, place, before)
        joining = job.started
        if joining and before.active:
            # The old process sends nothing more, so the others change epoch first.
            self.epochs.lose_members(job, {place: "was replaced by a new process"})
        if not joining or job.started:
            now = self.clock()
            job.members[place] = Member(address, now, process=process, joining=joining, since=now)
            self.epochs.journal.save(job)
            log.info("%s: %s: a new process", job, job.name(place))

    def enrol(self, job: Job, host: str) -> int:
        """Makes room for a further worker at a host, and returns its rank. It joins as a new
        process does in the place of a lost worker.

        Raises JobError if the job cannot have it.
        """
        deployment = self.epochs.deployment
        check_enrolment(
            deployment.fabric.topology, job, host, deployment.fabric.dataplane.summed_lanes
        )
        place = Membership(Role.WORKER, len(job.workers))
        if not self._gives_state(job, place):
            text = f"{job}: no worker gives the state of the job to one that joins"
            raise JobError(Refusal.FAILED_PRECONDITION, text)
        try:
            deployment.trees_with(job, host)
        except PlanRefusedError as error:
            text = f"{job} cannot have a worker at {host}: {error}"
            raise JobError(Refusal.RESOURCE_EXHAUSTED, text) from error
        job.workers = (*job.workers, host)
        self.epochs.journal.save(job)
        log.info("%s: %s may join", job, job.name(place))
        return place.rank

    @staticmethod
    def _gives_state(job: Job, place: Membership) -> bool:
        """Returns whether another worker can give the state of the job to one that joins."""
        return any(m.gives_state for p, m in job.members.items() if p != place and m.active)

    def _check(self, job: Job, place: Membership, before: Member) -> None:
        name = job.name(place)
        if before.left:
            raise JobError(Refusal.FAILED_PRECONDITION, f"{job}: {name} has left, it was done")
        if self._gives_state(job, place):
            return
        if before.lost:
            text = f"{job} goes on without {name}, which {before.lost}"
            refusal, behind = Refusal.ABORTED, LOST
        else:
            text = f"{job}: {name} is connected already, from {before.address}"
            refusal, behind = Refusal.ALREADY_EXISTS, ""
        text += "; a new one cannot join, as no other worker gives the state of the job"
        raise JobError(refusal, text, behind)

    def advance(self, job: Job) -> None:
        """Starts an attempt if workers wait to join and no change is under way."""
        if not job.started or job.join is not None or not job.joiners or not job.instructions:
            return
        if job.remap is not None:
            return  # it calls this when it is settled
        workers = [place for place in job.scheme.places if job.members[place].active]
        changing = job.change is not None and not (job.change.settled and job.served)
        # A member that does not run the plan has yet to receive it.
        if changing or any(job.members[place].epoch != job.epoch for place in workers):
            return
        workers = [place for place in workers if place.role is Role.WORKER]
        donors = [place for place in workers if job.members[place].gives_state]
        job.join = Join(job.epoch, 1 + secrets.randbelow(1 << 30), workers, donors, job.joiners)
        job.asked_at = self.clock()
        log.info("%s: %s", job, job.status)
        self._step(job)

    def answer(self, job: Job, place: Membership, request: jobs_pb2.ResyncRequest) -> None:
        """Handles a member's answer in an attempt."""
        join = job.join
        if join is None:
            return
        what = request.WhichOneof("what")
        taking = join.taking
        if what == "begun":
            join.begun(place, request.begun)
        elif what == "reached":
            join.reached(place, request.reached)
        elif what == "donated":
            request.donated.unable = _line(request.donated.unable)
            join.donated(place, request.donated)
        elif what == "restored":
            request.restored.unable = _line(request.restored.unable)
            join.restored(place, request.restored)
        if join.taking != taking:
            job.asked_at = self.clock()
        self._step(job)

    def left(self, job: Job, place: Membership) -> None:
        """Removes a worker that has left from the attempt."""
        if job.join is not None:
            job.join.left(place)
            self._step(job)

    def drop(self, job: Job, place: Membership, why: str) -> None:
        """Drops a process that waits to join."""
        log.warning("%s: %s, which was to join, %s", job, job.name(place), why)
        job.members[place].lost = why
        self.epochs.journal.save(job)
        if job.join is not None:
            job.join.left(place)
            self._step(job)

    def look_after(self, job: Job, now: float) -> None:
        """Drops processes that wait to join and are dead or too slow; then tries again."""
        taking = job.join.taking if job.join is not None else ()
        for place, member in list(job.members.items()):
            if not member.waiting:
                continue
            if now - member.heard > job.lease:
                self.drop(job, place, f"was not heard of for {now - member.heard:.0f} s")
            elif place in taking and now - job.asked_at > ANSWER_SECONDS:
                self.drop(job, place, f"did not take the state in {ANSWER_SECONDS:.0f} s")
        self.advance(job)

    def _step(self, job: Job) -> None:
        """Ends the attempt if it has succeeded or failed."""
        join = job.join
        if join is None:
            return
        for place, why in join.refused.items():
            if job.members[place].waiting:
                job.members[place].lost = why
                self.epochs.journal.save(job)
                log.error("%s: %s %s", job, job.name(place), why)
        if join.settled:
            for place in join.joiners:
                job.members[place].joining = False
            names = ", ".join(job.name(place) for place in sorted(join.joiners, key=_rank))
            assert join.donor is not None
            job.met = job.epoch + 1, join.donor.rank
            self.epochs.begin(job, f"{names} joins")
        elif join.failure:
            # The waiting workers resume their calls with the plan that they have.
            log.error("%s: %s", job, join.failure)
            job.join = None
            for place in join.joiners:
                job.members[place].lost = f"could not join: {join.failure}"
            self.epochs.journal.save(job)


def _line(unable: str) -> str:
    """Returns the reason why a member is unable to do something; "" if it is able."""
    return (said(unable, LONGEST_REASON) or "it does not say why") if unable else ""


def _rank(place: Membership) -> int:
    return place.rank
