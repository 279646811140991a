# SPDX-License-Identifier: Apache-2.0
"""Deploys jobs in the fabric: plans trees, reserves slots, writes and deletes entries.

A switch that cannot be written takes no part in new trees, though packets may pass it. A job that
cannot have the tree it requested, because switches are missing, gets the next best.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from ipaddress import IPv4Address

from controller.jobs.job import Job, Leftover, Membership, Role, Scheme, plans_of
from controller.p4rt.connection import SwitchError
from controller.p4rt.entries import Entity, canonical, multicast_group
from controller.p4rt.fabric import Fabric
from controller.p4rt.install import Installation, entities_of
from controller.planning.admission import Admission, Reservation, Resources
from controller.planning.balancing.balancer import remapped
from controller.planning.balancing.levelling import cleared
from controller.planning.tree_planner import PlanRefusedError, Tree, TreeKind, plan_trees
from controller.planning.windows import choose_window
from protocol import jobs_pb2
from protocol.partition import ChunkAssignment, Moved, ranked, shares
from protocol.propagation import USUAL, Propagation
from topologies.model.replica_order import host_of

__all__ = ["Deployment"]

log = logging.getLogger(__name__)


class Deployment:
    """Deploys plan epochs of jobs in a fabric. Callers serialize all calls."""

    def __init__(self, fabric: Fabric, queue_packets: int | None) -> None:
        self.fabric = fabric
        self.queue_packets = queue_packets
        self.resources = Resources(
            (node.name for node in fabric.topology.switches), fabric.dataplane.slots
        )

    def admit(
        self,
        number: int,
        workers: Sequence[str],
        servers: Sequence[IPv4Address],
        kind: TreeKind,
        window: int,
        streams: int,
        admission: Admission,
        propagation: Propagation = USUAL,
    ) -> tuple[Scheme, Reservation]:
        """Reserves what a new job requests.

        Raises PlanRefusedError, and then reserves nothing.
        """
        avoid = self.fabric.unwritable

        def plan(kind: TreeKind) -> tuple[Tree, ...]:
            return self._trees(number, workers, servers, kind, streams, avoid, propagation)

        def choose(trees: Sequence[Tree]) -> int:
            return self._window(trees, servers)

        kind, trees, reservation = self.resources.admit(plan, kind, window, choose, admission)
        ranks = tuple(range(len(workers)))
        return Scheme(ranks, tuple(range(len(servers))), kind, trees, avoid), reservation

    def plan(self, job: Job, avoid: Collection[str] = ()) -> None:
        """Plans a job that holds nothing, for its active members, and reserves its slots.

        The plan is the best without switches to ``avoid`` or that cannot be written. Raises
        PlanRefusedError, and then reserves nothing, if not even servers alone are possible.
        """
        avoided = self.fabric.unwritable | job.avoid | frozenset(avoid)
        workers, servers = job.active(Role.WORKER), job.ring()
        refusals: list[str] = []
        for kind, trees in self._choices(job, workers, servers, avoided, refusals):
            try:
                window = job.window or self._window(trees, self._addresses(job, servers))
                job.reservation = self.resources.reserve(trees, window, shrink=True)
            except PlanRefusedError as refusal:
                refusals.append(f"tree {kind.name}: {refusal}")
                continue
            job.scheme = Scheme(workers, servers, kind, trees, avoided)
            return
        raise PlanRefusedError("; ".join(refusals))

    def _choices(
        self,
        job: Job,
        workers: Sequence[int],
        servers: Sequence[int],
        avoid: frozenset[str],
        refusals: list[str],
    ) -> Iterator[tuple[TreeKind, tuple[Tree, ...]]]:
        """Yields possible trees, best first; adds the reasons against others to ``refusals``."""
        hosts = [job.workers[rank] for rank in workers]
        addresses = self._addresses(job, servers)
        for kind in (job.kind, *job.kind.next_best):
            try:
                trees = self._trees(
                    *(job.number, hosts, addresses, kind, job.streams, avoid, job.propagation)
                )
                yield kind, trees
            except PlanRefusedError as refusal:
                refusals.append(f"tree {kind.name}: {refusal}")

    def trees_with(self, job: Job, host: str) -> tuple[Tree, ...]:
        """Returns the trees that a job would have with a worker at another host, too. Raises
        PlanRefusedError."""
        hosts = [job.workers[rank] for rank in job.active(Role.WORKER)]
        addresses, avoid = self._addresses(job, job.ring()), job.scheme.avoided
        return self._trees(
            *(job.number, [*hosts, host], addresses, job.scheme.kind, job.streams, avoid),
            job.propagation,
        )

    def _addresses(self, job: Job, servers: Sequence[int]) -> list[IPv4Address]:
        members = [job.members[Membership(Role.SERVER, rank)] for rank in servers]
        return [IPv4Address(member.address.ipv4) for member in members]

    def adapt(self, job: Job) -> None:
        """Plans a job again before it starts if the set of writable switches has changed.

        Raises PlanRefusedError.
        """
        if job.scheme.avoided != self.fabric.unwritable:
            self.withdraw(job)
            self.plan(job)

    def install(self, job: Job) -> None:
        """Writes the entries of a job's scheme. After a SwitchError a part of them may be there."""
        job.installation = Installation(self.fabric)
        for switch, needed, entry in self._entries(job):
            job.installation.install(switch, needed, entry)

    def recall(
        self, job: Job, current: Reservation | None, old: Sequence[Reservation], installed: bool
    ) -> None:
        """Takes the reservations that a job held before the controller was restarted.

        installed: switches should have the job's entries. ``sweep`` then compares each switch.
        """
        for reservation in (current, *old):
            if reservation is not None:
                self.resources.claim(reservation)
        doubtful = list(old)
        if installed or not (job.started or job.state.over):
            job.reservation = current
        elif current is not None:
            doubtful.append(current)
        for reservation in doubtful:
            switches = {switch for _, switch in reservation.places}
            job.leftovers.append(Leftover(Installation(self.fabric), reservation, switches))
        if not installed:
            return
        job.installation = Installation(self.fabric)
        for switch, needed, entry in self._entries(job):
            job.installation.needed.setdefault(switch, []).extend(needed)
            job.installation.nodes.setdefault(switch, []).append(entry)

    def _entries(self, job: Job) -> Iterator[tuple[str, list[Entity], Entity]]:
        assert job.reservation is not None
        ports = [
            job.members[Membership(Role.WORKER, rank)].address.port for rank in job.scheme.workers
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
                yield node.switch, needed, entry

    def withdraw(self, job: Job) -> None:
        """Deletes a job's entries and frees its slots; what switches do not confirm becomes a
        leftover."""
        self._clear(job, Leftover(job.installation or Installation(self.fabric), job.reservation))
        job.installation = job.reservation = None

    def retry(self, job: Job) -> None:
        """Tries again to delete a job's leftovers."""
        leftovers, job.leftovers = job.leftovers, []
        for leftover in leftovers:
            self._clear(job, leftover)

    def _clear(self, job: Job, leftover: Leftover) -> None:
        failed = leftover.installation.remove().keys() | leftover.unknown
        if leftover.reservation is not None:
            leftover.reservation = self.resources.release(leftover.reservation, keep=failed)
        if failed:
            job.leftovers.append(leftover)

    def sweep(self, switch: str, jobs: Sequence[Job]) -> list[Job]:
        """Compares a switch's entries of jobs with those it should have.

        Deletes entries of no job, and with them all leftovers there. Returns the running jobs that
        lack entries. Raises SwitchError.
        """
        program = self.fabric.dataplane.program
        found = self.fabric.connections[switch].read(program.job_tables())
        wanted = {job.number: job.installation.entities(switch) for job in jobs if job.installation}
        right = {canonical(entity) for entities in wanted.values() for entity in entities}
        groups = {place.group for job in jobs for place in job.slot_ranges_at(switch)}
        groups |= {group for group in map(program.group_of, found) if group is not None}
        for group in sorted(groups):
            found += self._group(switch, group)
        there = {canonical(entity) for entity in found}
        strange = [entity for entity in found if canonical(entity) not in right]
        # A node has to stop before the entries that its packets need are deleted.
        self.fabric.remove(switch, [one for one in strange if program.is_node(one)])
        self.fabric.remove(switch, [one for one in strange if not program.is_node(one)])
        if strange:
            log.info("%s: %d entries of no job deleted", switch, len(strange))
        for job in jobs:
            for leftover in job.leftovers:
                leftover.installation.forget(switch)
                leftover.unknown.discard(switch)
            self.retry(job)
        return [
            job
            for job in jobs
            if any(canonical(entity) not in there for entity in wanted.get(job.number, ()))
        ]

    def _group(self, switch: str, group: int) -> list[Entity]:
        try:
            return self.fabric.connections[switch].read([multicast_group(group, ())])
        except SwitchError as error:
            if not error.not_found:
                raise
            return []

    def slices(self, job: Job) -> int:
        """Returns the number of slices of a job's keys."""
        return len(self.assignment(job).owners)

    def assignment(self, job: Job, moved: Moved | None = None) -> ChunkAssignment:
        """Returns the assignment of a running job's chunks, to ranks of its scheme.

        moved: its chunk map; None: that which it has.
        """
        plane, scheme = self.fabric.dataplane, job.scheme
        return shares(
            *(job.counts(plane.lanes), plane.chunks_per_slice(job.slice_bytes)),
            *(len(scheme.servers), len(scheme.trees), job.propagation),
            scheme.ranked(job.moved if moved is None else moved),
        )

    def owners(self, job: Job, moved: Moved | None = None) -> tuple[int, ...]:
        """Returns the server in the job of each of its slices; moved: as of ``assignment``."""
        servers = job.scheme.servers
        return tuple(servers[rank] for rank in self.assignment(job, moved).owners.tolist())

    def clear_spares(self, job: Job, servers: Sequence[int]) -> None:
        """Moves the slices that the job's rule gives to spare ones of the next plan epoch's servers
        to the others. If no others are left, these are spare no more."""
        plane, propagation = self.fabric.dataplane, job.propagation
        cut = job.counts(plane.lanes), plane.chunks_per_slice(job.slice_bytes)
        # Fewer servers cut keys into fewer parts.
        there = len(shares(*cut, len(servers), propagation.classes, propagation).owners)
        job.moved = tuple((one, server) for one, server in job.moved if one < there)
        used = [server for server in servers if server not in job.spares]
        if not used:
            job.spares = job.spares.difference(servers)
        if len(used) in (0, len(servers)):
            return
        where = shares(
            *(*cut, len(servers), propagation.classes, propagation), ranked(job.moved, servers)
        )
        owners = [servers[rank] for rank in where.owners.tolist()]
        after = cleared(owners, where.lengths.tolist(), used)
        job.moved = remapped(job.moved, owners, after)

    def outdated(self, job: Job) -> bool:
        """True if a running job would get different trees now.

        Switches of its trees that are merely out of reach count as usable.
        """
        here = {node.switch for tree in job.trees for node in tree.switches}
        avoid = self.fabric.addressing.missing | (self.fabric.down - here) | job.avoid
        scheme = job.scheme
        best = next(self._choices(job, scheme.workers, scheme.servers, avoid, []), None)
        return best != (scheme.kind, scheme.trees)

    def passes(self, job: Job, switch: str) -> bool:
        """True if packets of a job pass a switch."""
        path = self.fabric.addressing.path
        if any(node.switch == switch for tree in job.trees for node in tree.switches):
            return True
        address, unit = self.fabric.addressing.address, self.fabric.addressing.unit
        ways = [
            (job.workers[worker], unit(job.servers[server]))
            for worker in job.scheme.workers
            for server in job.scheme.servers
        ]
        return any(
            switch in path(a, b.address) + path(b.interface.switch, address(a)) for a, b in ways
        )

    def caller(self, job: Job, place: Membership) -> int:
        """Returns the IPv4 address from which a server calls others: its host's first one."""
        return int(self.fabric.addressing.address(host_of(job.host(place))))

    def instructions(self, job: Job) -> dict[Membership, jobs_pb2.Instruction]:
        """Builds the plan of each member of a job whose entries are written."""
        dataplane, addressing = self.fabric.dataplane, self.fabric.addressing
        rates = {
            job.host(place): addressing.interfaces[
                IPv4Address(job.members[place].address.ipv4)
            ].outgoing.rate
            for place in job.scheme.places
        }
        servers = [place for place in job.scheme.places if place.role is Role.SERVER]
        callers = tuple(self.caller(job, place) for place in servers)
        slices = dataplane.chunks_per_slice(job.slice_bytes)
        plans = plans_of(job, dataplane.lanes, slices, rates, callers)
        return {
            place: jobs_pb2.Instruction(epoch=job.epoch, plan=plan) for place, plan in plans.items()
        }

    def _trees(
        self,
        number: int,
        workers: Sequence[str],
        servers: Sequence[IPv4Address],
        kind: TreeKind,
        streams: int,
        avoid: frozenset[str],
        propagation: Propagation,
    ) -> tuple[Tree, ...]:
        fabric = self.fabric
        return plan_trees(
            *(fabric.topology, fabric.addressing, workers, servers, kind, streams),
            *(number - 1, avoid, propagation),
        )

    def _window(self, trees: Sequence[Tree], servers: Sequence[IPv4Address]) -> int:
        return choose_window(
            self.fabric.addressing,
            trees,
            servers,
            self.fabric.dataplane.frame_bytes,
            queue_packets=self.queue_packets,
        )
