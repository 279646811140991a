# SPDX-License-Identifier: Apache-2.0
"""Checks before a start that jobs fit the topology, and the topology the program.

``check`` plans and admits jobs as the controller will, all together on empty switches. Errors name
file, line and field.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from typing_extensions import TypedDict

from controller.p4rt.dataplane import DataPlane
from controller.planning.admission import Admission, NoRoomError, Reservation, Resources
from controller.planning.levels import NotJoinedError, join
from controller.planning.stream_numbers import wanted_streams
from controller.planning.tree_planner import PlanRefusedError, Tree, TreeKind, TreeNode, plan_trees
from controller.planning.windows import choose_window
from hosts.data.checkpoint import read
from hosts.errors import CheckpointError
from planner.queues import describe_incast
from protocol.header import LANE_BYTES
from protocol.propagation import USUAL
from specs import jobfile
from specs.jobfile import JobFile, JobFileError, Placement
from specs.jobspec import JobSpec
from testbed.targets import BMV2_QUEUE_PACKETS, Target
from topologies.model.addressing import Addressing
from topologies.model.documents import Location, Problem, errors_as
from topologies.model.replica_order import units_by_rank
from topologies.model.spec import TopologyFile
from topologies.model.topology import Topology
from topologies.model.units import size_text, time_text
from topologies.model.wording import few
from workloads.layer_times import times_of
from workloads.memory import memory_of
from workloads.trainer import misfit
from workloads.workloads import WORKLOADS, layers, open_workload, shapes

MOST_SHOWN = 8  # child switches that are listed one by one


@dataclass(frozen=True)
class JobPlan:
    """A job's placement, trees, and slots in the switches.

    servers: names of its server processes, by rank.
    kind: the tree that it gets, which may differ from the one in its file.
    """

    file: JobFile
    placement: Placement
    servers: tuple[str, ...]
    kind: TreeKind
    trees: tuple[Tree, ...]
    reservation: Reservation

    @property
    def slots(self) -> dict[str, int]:
        """Slots by switch."""
        return self.reservation.slots()

    @property
    def memory(self) -> int:
        """Bytes that the gradients and sums of its workers take; 0 if that is little."""
        return memory_of(self.file.spec, len(self.placement.workers))


@dataclass(frozen=True)
class Preflight:
    """A checked topology with its jobs.

    warnings: idle parts, windows that overflow queues, and payloads that take much memory.
    """

    topology: Topology
    jobs: tuple[JobPlan, ...]
    warnings: tuple[Problem, ...]


def check(
    topology: TopologyFile,
    jobs: Sequence[Path | JobFile],
    plane: DataPlane,
    target: Target,
    restore: Path | None = None,
    *,
    virtual: bool = False,
) -> Preflight:
    """Places, plans and admits jobs; raises ``TopologyError``, or ``JobFileError`` for all of them.

    jobs: files, or what was read of them.
    restore: checkpoint that the jobs continue from, instead of those in their files.
    virtual: check for virtual time, not for emulation.
    """
    _check_links(topology, plane, virtual=virtual)
    _check_routes(topology, plane)
    addressing = Addressing(topology.topology)
    resources = Resources((node.name for node in topology.topology.switches), plane.slots)
    most = BMV2_QUEUE_PACKETS if target == "bmv2" else None
    plans: list[JobPlan] = []
    problems: list[Problem] = []
    for number, job in enumerate(jobs):
        try:
            file = job if isinstance(job, JobFile) else jobfile.load(job, restore)
            if crowded := _crowded(topology, file, addressing):
                problems.append(crowded)
                continue
            placement = file.place(topology.topology)
            _check_payload(file, plane, virtual=virtual)
            _check_workload(file, len(placement.workers))
        except JobFileError as error:
            problems += error.problems
            continue
        try:
            plans.append(admit(file, placement, number, addressing, resources, plane, most))
        except NoRoomError as refusal:
            others = ", ".join(plan.file.spec.name for plan in plans)
            text = f"{refusal} (after {others})" if others else str(refusal)
            problems.append(file.document.problem(("window",), text))
        except PlanRefusedError as refusal:
            problems.append(_plan_problem(topology, file, refusal))
    if problems:
        raise JobFileError(problems)
    warnings = _idle(topology, addressing)
    warnings += [one for plan in plans for one in _overflowing(plan, addressing, plane, most)]
    warnings += [one for plan in plans for one in _large(plan)]
    return Preflight(topology.topology, tuple(plans), tuple(warnings))


def admit(
    file: JobFile,
    placement: Placement,
    number: int,
    addressing: Addressing,
    resources: Resources,
    plane: DataPlane,
    most: int | None,
) -> JobPlan:
    """Plans and admits a job; raises ``PlanRefusedError``, ``NoRoomError``.

    number: index of the job, by which trees are spread over cores.
    most: packets in a queue, as of ``choose_window``; None: no limit.
    """
    spec, topology = file.spec, addressing.topology
    units = units_by_rank(addressing, placement.servers)
    servers = [unit.address for unit in units]
    streams = wanted_streams(spec.streams, spec.balance.plan, len(units), spec.propagation)
    kind, trees, reservation = resources.admit(
        lambda kind: plan_trees(
            *(topology, addressing, placement.workers, servers, kind, streams, number),
            propagation=spec.propagation,
        ),
        TreeKind.of(spec.tree),
        spec.window,
        lambda trees: choose_window(
            addressing, trees, servers, plane.frame_bytes, queue_packets=most
        ),
        Admission.of(spec.admission),
    )
    names = tuple(unit.name for unit in units)
    return JobPlan(file, placement, names, kind, trees, reservation)


def _check_links(file: TopologyFile, plane: DataPlane, *, virtual: bool) -> None:
    """Refuses delays in emulation, MTUs too small for the program's chunks, and TLS."""
    needed = plane.packet_bytes
    for link, places in zip(file.topology.links, file.places, strict=True):
        for quality, where in zip((link.forward, link.backward), places, strict=True):
            if quality.delay and not virtual:
                file.refuse(
                    where["delay"],
                    f"{link.a} to {link.b} would have a delay, and emulated links have none (not"
                    " every kernel has netem); allowed: 0 ms, or --clock virtual",
                )
            if quality.mtu < needed:
                file.refuse(
                    where.get("mtu", ("defaults",)),
                    f"{link.a} to {link.b} has MTU {quality.mtu}, and a chunk of {plane.lanes}"
                    f" lanes makes packets of {needed} B; allowed: at least that, or a build with"
                    " smaller chunks",
                )
    if file.topology.tls:
        file.refuse(
            ("tls",),
            "control goes over unix sockets, which need no TLS (not in this version);"
            " allowed: false",
        )
    file.check()


