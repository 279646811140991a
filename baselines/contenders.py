# SPDX-License-Identifier: Apache-2.0
"""The contenders of ``rackhub compare`` for the hosts of a job."""

from __future__ import annotations

from collections.abc import Sequence

from baselines.comparison import ComparisonError, Contender, Work
from baselines.members import GLOO, IN_NETWORK, MOST_WORKERS, ServiceOptions
from controller.p4rt.dataplane import DataPlane
from planner import flows
from planner.collectives import COLLECTIVES, Team, TeamError
from planner.collectives.ring import Ring
from planner.flows import Wires
from planner.link_loads import Workload, expected, qualities
from testbed.preflight import JobPlan
from topologies.model.addressing import Addressing, HostInterface
from topologies.model.replica_order import units_by_rank
from topologies.model.topology import Topology

# Its all-reduce of CPU tensors is a ring, too.
_GLOO = Ring(GLOO)


def contenders(
    names: Sequence[str], addressing: Addressing, plan: JobPlan, plane: DataPlane, work: Work
) -> list[Contender]:
    """Returns the named contenders for the hosts of a job.

    Baselines have workers in rack order and the job's servers, or all servers of the topology if
    the job's are on hosts of workers.

    Raises:
        ComparisonError: There are too many workers to check sums exactly, or a collective is
            impossible with these hosts.
    """
    topology = addressing.topology
    if len(plan.placement.workers) > MOST_WORKERS:
        raise ComparisonError(
            f"{len(plan.placement.workers)} workers; float32 holds the exact sum of up to"
            f" {MOST_WORKERS}, which results are checked by"
        )
    workers, servers = _hosts(addressing, plan)
    everyone = _team(topology, workers, servers)
    segment = flows.segment(min(one.mtu for one in qualities(addressing).values()))
    found = []
    for name in names:
        if name == IN_NETWORK:
            found.append(_in_network(addressing, plan, plane, work))
            continue
        collective = _GLOO if name == GLOO else COLLECTIVES[name]
        try:
            used = collective.servers(everyone)
        except TeamError as error:
            raise ComparisonError(f"{topology.source}: {name}: {error}") from error
        here = [servers[one] for one in used]
        team = everyone.with_servers(used)
        meaning = "torch.distributed.all_reduce" if name == GLOO else collective.describe(len(here))
        rounds = tuple(collective.rounds(team, work.size))
        wires = Wires(addressing, (*workers, *here), segment)
        loads = tuple(wires.loads(one) for one in rounds)
        piece = collective.piece(team, work.size, segment)
        found.append(Contender(name, meaning, team, tuple(wires.ends), loads, rounds, wires, piece))
    return found


def default_names(addressing: Addressing, plan: JobPlan) -> tuple[str, ...]:
    """Returns the contenders that differ from each other with the hosts of a job, without gloo."""
    workers, servers = _hosts(addressing, plan)
    team = _team(addressing.topology, workers, servers)
    return (IN_NETWORK, *(name for name, one in COLLECTIVES.items() if one.suits(team)))


def _hosts(
    addressing: Addressing, plan: JobPlan
) -> tuple[list[HostInterface], list[HostInterface]]:
    """Returns the interfaces of a job's workers, in the order of racks, and of server processes."""
    topology = addressing.topology
    chosen = frozenset(plan.placement.workers)
    workers = [
        addressing.host_interfaces(node.name)[0] for node in topology.workers if node.name in chosen
    ]
    units = [addressing.unit(name) for name in plan.servers]
    if any(unit.host in chosen for unit in units):
        units = list(units_by_rank(addressing, [one.name for one in topology.servers]))
    return workers, [unit.interface for unit in units]


def _team(
    topology: Topology, workers: Sequence[HostInterface], servers: Sequence[HostInterface] = ()
) -> Team:
    """Returns the team of members at these interfaces."""
    racks = {tor.name: tor.index for tor in topology.tors}
    return Team(*(tuple(racks[end.switch] for end in ends) for ends in (workers, servers)))


def _in_network(addressing: Addressing, plan: JobPlan, plane: DataPlane, work: Work) -> Contender:
    spec = plan.file.spec
    slices = plane.chunks_per_slice(spec.slice_size)
    once = Workload(work.sizes, plane.lanes, 1, slices, exponent_rounds=0)
    ends = [addressing.host_interfaces(name)[0] for name in plan.placement.workers]
    return Contender(
        IN_NETWORK,
        f"tree {plan.kind}",
        _team(addressing.topology, ends),
        tuple(ends),
        (expected(addressing, plan.trees, plan.servers, once),),
    )


def service_of(plan: JobPlan) -> ServiceOptions:
    """Returns a job's arguments for ``create_service``, without those unrelated to sums."""
    spec, place = plan.file.spec, plan.placement
    return {
        "namespace": spec.name,
        "workers": list(place.workers),
        "servers": list(place.servers),
        "tree": spec.tree,
        "window": spec.window,
        "streams": spec.streams,
        "lease": spec.lease,
        "admission": spec.admission,
        "slice_bytes": spec.slice_size,
    }


def check_lossless(topology: Topology) -> None:
    """Raises ComparisonError for links with impairments: streams in virtual time never
    retransmit."""
    for link in topology.links:
        for quality in (link.forward, link.backward):
            if quality.impaired:
                raise ComparisonError(
                    f"{topology.source}: {link.a} to {link.b} loses, doubles, reorders or corrupts"
                    " packets, and streams in virtual time do not recover from that; use --only"
                    " in-network or --clock emulated, or set loss, duplicate, reorder and corrupt"
                    " to 0"
                )
