# SPDX-License-Identifier: Apache-2.0
"""The jobs of a fabric: admission, joining, installation, and the way out.

``JobTable`` is the job service without gRPC; every method may be called from any thread. A job is
planned and its slots are held from ``create`` on, so what cannot run is refused there. When all
members are in, its entries are written and its plans appear. It ends when all workers have left,
or fails when one gives up or is not heard of for a lease; either way its entries are deleted, and
only slots whose deletion a switch confirmed go to other jobs.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ipaddress import IPv4Address

from controller.admission import Reservation, Resources
from controller.connection import SwitchError
from controller.fabric import Fabric
from controller.install import Installation, entities_of
from controller.job import (
    Job,
    JobError,
    Key,
    Member,
    Membership,
    Refusal,
    Role,
    State,
    plans_of,
)
from controller.requests import check_address, check_create, check_keys, difference
from controller.trees import PlanRefusedError, Tree, TreeKind, plan_trees
from controller.windows import choose_window
from protocol import jobs_pb2
from protocol.plan import Address

__all__ = ["JobTable"]

log = logging.getLogger(__name__)

MOST_JOBS = (1 << 16) - 1
LAST_EPOCH = (1 << 16) - 1
LONGEST_REASON = 500
# Jobs that are over stay known, so that late callers learn how they ended.
REMEMBERED = 64
LEASE_SECONDS = 15.0
JOIN_SECONDS = 120.0
# Between attempts to delete entries from a switch that did not confirm it.
RETRY_SECONDS = 10.0


class JobTable:
    """All jobs. ``lease``: seconds without a call after which a member counts as dead; ``join``:
    seconds from ``create`` until all have to be in; ``queue_packets``: see ``choose_window``."""

    def __init__(
        self,
        fabric: Fabric,
        clock: Callable[[], float] = time.monotonic,
        lease: float = LEASE_SECONDS,
        join: float = JOIN_SECONDS,
        queue_packets: int | None = None,
    ) -> None:
        self.fabric = fabric
        self.clock = clock
        self.lease = lease
        self.join = join
        self.queue_packets = queue_packets
        self.changed = threading.Condition(threading.RLock())
        self.resources = Resources(
            (node.name for node in fabric.topology.switches), fabric.dataplane.slots
        )
        self._jobs: list[Job] = []  # oldest first
        self._last_number = 0
        self._epochs: dict[int, int] = {}  # last epoch used under a job number

    # --- joining ---

    def create(
        self,
        namespace: str,
        workers: Sequence[str],
        servers: Sequence[str],
        kind: TreeKind,
        window: int = 0,
        streams: int = 0,
    ) -> Job:
        """Admit a job: host names by rank, window and streams 0 for the controller's choice.

        Raises JobError when the request is wrong, the name is taken or the switches have no room.
        """
        check_create(self.fabric.topology, namespace, workers, servers, window, streams)
        with self.changed:
            if any(job.namespace == namespace and not job.state.over for job in self._jobs):
                text = f"a job named {namespace!r} is alive; stop it or choose another namespace"
                raise JobError(Refusal.ALREADY_EXISTS, text)
            number, epoch = self._next_number()
            addresses = [self.fabric.addressing.address(server) for server in servers]
            trees, reservation = self._plan(number, workers, addresses, kind, window, streams)
            job = Job(
                number=number,
                epoch=epoch,
                namespace=namespace,
                nonce=secrets.token_hex(16),
                workers=tuple(workers),
                servers=tuple(servers),
                kind=kind,
                window=window,
                streams=streams,
                created=self.clock(),
                trees=trees,
                reservation=reservation,
            )
            self._last_number = number
            self._epochs[number] = epoch
            self._jobs.append(job)
            log.info(
                "%s created: %d workers, %d servers, tree %s, %d streams, window %d",
                job, len(workers), len(servers), kind.name, len(trees), reservation.window,
            )  # fmt: skip
            self.changed.notify_all()
            return job

    def connect(self, nonce: str, role: Role, rank: int, address: Address) -> Job:
        """A member says where it listens. Again with the same address: fine."""
        with self.changed:
            job, place = self._alive(nonce, role, rank)
            check_address(self.fabric.addressing, job, place, address)
            known = job.members.get(place)
            if known is not None and known.address != address:
                text = f"{job}: {job.name(place)} is connected already, from {known.address}"
                raise JobError(Refusal.ALREADY_EXISTS, text)
            if known is None:
                for other, member in job.members.items():
                    if member.address == address:
                        text = f"{job}: {job.name(other)} listens at {address} already"
                        raise JobError(Refusal.ALREADY_EXISTS, text)
                job.members[place] = Member(address, self.clock())
                if job.state is State.CREATED:
                    job.state = State.WAITING
                self._start_when_complete(job)
            else:
                known.heard = self.clock()
            self.changed.notify_all()
            return job

    def init(self, nonce: str, rank: int, keys: Sequence[Key]) -> None:
        """A worker declares its tensors; they must be the same at all. The last one starts it."""
        with self.changed:
            job, place = self._alive(nonce, Role.WORKER, rank)
            member = self._member(job, place)
            check_keys(keys, self.fabric.dataplane.lanes)
            if job.keys and job.keys != tuple(keys):
                text = f"{job}: {difference(job.keys, keys, job.name(place))}"
                raise JobError(Refusal.INVALID_ARGUMENT, text)
            if not member.initialised:
                job.keys = tuple(keys)
                member.initialised = True
                self._start_when_complete(job)
                self.changed.notify_all()

    # --- running ---

    def plan(self, nonce: str, role: Role, rank: int) -> jobs_pb2.Plan | None:
        """A member's plan; None while not all are in, and when the job is gone.

        Workers get theirs once every server runs it: a chunk must not come before its server.
        """
        with self.changed:
            job, place = self._known(nonce, role, rank)
            if job.state is State.FAILED:
                raise JobError(Refusal.ABORTED, f"{job} failed: {job.reason}")
            if role is Role.WORKER and not job.served:
                return None
            return job.plans.get(place)

    def state(self, nonce: str) -> State:
        """How far a job is."""
        with self.changed:
            return self._find(nonce).state

    def heartbeat(self, nonce: str, role: Role, rank: int, epoch: int = 0) -> int:
        """A member is alive and runs the plan of an epoch; returns that of the job's plan."""
        with self.changed:
            job, place = self._alive(nonce, role, rank)
            member = self._member(job, place)
            if epoch != member.epoch:
                member.epoch = epoch
                self.changed.notify_all()
            return job.epoch

    def leave(self, nonce: str, role: Role, rank: int, reason: str = "") -> None:
        """A member is done, or gives up (with a reason), which fails the job."""
        with self.changed:
            job, place = self._known(nonce, role, rank)
            if job.state.over:
                return
            if place in job.members:
                job.members[place].left = True
            if reason:
                words = " ".join(reason.split())[:LONGEST_REASON]
                self._fail(job, f"{job.name(place)} gave up: {words}")
            elif job.state in (State.CREATED, State.WAITING):
                self._fail(job, f"{job.name(place)} left before the job started")
            elif role is Role.SERVER:
                self._fail(job, f"{job.name(place)} left while workers were running")
            else:
                job.state = State.LEAVING
                log.info("%s: %s left", job, job.name(place))
                if all(m.left for p, m in job.members.items() if p.role is Role.WORKER):
                    self._end(job, State.GONE, "")
            self.changed.notify_all()

    def expire(self) -> None:
        """Fail jobs with members that are dead or do not come, and try again to delete entries of
        jobs that are over. To be called every second or so."""
        with self.changed:
            now = self.clock()
            for job in list(self._jobs):
                if job.state.over:
                    if job.held and now >= job.retry_at:
                        self._release(job)
                    continue
                silent = [
                    f"{job.name(place)}, {now - member.heard:.0f} s"
                    for place, member in job.members.items()
                    if not member.left and now - member.heard > self.lease
                ]
                if silent:
                    self._fail(job, f"not heard of any more: {'; '.join(silent)}")
                elif job.state in (State.CREATED, State.WAITING) and (
                    now - job.created > self.join
                ):
                    absent = ", ".join(job.name(place) for place in job.absent())
                    self._fail(job, f"not in after {self.join:.0f} s: {absent}")
            self.changed.notify_all()

    def jobs(self) -> list[Job]:
        """All jobs that are known, the oldest first; those over are the last few."""
        with self.changed:
            return list(self._jobs)

    # --- inside, with the lock held ---

    def _next_number(self) -> tuple[int, int]:
        """Job number and epoch that no slot of any switch can remember."""
        held = {job.number for job in self._jobs if not job.state.over or job.held}
        for step in range(1, MOST_JOBS + 1):
            number = (self._last_number + step - 1) % MOST_JOBS + 1
            epoch = self._epochs.get(number, 0) + 1
            if number not in held and epoch <= LAST_EPOCH:
                return number, epoch
        raise JobError(Refusal.RESOURCE_EXHAUSTED, f"{MOST_JOBS} jobs are alive, the limit")

    def _plan(
        self,
        number: int,
        workers: Sequence[str],
        servers: Sequence[IPv4Address],
        kind: TreeKind,
        window: int,
        streams: int,
    ) -> tuple[tuple[Tree, ...], Reservation]:
        fabric = self.fabric
        try:
            trees = plan_trees(
                fabric.topology, fabric.addressing, workers, servers, kind, streams, number - 1
            )
            chosen = window or choose_window(
                fabric.addressing,
                trees,
                servers,
                fabric.dataplane.frame_bytes,
                queue_packets=self.queue_packets,
            )
            return trees, self.resources.reserve(trees, chosen, shrink=not window)
        except PlanRefusedError as error:
            raise JobError(Refusal.RESOURCE_EXHAUSTED, str(error)) from error

    def _start_when_complete(self, job: Job) -> None:
        if job.absent():
            return
        try:
            with self._deaf():
                self._replan_for_addresses(job)
                self._install(job)
        except (SwitchError, JobError) as error:
            self._fail(job, f"could not be installed: {error}")
            raise JobError(Refusal.ABORTED, f"{job} failed: {job.reason}") from error
        dataplane, addressing = self.fabric.dataplane, self.fabric.addressing
        links = [
            addressing.interfaces[IPv4Address(member.address.ipv4)]
            for member in job.members.values()
        ]
        rates = {link.node: link.outgoing.rate for link in links}
        job.plans = plans_of(job, dataplane.lanes, dataplane.chunks_per_slice, rates)
        job.state = State.RUNNING
        log.info("%s runs: epoch %d", job, job.epoch)

    def _replan_for_addresses(self, job: Job) -> None:
        """A server with several links may listen at another one than was planned for."""
        servers = [
            IPv4Address(job.members[Membership(Role.SERVER, rank)].address.ipv4)
            for rank in range(len(job.servers))
        ]
        if servers == [self.fabric.addressing.address(server) for server in job.servers]:
            return
        assert job.reservation is not None
        self.resources.release(job.reservation)
        job.reservation = None
        job.trees, job.reservation = self._plan(
            job.number, job.workers, servers, job.kind, job.window, job.streams
        )

    def _install(self, job: Job) -> None:
        assert job.reservation is not None
        job.installation = Installation(self.fabric)
        ports = [
            job.members[Membership(Role.WORKER, rank)].address.port
            for rank in range(len(job.workers))
        ]
        for tree in job.trees:
            for node in tree.switches:
                assert node.switch is not None
                needed, entry = entities_of(
                    self.fabric.dataplane,
                    job.number,
                    job.epoch,
                    tree,
                    node,
                    job.reservation.places[tree.stream, node.switch],
                    job.reservation.window,
                    ports,
                    int(self.fabric.addressing.switch_address(node.switch)),
                )
                job.installation.install(node.switch, needed, entry)

    def _fail(self, job: Job, reason: str) -> None:
        log.error("%s failed: %s", job, reason)
        self._end(job, State.FAILED, reason)

    def _end(self, job: Job, state: State, reason: str) -> None:
        job.state, job.reason = state, reason
        job.plans = {}
        self._release(job)
        log.info("%s is over: %s", job, state.value)
        over = [other for other in self._jobs if other.state.over and not other.held]
        for forgotten in over[:-REMEMBERED]:
            self._jobs.remove(forgotten)

    def _release(self, job: Job) -> None:
        """Delete entries; give back what switches confirm and keep the rest for another try."""
        with self._deaf():
            failed = job.installation.remove() if job.installation is not None else {}
        if failed:
            job.retry_at = self.clock() + RETRY_SECONDS
        else:
            job.installation = None
        if job.reservation is not None:
            job.reservation = self.resources.release(job.reservation, keep=failed)

    @contextmanager
    def _deaf(self) -> Iterator[None]:
        """While the lock is held for switches nobody is heard; that is not the members' fault."""
        began = self.clock()
        try:
            yield
        finally:
            took = self.clock() - began
            for job in self._jobs:
                for member in job.members.values():
                    member.heard += took

    def _find(self, nonce: str) -> Job:
        found = None
        for job in self._jobs:
            if secrets.compare_digest(job.nonce.encode(), nonce.encode()):
                found = job
        if found is None:
            raise JobError(
                Refusal.PERMISSION_DENIED, "the nonce is no job's (or a forgotten one's)"
            )
        return found

    def _known(self, nonce: str, role: Role, rank: int) -> tuple[Job, Membership]:
        job = self._find(nonce)
        count = len(job.workers if role is Role.WORKER else job.servers)
        if not 0 <= rank < count:
            text = f"{job} has {role}s 0 to {count - 1}, not {rank}"
            raise JobError(Refusal.INVALID_ARGUMENT, text)
        return job, Membership(role, rank)

    def _alive(self, nonce: str, role: Role, rank: int) -> tuple[Job, Membership]:
        job, place = self._known(nonce, role, rank)
        if job.state is State.FAILED:
            raise JobError(Refusal.ABORTED, f"{job} failed: {job.reason}")
        if job.state is State.GONE:
            raise JobError(Refusal.FAILED_PRECONDITION, f"{job} is over: all workers have left")
        return job, place

    def _member(self, job: Job, place: Membership) -> Member:
        """A member that has connected, and is alive as it calls."""
        member = job.members.get(place)
        if member is None:
            text = f"{job}: {job.name(place)} is not connected; call ConnectService first"
            raise JobError(Refusal.FAILED_PRECONDITION, text)
        member.heard = self.clock()
        return member
