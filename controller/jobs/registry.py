# SPDX-License-Identifier: Apache-2.0
"""The jobs of a fabric: admission, joining, changes of epoch, and the way out.

``JobTable`` is the job service without gRPC; every method may be called from any thread. A job is
planned and its slots are held from ``create`` on, so what cannot run is refused there. When all
members are in, its entries are written and its plans appear. Whenever its plan no longer holds (a
member or a switch is lost, or somebody asks for another one) the next epoch is prepared, see
``resync``. It ends when all workers have left, or fails when it cannot go on; either way its
entries are deleted, and only slots whose deletion a switch confirmed go to other jobs.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress

from controller.jobs import access
from controller.jobs.arrivals import Arrivals
from controller.jobs.departures import Departures
from controller.jobs.deployment import Deployment
from controller.jobs.epochs import RETRY_SECONDS, Epochs
from controller.jobs.job import Job, JobError, Key, Member, Membership, Refusal, Role, State
from controller.jobs.journal import Journal
from controller.jobs.outages import Outages
from controller.jobs.requests import (
    LONGEST_KEY_NAME,
    check_address,
    check_beat,
    check_create,
    check_keys,
    check_lease,
    check_optimizer,
    check_pipeline,
    check_slice,
    check_spans,
    check_window,
    difference,
)
from controller.jobs.resync import Pool, ResyncError
from controller.jobs.roster import Roster
from controller.p4rt.connection import SwitchError
from controller.p4rt.fabric import Fabric
from controller.planning.admission import Admission
from controller.planning.tree_planner import PlanRefusedError, TreeKind
from protocol import jobs_pb2
from protocol.optimizer import OptimizerPlan
from protocol.pipeline import USUAL, Pipeline
from protocol.plan import Address
from protocol.world import REAL, World
from topologies.model.ring import units_by_rank

__all__ = ["JobTable"]

log = logging.getLogger(__name__)

LEASE_SECONDS = 30.0
# How long members get no answer through a switch that cannot be reached until it counts as gone.
UNANSWERED_SECONDS = 3.0
JOIN_SECONDS = 120.0


class JobTable:
    """All jobs. ``lease``: seconds without a call after which a member counts as dead, in jobs that
    say nothing of it; ``join``: seconds from ``create`` until all have to be in;
    ``queue_packets``: see ``choose_window``; ``unanswered``: seconds after which members say that a
    switch does not forward; ``journal``: where all of it is written, and what it has of earlier is
    taken up (none: it ends with the process); ``world``: where it runs, ``clock``: if that is not
    the world's."""

    def __init__(
        self,
        fabric: Fabric,
        clock: Callable[[], float] | None = None,
        lease: float = LEASE_SECONDS,
        join: float = JOIN_SECONDS,
        queue_packets: int | None = None,
        unanswered: float = UNANSWERED_SECONDS,
        journal: Journal | None = None,
        world: World = REAL,
    ) -> None:
        self.fabric = fabric
        self.world = world
        self.clock = clock = world.now if clock is None else clock
        self.lease = lease
        self.join = join
        self.unanswered = unanswered
        self.deployment = Deployment(fabric, queue_packets)
        self.resources = self.deployment.resources
        self.journal = journal if journal is not None else Journal()
        self.epochs = Epochs(self.deployment, self.journal, clock, self._end)
        self.arrivals = Arrivals(self.epochs, clock)
        self.departures = Departures(self.epochs, self.arrivals, self._fail)
        self.roster = Roster(self.journal, clock, join, world)
        self.changed = self.roster.changed
        self.outages = Outages(self.roster, self.epochs, self.departures)
        self._expired = clock()  # when `expire` was last called
        with self.roster.busy():
            self._take_up()

    # --- joining ---

    def create(
        self,
        namespace: str,
        workers: Sequence[str],
        servers: Sequence[str],
        kind: TreeKind,
        window: int = 0,
        streams: int = 0,
        lease: float = 0.0,
        admission: Admission = Admission.NETWORK,
        slice_bytes: int = 0,
        pipeline: Pipeline = USUAL,
    ) -> Job:
        """Admit a job: hosts of workers by rank, and of servers, each with all of its processes;
        window, streams, lease and slice_bytes 0 for the controller's choice. One that is admitted
        without switches has trees of kind NONE from then on.

        Raises JobError when the request is wrong, the name is taken or the switches have no room.
        """
        lanes = self.fabric.dataplane.lanes
        check_create(self.fabric.topology, namespace, workers, servers, window, streams, lanes)
        check_lease(lease)
        check_slice(slice_bytes)
        check_pipeline(pipeline, kind)
        with self.changed:
            number, epoch = self.roster.place_for(namespace)
            units = units_by_rank(self.fabric.addressing, servers)
            addresses = [unit.address for unit in units]
            try:
                scheme, reservation = self.deployment.admit(
                    number, workers, addresses, kind, window, streams, admission
                )
            except PlanRefusedError as error:
                raise JobError(Refusal.RESOURCE_EXHAUSTED, str(error)) from error
            job = Job(
                number=number,
                epoch=epoch,
                namespace=namespace,
                nonce=secrets.token_hex(16),
                workers=tuple(workers),
                servers=tuple(unit.name for unit in units),
                kind=scheme.kind,
                window=window,
                streams=streams,
                pipeline=pipeline,
                lease=lease or self.lease,
                slice_bytes=slice_bytes,
                created=self.clock(),
                scheme=scheme,
                reservation=reservation,
            )
            self.journal.save(job)
            self.roster.add(job)
            log.info(
                "%s created: %d workers, %d servers, tree %s, %d streams, window %d",
                job, len(workers), len(units), job.kind.name, len(job.trees), reservation.window,
            )  # fmt: skip
            self.changed.notify_all()
            return job

    def connect(self, nonce: str, role: Role, rank: int, address: Address, process: int = 0) -> Job:
        """A member says where it listens. Again with the same address: fine. A new process in the
        place of a worker that is dead or lost is to join; in that of a server it is in at once."""
        with self.roster.busy():
            job, place = self._alive(nonce, role, rank)
            check_address(self.fabric.addressing, job, place, address)
            known = job.members.get(place)
            for other, member in job.members.items():
                if other != place and member.address == address and not member.lost:
                    text = f"{job}: {job.name(other)} listens at {address} already"
                    raise JobError(Refusal.ALREADY_EXISTS, text)
            if known is not None and known.process != process:
                self.arrivals.replace(job, place, address, process)
            elif known is not None:
                self._member(job, place, process)
                if known.address != address:
                    text = f"{job}: {job.name(place)} is connected already, from {known.address}"
                    raise JobError(Refusal.ALREADY_EXISTS, text)
            else:
                now = self.clock()
                job.members[place] = Member(address, now, process=process, since=now)
                if job.state is State.CREATED:
                    job.state = State.WAITING
                self.journal.save_member(job, place)
                self._start_when_complete(job)
            return job

    def init(
        self,
        nonce: str,
        rank: int,
        keys: Sequence[Key],
        process: int = 0,
        gives_state: bool = False,
        optimizer: OptimizerPlan | None = None,
    ) -> None:
        """A worker declares its tensors, and the optimizer that servers are to run; they must be
        the same at all. The last one starts it.

        ``gives_state``: it can tell one that joins later what its application has to know.
        """
        with self.roster.busy():
            job, place = self._alive(nonce, Role.WORKER, rank)
            member = self._member(job, place, process)
            check_keys(keys, self.fabric.dataplane.lanes)
            check_spans(optimizer, keys, self.fabric.dataplane.lanes)
            if job.keys and job.keys != tuple(keys):
                text = f"{job}: {difference(job.keys, keys, job.name(place))}"
                raise JobError(Refusal.INVALID_ARGUMENT, text)
            if job.keys and job.optimizer != optimizer:
                mine, theirs = (one or "no optimizer" for one in (optimizer, job.optimizer))
                text = f"{job}: {job.name(place)} has {mine} where workers before it have {theirs}"
                raise JobError(Refusal.INVALID_ARGUMENT, text)
            check_optimizer(job, optimizer, job.kind)
            check_pipeline(job.pipeline, job.kind, optimizer is not None)
            if not member.initialised:
                job.keys, job.optimizer = tuple(keys), optimizer
                member.initialised, member.gives_state = True, gives_state
                self.journal.save_member(job, place)
                if job.started:
                    self.arrivals.advance(job)
                else:
                    self._start_when_complete(job)

    # --- running ---

    def instruction(
        self, nonce: str, role: Role, rank: int, process: int = 0
    ) -> jobs_pb2.Instruction | None:
        """What a member is to do now, the same object until another one replaces it.

        None while not all are in, and when the job or the member has left. Workers get a plan once
        every server runs it: a chunk must not come before its server.
        """
        with self.changed:
            job, place = self._known(nonce, role, rank)
            if job.state is State.FAILED:
                access.check_alive(job)
            if place in job.members:
                access.check_member(job, place, process)
            if job.change is not None and (
                not job.change.settled or (role is Role.WORKER and not job.served)
            ):
                return job.change.instruction(place)
            if role is Role.WORKER and not job.served:
                return None
            told = job.join.instruction(place) if job.join is not None else None
            return told if told is not None else job.instructions.get(place)

    def state(self, nonce: str) -> State:
        """How far a job is."""
        with self.changed:
            return access.find(self.roster.jobs, nonce).state

    def heartbeat(
        self,
        nonce: str,
        role: Role,
        rank: int,
        epoch: int = 0,
        unanswered: float = 0.0,
        process: int = 0,
        awaited: tuple[int, str] = (0, ""),
    ) -> int:
        """A member is alive and runs the plan of an epoch; returns that of the job's plan.

        ``unanswered``: seconds that its oldest chunk in flight is without a sign of life;
        ``awaited``: see Member.
        """
        with self.changed:
            job, place = self._alive(nonce, role, rank)
            check_beat(job, place, epoch, unanswered)
            member = self._member(job, place, process)
            # One that is held for a change asks nobody, and what it waits for is the change.
            member.unanswered = unanswered if epoch == job.epoch else 0.0
            member.awaited = awaited[0], awaited[1][:LONGEST_KEY_NAME]
            if epoch != member.epoch:
                member.epoch = epoch
                if job.change is not None and job.change.settled and job.served:
                    job.change = None
                self.arrivals.advance(job)
                self.changed.notify_all()
            return job.epoch

    def resync(self, nonce: str, role: Role, rank: int, request: jobs_pb2.ResyncRequest) -> None:
        """A member's part in a change of epoch; what belongs to an older epoch is ignored.

        Raises JobError, also for an answer that cannot be.
        """
        with self.roster.busy():
            job, place = self._alive(nonce, role, rank)
            self._member(job, place, request.process)
            what = request.WhichOneof("what")
            if what is None:
                text = f"{job}: {job.name(place)} sent no answer: report, handed, taken or broken"
                raise JobError(Refusal.INVALID_ARGUMENT, text)
            if request.epoch != job.epoch or not job.started:
                return
            if what in ("begun", "reached", "donated", "restored"):
                self.arrivals.answer(job, place, request)
            else:
                try:
                    self.epochs.answer(job, place, request)
                except ResyncError as error:
                    text = f"{job}: {job.name(place)}: {error}"
                    raise JobError(Refusal.INVALID_ARGUMENT, text) from error

    def replan(
        self,
        which: Job | int,
        reason: str,
        *,
        kind: TreeKind | None = None,
        window: int | None = None,
        streams: int | None = None,
        avoid: Collection[str] = (),
    ) -> None:
        """Prepare a job's next epoch, from now on with another tree, window or number of streams
        if given, and with no node of a tree on switches to ``avoid``. Raises JobError."""
        with self.roster.busy():
            found = [job for job in self.roster.jobs if which in (job, job.number)]
            if not found or not found[-1].started:
                text = f"{found[-1] if found else f'job {which}'} is not running"
                raise JobError(Refusal.FAILED_PRECONDITION, text)
            job = found[-1]
            lanes = self.fabric.dataplane.lanes
            check_window(window or 0, streams or 0, len(job.workers), lanes)
            check_optimizer(job, job.optimizer, kind or job.kind)
            check_pipeline(job.pipeline, kind or job.kind)
            job.kind = job.kind if kind is None else kind
            job.window = job.window if window is None else window
            job.streams = job.streams if streams is None else streams
            job.avoid = frozenset(avoid)
            self.epochs.begin(job, reason)

    def leave(
        self,
        nonce: str,
        role: Role,
        rank: int,
        reason: str = "",
        results: Iterable[jobs_pb2.Result] = (),
        levels: bytes = b"",
        process: int = 0,
    ) -> None:
        """A member is done, or gives up (with a reason), which fails the job.

        A worker that is done hands over the results that it holds, and its levels as in a report.
        """
        with self.roster.busy():
            job, place = self._known(nonce, role, rank)
            self.departures.leave(job, place, reason, results, levels, process)

    def gone(self, nonce: str, role: Role, rank: int, reason: str) -> None:
        """Somebody knows that a member's process is dead, and how it ended. A job that had not
        begun fails, or waits for another server; else the others go on without it at once."""
        with self.roster.busy():
            job, place = self._known(nonce, role, rank)
            self.departures.gone(job, place, reason)

    def stop(self, number: int, why: str) -> None:
        """The operator ends a job, which needs no nonce. Raises JobError if none is alive."""
        with self.roster.busy():
            self._fail(self.roster.alive(number), why)

    def expire(self, every: float = math.inf) -> None:
        """Let jobs go on without members that are dead or have left, fail those that cannot, and
        try again to delete what is left over. To be called every second or so.

        every: seconds between calls. If it is called much later, this process or the machine was
        stopped: that it heard of nobody meanwhile is nobody's fault.
        """
        with self.roster.busy():
            now = self.clock()
            if now - self._expired > 2 * every:
                self.roster.forgive(now - self._expired)
            for job in list(self.roster.jobs):
                if job.leftovers and now >= job.retry_at:
                    self.deployment.retry(job)
                    job.retry_at = now + RETRY_SECONDS
                    self.journal.save(job)
                if not job.state.over:
                    self.departures.look_after(job, now, self.join)
            self.epochs.mark_unreachable(self.roster.jobs, self.unanswered)
            self._expired = self.clock()

    def jobs(self) -> list[Job]:
        """All jobs that are known, the oldest first; those over are the last few."""
        with self.changed:
            return list(self.roster.jobs)

    # --- inside, with the lock held ---

    def _take_up(self) -> None:
        """Go on with the jobs of the journal: as they are, where switches have all they should."""
        changing = []
        for known in self.journal.load(self.clock()):
            job = known.job
            installed = job.started and not known.changing
            self.deployment.recall(job, known.current, known.old, installed)
            if installed:
                job.instructions = self.deployment.instructions(job)
            elif job.started:
                changing.append(job)
            self.roster.jobs.append(job)
        if not self.roster.jobs:
            return
        damaged = []
        for switch in self.fabric.connections:
            if switch in self.fabric.down:
                continue
            try:
                damaged += self.epochs.sweep(switch, self.roster.jobs)
                if switch in self.fabric.addressing.missing:
                    self.epochs.restore_switch(switch, self.roster.jobs)
            except SwitchError as error:
                log.error("%s is down: %s", switch, error)
                self.fabric.down.add(switch)
        for job in self.roster.jobs:
            if job in changing or (job in damaged and job.started):
                self.epochs.go_on(job, "the controller was restarted")
            elif not job.started and not job.state.over:
                # If it cannot, it fails, and callers learn it.
                with suppress(JobError):
                    self._start_when_complete(job)
        log.info("%d jobs taken up", len([job for job in self.roster.jobs if not job.state.over]))

    def _start_when_complete(self, job: Job) -> None:
        if not job.complete:
            return
        try:
            self.deployment.adapt(job)
            self.journal.save(job)
            self.deployment.install(job)
        except (SwitchError, PlanRefusedError) as error:
            why = f"could not be installed: {error}"
            refused = error.taken if isinstance(error, SwitchError) else True
            if self.fabric.addressing.missing or not refused:
                # A switch that was just killed will be back: as with a job that runs.
                job.state = State.RUNNING
                self.epochs.begin(job, why)
                return
            self._fail(job, why)
            raise JobError(Refusal.ABORTED, f"{job} failed: {job.reason}") from error
        job.state = State.RUNNING
        self.epochs.give_out(job)
        log.info("%s runs: epoch %d", job, job.epoch)

    def _fail(self, job: Job, reason: str) -> None:
        log.error("%s failed: %s", job, reason)
        self._end(job, State.FAILED, reason)

    def _end(self, job: Job, state: State, reason: str) -> None:
        job.state, job.reason = state, reason
        job.instructions, job.change, job.waiting, job.kept = {}, None, "", Pool()
        job.join = None
        self.journal.save(job)
        self.epochs.withdraw(job)
        self.journal.save(job)
        self.journal.drop(job, forget=False)
        log.info("%s is over: %s", job, state.value)
        self.roster.over(job)

    def _known(self, nonce: str, role: Role, rank: int) -> tuple[Job, Membership]:
        return access.known(self.roster.jobs, nonce, role, rank)

    def _alive(self, nonce: str, role: Role, rank: int) -> tuple[Job, Membership]:
        job, place = self._known(nonce, role, rank)
        access.check_alive(job)
        return job, place

    def _member(self, job: Job, place: Membership, process: int) -> Member:
        """A member that has connected, and is alive as it calls."""
        member = access.check_member(job, place, process)
        member.heard = self.clock()
        return member
