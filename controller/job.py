# SPDX-License-Identifier: Apache-2.0
"""One job: who is in it, how far it has come, and what each member is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from controller.admission import Reservation
from controller.install import Installation
from controller.trees import Child as TreeChild
from controller.trees import Tree, TreeKind, TreeNode
from protocol import jobs_pb2
from protocol.header import PORT
from protocol.plan import Address, Child, RootStream, ServerPlan, StreamPlan, WorkerPlan

__all__ = ["Job", "JobError", "Key", "Member", "Membership", "Refusal", "Role", "State", "plans_of"]


class Refusal(Enum):
    """Why a call was refused; named as gRPC's status codes."""

    INVALID_ARGUMENT = "the request can never be right"
    ALREADY_EXISTS = "the name or place is taken"
    RESOURCE_EXHAUSTED = "it does not fit now"
    PERMISSION_DENIED = "no nonce of a job"
    FAILED_PRECONDITION = "not in this state of the job"
    ABORTED = "the job has failed"


class JobError(Exception):
    """A call that was refused."""

    def __init__(self, refusal: Refusal, text: str) -> None:
        self.refusal = refusal
        super().__init__(text)


class Role(Enum):
    """Numbers are those of the job service."""

    WORKER = 1
    SERVER = 2

    def __str__(self) -> str:
        return self.name.lower()


class State(Enum):
    """From admission to the end."""

    CREATED = "created"  # admitted, nobody has connected
    WAITING = "waiting"  # not all are in
    RUNNING = "running"  # installed, plans are out
    LEAVING = "leaving"  # some workers are done
    GONE = "gone"  # all workers are done; nothing is held
    FAILED = "failed"

    @property
    def over(self) -> bool:
        """Whether nothing more will happen."""
        return self in (State.GONE, State.FAILED)


class Key(NamedTuple):
    """A tensor as workers declare it."""

    key: int
    name: str
    elements: int


class Membership(NamedTuple):
    """A place in a job."""

    role: Role
    rank: int


@dataclass
class Member:
    """Who fills a place, and when it was last heard of (controller's clock, seconds)."""

    address: Address
    heard: float
    initialised: bool = False
    epoch: int = 0  # of the plan that it runs
    left: bool = False


@dataclass
class Job:
    """A job as the controller knows it."""

    number: int
    epoch: int
    namespace: str
    nonce: str
    workers: tuple[str, ...]  # host names by rank
    servers: tuple[str, ...]
    kind: TreeKind
    window: int  # asked for; 0: the controller chooses
    streams: int
    created: float
    trees: tuple[Tree, ...]
    reservation: Reservation | None
    state: State = State.CREATED
    reason: str = ""
    members: dict[Membership, Member] = field(default_factory=dict)
    keys: tuple[Key, ...] = ()
    installation: Installation | None = None
    plans: dict[Membership, jobs_pb2.Plan] = field(default_factory=dict)
    retry_at: float = 0.0  # when to ask switches again to delete what is left

    def __str__(self) -> str:
        return f"job {self.number} ({self.namespace})"

    @property
    def held(self) -> bool:
        """Whether it has slots, or entries that a switch did not confirm to be gone."""
        return self.installation is not None or self.reservation is not None

    @property
    def served(self) -> bool:
        """Whether every server runs the plan."""
        return all(
            member.epoch == self.epoch
            for place, member in self.members.items()
            if place.role is Role.SERVER
        )

    @property
    def places(self) -> list[Membership]:
        """Everyone that has to be in."""
        return [Membership(Role.WORKER, rank) for rank in range(len(self.workers))] + [
            Membership(Role.SERVER, rank) for rank in range(len(self.servers))
        ]

    def host(self, place: Membership) -> str:
        """The host a place is on."""
        return (self.workers if place.role is Role.WORKER else self.servers)[place.rank]

    def name(self, place: Membership) -> str:
        """A place in words: worker 3 (w3)."""
        return f"{place.role} {place.rank} ({self.host(place)})"

    def absent(self) -> list[Membership]:
        """Places whose member is not in yet: not connected, or a worker without keys."""
        return [
            place
            for place in self.places
            if place not in self.members
            or (place.role is Role.WORKER and not self.members[place].initialised)
        ]


def plans_of(
    job: Job, lanes: int, chunks_per_slice: int, link_rates: dict[str, int]
) -> dict[Membership, jobs_pb2.Plan]:
    """What each member is told, once all are in and everything is installed.

    ``link_rates``: bit/s of each member's own link, by host.
    """
    assert job.reservation is not None
    window = job.reservation.window
    workers = _addresses(job, Role.WORKER, len(job.workers))
    servers = _addresses(job, Role.SERVER, len(job.servers))
    plans = {}
    for rank, host in enumerate(job.workers):
        leaves = [(tree.stream, *tree.leaves[rank]) for tree in job.trees]
        plans[Membership(Role.WORKER, rank)] = WorkerPlan(
            job=job.number,
            epoch=job.epoch,
            world=len(job.workers),
            lanes=lanes,
            rank=rank,
            streams=tuple(
                StreamPlan(stream, node.node, child.sender, window)
                for stream, node, child in leaves
            ),
            servers=servers,
            chunks_per_slice=chunks_per_slice,
            link_rate=link_rates[host],
        ).to_message()
    for rank, host in enumerate(job.servers):
        plans[Membership(Role.SERVER, rank)] = ServerPlan(
            job=job.number,
            epoch=job.epoch,
            world=len(job.workers),
            lanes=lanes,
            rank=rank,
            servers=servers,
            workers=workers,
            windows={tree.stream: window for tree in job.trees},
            roots=tuple(
                RootStream(tree.stream, tree.root.node, window, _children(tree.root, workers))
                for tree in job.trees
                if rank in tree.root.servers
            ),
            chunks_per_slice=chunks_per_slice,
            link_rate=link_rates[host],
        ).to_message()
    return plans


def _addresses(job: Job, role: Role, count: int) -> tuple[Address, ...]:
    return tuple(job.members[Membership(role, rank)].address for rank in range(count))


def _children(root: TreeNode, workers: Sequence[Address]) -> tuple[Child, ...]:
    def address(child: TreeChild) -> Address:
        return Address(int(child.address), PORT) if child.rank is None else workers[child.rank]

    return tuple(
        Child(child.sender, address(child), child.workers, child.node) for child in root.children
    )
