# SPDX-License-Identifier: Apache-2.0
"""Members of a job on a simulated network, driven by the real job table.

Each member has a follower, as in a real process; between it and the table messages take a time of
their own, in order. Instructions may be skipped when another one replaces them, and be repeated.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from controller.jobs.job import Job, JobError, Key, Role, State
from controller.planning.tree_planner import TreeKind
from hosts.data.snapshot import Snapshot
from hosts.server.epoch_change import FetchTask, ServerEpochs
from hosts.server.state import NotHereError
from hosts.worker.epoch_change import WorkerEpochs
from hosts.worker.transport import WorkerTransport
from protocol import jobs_pb2
from protocol.optimizer_plan import OptimizerPlan
from protocol.partition import Moved
from protocol.plan import Address, WorkerPlan
from tests.history import Contacts
from tests.packet.jobs.switched_network import AGAIN_SECONDS, Host, SwitchedNetwork
from topologies.model.replica_order import host_of

HEARTBEAT_SECONDS = 2.0
LANES = 256


class Messages:
    """The ordered channel between a member and the job table, with delays up to `delay` seconds."""

    def __init__(self, network: SwitchedNetwork, delay: float) -> None:
        self._network = network
        self._delay = delay
        self._last = 0.0

    def time(self) -> float:
        """Returns the arrival time of the next message."""
        draw = self._network.random.random() * self._network.random.random()
        self._last = max(self._last, self._network.now + draw * self._delay)
        return self._last


class Member:
    """One member's process, but for its packets."""

    def __init__(
        self,
        started: StartedJob,
        role: Role,
        rank: int,
        follower: WorkerEpochs | ServerEpochs,
        process: int = 0,
    ) -> None:
        self.started = started
        self.network = started.network
        self.place = (started.job.nonce, role, rank)
        self.process = process
        self.follower = follower
        self.gone = False  # dead, or it has left
        self.giving = False  # its application is about to tell what it knows
        self.refused = ""  # what the job service said last when it refused a call
        self.on_plan: Callable[[], None] = lambda: None
        self.on_instruction: Callable[[], None] = lambda: None  # after each instruction
        self._down = Messages(self.network, started.delay)
        self._up = Messages(self.network, started.delay)
        self._noticed: jobs_pb2.Instruction | None = None
        self._sent: jobs_pb2.Instruction | None = None
        self.network.watchers.append(self._notice)
        self._beat()

    def _notice(self) -> None:
        """Checks for a new instruction."""
        current = self._current()
        if current is not None and current is not self._noticed:
            self._noticed = current
            self.network.call(self._down.time(), self._send)

    def _send(self) -> None:
        current = self._current()
        if current is None or current is self._sent:
            return
        self._sent = current
        for _ in range(1 + (self.network.random.random() < 0.1)):
            self.network.at(self._down.time(), lambda: self._follow(current))

    def _current(self) -> jobs_pb2.Instruction | None:
        if self.gone:
            return None
        try:
            current = self.network.jobs.instruction(*self.place, self.process)
        except JobError as error:
            self.refused = str(error)
            return None
        if current is not None and current.WhichOneof("what") == "plan":
            self.started.note_world()
        return current

    def _follow(self, instruction: jobs_pb2.Instruction) -> None:
        if self.gone:
            return
        self.network.stirred = True
        before = self.follower.epoch
        self.started.moved += len(instruction.take.results)
        self.answer(self.follower.answer(instruction))
        if isinstance(self.follower, ServerEpochs):
            for errand in self.follower.take_fetch_tasks():
                self._fetch(self.follower, errand)
        if self.follower.epoch != before:
            self.on_plan()
            self.network.call(self._up.time(), self._heartbeat)
        self.on_instruction()
        self._donate()

    def _donate(self) -> None:
        """Donates the application's state at its next call."""
        if isinstance(self.follower, ServerEpochs) or self.giving:
            return
        if self.follower.barrier.donation is not None:
            self.giving = True
            self.network.at(self._up.time(), self._give)

    def _give(self) -> None:
        self.giving = False
        follower = self.follower
        assert isinstance(follower, WorkerEpochs)
        if not self.gone and follower.barrier.donation is not None:
            done = np.array([follower.barrier.completed])
            follower.barrier.give(follower.barrier.donation, follower.state({"done": done}))
            self.answer(follower.said())
            self._donate()

    def _fetch(self, follower: ServerEpochs, errand: FetchTask) -> None:
        """Fetches another server's state, delayed but reliably."""

        def ask() -> None:
            if self.gone or not follower.wants(errand):
                return
            source = self.started.server_at(errand.server)
            own = host_of(self.started.servers[self.place[2]])
            caller = self.network.caller(own, errand.server)
            try:
                if source.gone:
                    raise NotHereError("dead")
                assert isinstance(source.follower, ServerEpochs)
                part = source.follower.give(errand.epoch, caller, errand.chunks)
            except NotHereError:
                self.network.at(self.network.now + AGAIN_SECONDS, ask)
                return
            self.network.at(self._between(), lambda: arrive(part))

        def arrive(part: Snapshot) -> None:
            if not self.gone:
                follower.take(errand, part)
                self.answer(follower.fetched(errand))

        self.network.at(self._between(), ask)

    def _between(self) -> float:
        return self.network.now + self.network.random.random() * self.network.between

    def answer(self, answers: Sequence[jobs_pb2.ResyncRequest]) -> None:
        for answer in answers:
            self.network.call(self._up.time(), lambda answer=answer: self._resync(answer))

    def _resync(self, answer: jobs_pb2.ResyncRequest) -> None:
        if self.gone or self.started.job.state.over:
            return
        answer.process = self.process
        try:
            self.network.jobs.resync(*self.place, answer)
        except JobError as error:
            self.refused = str(error)

    def _beat(self) -> None:
        if not self.gone and not self.started.job.state.over:
            self.answer(self.started.broken(self))
            self.answer(self.started.reports(self))
            self.network.call(self._up.time(), self._heartbeat)
            self.network.at(self.network.now + HEARTBEAT_SECONDS, self._beat)

    def _heartbeat(self) -> None:
        if self.gone or self.started.job.state.over:
            return
        unanswered = 0.0
        if isinstance(self.follower, WorkerEpochs):
            unanswered = self.follower.unanswered(self.network.now)
        try:
            self.network.jobs.heartbeat(*self.place, self.follower.epoch, unanswered, self.process)
        except JobError as error:
            self.refused = str(error)


