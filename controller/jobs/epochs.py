# SPDX-License-Identifier: Apache-2.0
"""Decides when a running job changes its plan epoch, and carries out the change (``resync``).

Every cause leads to the same steps: old entries are deleted, new ones written, members halt, report
and exchange results, and then first the servers and next the workers get their plans. A further
cause restarts the change with the next plan epoch, so no packet of an abandoned plan epoch is ever
sent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial

from controller.jobs.deployment import Deployment
from controller.jobs.job import Job, JobError, Membership, RestoredChunks, Role, State
from controller.jobs.journal import Journal
from controller.jobs.requests import (
    check_optimizer,
    check_pipeline,
    check_propagation,
    check_window,
    said,
)
from controller.jobs.resync import Change, Pool, ResyncError, check_result, levels_of
from controller.jobs.shards import Holding, Restored
from controller.p4rt.connection import SwitchError
from controller.planning.balancing.balancer import Load, Measurements, Move, Round
from controller.planning.balancing.registry import BALANCERS
from controller.planning.tree_planner import PlanRefusedError
from protocol import jobs_pb2
from protocol.header import LANE_BYTES
from protocol.partition import Moved
from protocol.propagation import CHUNK
from topologies.model.replica_order import exposed, host_of

__all__ = ["ANSWER_SECONDS", "LAST_EPOCH", "LEAVE_SECONDS", "RETRY_SECONDS", "Epochs"]

log = logging.getLogger(__name__)

LAST_EPOCH = (1 << 16) - 1
# Others may be about to leave, too, so a plan without a worker that left is made only after this.
LEAVE_SECONDS = 5.0
# A live member that does not do its part of a change for so long is lost: it blocks all others.
ANSWER_SECONDS = 60.0
LONGEST_REASON = 200
# Interval of attempts to delete entries from a switch that did not confirm it.
RETRY_SECONDS = 10.0


class Epochs:
    """Changes of plan epoch of all jobs. Callers hold the jobs' lock.

    end: called with a job that is done or cannot continue, its state and the reason.
    """

    def __init__(
        self,
        deployment: Deployment,
        journal: Journal,
        clock: Callable[[], float],
        end: Callable[[Job, State, str], None],
    ) -> None:
        self.remap: Callable[[Job, Moved, str, frozenset[int] | None], object]  # Remaps.begin
        self.deployment = deployment
        self.journal = journal
        self.clock = clock
        self.end = end

    def begin(self, job: Job, reason: str) -> None:
        """Begins the change to the next plan epoch.

        If a switch refuses its entries, another attempt avoids it, in yet another plan epoch. A job
        without any possible plan stays halted (``Job.waiting``).
        """
        pool = Pool(dict(job.kept.results), job.kept.left)
        # The next epoch may begin with some chunks of a slice, and servers would wait for all.
        job.propagation = replace(job.propagation, release=CHUNK)
        if job.change is not None and not job.change.settled:
            pool.add(job.change.pool.results.values())
        job.join = job.remap = job.moving = None  # another attempt follows the change
        job.rounds.drop()
        members = [p for p in job.places if p in job.members and job.members[p].active]
        chunks = job.chunks(self.deployment.fabric.dataplane.lanes)
        for place in members:
            job.members[place].unanswered = 0.0
        refusing: set[str] = set()
        self.deployment.clear_spares(job, job.ring())
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
        """Deletes a job's entries; schedules another attempt for what is not confirmed."""
        self.deployment.withdraw(job)
        if job.leftovers:
            job.retry_at = self.clock() + RETRY_SECONDS

    def lose_members(self, job: Job, lost: dict[Membership, str]) -> None:
        """Continues without members, for the reasons given."""
        for place, why in lost.items():
            job.members[place].lost = why
        self.go_on(job, words(job, lost))

    def end_members(self, job: Job, ended: dict[Membership, str]) -> None:
        """Continues without members whose processes have ended, in the ways given.

        The last servers keep their places until their lease expires, as they may be restarted.
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
        """Marks ended servers as lost, once another server is back."""
        for member in job.members.values():
            if member.active and member.ended:
                member.lost = member.ended

    def go_on(self, job: Job, reason: str) -> None:
        """Continues in another plan epoch after members have gone; ends the job if impossible."""
        if not job.active(Role.WORKER):
            finished = any(m.left for p, m in job.members.items() if p.role is Role.WORKER)
            self.end(job, State.GONE if finished else State.FAILED, reason)
        elif not job.active(Role.SERVER):
            self.end(job, State.FAILED, f"{reason}; no other server is left")
        else:
            self.begin(job, reason)

    def answer(self, job: Job, place: Membership, request: jobs_pb2.ResyncRequest) -> None:
        """Handles a member's answer in the change; raises ResyncError for an impossible one."""
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
        """Advances the change; gives out the plans once it is settled."""
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
        """Publishes the plans of the epoch, servers first."""
        self.deployment.clear_spares(job, job.scheme.servers)
        job.instructions = self.deployment.instructions(job)
        if job.kept.left is not None:  # all have these results now
            job.kept = Pool()
            self.journal.forget(job)
        job.served_by, job.served_map = job.scheme.servers, job.moved
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
        *,
        others_go_on: bool = False,
    ) -> None:
        """Records that a worker is done, with the results that it hands over.

        This alone begins no change, as the others may be about to leave, too, unless they are known
        to go on: then they do so at once, in another plan epoch, and this one may join again.
        Raises ResyncError, and then the worker has not left.
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
        if others_go_on and set(job.active(Role.WORKER)) > {place.rank}:
            self.journal.keep(job, results)
            self.lose_members(job, {place: "left"})
            return
        job.members[place].left = True
        job.state, job.left_at = State.LEAVING, self.clock()
        self.journal.keep(job, results)
        self.journal.save_member(job, place)
        change = job.change
        # Mostly from the first rank to the last, so one that is active is found soon.
        found = reversed(job.members.items())
        if not any(m.active and p.role is Role.WORKER for p, m in found):
            self.go_on(job, "")
        elif change is not None and not change.settled:
            change.pool.add(results)
            change.pool.leave(own)
            change.left(place)
            self.step(job)

    def look_after(self, job: Job, lost: dict[Membership, str]) -> None:
        """Checks whether a running job can continue with its plan; call about once a second.

        lost: members that are dead, and how they ended.
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
        if job.remap is not None and now - job.asked_at > ANSWER_SECONDS:
            # Not lost: a round that a worker is to complete first may take so long. One that is
            # deaf does not answer in the change of plan epoch, either.
            names = ", ".join(job.name(place) for place in job.remap.owing)
            self.begin(
                job, f"{names} had {ANSWER_SECONDS:.0f} s for a chunk map and did not answer"
            )
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
        """Removes unreachable switches from the routes if members get no answer through them.

        limit: seconds without an answer. A lost connection alone is no reason: the switch may still
        forward. Jobs continue without these switches.
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
        """Removes switches that do not forward from the routes; jobs continue without them."""
        missing = self.deployment.fabric.addressing.missing
        if missing.issuperset(gone):
            return
        text = f"{', '.join(sorted(gone))} {why}"
        log.error("%s; avoided", text)
        self._reroute(missing.union(gone))
        self.balance(jobs, text)

    def restore_switch(self, switch: str, jobs: Sequence[Job]) -> None:
        """Restores the entries of a switch that can be written and has its program.

        Jobs that lost entries, or can have better trees now, change epoch. Raises SwitchError.
        """
        fabric = self.deployment.fabric
        fabric.sync(switch)
        fabric.down.discard(switch)
        if switch in fabric.addressing.missing:
            self._reroute(fabric.addressing.missing - {switch})
        damaged = self.sweep(switch, jobs)
        for job in damaged:
            if job.started:
                self.begin(job, f"{switch} had lost entries")
        self.balance([job for job in jobs if job not in damaged], f"{switch} is there again")

    def sweep(self, switch: str, jobs: Sequence[Job]) -> list[Job]:
        """Sweeps a switch (``Deployment.sweep``) and saves the jobs whose leftovers changed."""
        leftovers = [job for job in jobs if job.leftovers]
        damaged = self.deployment.sweep(switch, jobs)
        for job in leftovers:
            self.journal.save(job)
        return damaged

    def _reroute(self, missing: frozenset[str]) -> None:
        self.journal.save_gone(missing)
        self.deployment.fabric.reroute(missing)

    # --- moves ---

    def balance(
        self, jobs: Sequence[Job], changed: str = "", complete: Round | None = None
    ) -> None:
        """Lets each running job's balancer observe it, and carries out the moves.

        changed, complete: as in Measurements.
        """
        for job in jobs:
            if not job.started:
                continue
            if job.balancer is None:
                job.balancer = BALANCERS[job.balance.policy](job.balance)
            for move in job.balancer.observe(self._measured(job, changed, complete)):
                try:
                    if move.moved is not None:
                        self.remap(job, move.moved, move.reason, move.spares)
                    else:
                        self.move(job, move)
                except JobError as error:
                    log.error("%s: a move for %s is impossible: %s", job, move.reason, error)

    def move(self, job: Job, move: Move) -> None:
        """Changes a running job's requests permanently and begins its next plan epoch.

        Raises JobError for a request that the job cannot have.
        """
        kind = move.kind or job.kind
        lanes = self.deployment.fabric.dataplane.summed_lanes
        check_window(
            *(move.window or 0, move.streams or 0, len(job.workers), lanes), job.propagation
        )
        check_optimizer(job, job.optimizer, kind)
        check_pipeline(job.pipeline, kind)
        check_propagation(job.propagation, kind)
        job.kind = kind
        job.window = job.window if move.window is None else move.window
        job.streams = job.streams if move.streams is None else move.streams
        job.avoid = job.avoid if move.avoid is None else move.avoid
        self.begin(job, move.reason)

    def measured(self, job: Job, place: Membership, measured: jobs_pb2.Measured) -> None:
        """Takes a worker's report of a round; raises ResyncError for an impossible one."""
        workers = [
            Membership(Role.WORKER, rank)
            for rank in job.scheme.workers
            if job.members[Membership(Role.WORKER, rank)].active
        ]
        try:
            complete = job.rounds.take(
                place, measured, workers, job.scheme.servers, apart=not job.in_step
            )
        except ValueError as error:
            raise ResyncError(str(error)) from error
        if complete is not None and job.balance.measures:
            self.balance([job], complete=complete)

    def server_measured(
        self, job: Job, place: Membership, measured: jobs_pb2.ServerMeasured
    ) -> None:
        """Takes a server's report; raises ResyncError for an impossible one."""
        try:
            job.rounds.take_from_server(place, measured, job.scheme.servers)
        except ValueError as error:
            raise ResyncError(str(error)) from error

    def _load(self, job: Job) -> Load | None:
        """Returns the load of a job's servers; None if it has no plan, or cannot move."""
        if not job.balance.measures or job.change is not None:
            return None
        fabric, scheme = self.deployment.fabric, job.scheme
        bits = 8 * fabric.dataplane.frame_bytes * len(scheme.workers)
        rates: dict[int, float] = {}
        spares: dict[int, float] = {}
        for server in scheme.servers:
            link = fabric.addressing.unit(job.servers[server]).interface
            rate = min(link.outgoing.rate, link.incoming.rate) / bits
            (spares if server in job.spares else rates)[server] = rate
        return Load(
            owners=self.deployment.owners(job),
            chunks=tuple(self.deployment.assignment(job).lengths.tolist()),
            chunk_bytes=LANE_BYTES * fabric.dataplane.lanes,
            rates=rates,
            spares=spares,
            moved=job.moved,
            moving=job.remap is not None or job.join is not None,
        )

    def _measured(self, job: Job, changed: str, complete: Round | None) -> Measurements:
        budgets = self.deployment.resources.budgets
        return Measurements(
            changed=changed,
            now=self.clock(),
            epoch=job.epoch,
            changing=job.change is not None,
            waiting=job.waiting,
            kind=job.scheme.kind,
            window=job.reservation.window if job.reservation is not None else 0,
            streams=len(job.trees) // job.propagation.classes,
            switches=frozenset(
                node.switch for tree in job.trees for node in tree.nodes if node.switch is not None
            ),
            servers=tuple(job.servers[rank] for rank in job.active(Role.SERVER)),
            unanswered={
                job.host(place): member.unanswered
                for place, member in job.members.items()
                if member.active
            },
            slots={name: (budget.used, budget.total) for name, budget in budgets.items()},
            outdated=partial(self.deployment.outdated, job),
            round=complete,
            load=self._load(job),
        )

    # --- inside ---

    def _broken(self, job: Job, place: Membership, broken: jobs_pb2.Broken) -> None:
        """Handles a report that a chunk cannot be completed.

        Raises ResyncError if there is no such chunk.
        """
        chunks = job.chunks(self.deployment.fabric.dataplane.lanes)
        if broken.chunk >= chunks:
            raise ResyncError(f"chunk {broken.chunk} is broken; there are {chunks}")
        if job.change is not None and not job.change.settled:
            told = job.change.instruction(place)
            if told is None or told.WhichOneof("what") != "take":
                return  # it does not run this epoch yet and has no chunk of it
            # The result that it was given is unusable, so another member has to supply it.
            pool = job.change.pool
            for key in [key for key in pool.results if key[0] == broken.chunk]:
                del pool.results[key]
        text = said(broken.reason, LONGEST_REASON)
        self.begin(job, f"{job.name(place)}: chunk {broken.chunk}: {text}")

    def _holding(self, job: Job) -> Holding | None:
        """Builds the holding of a job whose servers run the optimizer; None for others."""
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
            job.propagation,
            tuple(sorted({self.deployment.caller(job, place) for place in places})),
            job.moved,
            job.served_map,
        )

    def _note(self, job: Job, restored: Sequence[Restored]) -> None:
        """Records and logs the sources of servers' parameters."""
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
                    " parameters from %s, the optimizer's state is reset"
                )
                log.warning(text, job, chunks, job.host(server), name)
        if restored:
            self.journal.save(job)

    @property
    def _payload_bytes(self) -> int:
        return 4 * self.deployment.fabric.dataplane.lanes


def words(job: Job, lost: dict[Membership, str]) -> str:
    """Describes members and their failures."""
    return "; ".join(f"{job.name(place)} {why}" for place, why in lost.items())
