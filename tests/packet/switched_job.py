# SPDX-License-Identifier: Apache-2.0
"""A job's members on a simulated network, under the real job table.

Each member has a follower, as in a real process; between it and the table messages take a time of
their own, in order. Instructions may be skipped when another one replaces them, and be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from controller.job import Job, JobError, Key, Role, State
from controller.trees import TreeKind
from hosts.follower import Errand, ServerFollower, WorkerFollower
from hosts.server import NotHereError
from hosts.shards import Snapshot
from hosts.transport import WorkerTransport
from protocol import jobs_pb2
from protocol.header import PORT
from protocol.optimizer import OptimizerPlan
from protocol.plan import Address, WorkerPlan
from tests.history import Contacts
from tests.packet.switched_network import AGAIN_SECONDS, Host, SwitchedNetwork

HEARTBEAT_SECONDS = 2.0
LANES = 256


class Messages:
    """Between one member and the job table: each takes up to `delay` seconds, none overtakes."""

    def __init__(self, network: SwitchedNetwork, delay: float) -> None:
        self._network = network
        self._delay = delay
        self._last = 0.0

    def time(self) -> float:
        """When the next one arrives."""
        draw = self._network.random.random() * self._network.random.random()
        self._last = max(self._last, self._network.now + draw * self._delay)
        return self._last


class Member:
    """One member's process, but for its packets."""

    def __init__(
        self, started: StartedJob, role: Role, rank: int, follower: WorkerFollower | ServerFollower
    ) -> None:
        self.started = started
        self.network = started.network
        self.place = (started.job.nonce, role, rank)
        self.follower = follower
        self.gone = False  # dead, or it has left
        self.refused = ""  # what the job service said last when it refused a call
        self.on_plan: Callable[[], None] = lambda: None
        self._down = Messages(self.network, started.delay)
        self._up = Messages(self.network, started.delay)
        self._noticed: jobs_pb2.Instruction | None = None
        self._sent: jobs_pb2.Instruction | None = None
        self.network.watchers.append(self._notice)
        self._beat()

    def _notice(self) -> None:
        """There may be another instruction."""
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
            current = self.network.jobs.instruction(*self.place)
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
        if isinstance(self.follower, ServerFollower):
            for errand in self.follower.take_errands():
                self._fetch(self.follower, errand)
        if self.follower.epoch != before:
            self.on_plan()
            self.network.call(self._up.time(), self._heartbeat)

    def _fetch(self, follower: ServerFollower, errand: Errand) -> None:
        """Gets what another server has, late but surely."""

        def ask() -> None:
            if self.gone or not follower.wants(errand):
                return
            source = self.started.server_at(errand.server)
            own = self.network.addressing.host_interfaces(self.started.servers[self.place[2]])[0]
            try:
                if source.gone:
                    raise NotHereError("dead")
                assert isinstance(source.follower, ServerFollower)
                part = source.follower.give(errand.epoch, int(own.ipv4), errand.chunks)
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
        if not self.gone:
            self.network.jobs.resync(*self.place, answer)

    def _beat(self) -> None:
        if not self.gone and not self.started.job.state.over:
            self.answer(self.started.broken(self))
            self.network.call(self._up.time(), self._heartbeat)
            self.network.at(self.network.now + HEARTBEAT_SECONDS, self._beat)

    def _heartbeat(self) -> None:
        if self.gone or self.started.job.state.over:
            return
        unanswered = 0.0
        if isinstance(self.follower, WorkerFollower):
            unanswered = self.follower.unanswered(self.network.now)
        try:
            self.network.jobs.heartbeat(*self.place, self.follower.epoch, unanswered)
        except JobError as error:
            self.refused = str(error)