class StartedJob:
    """A job whose members are in. delay: the most that a control message takes, in seconds.
    keys: that the chunks are of, as many of each."""

    def __init__(
        self,
        network: SwitchedNetwork,
        name: str,
        workers: Sequence[str],
        servers: Sequence[str],
        kind: TreeKind,
        chunks: int,
        delay: float = 0.01,
        optimizer: OptimizerPlan | None = None,
        keys: int = 1,
        **options: Any,
    ) -> None:
        self.network = network
        self.chunks = chunks
        self.keys = keys
        self.delay = delay
        self.workers = list(workers)
        self.killed: set[int] = set()
        self.reported = 0  # failures
        self.moved = 0  # results that workers were given
        self.joined = 0  # workers that came back
        self.worlds: list[tuple[int, ...]] = []  # who was in an epoch, each once
        self.policies = [Contacts(chunks, len(workers)) for _ in workers]
        table = network.jobs
        self.job: Job = table.create(name, workers, servers, kind, **options)
        self.servers = list(self.job.servers)
        nonce = self.job.nonce
        for rank, server in enumerate(self.servers):
            table.connect(nonce, Role.SERVER, rank, self._address(server))
        ports = [40000 + 100 * self.job.number + rank for rank in range(len(workers))]
        for rank, worker in enumerate(workers):
            link = network.addressing.host_interfaces(worker)[0]
            table.connect(nonce, Role.WORKER, rank, Address(int(link.ipv4), ports[rank]))
        for rank in range(len(workers)):
            table.init(nonce, rank, self._keys, gives_state=True, optimizer=optimizer)
        self._processes = itertools.count(1)
        self._states = [network.server(server) for server in self.servers]
        self._hosts: list[Host | None] = [None] * len(workers)
        self.ports = ports
        self.server_members = [
            Member(self, Role.SERVER, rank, ServerEpochs(state, self.job.number))
            for rank, state in enumerate(self._states)
        ]
        self.members = [
            Member(self, Role.WORKER, rank, WorkerEpochs(policy, self._starter(policy)))
            for rank, policy in enumerate(self.policies)
        ]
        for rank, member in enumerate(self.members):
            member.on_plan = lambda rank=rank: self._attach(rank)
        network.at(network.now, self._expire)
        network.call(network.now, lambda: None)  # members look for what there is
        assert network.run(lambda: all(m.follower.epoch for m in self.members), network.now + 100)

    @property
    def _keys(self) -> list[Key]:
        size = self.chunks // self.keys * LANES
        return [Key(number, f"key {number}", size) for number in range(self.keys)]

    def _starter(self, policy: Contacts) -> Callable[[WorkerPlan], WorkerTransport]:
        def start(plan: WorkerPlan) -> WorkerTransport:
            policy.world = plan.world
            return WorkerTransport(plan, policy, link_rate=0)

        return start

    def _attach(self, rank: int) -> None:
        transport = self.transport(rank)
        host = self._hosts[rank]
        if host is None:
            host = self.network.attach(self.workers[rank], self.ports[rank], transport)
            self._hosts[rank] = host
        host.machine = transport
        host.poke()

    def _expire(self) -> None:
        if not self.job.state.over:
            self.network.call(self.network.now, self.network.jobs.expire)
            self.network.at(self.network.now + HEARTBEAT_SECONDS, self._expire)

    def note_world(self) -> None:
        if self.job.scheme.workers not in self.worlds:
            self.worlds.append(self.job.scheme.workers)

    def broken(self, member: Member) -> list[jobs_pb2.ResyncRequest]:
        """Returns the unrecoverable failures that a member has to report."""
        follower = member.follower
        if isinstance(follower, WorkerEpochs):
            reports = follower.broken()
        else:
            failures = self._states[member.place[2]].take_failures()
            reports = follower.broken([f for job, f in failures if job == self.job.number])
        self.reported += len(reports)
        return reports

    def reports(self, member: Member) -> list[jobs_pb2.ResyncRequest]:
        """Returns what a server has to report unasked."""
        if isinstance(member.follower, WorkerEpochs):
            return []
        found = self._states[member.place[2]].take_reports()
        return [message for number, message in found if number == self.job.number]

    # -- what tests use ---------------------------------------------------------------------------

    @property
    def world(self) -> int:
        """Workers it began with."""
        return len(self.workers)

    def transport(self, rank: int) -> WorkerTransport:
        """A worker's transport now."""
        transport = self.members[rank].follower.transport
        assert transport is not None
        return transport

    @property
    def transports(self) -> list[WorkerTransport]:
        return [self.transport(rank) for rank in range(self.world)]

    @property
    def staying(self) -> list[int]:
        """Ranks of workers that are still in."""
        return [rank for rank, member in enumerate(self.members) if not member.gone]

    def submit(self, rank: int, chunks, values, lanes) -> bool:
        """A call of a worker; False if it may not begin now."""
        member = self.members[rank]
        if member.gone:
            return True
        barrier = member.follower.barrier
        if not barrier.begin():
            return False
        member.follower.begins(barrier.begun)
        self.transport(rank).submit(chunks, values, lanes)
        self._hosts[rank].poke()
        return True

    def complete(self, rank: int) -> None:
        """A call of a worker has all its sums."""
        member = self.members[rank]
        member.follower.barrier.complete()
        member.answer(member.follower.said())

    def restart(self, rank: int, joined: Callable[[int], None]) -> None:
        """A new process in the worker's place. joined: called when it is in, with the number of
        calls that are complete."""
        assert self.members[rank].gone
        process = next(self._processes)
        link = self.network.addressing.host_interfaces(self.workers[rank])[0]
        self.ports[rank] += 1000
        policy = Contacts(self.chunks, self.world)
        follower = WorkerEpochs(policy, self._starter(policy))

        def connect() -> None:
            if not self.job.started:
                return
            nonce, address = self.job.nonce, Address(int(link.ipv4), self.ports[rank])
            jobs = self.network.jobs
            jobs.connect(nonce, Role.WORKER, rank, address, process)
            optimizer = self.job.optimizer
            jobs.init(nonce, rank, self._keys, process, gives_state=True, optimizer=optimizer)
            self.policies[rank], self._hosts[rank] = policy, None
            member = Member(self, Role.WORKER, rank, follower, process)
            member.on_plan = lambda: self._join(rank, joined)
            self.members[rank] = member

        self.network.call(self.network.now, connect)

    def _join(self, rank: int, joined: Callable[[int], None]) -> None:
        new = self._hosts[rank] is None
        self._attach(rank)
        if new:
            self.joined += 1
            state = self.members[rank].follower.joined
            assert state.arrays["done"].tolist() == [state.calls]
            joined(state.calls)

    def tell_gone(self, rank: int) -> None:
        """Whoever started a worker's process knows that it is dead."""
        self.network.call(
            self.network.now,
            lambda: self.network.jobs.gone(self.job.nonce, Role.WORKER, rank, "was killed"),
        )

    def kill(self, rank: int) -> None:
        """The worker's process dies."""
        self.members[rank].gone = True
        self.killed.add(rank)
        if self._hosts[rank] is not None:
            self._hosts[rank].dead = True

    def server_at(self, address: Address) -> Member:
        """The member that serves at an address."""
        for rank, server in enumerate(self.servers):
            if self._address(server) == address:
                return self.server_members[rank]
        raise AssertionError(f"no server at {address}")

    def _address(self, server: str) -> Address:
        unit = self.network.addressing.unit(server)
        return Address(int(unit.address), unit.port)

    def kill_server(self, rank: int, reported: bool = False) -> None:
        """The server's process dies. reported: its supervisor reports that."""
        self.server_members[rank].gone = True
        self.network.server_host(self.servers[rank]).dead = True
        if reported:
            node, when = self.servers[rank], self.network.now
            died = self.network.jobs.outages.died
            self.network.call(when, lambda: died(node, "was killed by SIGKILL", when))

    def restart_server(self, rank: int) -> None:
        """It is there again, empty, and joins the job."""
        node = self.servers[rank]
        self._states[rank] = self.network.restart_server(node)

        def join() -> None:
            if self.job.state.over:
                return
            address, process = self._address(node), next(self._processes)
            self.network.jobs.connect(self.job.nonce, Role.SERVER, rank, address, process)
            follower = ServerEpochs(self._states[rank], self.job.number)
            self.server_members[rank] = Member(self, Role.SERVER, rank, follower, process)
            self.server_members[rank]._notice()

        self.network.call(self.network.now, join)

    def leave(self, rank: int) -> None:
        """The worker has all it wanted, and leaves in order."""
        member, transport = self.members[rank], self.transport(rank)
        member.gone = True
        transport.freeze()
        results, levels = transport.results(), transport.levels().astype("<u4").tobytes()
        self.network.call(
            member._up.time(),
            lambda: self.network.jobs.leave(*member.place, "", results, levels, member.process),
        )

    def replan(self, reason: str, **options) -> None:
        """As if an operator asked; a job that is over by then is fine."""

        def now() -> None:
            if self.job.started:
                self.network.jobs.replan(self.job, reason, **options)

        self.network.call(self.network.now, now)

    def remap(self, moved: Moved) -> None:
        """As if a balancer moved slices, if the job can do so now."""

        def now() -> None:
            with contextlib.suppress(JobError):
                self.network.jobs.remap(self.job, moved, "test")

        self.network.call(self.network.now, now)

    def restart_controller(self) -> None:
        """A new controller takes over, with the journal of the last one."""

        def now() -> None:
            self.network.restart_controller()
            (self.job,) = (one for one in self.network.jobs.jobs() if one.number == self.job.number)

        self.network.call(self.network.now, now)

    @property
    def over(self) -> bool:
        return self.job.state in (State.FAILED, State.GONE)
