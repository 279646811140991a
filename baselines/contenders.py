# SPDX-License-Identifier: Apache-2.0
"""The contenders of ``rackhub compare`` for the hosts of a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from baselines.comparison import ComparisonError, Contender, SwitchedJob, Work
from baselines.members import GLOO, IN_NETWORK, MOST_WORKERS, ServiceOptions
from controller.p4rt.dataplane import DataPlane
from controller.planning.admission import NoRoomError, Resources
from controller.planning.tree_planner import PlanRefusedError
from controller.planning.windows import MOST as MOST_WINDOW
from planner import flows
from planner.collectives import COLLECTIVES, Team, TeamError
from planner.collectives.ring import Ring
from planner.flows import Wires
from planner.link_loads import Direction, Load, Workload, expected, qualities
from specs import jobfile
from specs.jobfile import Placement
from testbed import preflight
from testbed.preflight import JobPlan
from topologies.model.addressing import Addressing, HostInterface
from topologies.model.replica_order import units_by_rank
from topologies.model.topology import Topology

_SHARED = 2  # parts of a queue, one of which streams have where switches sum for their servers
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
        loads: list[Mapping[Direction, Load]] = [wires.loads(one) for one in rounds]
        piece = collective.piece(team, work.size, segment)
        switched = None
        if collective.switched and len(here) > 1:
            hosts = [end.node for end in here]
            switched, load = _switched(name, addressing, hosts, workers[0], plane, work, piece)
            loads.append(load)
        found.append(
            Contender(
                name, meaning, team, tuple(wires.ends), tuple(loads), rounds, wires, piece, switched
            )
        )
    return found


def _switched(
    name: str,
    addressing: Addressing,
    hosts: Sequence[str],
    other: HostInterface,
    plane: DataPlane,
    work: Work,
    piece: int,
) -> tuple[SwitchedJob, Mapping[Direction, Load]]:
    """Returns the job in which switches sum for servers, and its load of an iteration.

    hosts: Of the servers. other: A host that is none of them, whose server process no packet
    reaches. piece: Values that are forwarded together, about as many as a key has.

    Raises:
        ComparisonError: Switches cannot sum for them.
    """
    topology = addressing.topology
    lines = qualities(addressing).values()
    room = min(one.queue_bytes for one in lines) // (_SHARED * plane.frame_bytes)
    window = min(MOST_WINDOW, 1 << (max(1, room).bit_length() - 1))
    file = jobfile.parse(f"{{name: boxes, iterations: 1, batch: {len(hosts)}, window: {window}}}")
    resources = Resources((node.name for node in topology.switches), plane.slots)
    place = Placement(tuple(hosts), (other.node,))
    try:
        plan = preflight.admit(file, place, 0, addressing, resources, plane, None)
    except (PlanRefusedError, NoRoomError) as error:
        raise ComparisonError(f"{topology.source}: {name}: {error}") from error
    whole = max(1, piece // plane.lanes) * plane.lanes
    bounds = (*range(0, work.size, whole), work.size)
    slices = plane.chunks_per_slice(file.spec.slice_size)
    sizes = tuple(high - low for low, high in pairwise(bounds))
    once = Workload(sizes, plane.lanes, 1, slices, exponent_rounds=0)
    load = expected(addressing, plan.trees, plan.servers, once)
    return SwitchedJob(plan, bounds, plane.frame_bytes), load


def default_names(addressing: Addressing, plan: JobPlan) -> tuple[str, ...]:
    """Returns the contenders that differ from each other with the hosts of a job, without gloo."""
    topology = addressing.topology
    workers, servers = _hosts(addressing, plan)
    team = _team(topology, workers, servers)
    suited = [name for name, one in COLLECTIVES.items() if one.suits(team)]
    if not topology.cores:  # of which a collective with switches needs one
        suited = [name for name in suited if not COLLECTIVES[name].switched]
    return (IN_NETWORK, *suited)


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