class StartedJob:
    """A job whose members are in. delay: the most that a control message takes, in seconds."""

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
        **options: int,
    ) -> None:
        self.network = network
        self.chunks = chunks
        self.delay = delay
        self.workers, self.servers = list(workers), list(servers)
        self.killed: set[int] = set()
        self.reported = 0  # failures
        self.moved = 0  # results that workers were given
        self.worlds: dict[int, tuple[int, ...]] = {}  # who is in an epoch, by how many
        self.policies = [Contacts(chunks, len(workers)) for _ in workers]
        table = network.jobs
        self.job: Job = table.create(name, workers, servers, kind, **options)
        nonce = self.job.nonce
        for rank, server in enumerate(servers):
            link = network.addressing.host_interfaces(server)[0]
            table.connect(nonce, Role.SERVER, rank, Address(int(link.ipv4), PORT))
        ports = [40000 + 100 * self.job.number + rank for rank in range(len(workers))]
        for rank, worker in enumerate(workers):
            link = network.addressing.host_interfaces(worker)[0]
            table.connect(nonce, Role.WORKER, rank, Address(int(link.ipv4), ports[rank]))
        for rank in range(len(workers)):
            table.init(nonce, rank, [Key(0, "all", chunks * LANES)], optimizer)
        self._states = [network.server(server) for server in servers]
        self._hosts: list[Host | None] = [None] * len(workers)
        self.ports = ports
        self.server_members = [
            Member(self, Role.SERVER, rank, ServerFollower(state, self.job.number))
            for rank, state in enumerate(self._states)
        ]
        self.members = [
            Member(self, Role.WORKER, rank, WorkerFollower(policy, self._starter(rank)))
            for rank, policy in enumerate(self.policies)
        ]
        for rank, member in enumerate(self.members):
            member.on_plan = lambda rank=rank: self._attach(rank)
        network.at(network.now, self._expire)
        network.call(network.now, lambda: None)  # members look for what there is
        assert network.run(lambda: all(m.follower.epoch for m in self.members), network.now + 100)

    def _starter(self, rank: int) -> Callable[[WorkerPlan], WorkerTransport]:
        def start(plan: WorkerPlan) -> WorkerTransport:
            self.policies[rank].world = plan.world
            return WorkerTransport(plan, self.policies[rank], link_rate=0)

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
        members = self.job.scheme.workers
        assert self.worlds.setdefault(len(members), members) == members

    def broken(self, member: Member) -> list[jobs_pb2.ResyncRequest]:
        """What a member has to report as failed for good."""
        follower = member.follower
        if isinstance(follower, WorkerFollower):
            reports = follower.broken()
        else:
            failures = self._states[member.place[2]].take_failures()
            reports = follower.broken([f for job, f in failures if job == self.job.number])
        self.reported += len(reports)
        return reports

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

    def submit(self, rank: int, chunks, values, lanes) -> None:
        if self.members[rank].gone:
            return
        self.transport(rank).submit(chunks, values, lanes)
        self._hosts[rank].poke()

    def kill(self, rank: int) -> None:
        """The worker's process dies."""
        self.members[rank].gone = True
        self.killed.add(rank)
        self._hosts[rank].dead = True

    def server_at(self, address: Address) -> Member:
        """The member that serves at an address."""
        for rank, server in enumerate(self.servers):
            if int(self.network.addressing.host_interfaces(server)[0].ipv4) == address.ipv4:
                return self.server_members[rank]
        raise AssertionError(f"no server at {address}")

    def kill_server(self, rank: int) -> None:
        """The server's process dies."""
        self.server_members[rank].gone = True
        self.network.server_host(self.servers[rank]).dead = True

    def restart_server(self, rank: int) -> None:
        """It is there again, empty, and joins the job."""
        node = self.servers[rank]
        self._states[rank] = self.network.restart_server(node)
        link = self.network.addressing.host_interfaces(node)[0]

        def join() -> None:
            if self.job.state.over:
                return
            address = Address(int(link.ipv4), PORT)
            self.network.jobs.connect(self.job.nonce, Role.SERVER, rank, address)
            follower = ServerFollower(self._states[rank], self.job.number)
            self.server_members[rank] = Member(self, Role.SERVER, rank, follower)
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
            lambda: self.network.jobs.leave(*member.place, "", results, levels),
        )

    def replan(self, reason: str, **options) -> None:
        """As if an operator asked; a job that is over by then is fine."""

        def now() -> None:
            if self.job.started:
                self.network.jobs.replan(self.job, reason, **options)

        self.network.call(self.network.now, now)

    @property
    def over(self) -> bool:
        return self.job.state in (State.FAILED, State.GONE)
