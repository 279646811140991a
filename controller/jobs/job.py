# SPDX-License-Identifier: Apache-2.0
"""A job as the controller knows it: members, state, scheme, and the plans of its members."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from controller.jobs.joining import Join
from controller.jobs.measuring import Rounds
from controller.jobs.members import Member, Members, Membership, Role
from controller.jobs.moves import MoveRecord
from controller.jobs.remapping import Remap
from controller.jobs.resync import Change, Pool
from controller.p4rt.install import Installation, SlotRange
from controller.planning.admission import Reservation
from controller.planning.balancing.balancer import Balancer
from controller.planning.tree_planner import Child as TreeChild
from controller.planning.tree_planner import Tree, TreeKind, TreeNode
from protocol import jobs_pb2
from protocol.balance import Balance
from protocol.header import PORT
from protocol.optimizer_plan import OptimizerPlan
from protocol.partition import Moved, ranked
from protocol.plan import Address, Child, RootStream, ServerPlan, StreamPlan, WorkerPlan
from protocol.propagation import USUAL as USUAL_PROPAGATION
from protocol.propagation import Propagation
from protocol.server_pipelines import USUAL, Pipeline
from topologies.model.replica_order import host_of, interleaved

__all__ = [
    "Job",
    "JobError",
    "Key",
    "Leftover",
    "Member",
    "Membership",
    "Refusal",
    "RestoredChunks",
    "Role",
    "Scheme",
    "State",
    "plans_of",
]


# A status names at most so many members.
NAMED = 8


class Refusal(Enum):
    """The reason of a refused call; the names are those of gRPC's status codes."""

    INVALID_ARGUMENT = "the request can never be right"
    ALREADY_EXISTS = "the name or place is taken"
    RESOURCE_EXHAUSTED = "it does not fit now"
    PERMISSION_DENIED = "no nonce of a job"
    FAILED_PRECONDITION = "not in this state of the job"
    ABORTED = "the job has failed"


class JobError(Exception):
    """A refused call.

    left_behind: LOST or REPLACED if the job goes on without the caller (protocol.call_status).
    """

    def __init__(self, refusal: Refusal, text: str, left_behind: str = "") -> None:
        self.refusal, self.left_behind = refusal, left_behind
        super().__init__(text)


class State(Enum):
    """The state of a job, from admission to the end."""

    CREATED = "created"  # admitted, no member has connected
    WAITING = "waiting"  # some members have connected
    RUNNING = "running"  # installed, plans are published
    LEAVING = "leaving"  # some workers are done
    GONE = "gone"  # all workers are done; nothing is held
    FAILED = "failed"

    @property
    def over(self) -> bool:
        """True if the state is final."""
        return self in (State.GONE, State.FAILED)


class Key(NamedTuple):
    """A tensor as workers declare it."""

    key: int
    name: str
    elements: int


class RestoredChunks(NamedTuple):
    """Chunks that a server has taken over as primary or backup.

    epoch: the plan epoch.
    server: the server process.
    source: the host that the parameters come from; a server (perhaps itself) also supplies the
        optimizer's state.
    chunks: how many.
    """

    epoch: int
    server: str
    source: str
    chunks: int


@dataclass(frozen=True)
class Scheme:
    """The members and trees of one plan epoch.

    workers, servers: ranks in the job, those of servers in the order of ``Job.ring``.
    kind: the kind of trees.
    trees: one for each stream; their ranks are positions in `workers` and `servers`.
    avoided: switches that could not take part.
    """

    workers: tuple[int, ...]
    servers: tuple[int, ...]
    kind: TreeKind
    trees: tuple[Tree, ...]
    avoided: frozenset[str] = frozenset()

    @property
    def places(self) -> list[Membership]:
        """All members of the scheme."""
        return [Membership(Role.WORKER, rank) for rank in self.workers] + [
            Membership(Role.SERVER, rank) for rank in self.servers
        ]

    def ranked(self, moved: Moved) -> Moved:
        """Converts a chunk map, by servers of the job, to the ranks of those that are here."""
        return ranked(moved, self.servers)

    def roots(self, servers: Sequence[str]) -> tuple[str, ...]:
        """Names the switches or servers that complete sums; ``servers``: all of the job."""
        found: dict[str, None] = {}
        for tree in self.trees:
            named = (
                [tree.root.switch]
                if tree.root.switch is not None
                else [servers[self.servers[rank]] for rank in tree.root.servers]
            )
            found.update(dict.fromkeys(named))
        return tuple(found)


