# SPDX-License-Identifier: Apache-2.0
"""The interface of load balancers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from protocol.balance import Balance
from protocol.partition import Moved
from protocol.trees import TreeKind


@dataclass(frozen=True)
class ServerRound:
    """Measurements of one server in a round, by all workers.

    server: its number in the job.
    sums: chunks that it summed.
    waited: mean seconds from a worker's contribution until its sum came.
    ended: seconds from the first contribution of the round, to any server, until the last sum of
        this one.
    handled: mean seconds that the server had a sum, from the arrival of its last contribution until
        its result was ready to leave, by its last report; 0.0 where unknown. The rest of `waited`
        is propagation.
    blamed: seconds that a worker waited because of it, the mean of workers: from when the last
        contribution of all has left, each moment counts in equal parts for all servers that owe
        sums.
    """

    server: int
    sums: int
    waited: float
    ended: float
    handled: float = 0.0
    blamed: float = 0.0


@dataclass(frozen=True)
class Round:
    """A complete round as all workers measured it: its number, its duration in seconds (the mean of
    workers), and its servers."""

    number: int
    seconds: float
    servers: tuple[ServerRound, ...]


@dataclass(frozen=True)
class Load:
    """The slices of a job by server, and the capacity of servers.

    owners: the server of each slice, by its number in the job.
    chunks: of each slice.
    chunk_bytes: of a chunk.
    rates: by server, chunks a second that its link can take from all workers, and send to them.
    moved: slices that are at other servers than the job's rule says, and these.
    moving: a change of the chunk map is under way.
    spares: as `rates`, of spare servers: they are in the job, and to have no slices unless the
        balancer gives them some.
    """

    owners: tuple[int, ...]
    chunks: tuple[int, ...]
    chunk_bytes: int
    rates: Mapping[int, float]
    moved: Moved
    moving: bool
    spares: Mapping[int, float] = field(default_factory=dict)

    def map_to(self, owners: Sequence[int]) -> Moved:
        """Returns the chunk map (``Move.moved``) that gives slices to these servers."""
        return remapped(self.moved, self.owners, owners)


def remapped(moved: Moved, before: Sequence[int], after: Sequence[int]) -> Moved:
    """Returns a chunk map changed so that each slice is at the server `after` instead of
    `before`."""
    changed = dict(moved)
    for one, (old, new) in enumerate(zip(before, after, strict=True)):
        if old != new:
            changed[one] = new
    return tuple(sorted(changed.items()))


@dataclass(frozen=True)
class Measurements:
    """The controller's knowledge of a running job and of its network.

    changed: what has just changed in the network, in words; "" for a regular look.
    now: seconds of the controller's clock.
    epoch: the plan epoch.
    changing: a change of plan epoch is under way.
    waiting: why the job has no plan now; "" if it has one.
    kind, window, streams: as the job runs; window is 0 without a plan.
    switches: those of its trees.
    servers: its active server processes.
    unanswered: by host or server process, seconds without any answer for the oldest chunk in
        flight.
    slots: by switch, the slots taken by all jobs, and all that there are.
    round: a round that is complete; None for other looks.
    load: of the servers; None while the job has no plan, or its load cannot move.
    outdated: computes if the job would get other trees now, which takes as long as planning.
    """

    changed: str
    now: float
    epoch: int
    changing: bool
    waiting: str
    kind: TreeKind
    window: int
    streams: int
    switches: frozenset[str]
    servers: tuple[str, ...]
    unanswered: Mapping[str, float]
    slots: Mapping[str, tuple[int, int]]
    outdated: Callable[[], bool]
    round: Round | None = None
    load: Load | None = None


@dataclass(frozen=True)
class Move:
    """A new plan for the job, in its next plan epoch, or another chunk map for the one at hand.

    reason: for logs and members.
    kind, window, streams: what to request instead; None: as before.
    avoid: switches that its trees do without; None: as before.
    moved: the whole chunk map: slices that are at other servers than the job's rule says, and the
        numbers of those servers in the job; None: as before, in the plan epoch that follows. A
        spare server that gets slices is none any more.
    spares: with `moved`, all servers that are spare from then on, and have no slices; None: as
        before.
    """

    reason: str
    kind: TreeKind | None = None
    window: int | None = None
    streams: int | None = None
    avoid: frozenset[str] | None = None
    moved: Moved | None = None
    spares: frozenset[int] | None = None


class Balancer(ABC):
    """Decides when a running job's load moves. One instance serves one job.

    asked: what the job asks of it.
    by_speed: it gives servers loads in proportion to their speeds.
    """

    by_speed = False

    def __init__(self, asked: Balance) -> None:
        self.asked = asked

    @abstractmethod
    def observe(self, measurements: Measurements) -> Iterable[Move]:
        """Returns the moves to carry out, in order.

        Called whenever switches or links have changed, about twice a second, and after each round
        if the job is measured. It may keep what
        it has seen, and must neither wait nor read a clock.
        """
