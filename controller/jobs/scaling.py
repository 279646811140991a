# SPDX-License-Identifier: Apache-2.0
"""Gives servers of running jobs slices, and takes all from others, by order of the operator.

Both are chunk maps (``chunk_maps``), so that nothing halts. Servers without slices are spare: they
stay in the job.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, NoReturn

from controller.jobs import access
from controller.jobs.chunk_maps import Remaps
from controller.jobs.deployment import Deployment
from controller.jobs.job import Job, JobError, Refusal
from controller.jobs.remapping import AHEAD
from controller.jobs.requests import QUOTED
from controller.jobs.roster import Roster
from controller.planning.balancing.balancer import remapped
from controller.planning.balancing.levelling import scaled
from protocol.header import LANE_BYTES
from topologies.model.replica_order import host_of
from topologies.model.wording import few

__all__ = ["Scaled", "Scaling"]

# Workers may begin rounds so fast that a map comes too late; each attempt has twice as many rounds
# as the one before, the last 256.
_ATTEMPTS = 8


class Scaled(NamedTuple):
    """A change of servers that holds.

    from_round: the first round; 0 if workers are in rounds of their own, and all know it.
    slices, bytes: those that moved, and their parameters.
    servers, spares: the servers with and without slices since then.
    """

    from_round: int
    slices: int
    bytes: int
    servers: list[str]
    spares: list[str]


class Scaling:
    """Scales the servers of all jobs. Callers do not hold the jobs' lock."""

    def __init__(self, roster: Roster, deployment: Deployment, remaps: Remaps) -> None:
        self._roster, self._deployment, self._remaps = roster, deployment, remaps

    def scale(
        self, nonce: str, added: Sequence[str], removed: Sequence[str], alive: Callable[[], bool]
    ) -> Scaled | None:
        """Gives slices to some servers of a job, and takes all from others, once nothing else of it
        is changing; returns once the chunk map holds.

        added, removed: server processes, or hosts with all of theirs. alive: once it is false the
        change is left as it is, and None is returned; `Roster.changed` is notified then. Raises
        JobError for what is not possible, and before anything has begun.
        """
        changed = self._roster.changed
        with changed:
            job = access.find(self._roster.jobs, nonce)
            for attempt in range(_ATTEMPTS):
                access.check_alive(job)
                give, take = self._check(job, added, removed)
                while self._remaps.changing(job) and alive():
                    changed.wait()
                    access.check_alive(job)
                    give, take = self._check(job, added, removed)
                if not alive():
                    return None
                spares = (job.spares - give) | take
                owners = self._deployment.owners(job)
                chunks = self._deployment.assignment(job).lengths.tolist()
                used = [server for server in job.scheme.servers if server not in spares]
                if not used:
                    self._refuse(job, "no server would have any slices")
                after = scaled(owners, chunks, used, give)
                names = [f"+{name}" for name in added] + [f"-{name}" for name in removed]
                remap = self._remaps.begin(
                    *(job, remapped(job.moved, owners, after), f"servers {' '.join(names)}"),
                    *(spares, AHEAD << attempt),
                )
                changed.notify_all()
                while job.remap is remap and alive():
                    changed.wait()
                if remap.holds:
                    moving = [n for n, a, b in zip(chunks, owners, after, strict=True) if a != b]
                    return Scaled(
                        remap.from_round,
                        len(moving),
                        sum(moving) * LANE_BYTES * self._deployment.fabric.dataplane.lanes,
                        [job.servers[server] for server in used],
                        [job.servers[server] for server in sorted(spares)],
                    )
                # Another change was faster, or workers were.
            text = f"workers begin rounds too fast for {_ATTEMPTS} attempts"
            raise JobError(Refusal.ABORTED, f"{job}: {text}")

    def _check(
        self, job: Job, added: Sequence[str], removed: Sequence[str]
    ) -> tuple[frozenset[int], frozenset[int]]:
        """Returns the ranks of servers to add and to remove."""
        give, take = (frozenset(self._ranks(job, names)) for names in (added, removed))
        if both := give & take:
            name = job.servers[min(both)]
            raise JobError(Refusal.INVALID_ARGUMENT, f"{job}: {name} is both added and removed")
        if not give | take:
            raise JobError(Refusal.INVALID_ARGUMENT, f"{job}: no server is named")
        if not job.started:
            self._refuse(job, f"is {job.state.value}, not running")
        if not job.scheme.kind.ends_at_server:
            self._refuse(job, f"tree {job.scheme.kind} has a switch sum, so servers have no slices")
        for rank in sorted(give | take):
            name = job.servers[rank]
            if rank not in job.scheme.servers:
                self._refuse(job, f"{name} is not there now")
            if rank in take and rank in job.spares:
                self._refuse(job, f"{name} is a spare server already")
        owners = frozenset(self._deployment.owners(job))
        for rank in sorted(give & owners):
            self._refuse(job, f"{job.servers[rank]} has slices already")
        return give, take

    def _ranks(self, job: Job, names: Sequence[str]) -> list[int]:
        found: list[int] = []
        for name in names:
            ranks = [rank for rank, one in enumerate(job.servers) if name in (one, host_of(one))]
            if not ranks:
                text = f"{job} has no server {name[:QUOTED]!r}; allowed: {few(list(job.servers))}"
                raise JobError(Refusal.INVALID_ARGUMENT, text)
            if not set(found).isdisjoint(ranks):
                raise JobError(Refusal.INVALID_ARGUMENT, f"{job}: {name} is named twice")
            found += ranks
        return found

    @staticmethod
    def _refuse(job: Job, text: str) -> NoReturn:
        raise JobError(Refusal.FAILED_PRECONDITION, f"{job}: {text}")