@dataclass(eq=False)
class Leftover:
    """Entries whose deletion switches have not confirmed, and the slots still held for them.

    unknown: switches whose entries are not known, only their slots, until they are swept.
    """

    installation: Installation
    reservation: Reservation | None
    unknown: set[str] = field(default_factory=set)


@dataclass(eq=False)
class Job:
    """A job as the controller knows it."""

    number: int
    epoch: int
    namespace: str
    nonce: str
    workers: tuple[str, ...]  # host names by rank
    servers: tuple[str, ...]  # processes by rank, see topologies.model.addressing.Unit
    kind: TreeKind
    window: int  # as requested; 0: the controller chooses
    streams: int
    lease: float  # seconds without a call after which a member counts as dead
    slice_bytes: int  # as requested; 0: the default
    created: float
    scheme: Scheme
    reservation: Reservation | None
    avoid: frozenset[str] = frozenset()  # switches excluded from trees by request
    state: State = State.CREATED
    reason: str = ""
    members: Members = field(default_factory=Members)
    keys: tuple[Key, ...] = ()
    optimizer: OptimizerPlan | None = None  # that its servers run
    pipeline: Pipeline = USUAL
    propagation: Propagation = USUAL_PROPAGATION
    balance: Balance = field(default_factory=Balance)
    moved: Moved = ()  # slices, and the servers of the job that they were moved to
    spares: frozenset[int] = frozenset()  # ranks of servers that are to have no slices
    remap: Remap | None = None  # under way: a change of `moved` and `spares`, to `remapped`
    remapped: tuple[Moved, frozenset[int]] = ((), frozenset())
    moving: MoveRecord | None = None  # of `remap`; it joins the others once that holds
    moves: list[MoveRecord] = field(default_factory=list)
    installation: Installation | None = None
    leftovers: list[Leftover] = field(default_factory=list)
    retry_at: float = 0.0  # time of the next attempt to delete leftovers
    change: Change | None = None  # under way, or settled while servers do not run the plan yet
    join: Join | None = None  # under way; a change begins when it is settled
    waiting: str = ""  # why the change has no plan
    kept: Pool = field(default_factory=Pool)  # results that leaving workers handed over
    left_at: float = 0.0  # time when the last worker that the plan still includes left
    asked_at: float = 0.0  # time of the last progress of the change, join or remap
    instructions: dict[Membership, jobs_pb2.Instruction] = field(default_factory=dict)  # plans
    served_by: tuple[int, ...] = ()  # ranks of the servers of the last published plan
    served_map: Moved = ()  # the chunk map by which they serve
    restored: list[RestoredChunks] = field(default_factory=list)
    balancer: Balancer | None = None  # made when it is first measured
    rounds: Rounds = field(default_factory=Rounds)  # measured by workers
    # The first plan epoch after the last boundary at which workers joined, and a worker present.
    met: tuple[int, int] = (0, 0)

    def __str__(self) -> str:
        return f"job {self.number} ({self.namespace})"

    @property
    def trees(self) -> tuple[Tree, ...]:
        """The trees of the plan epoch."""
        return self.scheme.trees

    @property
    def held(self) -> bool:
        """True if it has slots, or entries whose deletion a switch did not confirm."""
        now = self.installation is not None or self.reservation is not None
        return now or bool(self.leftovers)

    @property
    def slots(self) -> dict[str, int]:
        """Slots held, by switch."""
        held: dict[str, int] = {}
        for reservation in (self.reservation, *(left.reservation for left in self.leftovers)):
            for switch, count in reservation.slots().items() if reservation else ():
                held[switch] = held.get(switch, 0) + count
        return held

    def slot_ranges_at(self, switch: str) -> list[SlotRange]:
        """Lists the slot ranges held in a switch."""
        return [
            place
            for reservation in (self.reservation, *(left.reservation for left in self.leftovers))
            for (_, where), place in (reservation.places.items() if reservation else ())
            if where == switch
        ]

    @property
    def started(self) -> bool:
        """True if it is running or leaving."""
        return self.state in (State.RUNNING, State.LEAVING)

    @property
    def in_step(self) -> bool:
        """True if all its workers are in the same round, so that one can be the first of a chunk
        map."""
        return self.optimizer is None or self.optimizer.consistency.together

    @property
    def served(self) -> bool:
        """True if every server runs the plan."""
        return bool(self.instructions) and all(
            self.members[Membership(Role.SERVER, rank)].epoch == self.epoch
            for rank in self.scheme.servers
        )

    def counts(self, lanes: int) -> tuple[int, ...]:
        """Counts the chunks of each key, for chunks of `lanes` lanes."""
        return tuple(-(-key.elements // lanes) for key in self.keys)

    def chunks(self, lanes: int) -> int:
        """Counts the chunks of all keys, for chunks of `lanes` lanes."""
        return sum(self.counts(lanes))

    def active(self, role: Role) -> tuple[int, ...]:
        """Returns the ranks of the active workers or servers."""
        count = len(self.workers if role is Role.WORKER else self.servers)
        places = (Membership(role, rank) for rank in range(count))
        return tuple(p.rank for p in places if p in self.members and self.members[p].active)

    def ring(self) -> tuple[int, ...]:
        """Returns the ranks of active servers, each replicated by the next: on another host if
        possible."""
        ranks = self.active(Role.SERVER)
        return tuple(ranks[at] for at in interleaved([host_of(self.servers[r]) for r in ranks]))

    @property
    def complete(self) -> bool:
        """True if no member is `absent`."""
        if len(self.members) < len(self.workers) + len(self.servers):
            return False
        # Mostly from the first rank to the last, so one that is missing is found soon.
        found = reversed(self.members.items())
        return all(member.initialised or place.role is Role.SERVER for place, member in found)

    @property
    def joiners(self) -> list[Membership]:
        """Workers that wait to join and have declared their keys."""
        if not self.members.joined_late:  # asked for each of thousands of members
            return []
        found = self.members.items()
        return [place for place, member in found if member.waiting and member.initialised]

    @property
    def status(self) -> str:
        """The reason of a failure, or what the job waits for; "" if neither applies."""
        if self.waiting:
            return f"waits: {self.waiting}"
        if self.change is None and self.join is not None:
            who = ", ".join(self.name(place) for place in self.joiners)
            waits = "; ".join(f"{self.name(p)} {what}" for p, what in self.join.owing.items())
            return f"{who} is about to join; waits for {waits or 'none'}"
        if self.change is None and not self.started and not self.state.over:
            absent = [self.name(place) for place in self.absent()]
            more = f" and {len(absent) - NAMED} more" if len(absent) > NAMED else ""
            return f"not in yet: {', '.join(absent[:NAMED])}{more}" if absent else ""
        if self.change is None and self.remap is not None:
            waits = ", ".join(self.name(place) for place in self.remap.owing)
            return f"changes its chunk map; waits for {waits or 'none'}"
        if self.change is None:
            return self.reason
        owing = sorted(self.change.owing.items(), key=lambda item: (item[0].role.value, item[0]))
        if not owing and not self.served:
            owing = [
                (place, f"to run plan epoch {self.epoch}")
                for place in self.scheme.places
                if place.role is Role.SERVER and self.members[place].epoch != self.epoch
            ]
        waits = "; ".join(f"{self.name(place)} {what}" for place, what in owing)
        change = f"changes to plan epoch {self.epoch} ({self.change.reason})"
        return f"{change}; waits for {waits or 'none'}"

    @property
    def places(self) -> list[Membership]:
        """All places of the job."""
        return [Membership(Role.WORKER, rank) for rank in range(len(self.workers))] + [
            Membership(Role.SERVER, rank) for rank in range(len(self.servers))
        ]

    def host(self, place: Membership) -> str:
        """Returns a worker's host, or the name of a server process."""
        return (self.workers if place.role is Role.WORKER else self.servers)[place.rank]

    def name(self, place: Membership) -> str:
        """Describes a place: worker 3 (w3)."""
        return f"{place.role} {place.rank} ({self.host(place)})"

    def absent(self) -> list[Membership]:
        """Lists places without a ready member: not connected, or a worker without keys."""
        return [
            place
            for place in self.places
            if place not in self.members
            or (place.role is Role.WORKER and not self.members[place].initialised)
        ]


def plans_of(
    job: Job,
    lanes: int,
    chunks_per_slice: int,
    link_rates: dict[str, int],
    callers: tuple[int, ...],
) -> dict[Membership, jobs_pb2.Plan]:
    """Builds the plan of each member, once all entries are installed.

    link_rates: bit/s of each member's own link, by host or server process.
    callers: as in ServerPlan.
    """
    assert job.reservation is not None
    window = job.reservation.window
    scheme = job.scheme
    workers = _addresses(job, Role.WORKER, scheme.workers)
    everybody = scheme.workers == tuple(range(len(job.workers)))
    common: dict[str, Any] = {
        "job": job.number,
        "epoch": job.epoch,
        "world": len(workers),
        "lanes": lanes,
        "servers": _addresses(job, Role.SERVER, scheme.servers),
        "counts": job.counts(lanes),
        "chunks_per_slice": chunks_per_slice,
        "members": () if everybody else scheme.workers,
        "optimizer": job.optimizer,
        "pipeline": job.pipeline,
        "propagation": job.propagation,
        "moved": scheme.ranked(job.moved),
        "measures": job.balance.measures,
    }
    plans = {}
    for rank, member in enumerate(scheme.workers):
        place = Membership(Role.WORKER, member)
        leaves = [(tree, *tree.leaves[rank]) for tree in scheme.trees]
        plans[place] = WorkerPlan(
            **common,
            rank=rank,
            link_rate=link_rates[job.host(place)],
            streams=tuple(
                StreamPlan(tree.stream, node.node, child.sender, window, tree.urgency)
                for tree, node, child in leaves
            ),
            tree=str(scheme.kind),
            roots=scheme.roots(job.servers),
        ).to_message()
    for rank, member in enumerate(scheme.servers):
        place = Membership(Role.SERVER, member)
        plans[place] = ServerPlan(
            **common,
            rank=rank,
            link_rate=link_rates[job.host(place)],
            workers=workers,
            windows={tree.stream: window for tree in scheme.trees},
            roots=tuple(
                RootStream(tree.stream, tree.root.node, window, _children(tree.root, workers))
                for tree in scheme.trees
                if rank in tree.root.servers
            ),
            met=job.met,
            callers=callers,
        ).to_message()
    return plans


def _addresses(job: Job, role: Role, ranks: Sequence[int]) -> tuple[Address, ...]:
    return tuple(job.members[Membership(role, rank)].address for rank in ranks)


def _children(root: TreeNode, workers: Sequence[Address]) -> tuple[Child, ...]:
    def address(child: TreeChild) -> Address:
        return Address(int(child.address), PORT) if child.rank is None else workers[child.rank]

    return tuple(
        Child(child.sender, address(child), child.workers, child.node) for child in root.children
    )
