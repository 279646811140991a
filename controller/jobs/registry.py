# SPDX-License-Identifier: Apache-2.0
"""Manages the jobs of a fabric: admission, members, changes of plan epoch, and the end.

``JobTable`` is the job service without gRPC; its methods may be called from any thread. ``create``
plans a job and reserves its slots, or refuses it. When all members have connected, entries are
written and plans published. When a plan no longer holds (a member or a switch is lost, or another
plan is requested) the next plan epoch is prepared (``resync``). A job ends when all workers have
left, or fails when it cannot continue. Either way its entries are deleted, and a slot is freed only
after its switch confirmed that.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress

from controller.jobs import access
from controller.jobs.arrivals import Arrivals
from controller.jobs.chunk_maps import Remaps
from controller.jobs.departures import Departures
from controller.jobs.deployment import Deployment
from controller.jobs.epochs import RETRY_SECONDS, Epochs
from controller.jobs.job import Job, JobError, Key, Member, Membership, Refusal, Role, State
from controller.jobs.journal import Journal
from controller.jobs.outages import Outages
from controller.jobs.requests import (
    LONGEST_KEY_NAME,
    check_address,
    check_balance,
    check_beat,
    check_create,
    check_keys,
    check_lease,
    check_optimizer,
    check_pipeline,
    check_propagation,
    check_slice,
    check_spans,
    check_spares,
    difference,
)
from controller.jobs.resync import Pool, ResyncError
from controller.jobs.roster import Roster
from controller.jobs.scaling import Scaling
from controller.p4rt.connection import SwitchError
from controller.p4rt.fabric import Fabric
from controller.planning.admission import Admission
from controller.planning.balancing.balancer import Move
from controller.planning.stream_numbers import wanted_streams
from controller.planning.tree_planner import PlanRefusedError, TreeKind
from protocol import jobs_pb2
from protocol.balance import Balance
from protocol.optimizer_plan import OptimizerPlan
from protocol.partition import Moved
from protocol.plan import Address
from protocol.propagation import USUAL as USUAL_PROPAGATION
from protocol.propagation import Propagation
from protocol.runtime import REAL, Runtime
from protocol.server_pipelines import USUAL, Pipeline
from topologies.model.replica_order import host_of, units_by_rank

__all__ = ["JobTable"]

log = logging.getLogger(__name__)

LEASE_SECONDS = 30.0
# An unreachable switch is routed around once members get no answer through it for so long.
UNANSWERED_SECONDS = 3.0
JOIN_SECONDS = 120.0


class JobTable:
    """All jobs of a fabric.

    clock: seconds; by default the runtime's clock.
    lease: default seconds without a call after which a member counts as dead.
    join: seconds from ``create`` within which all members have to connect.
    queue_packets: as in ``choose_window``.
    unanswered: seconds without an answer after which an unreachable switch is routed around.
    journal: persists all jobs, and supplies those of an earlier controller; by default in memory.
    runtime: the threads and clock to run with.
    """

    def __init__(
        self,
        fabric: Fabric,
        clock: Callable[[], float] | None = None,
        lease: float = LEASE_SECONDS,
        join: float = JOIN_SECONDS,
        queue_packets: int | None = None,
        unanswered: float = UNANSWERED_SECONDS,
        journal: Journal | None = None,
        runtime: Runtime = REAL,
    ) -> None:
        self.fabric = fabric
        self.runtime = runtime
        self.clock = clock = runtime.now if clock is None else clock
        self.lease = lease
        self.join = join
        self.unanswered = unanswered
        self.deployment = Deployment(fabric, queue_packets)
        self.resources = self.deployment.resources
        self.journal = journal if journal is not None else Journal()
        self.epochs = Epochs(self.deployment, self.journal, clock, self._end)
        self.arrivals = Arrivals(self.epochs, clock)
        self.remaps = Remaps(self.epochs, self.arrivals.advance)
        self.epochs.remap = self.remaps.begin
        self.departures = Departures(self.epochs, self.arrivals, self._fail)
        self.roster = Roster(self.journal, clock, join, runtime)
        self.changed = self.roster.changed
        self.scaling = Scaling(self.roster, self.deployment, self.remaps)
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
        propagation: Propagation = USUAL_PROPAGATION,
        balance: Balance | None = None,
        spares: Collection[str] = (),
    ) -> Job:
        """Admits a job.

        workers: hosts by rank.
        servers: hosts, each with all of its processes.
        spares: those of `servers` that have no slices until they are given some.
        window, streams, lease, slice_bytes: 0 for the controller's choice.

        A job that is admitted without switches keeps trees of kind NONE. Raises JobError if the
        request is invalid, the name is taken or switches lack slots.
        """
        lanes = self.fabric.dataplane.summed_lanes
        check_create(
            *(self.fabric.topology, namespace, workers, servers, window, streams, lanes),
            propagation,
        )
        check_lease(lease)
        check_slice(slice_bytes)
        check_pipeline(pipeline, kind)
        check_propagation(propagation, kind)
        check_balance(balance)
        balance = balance or Balance()
        check_spares(servers, spares, kind)
        with self.changed:
            number, epoch = self.roster.place_for(namespace)
            units = units_by_rank(self.fabric.addressing, servers)
            addresses = [unit.address for unit in units]
            streams = wanted_streams(streams, balance, len(units), propagation)
            try:
                scheme, reservation = self.deployment.admit(
                    *(number, workers, addresses, kind, window, streams, admission), propagation
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
                propagation=propagation,
                balance=balance,
                lease=lease or self.lease,
                slice_bytes=slice_bytes,
                spares=frozenset(
                    rank for rank, unit in enumerate(units) if host_of(unit.name) in spares
                ),
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
        """Registers the address of a member; idempotent.

        A new process in the place of a worker waits to join the running job; one in the place of a
        server replaces it at once.
        """
        with self.roster.busy():
            job, place = self._alive(nonce, role, rank)
            check_address(self.fabric.addressing, job, place, address)
            known = job.members.get(place)
            for other in job.members.at(address):
                if other != place:
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
                now, joining = self.clock(), job.started  # a worker that was enrolled
                job.members[place] = Member(
                    address, now, process=process, joining=joining, since=now
                )
                if job.state is State.CREATED:
                    job.state = State.WAITING
                self.journal.save_member(job, place)
                if not joining:
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
        """Declares a worker's tensors and the servers' optimizer, the same at all workers.

        The last worker's call starts the job. gives_state: the worker can transfer its
        application's state to one that joins later.
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
        """Returns a member's instruction, the same object until another one replaces it.

        None while members are absent, and after the job or the member has left. Workers get a plan
        once every server runs it, so that no chunk arrives before its server is ready.
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
            attempt = job.remap if job.join is None else job.join
            told = attempt.instruction(place) if attempt is not None else None
            return told if told is not None else job.instructions.get(place)

    def state(self, nonce: str) -> State:
        """Returns the state of a job."""
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
        """Handles a member's heartbeat; returns the plan epoch of the job.

        epoch: the plan epoch that the member runs.
        unanswered: seconds without any answer for its oldest chunk in flight.
        awaited: as in Member.
        """
        with self.changed:
            job, place = self._alive(nonce, role, rank)
            check_beat(job, place, epoch, unanswered)
            member = self._member(job, place, process)
            # A member that is halted for a change sends no probes: it waits for the change.
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
        """Handles a member's answer in a change of plan epoch; ignores one of an older epoch.

        Raises JobError, also for an invalid answer.
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
                    if what == "measured":
                        self.epochs.measured(job, place, request.measured)
                    elif what == "server_measured":
                        self.epochs.server_measured(job, place, request.server_measured)
                    elif what == "remapped":
                        self.remaps.answer(job, place, request.remapped)
                    elif what == "moved_here":
                        self.remaps.moved_here(job, place, request.moved_here)
                    else:
                        self.epochs.answer(job, place, request)
                except ResyncError as error:
                    text = f"{job}: {job.name(place)}: {error}"
                    raise JobError(Refusal.INVALID_ARGUMENT, text) from error

    def remap(self, which: Job | int, moved: Moved, reason: str) -> None:
        """Begins to change the chunk map of a running job; raises JobError if it cannot.

        moved: as in Move.
        """
        with self.roster.busy():
            number = which if isinstance(which, int) else which.number
            self.remaps.begin(self.roster.alive(number), moved, reason)

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
        """Prepares a job's next plan epoch, and changes its requests permanently.

        kind, window, streams: the new requests; None: unchanged.
        avoid: switches that are no nodes of its trees.

        Raises JobError.
        """
        with self.roster.busy():
            found = [job for job in self.roster.jobs if which in (job, job.number)]
            if not found or not found[-1].started:
                text = f"{found[-1] if found else f'job {which}'} is not running"
                raise JobError(Refusal.FAILED_PRECONDITION, text)
            self.epochs.move(found[-1], Move(reason, kind, window, streams, frozenset(avoid)))

    def enrol(self, nonce: str, host: str) -> int:
        """Makes room in a running job for a further worker (``Arrivals.enrol``)."""
        with self.roster.busy():
            job = access.find(self.roster.jobs, nonce)
            access.check_alive(job)
            return self.arrivals.enrol(job, host)

    def leave(
        self,
        nonce: str,
        role: Role,
        rank: int,
        reason: str = "",
        results: Iterable[jobs_pb2.Result] = (),
        levels: bytes = b"",
        process: int = 0,
        others_go_on: bool = False,
    ) -> None:
        """Removes a member that is done, or fails the job if it gives a reason.

        A worker that is done hands over the results that it holds, and its levels as in a report.
        others_go_on: the other workers have further rounds, without it.
        """
        with self.roster.busy():
            job, place = self._known(nonce, role, rank)
            self.departures.leave(
                job, place, reason, results, levels, process, others_go_on=others_go_on
            )
            self.remaps.left(job, place)

    def gone(self, nonce: str, role: Role, rank: int, reason: str) -> None:
        """Handles a report that a member's process has ended, and how.

        A running job continues without it at once. One that has not started fails, or waits for
        another server process.
        """
        with self.roster.busy():
            job, place = self._known(nonce, role, rank)
            self.departures.gone(job, place, reason)

    def stop(self, number: int, why: str) -> None:
        """Ends a job by order of the operator, without a nonce. Raises JobError if it is over."""
        with self.roster.busy():
            self._fail(self.roster.alive(number), why)

    def expire(self, every: float = math.inf) -> None:
        """Expires leases and deadlines, and retries deletions; call about once a second.

        Jobs continue without members that are dead or have left, or fail.

        every: seconds between calls. After a much longer time this process or the machine was
            stopped, and all deadlines are extended.
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
            self.epochs.balance(self.roster.jobs)
            self._expired = self.clock()

    def jobs(self) -> list[Job]:
        """Lists all known jobs, oldest first; of those that are over only the last few."""
        with self.changed:
            return list(self.roster.jobs)

    # --- inside, with the lock held ---

    def _take_up(self) -> None:
        """Resumes the jobs of the journal, unchanged where switches have all their entries."""
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
                # A job that cannot start fails, and its members' next calls report that.
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
        job.join = job.remap = job.moving = None
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
        """Returns a connected member, and renews its lease."""
        member = access.check_member(job, place, process)
        member.heard = self.clock()
        return member
