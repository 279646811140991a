# SPDX-License-Identifier: Apache-2.0
"""How a running job gets from one epoch to the next, see ``resync``, and when it has to.

A change is begun for every cause alike: old entries go, new ones are written, members halt, report
and exchange results, and then the servers and after them the workers get their plans. A cause that
comes on the way begins it anew with the next epoch, so a switch or member that has heard of an
epoch that came to nothing never meets a packet of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence

from controller.jobs.deployment import Deployment
from controller.jobs.job import Job, Membership, RestoredChunks, Role, State
from controller.jobs.journal import Journal
from controller.jobs.requests import said
from controller.jobs.resync import Change, Pool, ResyncError, check_result, levels_of
from controller.jobs.shards import Holding, Restored
from controller.p4rt.connection import SwitchError
from controller.planning.tree_planner import PlanRefusedError
from protocol import jobs_pb2
from topologies.model.ring import exposed, host_of

__all__ = ["ANSWER_SECONDS", "LAST_EPOCH", "LEAVE_SECONDS", "RETRY_SECONDS", "Epochs"]

log = logging.getLogger(__name__)

LAST_EPOCH = (1 << 16) - 1
# How long a worker may have left before the others, who may be about to leave too, go on without.
LEAVE_SECONDS = 5.0
# A member that is alive but does not do its part of a change for so long holds up all others.
ANSWER_SECONDS = 60.0
LONGEST_REASON = 200
# Between attempts to delete entries from a switch that did not confirm it.
RETRY_SECONDS = 10.0


class Epochs:
    """Changes of epoch of all jobs. ``end`` is called for a job that cannot go on (or need not),
    with its state and the reason. Callers hold the jobs' lock."""

    def __init__(
        self,
        deployment: Deployment,
        journal: Journal,
        clock: Callable[[], float],
        end: Callable[[Job, State, str], None],
    ) -> None:
        self.deployment = deployment
        self.journal = journal
        self.clock = clock
        self.end = end

    def begin(self, job: Job, reason: str) -> None:
        """Begin the change to the next epoch.

        A switch that does not take its entries is avoided by another attempt, in yet another epoch.
        A job for which there is no plan at all waits halted, see ``Job.waiting``.
        """
        pool = Pool(dict(job.kept.results), job.kept.left)
        if job.change is not None and not job.change.settled:
            pool.add(job.change.pool.results.values())
        job.join = None  # whoever waits to join is told of again when this is over
        members = [p for p in job.places if p in job.members and job.members[p].active]
        chunks = job.chunks(self.deployment.fabric.dataplane.lanes)
        for place in members:
            job.members[place].unanswered = 0.0
        refusing: set[str] = set()
        while True:
            if job.epoch == LAST_EPOCH:
                self.end(job, State.FAILED, f"its {LAST_EPOCH} epochs are used up ({reason})")
                return
            job.epoch += 1
            job.instructions = {}
            job.change = Change(job.epoch, reason, members, chunks, pool, self._holding(job))
            job.asked_at = self.clock()
            self.journal.save(job)
            log.info("%s changes to epoch %d: %s", job, job.epoch, reason)
            self.withdraw(job)
            try:
                self.deployment.plan(job, refusing)
                self.journal.save(job)
                self.deployment.install(job)
            except PlanRefusedError as error:
                job.waiting = str(error)
                self.journal.save(job)
                log.error("%s waits: %s", job, job.waiting)
                return
            except SwitchError as error:
                log.error("%s, epoch %d: %s", job, job.epoch, error)
                refusing.add(error.switch)
                continue
            job.waiting = ""
            job.change.installed = True
            return

    def withdraw(self, job: Job) -> None:
        """Delete a job's entries; what is not confirmed to be gone is left for another try."""
        self.deployment.withdraw(job)
        if job.leftovers:
            job.retry_at = self.clock() + RETRY_SECONDS

    def lose_members(self, job: Job, lost: dict[Membership, str]) -> None:
        """Go on without members, for the reasons given."""
        for place, why in lost.items():
            job.members[place].lost = why
        self.go_on(job, words(job, lost))

    def end_members(self, job: Job, ended: dict[Membership, str]) -> None:
        """Processes of members have ended, in the ways given: the others go on without them.

        The last servers are waited for until their lease is over, as they may be started again.
        """
        servers = {place for place in ended if place.role is Role.SERVER}
        others = {
            place
            for place, member in job.members.items()
            if place.role is Role.SERVER and member.active and not member.ended
        }
        if not servers or others - servers:
            self.lose_members(job, ended)
            return
        for place, how in ended.items():
            job.members[place].ended = how
            log.error("%s: %s %s; no other server is left, it waits", job, job.name(place), how)

    def lose_ended(self, job: Job) -> None:
        """A server is there again: nobody waits any more for others that have ended."""
        for member in job.members.values():
            if member.active and member.ended:
                member.lost = member.ended

    def go_on(self, job: Job, reason: str) -> None:
        """Some members are not in any more: the others go on in another epoch, if they can."""
        if not job.active(Role.WORKER):
            finished = any(m.left for p, m in job.members.items() if p.role is Role.WORKER)
            self.end(job, State.GONE if finished else State.FAILED, reason)
        elif not job.active(Role.SERVER):
            self.end(job, State.FAILED, f"{reason}; no other server is left")
        else:
            self.begin(job, reason)

    def answer(self, job: Job, place: Membership, request: jobs_pb2.ResyncRequest) -> None:
        """A member's part in the change; ResyncError for an answer that cannot be."""
        change = job.change
        what = request.WhichOneof("what")
        if what == "broken":
            self._broken(job, place, request.broken)
            return
        if change is None:
            return
        before = change.instruction(place), len(change.owing)
        if what == "report":
            change.report(place, request.report.levels)
        elif what == "handed":
            handed, size = request.handed, self._payload_bytes
            change.handed(place, handed.results, handed.last, size)
        elif what == "fetched":
            change.fetched(place)
        elif what == "taken":
            change.taken(place, request.taken.page)
        if before != (change.instruction(place), len(change.owing)) or what == "handed":
            job.asked_at = self.clock()
        self.step(job)

    def step(self, job: Job) -> None:
        """The change may have come to its end: then plans go out."""
        change = job.change
        if change is None:
            return
        if change.hopeless:
            self.lose_members(job, change.hopeless)
        elif change.failure:
            self.end(job, State.FAILED, change.failure)
        else:
            self._note(job, change.news())
            if change.settled and not job.instructions:
                self.give_out(job)
                log.info("%s: all have the same results, epoch %d begins", job, job.epoch)

    def give_out(self, job: Job) -> None:
        """Give everybody the plan of the epoch, servers first."""
        job.instructions = self.deployment.instructions(job)
        job.served_by = job.scheme.servers
        self.journal.save(job)
        hosts = [host_of(job.servers[rank]) for rank in job.scheme.servers]
        if job.optimizer is not None and len(hosts) > 1 and exposed(hosts):
            log.warning(
                "%s: %d of %d server processes have their replica on their own host, as there are"
                " too few others", job, exposed(hosts), len(hosts),
            )  # fmt: skip

    def leave(
        self,
        job: Job,
        place: Membership,
        results: Iterable[jobs_pb2.Result],
        levels: bytes,
    ) -> None:
        """A worker is done, and hands over what it has. ResyncError, and then it has not left.

        The others may be about to leave, too, so this alone begins no change.
        """
        results = list(results)
        chunks = job.chunks(self.deployment.fabric.dataplane.lanes)
        own = levels_of(levels, chunks)
        for result in results:
            chunk, level = check_result(result, chunks, self._payload_bytes)
            if level != own[chunk]:
                raise ResyncError(
                    f"the result of chunk {chunk} leads to level {level}, not {own[chunk]} as told"
                )
        job.kept.add(results)
        job.kept.leave(own)
        job.members[place].left = True
        job.state, job.left_at = State.LEAVING, self.clock()
        self.journal.keep(job, results)
        self.journal.save_member(job, place)
        change = job.change
        if not any(m.active and p.role is Role.WORKER for p, m in job.members.items()):
            self.go_on(job, "")
        elif change is not None and not change.settled:
            change.pool.add(results)
            change.pool.leave(own)
            change.left(place)
            self.step(job)

    def look_after(self, job: Job, lost: dict[Membership, str]) -> None:
        """See whether a running job can go on as it is; ``lost``: members that are dead, and how.

        To be called every second or so.
        """
        now = self.clock()
        owing = job.change.owing if job.change is not None and not job.change.settled else {}
        if owing and now - job.asked_at > ANSWER_SECONDS:
            late = {
                p: f"had {ANSWER_SECONDS:.0f} s {what} and did not" for p, what in owing.items()
            }
            lost = {**late, **lost}
        if lost:
            self.lose_members(job, lost)
            return
        left = [
            place
            for place in job.scheme.places
            if place.role is Role.WORKER and job.members[place].left
        ]
        if left and not owing and now - job.left_at > LEAVE_SECONDS:
            names = ", ".join(job.name(place) for place in left)
            self.begin(job, f"{names} left, the others have not")

    # --- switches ---

    def mark_unreachable(self, jobs: Sequence[Job], limit: float) -> None:
        """Take switches out of the routes that cannot be reached and through which members get no
        answer for ``limit`` seconds; jobs go on without them.

        Losing the connection alone means little: the switch may forward as before.
        """
        fabric = self.deployment.fabric
        doubtful = fabric.down - fabric.addressing.missing
        stuck = [
            job
            for job in jobs
            if job.started and any(m.active and m.unanswered > limit for m in job.members.values())
        ]
        gone = {s for s in doubtful if any(self.deployment.passes(job, s) for job in stuck)}
        self.avoid(gone, jobs, "cannot be reached, neither by the controller nor by members")

    def avoid(self, gone: Collection[str], jobs: Sequence[Job], why: str) -> None:
        """Take switches out of the routes that do not forward; jobs go on without them."""
        missing = self.deployment.fabric.addressing.missing
        if missing.issuperset(gone):
            return
        text = f"{', '.join(sorted(gone))} {why}"
        log.error("%s; avoided", text)
        self._reroute(missing.union(gone))
        self._renew(jobs, text)

    def restore_switch(self, switch: str, jobs: Sequence[Job]) -> None:
        """A switch can be written and has its program: give it all it should have, and jobs what
        they lost there or can have again. SwitchError."""
        fabric = self.deployment.fabric
        fabric.sync(switch)
        fabric.down.discard(switch)
        if switch in fabric.addressing.missing:
            self._reroute(fabric.addressing.missing - {switch})
        damaged = self.sweep(switch, jobs)
        for job in damaged:
            if job.started:
                self.begin(job, f"{switch} had lost entries")
        self._renew([job for job in jobs if job not in damaged], f"{switch} is there again")

    def sweep(self, switch: str, jobs: Sequence[Job]) -> list[Job]:
        """See Deployment.sweep."""
        leftovers = [job for job in jobs if job.leftovers]
        damaged = self.deployment.sweep(switch, jobs)
        for job in leftovers:
            self.journal.save(job)
        return damaged

    def _reroute(self, missing: frozenset[str]) -> None:
        self.journal.save_gone(missing)
        self.deployment.fabric.reroute(missing)

    def _renew(self, jobs: Sequence[Job], reason: str) -> None:
        """Plan anew whatever would be planned otherwise now."""
        for job in jobs:
            if job.started and (job.waiting or self.deployment.outdated(job)):
                self.begin(job, reason)

    # --- inside ---

    def _broken(self, job: Job, place: Membership, broken: jobs_pb2.Broken) -> None:
        """A chunk cannot be completed as things are. ResyncError: there is no such chunk."""
        chunks = job.chunks(self.deployment.fabric.dataplane.lanes)
        if broken.chunk >= chunks:
            raise ResyncError(f"chunk {broken.chunk} is broken; there are {chunks}")
        if job.change is not None and not job.change.settled:
            told = job.change.instruction(place)
            if told is None or told.WhichOneof("what") != "take":
                return  # it does not run this epoch yet, and has nothing of it
            # What it was given to take does not hold: it has to come from somebody else.
            pool = job.change.pool
            for key in [key for key in pool.results if key[0] == broken.chunk]:
                del pool.results[key]
        text = said(broken.reason, LONGEST_REASON)
        self.begin(job, f"{job.name(place)}: chunk {broken.chunk}: {text}")

    def _holding(self, job: Job) -> Holding | None:
        """Of a job whose servers optimize."""
        if job.optimizer is None:
            return None
        plane = self.deployment.fabric.dataplane
        places = [Membership(Role.SERVER, rank) for rank in job.ring()]
        return Holding(
            tuple(places),
            tuple(job.members[place].address for place in places),
            tuple(Membership(Role.SERVER, rank) for rank in job.served_by),
            job.optimizer,
            job.counts(plane.lanes),
            plane.lanes,
            plane.chunks_per_slice(job.slice_bytes),
            len(job.workers),
            tuple(sorted({self.deployment.caller(job, place) for place in places})),
        )

    def _note(self, job: Job, restored: Sequence[Restored]) -> None:
        """Keep and tell where servers have got parameters from."""
        for server, source, chunks in restored:
            name = job.host(source) if source is not None else "a worker that has left"
            job.restored.append(RestoredChunks(job.epoch, job.host(server), name, chunks))
            if source == server:
                log.info("%s: %s serves %d chunks, of its own replica", job, name, chunks)
            elif source is not None and source.role is Role.SERVER:
                text = "%s: %s has parameters and optimizer state of %d chunks from %s"
                log.info(text, job, job.host(server), chunks, name)
            else:
                text = (
                    "%s: no server is left that has the state of %d chunks: %s has their"
                    " parameters from %s, the optimizer's state begins anew"
                )
                log.warning(text, job, chunks, job.host(server), name)
        if restored:
            self.journal.save(job)

    @property
    def _payload_bytes(self) -> int:
        return 4 * self.deployment.fabric.dataplane.lanes


def words(job: Job, lost: dict[Membership, str]) -> str:
    """Members and what is wrong with them, in words."""
    return "; ".join(f"{job.name(place)} {why}" for place, why in lost.items())