def _check_routes(file: TopologyFile, plane: DataPlane) -> None:
    """Refuses topologies with more routes than the table of a switch holds: one to every interface
    of a host and to every other switch."""
    topology = file.topology
    held = plane.program.most_routes
    needed = (
        sum(len(topology.links_of(host.name)) for host in topology.hosts)
        + len(topology.switches)
        - 1
    )
    if needed > held:
        file.refuse(
            ("racks",),
            f"{needed} addresses for each switch to have routes to, and the program's table holds"
            f" {held}; use fewer hosts (`rackhub plan` takes as many)",
        )
    file.check()


def _check_payload(file: JobFile, plane: DataPlane, *, virtual: bool) -> None:
    """Checks a job's payload against program and clock. Raises ``JobFileError``."""
    spec = file.spec
    if spec.payload == "none" and not virtual:
        raise file.refusal(
            ("payload",),
            "only simulated links carry chunks without one; allowed: summed, or --clock virtual",
        )
    if (spec.payload == "none") == plane.sums:
        others = "without payload" if spec.payload == "summed" else "with payload"
        text = f"{spec.payload}, and other jobs of the run are {others}: one program runs them all"
        raise file.refusal(("payload",), text)
    if spec.payload == "none" and spec.chunk_bytes != LANE_BYTES * plane.lanes:
        raise file.refusal(
            ("chunk_bytes",),
            f"{spec.chunk_bytes} B, and other jobs of the run have chunks of"
            f" {LANE_BYTES * plane.lanes} B; allowed: the same for all",
        )


def _check_workload(file: JobFile, world: int) -> None:
    """Checks a job against its data set, model and checkpoint. Raises ``JobFileError``."""
    spec = file.spec
    if file.layer_times is not None:
        with errors_as(JobFileError):
            file.layer_times.check(list(layers(spec)), f"the model of job {spec.name}")
    if spec.compute.iteration is not None and times_of(file) is None:
        text = (
            f"is divided by multiplications, and those of {spec.model} depend on the example;"
            " allowed: seconds or layers"
        )
        raise file.refusal(("compute", "iteration"), text)
    if not spec.learns:
        return
    try:
        workload = open_workload(spec)
    except RuntimeError as error:
        raise file.refusal(("workload",), str(error)) from error
    # A worker's share of a batch comes from its share of the data, without repetition.
    most = world * (workload.examples // world)
    if spec.batch > most:
        raise file.refusal(
            ("batch",),
            f"{spec.batch} is more than the training set's {workload.examples} {workload.unit}s"
            f" give {world} workers; allowed: multiples of {world} up to {most}",
        )
    sizes = shapes(spec)
    names = list(sizes)
    if file.restore is not None:
        try:
            checkpoint = read(file.restore)
            checkpoint.check_keys(file.restore, sizes)
        except CheckpointError as error:
            raise file.cannot_restore(str(error)) from error
        if why := misfit(spec, checkpoint):
            raise file.cannot_restore(f"{file.restore}: {why}")
    unknown = [key for key in spec.optimizer.keys if not any(fnmatchcase(n, key) for n in names)]
    if unknown:
        raise JobFileError(
            file.document.problem(
                ("optimizer", "keys", key), f"fits no parameter; there are {', '.join(names)}"
            )
            for key in unknown
        )


def _plan_problem(topology: TopologyFile, file: JobFile, refusal: PlanRefusedError) -> Problem:
    text = str(refusal)
    given = file.spec.placement.workers is not None
    if refusal.field == "cores" and not given:
        return topology.problem(("cores",), text)
    if refusal.tor is not None and not given:
        rack = topology.topology.by_name[refusal.tor].rack
        assert rack is not None
        text += f" (job {file.spec.name} takes all: `placement` in {file.source} can name some)"
        return topology.problem(("racks", topology.racks[rack], "workers"), text)
    place: Location = (refusal.field,)
    if refusal.field in ("workers", "cores"):
        place = ("placement", "workers") if given else ("tree",)
    return file.document.problem(place, text)


def _crowded(topology: TopologyFile, file: JobFile, addressing: Addressing) -> Problem | None:
    """Returns a problem of the topology if no tree can join all its workers; else None.

    Only for jobs that take all workers, as a subset would train on other batches.
    """
    if file.spec.placement.workers is not None:
        return None
    nodes = topology.topology
    servers = units_by_rank(addressing, [node.name for node in nodes.servers])
    workers = [node.name for node in nodes.workers]
    kind = TreeKind.of(file.spec.tree)
    addresses = [unit.address for unit in servers]
    try:
        plan_trees(
            *(nodes, addressing, workers, addresses, kind, file.spec.streams),
            propagation=file.spec.propagation,
        )
    except PlanRefusedError as refusal:
        of_topology = refusal.tor is not None or refusal.field == "cores"
        return _plan_problem(topology, file, refusal) if of_topology else None
    return None


def _idle(file: TopologyFile, addressing: Addressing) -> list[Problem]:
    """Returns warnings for core levels above the one at which all racks are joined."""
    topology = file.topology
    try:
        levels = len(join(topology, addressing, [tor.name for tor in topology.tors], 0))
    except NotJoinedError:  # an error of the jobs that take all racks
        return []
    idle = [core.name for core in topology.cores if core.level > 1 + max(levels, 1)]
    if not idle:
        return []
    text = f"{few(idle)}: carries nothing, as lower levels join all racks"
    return [file.problem(("cores",), text)]


def _overflowing(
    plan: JobPlan, addressing: Addressing, plane: DataPlane, most: int | None
) -> list[Problem]:
    """Returns a warning if a job's windows exceed a queue where they meet."""
    spec, window = plan.file.spec, plan.reservation.window
    servers = [addressing.unit(name).address for name in plan.servers]
    sizes = window, _chunks(spec, plane), plane.frame_bytes
    text = describe_incast(addressing, plan.trees, servers, *sizes, queue_packets=most)
    place = ("window",) if spec.window else ("tree",)
    return [plan.file.document.problem(place, text)] if text else []


def _large(plan: JobPlan) -> list[Problem]:
    """Returns a warning if a job's gradients and sums take most of the machine's memory."""
    here = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if plan.memory <= here / 2:
        return []
    text = (
        f"gradients and sums of {_counted(len(plan.placement.workers), 'worker')} take about"
        f" {size_text(plan.memory)} of memory, and this machine has {size_text(here)}; `none` takes"
        " little, with --clock virtual"
    )
    return [plan.file.document.problem(("payload",), text)]


class PlannedJob(TypedDict):
    """A job as it would start."""

    job: str
    """Name of the job."""
    file: str
    """Path of its file."""
    placement: str | None
    """Kind of its placement; null if its file names none."""
    workers: list[str]
    """Hosts of its workers, by rank."""
    servers: list[str]
    """Hosts of its servers."""
    spares: list[str]
    """Those of them that have no slices at first."""
    server_processes: list[str]
    """Names of its server processes, by rank."""
    tree: str
    """Tree that it would have."""
    parameters: int
    """Elements of its model."""
    memory_bytes: int
    """Memory that gradients and sums of its workers take, estimated; 0 if that is little."""
    streams: int
    """Number of its streams, of all classes of urgency together. Those of a class have a tree
    each."""
    window: int
    """Chunks in flight in each stream."""
    slots: dict[str, int]
    """Slots by switch."""


class CheckFacts(TypedDict):
    """The result of a check. Counts are of the topology's parts."""

    topology: str
    """Name of the topology."""
    target: Target
    """What would run the switches' program."""
    racks: int
    workers: int
    servers: int
    switches: int
    links: int
    warnings: list[str]
    """Texts of the warnings, with file and line."""
    jobs: list[PlannedJob]
    """The jobs, in the order given."""


def facts(checked: Preflight, target: Target) -> CheckFacts:
    """Returns the result of a check as data."""
    topology = checked.topology
    return {
        "topology": topology.name,
        "target": target,
        "racks": topology.racks,
        "workers": len(topology.workers),
        "servers": len(topology.servers),
        "switches": len(topology.switches),
        "links": len(topology.links),
        "warnings": [str(warning) for warning in checked.warnings],
        "jobs": [
            {
                "job": plan.file.spec.name,
                "file": plan.file.source,
                "placement": plan.file.spec.placement.kind,
                "workers": list(plan.placement.workers),
                "servers": list(plan.placement.servers),
                "spares": list(plan.placement.spares),
                "server_processes": list(plan.servers),
                "tree": str(plan.kind),
                "parameters": sum(shapes(plan.file.spec).values()),
                "memory_bytes": plan.memory,
                "streams": len(plan.trees),
                "window": plan.reservation.window,
                "slots": plan.slots,
            }
            for plan in checked.jobs
        ],
    }


def describe(checked: Preflight, plane: DataPlane) -> list[str]:
    """Returns the result of a check as lines of text."""
    topology = checked.topology
    counts = [
        (topology.racks, "rack"), (len(topology.workers), "worker"),
        (len(topology.servers), "server"), (len(topology.switches), "switch"),
        (len(topology.links), "link"),
    ]  # fmt: skip
    lines = [f"{topology.source}: {', '.join(_counted(*one) for one in counts)}"]
    for plan in checked.jobs:
        spec, window = plan.file.spec, plan.reservation.window
        trees = Counter(_shape(tree) for tree in plan.trees)
        slots = Counter(plan.slots.values())
        held = [
            f"{size} of {plane.slots} in {few([n for n, s in plan.slots.items() if s == size])}"
            for size in slots
        ]
        lines += [
            f"{plan.file.source}: job {spec.name}, {_counted(spec.iterations, 'iteration')}"
            + (f" of {_counted(spec.batch, WORKLOADS[spec.workload].unit)}" if spec.learns else ""),
            f"  model    {_model(spec, plane)}",
            *_computing(spec),
            f"  workers  {few(list(plan.placement.workers))}",
            f"  servers  {_servers(plan)}",
            f"  tree     {plan.kind}{_instead(plan)}: {'; '.join(trees)}",
            f"  streams  {_streams(plan)}, window {window} (chunks in flight in each)",
            f"  slots    {', '.join(held) or 'none'}",
        ]
        if spec.propagation != USUAL:
            lines.append(f"  schedule {spec.propagation}")
        if plan.memory:
            lines.append(f"  memory   about {size_text(plan.memory)}, of all workers together")
    return lines + _cores_without_sums(checked)


def _streams(plan: JobPlan) -> str:
    """Returns the number of a job's streams, and of what they are if it has classes."""
    spec = plan.file.spec
    classes, keys = spec.propagation.classes, len(shapes(spec))
    if classes == 1:
        return f"{len(plan.trees)}"
    used = "" if keys >= classes else f"; {keys} are used, by as many keys"
    return f"{len(plan.trees)} ({classes} classes of {len(plan.trees) // classes}{used})"


def _cores_without_sums(checked: Preflight) -> list[str]:
    """Returns a line that names the cores where no job sums; none without jobs or such cores."""
    summing = {name for plan in checked.jobs for name in plan.slots}
    cores = [core.name for core in checked.topology.cores]
    idle = [name for name in cores if name not in summing]
    if not idle or not checked.jobs:
        return []
    turns = (
        "; jobs and streams take turns at the cores of a level" if len(idle) < len(cores) else ""
    )
    return [f"no job sums in {few(idle)}{turns}"]


def _instead(plan: JobPlan) -> str:
    """Returns a remark if the job was admitted with another tree than it requested."""
    asked = plan.file.spec.tree
    return "" if asked == str(plan.kind) else f" (no slots are left for {asked})"


def _servers(plan: JobPlan) -> str:
    """Returns the server hosts, those that are spare, and the number of processes if there are
    more."""
    placement = plan.placement
    hosts = few(list(placement.servers))
    if placement.spares:
        hosts += f" ({few(list(placement.spares))} spare)"
    several = len(plan.servers) > len(placement.servers)
    return f"{hosts}: {_counted(len(plan.servers), 'process')}" if several else hosts


def _model(spec: JobSpec, plane: DataPlane) -> str:
    """Returns the size of a job's gradients in words."""
    parameters, chunks = sum(shapes(spec).values()), _chunks(spec, plane)
    size = f"{parameters:,} parameters, {_counted(chunks, 'chunk')} each way in an iteration"
    return f"{spec.subject}: {size}"


def _computing(spec: JobSpec) -> list[str]:
    """Returns a line on a model's time of computing, and where that is from; none without."""
    compute = spec.compute
    if compute.iteration is None:
        return []
    source = "" if compute.source is None else f" ({compute.source})"
    return [f"  compute  {time_text(compute.iteration)} an iteration, by multiplications{source}"]


def _chunks(spec: JobSpec, plane: DataPlane) -> int:
    """Returns the number of chunks of an iteration."""
    return sum(-(-size // plane.lanes) for size in shapes(spec).values())


def _shape(tree: Tree) -> str:
    """Describes a tree: core0 over tor0 (w0..w3), tor1 (w4..w7)."""
    return f"{tree.root.switch or 'the servers'} over {_below(tree, tree.root)}"


def _below(tree: Tree, node: TreeNode) -> str:
    switches = [child for child in node.children if child.rank is None]
    if not switches:
        return few([child.name for child in node.children])
    if len(switches) > MOST_SHOWN:
        return f"{few([one.name for one in switches])} with {_counted(node.workers, 'worker')}"
    return ", ".join(f"{one.name} ({_below(tree, tree.by_number[one.node])})" for one in switches)


def _counted(number: int, what: str) -> str:
    plural = f"{what}es" if what.endswith(("ch", "ss")) else f"{what}s"
    return f"{number} {what if number == 1 else plural}"
